"""The Spark job that reclocks the backlog of a keyed source from its beginning: changes in, parts
out.

Decoding and the meaning of changes are those of the live path. It commits nothing; the service
appends the parts by compare-and-append.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import msgspec
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import read_schema
from tidemill.catalog.records.decoding import RecordDecoder
from tidemill.reclock import CHANGE_SCHEMA, KeyedRows, letters_of, map_offsets
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.runtime.log import LogRecord
from tidemill.runtime.resources.decoding import RecordShape
from tidemill.spark.backfill import Decoded, Fold, backfill_folded
from tidemill.spark.collection_target import collection_target
from tidemill.spark.log_ranges import OffsetRange
from tidemill.spark.workplace import Workplace
from tidemill_reclock.backfill_job import BackfillSpec, bindings_of, packed_result, target_of
from tidemill_reclock.bulk_records import records_of
from tidemill_reclock.bulk_spark import BulkJob

CHANGES = "changes"


class KeyedSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A backfill, and what its records mean."""

    backfill: BackfillSpec
    shape: RecordShape


def keyed_job(shape: RecordShape) -> BulkJob:
    """The job for records of this shape, of a source none of which has been written."""
    return BulkJob(__name__, lambda spec: msgspec.msgpack.encode(KeyedSpec(spec, shape)))


@lru_cache(maxsize=4)
def _decoder_of(shape: bytes) -> RecordDecoder:
    """One decoder for each shape in a process: some read with what cannot travel."""
    return RecordDecoder(msgspec.msgpack.decode(shape, type=RecordShape))


def decode_changes(shape: bytes, batch: pa.RecordBatch) -> Decoded:
    """A batch of log records as changes and letters."""
    columns = batch.to_pydict()
    records = [
        LogRecord(partition, offset, key, value, 0)
        for partition, offset, key, value in zip(
            *(columns[name] for name in ("partition", "offset", "key", "value")), strict=True
        )
    ]
    return Decoded(*_decoder_of(shape).decode_now(records))


def apply_changes(
    schema: bytes, key: Sequence[str], changes: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """All changes of some keys from the beginning: updates of their rows, and letters of what is
    broken.
    """
    applied = KeyedRows(read_schema(schema), key).apply(changes)
    return applied.updates, letters_of(applied.broken, LETTER_SCHEMA)


def run(packed: bytes, here: Workplace) -> bytes:
    """The whole job."""
    told = msgspec.msgpack.decode(packed, type=KeyedSpec)
    spec, shape = told.backfill, told.shape
    ranges = tuple(OffsetRange(*each) for each in spec.ranges)
    records = sum(part.stop - part.start for part in ranges)
    here.say(f"reclocking {records} changes of {spec.origin.topic}")
    changes = collection_target(
        CHANGES, CHANGE_SCHEMA, ("_key",), lower=0, place=here.blob, rows=records,
        now_ms=SystemClock().now_ms,
    )  # fmt: skip
    written = backfill_folded(
        records_of(here.spark, spec.origin, spec.log_directory, ranges, keys=True),
        partial(decode_changes, msgspec.msgpack.encode(shape)),
        partial(map_offsets, bindings_of(spec)),
        Fold(changes, partial(apply_changes, spec.rows.schema, shape.envelope.key)),
        target_of(spec.rows, here.blob, records),
        target_of(spec.letters, here.blob, records // 100),
    )
    here.say(f"wrote {len(written)} parts")
    return packed_result(written)
