"""The Spark job that arranges a collection by another key: sorted parts of key-hash ranges, in
bulk.

It commits nothing; the service appends what it wrote by compare-and-append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from secrets import token_hex

import msgspec
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import read_schema
from tidemill.arrangement.updates import advance, between
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Description
from tidemill.shard.encoding import unpack_part
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.backfill import MAPPED_SCHEMA, Target, in_buckets, write_buckets
from tidemill.spark.collection_target import collection_target
from tidemill.spark.dealing import dealt
from tidemill.spark.workplace import Workplace
from tidemill.time import frontier


class ArrangeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts of one collection, and the key by which another one is to hold the same updates.

    Updates of [lower, upper) are taken; with `fresh` those before `lower` as well, at `lower`.
    """

    collection: str
    schema: bytes
    arrived: list[str]
    key: list[str]
    parts: list[bytes]
    fresh: bool
    lower: int
    upper: int


class ArrangeResult(msgspec.Struct, frozen=True):
    """The parts that were written."""

    parts: list[bytes]


def described(spec: ArrangeSpec) -> Description:
    """The updates as their parts have them."""
    schema = read_schema(spec.schema)
    return Description(schema, kind="arrangement", arrived=tuple(spec.arrived))


async def updates_of(place: BlobPlace, spec: ArrangeSpec, part: Part) -> pa.Table:
    """Updates of a part for the arrangement. Raises: PartGone, Corrupt."""
    blob = open_blob(place, partial(token_hex, 16))
    try:
        table = await PartStore(blob, partial(token_hex, 16)).table(
            part, described(spec), keep=False
        )
    finally:
        await blob.close()
    if part.lower or part.upper is not None:
        table = between(table, part.lower, part.upper)
    if spec.fresh:
        return advance(between(table, 0, spec.upper), frontier(spec.lower))
    return between(table, spec.lower, spec.upper)


def target_of(spec: ArrangeSpec, place: BlobPlace, rows: int) -> Target:
    """Target of the updates in the arrangement."""
    schema = described(spec).schema
    key = tuple(spec.key)
    return collection_target(
        spec.collection, schema, key,
        lower=spec.lower, place=place, rows=rows, now_ms=SystemClock().now_ms,
    )  # fmt: skip


def cut_parts(
    place: BlobPlace, packed: bytes, rows: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: its parts, cut up by the hash ranges of the new key."""
    spec = msgspec.msgpack.decode(packed, type=ArrangeSpec)
    target = target_of(spec, place, rows)
    for batch in batches:
        for row in batch.to_pylist():
            part = unpack_part(spec.parts[row["number"]])
            yield from in_buckets(target, asyncio.run(updates_of(place, spec, part)))


def run(packed: bytes, here: Workplace) -> bytes:
    """The whole job. Cost: one shuffle."""
    spec = msgspec.msgpack.decode(packed, type=ArrangeSpec)
    if not spec.parts:
        return msgspec.msgpack.encode(ArrangeResult([]))
    rows = sum(unpack_part(part).rows for part in spec.parts)
    here.say(f"arranging {rows} updates of {len(spec.parts)} parts by {', '.join(spec.key)}")
    numbers = pa.table({"number": pa.array(range(len(spec.parts)), pa.int32())})
    frame = dealt(here.spark, numbers, "number")
    cut = frame.mapInArrow(partial(cut_parts, here.blob, packed, rows), MAPPED_SCHEMA)
    written = write_buckets(cut, [target_of(spec, here.blob, rows)])
    parts = [
        part for each in written for part in msgspec.msgpack.decode(each.part, type=list[bytes])
    ]
    here.say(f"wrote {len(parts)} parts")
    return msgspec.msgpack.encode(ArrangeResult(parts))
