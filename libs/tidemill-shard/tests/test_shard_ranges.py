"""The ranges of a version have each row once, and their objects stay while the version is held."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import consolidate
from tidemill.errors import (
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    NotYet,
    UnknownCapability,
    UsageError,
)
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
)
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.ranges import RangeOf, RangeReader, cut, with_parts
from tidemill.shard.state import State
from tidemill.time import frontier

ROWS = pa.schema([("n", pa.int64()), ("s", pa.string()), ("v", pa.float64())])
TINY_PARTS = Limits(inline_bytes_max=0, part_bytes_max=1_500, cache_bytes_max=0)
LISTED = replace(TINY_PARTS, listed_parts=2)
LEASE_MS = 10_000


class PlacedBlob(MemoryBlob):
    """Objects in memory that say where they are."""

    async def url(self, key: str, life_s: float) -> str:
        return f"memory:{key}"


class World:
    """A collection with tiny parts, so that its versions have many ranges."""

    def __init__(self, limits: Limits = TINY_PARTS, **described: Any) -> None:
        self.blob, self.clock = PlacedBlob(), ManualClock(1_000_000)
        names = count()
        self.ids = lambda: f"{next(names):032d}"
        self.store = Collections(MemoryConsensus(), self.blob, self.clock, self.ids, limits=limits)
        self.description = Description(ROWS, key=("n",), **described)
        self.upper = 0

    async def open(self) -> ReadCapability:
        read, _ = await self.store.create("c", self.description, lease_ms=None)
        return read

    async def write(self, rows: list[tuple[int, str, float, int]]) -> None:
        """Rows with their diffs, all at the next instant."""
        lanes = [(*row[:3], self.upper, row[3]) for row in rows]
        schema = self.description.update_schema()
        table = pa.Table.from_pylist(
            [dict(zip(schema.names, lane, strict=True)) for lane in lanes], schema
        )
        bounds = frontier(self.upper), frontier(self.upper + 1)
        await self.store.compare_and_append("c", *bounds, table, writer="w")
        self.upper += 1

    def reader(self) -> RangeReader:
        return RangeReader(PartStore(self.blob, self.ids))

    async def ranges(
        self, version: State, lower: int, upper: int, where: Any = None
    ) -> list[RangeOf]:
        """Ranges of about ten rows, whose lists were read."""
        parts, times = PartStore(self.blob, self.ids), (lower, upper)
        found = cut(version, *times, where, rows=10)
        return [await with_parts(parts, each, *times, where) for each in found]

    async def contents(self, version: State, at: int, columns: list[str], **more: Any) -> pa.Table:
        """The rows of all ranges of about ten rows together."""
        tables = []
        for each in await self.ranges(version, 0, at + 1, more.get("where")):
            tables += await self.reader().contents(each, at, columns, **more)
        fields = [version.description.schema.field(name) for name in columns]
        empty = pa.schema([*fields, ("_diff", pa.int64())]).empty_table()
        return consolidate(pa.concat_tables([empty, *tables]))


rows = st.tuples(
    st.integers(0, 40), st.sampled_from(["a", "b"]), st.just(1.5), st.integers(1, 3)
)  # fmt: skip
writes = st.lists(st.lists(rows, min_size=1, max_size=40), min_size=1, max_size=5)
wheres = st.sampled_from([None, pc.field("n") > 20, pc.field("s") == "a"])
columns = st.sampled_from([["n", "s", "v"], ["s"], ["v", "n"]])


@pytest.mark.rule("P1", "F11")
@settings(max_examples=30)
@given(writes, st.booleans(), st.booleans(), st.booleans(), wheres, columns, st.data())
async def test_ranges_have_together_what_a_snapshot_has(
    written: Any, taken: bool, merged: bool, listed: bool, where: Any, names: list[str], data: Any
) -> None:
    world = World(LISTED if listed else TINY_PARTS)
    read = await world.open()
    for each in written:
        await world.write(each)
    if taken:  # then rows are added up; without it each update is a row
        await world.write([(*row[:3], -row[3]) for row in written[0][:5]])
    if merged:
        await world.store.compact("c")
    at = data.draw(st.integers(0, world.upper - 1))
    if listed:
        await world.store.list_parts("c")
    version = await world.store.newest("c")
    filtered = () if where is None else ("n", "s")
    found = await world.contents(version, at, names, where=where, filtered=filtered)
    expected = await world.store.snapshot(read, at, columns=names, where=where)
    assert found.equals(consolidate(expected.select(found.column_names)))
    lower = data.draw(st.integers(0, at))
    pieces = [
        await world.reader().changes(each, lower, at + 1, names)
        for each in await world.ranges(version, lower, at + 1)
    ]
    whole = await world.store.changes(read, lower, at + 1, columns=names)
    assert consolidate(pa.concat_tables([whole.slice(0, 0), *pieces])).equals(consolidate(whole))


async def test_large_parts_are_read_by_one_range_and_small_ones_by_all() -> None:
    world = World()
    await world.open()
    await world.write([(n, "a", 1.0, 1) for n in range(400)])
    await world.write([(n, "b", 1.0, 1) for n in range(4)])
    version = await world.store.state("c")
    ranges = cut(version, 0, 2, rows=60)
    assert len(ranges) == 8
    assert ranges[0].hashes[0] == 0
    assert ranges[-1].hashes[1] == 2**64 - 1
    named = [part.key for each in ranges for part in each.version.batches[0].parts]
    assert len(named) == len(set(named)) == len(version.batches[0].parts)
    small = version.batches[1].parts[0]
    assert sum(small in each.version.parts() for each in ranges) == 8
    # More ranges than the parts of the large batch would read these several times.
    most = cut(version, 0, 2, rows=10)
    assert 8 <= len(most) <= 2 * len(version.batches[0].parts)


async def test_batches_that_are_not_merged_are_cut_once_a_range_would_be_too_large() -> None:
    world = World()
    await world.open()
    for _ in range(20):
        await world.write([(n, "a", 1.0, 1) for n in range(8)])
    version = await world.store.state("c")
    assert len(cut(version, 0, 20, rows=160)) == 1
    assert len(cut(version, 0, 20, rows=20)) == 1  # a range is eight times the size at most
    ranges = cut(version, 0, 20, rows=5)
    assert len(ranges) == 4
    found = [await world.reader().contents(each, 19, ["n"]) for each in ranges]
    counts = [sum(table.num_rows for table in tables) for tables in found]
    assert (sum(counts), max(counts) < 160) == (160, True)


async def test_parts_that_cannot_matter_are_in_no_range() -> None:
    world = World()
    await world.open()
    for time in range(4):
        await world.write([(time, "a", 1.0, 1)])
    version = await world.store.state("c")
    assert [len(r.version.parts()) for r in cut(version, 0, 2)] == [2]
    assert [len(r.version.parts()) for r in cut(version, 0, 4, pc.field("n") > 2)] == [1]
    assert cut(version, 9, 10) == []


async def test_a_row_taken_away_too_often_is_corrupt_in_its_range() -> None:
    world = World()
    await world.open()
    await world.write([(n, "a", 1.0, 1) for n in range(100)])
    await world.write([(7, "a", 1.0, -2)])
    version = await world.store.state("c")
    assert (await world.contents(version, 0, ["n"])).num_rows == 100
    with pytest.raises(Corrupt, match="multiplicity -1"):
        await world.contents(version, 1, ["n"])


@pytest.mark.rule("P8", "K1", "K12")
async def test_objects_of_a_held_version_outlive_compaction_and_garbage_until_its_lease() -> None:
    world = World(retain_ms=0)
    await world.open()
    for time in range(3):
        await world.write([(n, "a", float(time), 1) for n in range(30)])
    held = await world.store.hold_version("c", None, owner="scan", lease_ms=LEASE_MS)
    assert held.at == world.upper - 1
    assert held.version.reads == {}
    before = await world.contents(held.version, held.at, ["n", "v"])

    async def churn() -> None:
        await world.write([(n, "z", 9.0, 1) for n in range(30)])
        await world.store.compact("c")
        await world.clock.advance(1)
        await world.store.collect_garbage("c", 0)

    for _ in range(3):
        await churn()
        held_now = await world.contents(held.version, held.at, ["n", "v"])
        assert held_now.equals(before)
    keys = sorted(held.version.objects())
    assert await world.store.locate(held.capability, keys) == [f"memory:{key}" for key in keys]
    # Without the capability they go, and a reader hears so: it never has a part of the answer.
    await world.clock.advance(LEASE_MS / 1000 + 1)
    for _ in range(2):
        await churn()
    with pytest.raises(CapabilityExpired):
        await world.store.locate(held.capability, keys)
    with pytest.raises(PartGone):
        await world.contents(held.version, held.at, ["n", "v"])


async def test_a_version_is_held_where_it_is_definite_and_once_for_a_token() -> None:
    world = World(retain_ms=1)
    read = await world.open()
    with pytest.raises(NotYet):
        await world.store.hold_version("c", None, owner="scan", lease_ms=LEASE_MS)
    for _ in range(3):
        await world.write([(1, "a", 1.0, 1)])
    await world.store.drop(read)
    with pytest.raises(NotYet):
        await world.store.hold_version("c", 3, owner="scan", lease_ms=LEASE_MS)
    token = "a token of some length"
    ask = {"owner": "scan", "lease_ms": LEASE_MS, "token": token}
    first = await world.store.hold_version("c", 2, **ask)
    await world.write([(2, "a", 1.0, 1)])
    again = await world.store.hold_version("c", None, **ask)
    assert (again.capability, again.at) == (first.capability, 2)
    with pytest.raises(BeforeSince):
        await world.store.hold_version("c", 0, owner="scan", lease_ms=LEASE_MS)
    await world.store.drop(first.capability)
    with pytest.raises(UnknownCapability):
        await world.store.locate(first.capability, [])


async def test_only_parts_of_the_collection_itself_are_located() -> None:
    world = World()
    await world.open()
    await world.write([(1, "a", 1.0, 1)])
    held = await world.store.hold_version("c", 0, owner="scan", lease_ms=LEASE_MS)
    (key,) = held.version.objects()
    folder = key.partition("/")[0]
    wrong = [
        f"x{key}",
        f"{folder}/rollup-1",
        f"{folder}/part-1/../../x",
        f"{folder}/part-/../x",
        "",
    ]
    for each in wrong:
        with pytest.raises(UsageError, match="no object of the collection"):
            await world.store.locate(held.capability, [each])
