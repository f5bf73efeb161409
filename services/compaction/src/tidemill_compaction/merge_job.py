"""The Spark job that merges parts: each task a hash range of keys, by the merge of the service
itself.

It commits nothing; the service puts what it wrote in place of what it was made of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from secrets import token_hex

import msgspec
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import read_schema
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Description
from tidemill.shard.compaction import RangeMerge
from tidemill.shard.encoding import pack_part, unpack_part
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import Part
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.dealing import dealt
from tidemill.spark.workplace import Workplace

_RANGES = pa.schema([("task", pa.int32()), ("low", pa.string()), ("high", pa.string())])
_WRITTEN = "gone boolean, part binary"


class MergeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A merge as data: the schema of the collection as Arrow has it, packed parts, hash ranges."""

    collection: str
    schema: bytes
    key: list[str]
    arrived: list[str]
    reached: int
    parts: list[bytes]
    ranges: list[tuple[int, int]]


class MergeResult(msgspec.Struct, frozen=True):
    """The parts that stand for the inputs; nothing if one of the inputs was gone."""

    gone: bool
    parts: list[bytes]


def spec_of(work: RangeMerge) -> MergeSpec:
    """A merge for executors."""
    return MergeSpec(
        work.collection,
        work.description.schema.serialize().to_pybytes(),
        list(work.description.key),
        list(work.description.arrived),
        work.reached,
        [pack_part(part) for part in work.inputs],
        work.ranges(),
    )


def work_of(spec: MergeSpec) -> RangeMerge:
    """The same merge again."""
    schema = read_schema(spec.schema)
    description = Description(
        schema, kind="merge", key=tuple(spec.key), arrived=tuple(spec.arrived)
    )
    inputs = tuple(unpack_part(part) for part in spec.parts)
    return RangeMerge(spec.collection, description, inputs, spec.reached)


async def merge_range(place: BlobPlace, spec: MergeSpec, low: int, high: int) -> list[Part]:
    """The parts of one hash range, written. Raises: PartGone."""
    blob = open_blob(place, partial(token_hex, 16))
    store = PartStore(blob, partial(token_hex, 16), now_ms=SystemClock().now_ms)
    try:
        return (await work_of(spec).write(store, low, high))[1]
    finally:
        await blob.close()


def merge_ranges(
    place: BlobPlace, packed: bytes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: its ranges, one after the other."""
    spec = msgspec.msgpack.decode(packed, type=MergeSpec)
    for batch in batches:
        for row in batch.to_pylist():
            parts: list[bytes | None] = []
            gone = False
            try:
                written = asyncio.run(merge_range(place, spec, int(row["low"]), int(row["high"])))
                parts += [pack_part(part) for part in written]
            except PartGone:
                gone = True
                parts.append(None)
            yield pa.RecordBatch.from_pydict(
                {
                    "gone": pa.array([gone] * len(parts), pa.bool_()),
                    "part": pa.array(parts, pa.binary()),
                }
            )


def run(packed: bytes, here: Workplace) -> bytes:
    """The whole job. Unsigned hashes travel as texts: Spark has no type for them."""
    spec = msgspec.msgpack.decode(packed, type=MergeSpec)
    here.say(f"merging {len(spec.parts)} parts of {spec.collection} in {len(spec.ranges)} ranges")
    ranges = [
        {"task": number, "low": str(low), "high": str(high)}
        for number, (low, high) in enumerate(spec.ranges)
    ]
    frame = dealt(here.spark, pa.Table.from_pylist(ranges, schema=_RANGES), "task")
    rows = frame.mapInArrow(partial(merge_ranges, here.blob, packed), _WRITTEN).collect()
    parts = [bytes(row["part"]) for row in rows if row["part"] is not None]
    here.say(f"wrote {len(parts)} parts")
    return msgspec.msgpack.encode(MergeResult(any(row["gone"] for row in rows), parts))
