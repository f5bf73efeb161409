"""The Spark job that reclocks a backlog: writes parts and says which.

It commits nothing; the service appends the parts by compare-and-append.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import read_schema, read_stream
from tidemill.reclock import Bindings, map_offsets
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.formats import Column, RecordFormat, RowDecoder
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX
from tidemill.runtime.formats.schema_memory import (
    KnownSchemas,
    NumberedRecords,
    SchemaMemory,
    spans,
)
from tidemill.runtime.kafka_access import KafkaPlace
from tidemill.shard.stores import BlobPlace
from tidemill.spark.backfill import Decoded, Target, backfill
from tidemill.spark.backfill import Written as PartWritten
from tidemill.spark.collection_target import collection_target
from tidemill.spark.log_ranges import OffsetRange
from tidemill.spark.workplace import Workplace
from tidemill.time import frontier
from tidemill_reclock.bulk_records import records_of

if TYPE_CHECKING:  # who launches this job reads its specification, and has no Spark
    from pyspark.sql import DataFrame

_NUMBERED_FIELDS: list[pa.Field[Any]] = [
    pa.field(name, pa.int64()) for name in ("number", "partition", "first", "last")
]
_NUMBERED = pa.schema(_NUMBERED_FIELDS)
_NUMBERED_COLUMNS = "number long, partition long, first long, last long"


class TargetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collection to write: its data columns as a serialized Arrow schema, its sort key."""

    collection: str
    schema: bytes
    key: list[str]
    lower: int


class ColumnSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of the source."""

    name: str
    kind: str
    nullable: bool


class BackfillSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a backfill needs.

    The topic of `origin` is in the embedded log under `log_directory`, or else in Kafka. `bindings`
    are the remap collection's updates before `upper` as an Arrow stream. `schemas` is what is known
    of the schemas that records name by number, if they do.
    """

    source: str
    origin: KafkaPlace
    log_directory: str | None
    ranges: list[tuple[int, int, int]]
    bindings: bytes
    upper: int
    columns: list[ColumnSpec]
    record_format: RecordFormat
    schemas: KnownSchemas | None
    rows: TargetSpec
    letters: TargetSpec
    heartbeats: bool = False
    row_bytes: int = ROW_BYTES_MAX


class Written(msgspec.Struct, frozen=True):
    """Output of one task for a collection: parts as `tidemill.shard` packs them."""

    collection: str
    updates: int
    parts: list[bytes]


class BackfillResult(msgspec.Struct, frozen=True):
    """Result of the job: parts, or else the records about whose schemas nothing is decided yet."""

    written: list[Written] = []
    undecided: list[NumberedRecords] = []


class Recipe(msgspec.Struct, frozen=True):
    """Decoder of records, as plain data that travels to the executors."""

    columns: list[ColumnSpec]
    record_format: RecordFormat
    schemas: KnownSchemas | None
    heartbeats: bool = False
    row_bytes: int = ROW_BYTES_MAX


class BatchDecoder:
    """The decoder of the live path, for batches of records of a log."""

    def __init__(self, recipe: Recipe) -> None:
        columns = [Column(c.name, c.kind, c.nullable) for c in recipe.columns]
        self._memory: SchemaMemory | None = None
        reader = None
        if recipe.schemas is not None:
            from tidemill.runtime.formats.avro import AvroReader

            reader = AvroReader(columns)
            self._memory = SchemaMemory(reader, recipe.schemas)
        self._rows = RowDecoder(
            columns, recipe.record_format, reader, recipe.heartbeats, recipe.row_bytes
        )  # fmt: skip

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The batch as rows and letters. Raises: ValueError if a schema is not decided."""
        columns = batch.to_pydict()
        places = columns["partition"], columns["offset"]
        values = columns["value"]
        if self._memory is None:
            rows, letters = self._rows.decode(*places, values)
            return Decoded(rows, letters)
        refused, undecided = self._memory.sort_out(*places, values)
        if undecided:
            raise ValueError(f"nothing is decided about the schemas {sorted(undecided)}")
        kept = [at for at in range(len(values)) if at not in refused]
        rows, letters = self._rows.decode(
            *([column[at] for at in kept] for column in (*places, values))
        )
        told = self._rows.letters(*places, values, refused)
        return Decoded(rows, pa.concat_tables([letters, told]))

    def undecided(self, batch: pa.RecordBatch) -> list[NumberedRecords]:
        """Ranges of the records about whose schemas nothing is decided."""
        assert self._memory is not None
        columns = batch.to_pydict()
        places = columns["partition"], columns["offset"]
        _, numbers = self._memory.sort_out(*places, columns["value"])
        return [each for number, at in numbers.items() for each in spans(number, *places, at)]


@lru_cache(maxsize=4)
def decoder_of(recipe: bytes) -> BatchDecoder:
    """One decoder for each recipe in a process: some read with what cannot travel."""
    return BatchDecoder(msgspec.msgpack.decode(recipe, type=Recipe))


def decode_batch(recipe: bytes, batch: pa.RecordBatch) -> Decoded:
    """A batch of log records as rows and letters."""
    return decoder_of(recipe).decode(batch)


def scan_batches(recipe: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The undecided records of each batch."""
    for batch in batches:
        found = decoder_of(recipe).undecided(batch)
        if found:
            yield pa.RecordBatch.from_pylist(
                [msgspec.structs.asdict(each) for each in found], _NUMBERED
            )


def undecided_in(frame: DataFrame, recipe: bytes) -> list[NumberedRecords]:
    """The undecided records of all, as one range for each schema and partition.

    Cost: reads all once.
    """
    found: dict[tuple[int, int], NumberedRecords] = {}
    for row in frame.mapInArrow(partial(scan_batches, recipe), _NUMBERED_COLUMNS).collect():
        each = NumberedRecords(row["number"], row["partition"], row["first"], row["last"])
        known = found.get((each.number, each.partition), each)
        found[each.number, each.partition] = msgspec.structs.replace(
            each, first=min(each.first, known.first), last=max(each.last, known.last)
        )
    return list(found.values())


def target_of(spec: TargetSpec, place: BlobPlace, records: int) -> Target:
    """Target of the job in the collection of a specification."""
    schema = read_schema(spec.schema)
    key = tuple(spec.key)
    return collection_target(
        spec.collection, schema, key,
        lower=spec.lower, place=place, rows=records, now_ms=SystemClock().now_ms,
    )  # fmt: skip


def run(packed: bytes, here: Workplace) -> bytes:
    """The whole job."""
    spec = msgspec.msgpack.decode(packed, type=BackfillSpec)
    ranges = tuple(OffsetRange(*each) for each in spec.ranges)
    records = sum(part.stop - part.start for part in ranges)
    here.say(f"reclocking {records} records of {spec.origin.topic}")
    frame = records_of(here.spark, spec.origin, spec.log_directory, ranges)
    recipe = msgspec.msgpack.encode(
        Recipe(spec.columns, spec.record_format, spec.schemas, spec.heartbeats, spec.row_bytes)
    )
    if spec.schemas is not None and (undecided := undecided_in(frame, recipe)):
        here.say(f"schemas are not decided: {sorted({each.number for each in undecided})}")
        return msgspec.msgpack.encode(BackfillResult(undecided=undecided))
    written = backfill(
        frame,
        partial(decode_batch, recipe),
        partial(map_offsets, bindings_of(spec)),
        target_of(spec.rows, here.blob, records),
        target_of(spec.letters, here.blob, records // 100),
    )
    here.say(f"wrote {len(written)} parts")
    return packed_result(written)


def bindings_of(spec: BackfillSpec) -> Bindings:
    """The bindings from which each record has its time."""
    rows = read_stream(spec.bindings)
    times: list[Any] = rows["_time"].to_pylist()
    return Bindings.of_rows(rows, min(times, default=0), frontier(spec.upper))


def packed_result(written: Sequence[PartWritten]) -> bytes:
    """Result of the job for the parts that its tasks wrote."""
    parts = [
        Written(each.target, each.updates, msgspec.msgpack.decode(each.part, type=list[bytes]))
        for each in written
    ]
    return msgspec.msgpack.encode(BackfillResult(parts))
