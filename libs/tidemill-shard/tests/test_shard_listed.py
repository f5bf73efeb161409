"""Batches of very many parts name them by lists: nothing else changes, and an append costs the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidemill.errors import Corrupt
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    Version,
    compaction,
    listed,
    part_store,
)
from tidemill.shard.framing import ENTRY, LISTED, PLAIN, framed
from tidemill.shard.fsck import StoreCheck
from tidemill.shard.hashing import HASH_MAX
from tidemill.shard.listed import is_list
from tidemill.shard.part_store import PartStore, part_key
from tidemill.shard.parts import Part
from tidemill.shard.ports import Expected
from tidemill.shard.ranges import RangeReader, cut, with_parts
from tidemill.shard.state import State
from tidemill.time import frontier

ROWS = pa.schema([("n", pa.int64()), ("s", pa.string())])
TINY = Limits(inline_bytes_max=0, part_bytes_max=1_000, cache_bytes_max=0, listed_parts=4)
UNLISTED = Limits(inline_bytes_max=0, part_bytes_max=1_000, listed_parts=10**6)
LEASE_MS = 1_000_000


class CountedConsensus(MemoryConsensus):
    """A log that counts its bytes, and the looks at it."""

    written, looks = 0, 0

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        self.looks += 1
        return await super().scan(key, start)

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        self.written += len(version.data)
        return await super().compare_and_set(key, expected, version)


class CountedBlob(MemoryBlob):
    """Objects, the bytes of those that were written, and the names of those that were read."""

    written = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.read: list[str] = []

    async def put(self, key: str, data: bytes) -> None:
        self.written += len(data)
        await super().put(key, data)

    async def get(self, key: str) -> bytes | None:
        self.read.append(key)
        return await super().get(key)


class World:
    """A collection whose parts are tiny, and its stores."""

    def __init__(self, limits: Limits = TINY) -> None:
        self.clock, self.consensus = ManualClock(1_000_000_000_000), CountedConsensus()
        self.blob, self.limits, self._names = CountedBlob(self.clock.now_ms), limits, count()
        self.upper = 0
        self.store = self.open()

    def ids(self) -> str:
        return f"{next(self._names):032d}"

    def open(self) -> Collections:
        return Collections(self.consensus, self.blob, self.clock, self.ids, limits=self.limits)

    async def write(self, first: int, last: int, diff: int = 1) -> None:
        rows = range(first, last)
        table = pa.table(
            {
                "n": pa.array(rows, pa.int64()),
                "s": [f"s{n % 7}" for n in rows],
                "_time": pa.array([self.upper] * len(rows), pa.uint64()),
                "_diff": pa.array([diff] * len(rows), pa.int64()),
            }
        )
        bounds = frontier(self.upper), frontier(self.upper + 1)
        await self.store.compare_and_append("c", *bounds, table, writer="w")
        self.upper += 1

    async def raw(self) -> State:
        """The newest version as it is written."""
        return (await self.store._core.versions.catch_up("c")).state

    async def whole(self, version: State) -> State:
        """A version with the parts that its lists name."""
        return await PartStore(self.blob, str).whole(version)

    def objects(self) -> set[str]:
        return set(self.blob._objects)

    async def problems(self) -> list[str]:
        check = StoreCheck(self.consensus, self.blob, self.clock)
        return [f"{each.object} {each.problem}" async for each in check.findings()]


async def fill(limits: Limits = TINY) -> tuple[World, Any]:
    """A world with two batches, of which the first has many parts, and a reader at its begin."""
    world = World(limits)
    read, _ = await world.store.create("c", Description(ROWS, key=("n",)), lease_ms=None)
    await world.write(0, 900)
    await world.write(100, 110, -1)
    await world.store.compact("c")
    await world.write(900, 930)
    return world, read


@pytest.mark.rule("P1", "P6", "F11")
async def test_listed_parts_are_read_as_parts_are() -> None:
    answers = []
    for limits in (TINY, UNLISTED):
        world, read = await fill(limits)
        some = any(batch.lists for batch in (await world.raw()).batches)
        assert some == (limits is TINY)
        fresh = world.open()
        whole = await fresh.state("c")
        assert len(whole.parts()) > 16
        found = [
            *[await fresh.snapshot(read, at) for at in (0, 1, 2)],
            *[await fresh.snapshot(read, 2, equal={"n": n}) for n in (3, 105, 915)],
            await fresh.changes(read, 0, 3),
        ]
        rows = sum(part.rows for each in cut(whole, 0, 3, rows=50) for part in each.version.parts())
        status = await fresh.status("c")
        assert (await world.problems()) == []
        answers.append(
            ([sorted(map(str, t.to_pylist())) for t in found], rows >= 940, status.updates)
        )
        at = await fresh.upper_of_rows("c", 0, 3, 100)
        assert 0 < at <= 3
    assert answers[0] == answers[1]


async def test_a_look_up_reads_the_list_of_its_key_alone() -> None:
    world, read = await fill()
    assert len((await world.raw()).batches[0].lists) > 4
    fresh = world.open()
    world.blob.read.clear()
    assert (await fresh.snapshot(read, 2, equal={"n": 77})).num_rows == 1
    assert sum(map(is_list, world.blob.read)) == 1
    assert len(world.blob.read) <= 3
    world.blob.read.clear()
    await fresh.status("c")
    assert (await fresh.newest("c")).upper == frontier(3)
    assert not any(map(is_list, world.blob.read))


async def test_a_filter_reads_the_lists_alone_whose_bounds_meet_it() -> None:
    answers = []
    for limits in (TINY, UNLISTED):
        world, read = await fill(limits)
        await world.write(5_000, 5_900)
        await world.store.list_parts("c")
        lists = [each.lists for each in (await world.raw()).batches]
        fresh = world.open()
        world.blob.read.clear()
        found = await fresh.snapshot(read, world.upper - 1, where=pc.field("n") >= 5_100)
        answers.append(sorted(found["n"].to_pylist()))
        if limits is TINY:
            assert sum(map(len, lists)) > len(lists[-1]) > 2
            assert sum(map(is_list, world.blob.read)) == len(lists[-1])
        world.blob.read.clear()
        none = await fresh.snapshot(read, world.upper - 1, where=pc.field("n") == 4_000)
        assert (none.num_rows, world.blob.read) == (0, [])
    assert answers[0] == answers[1] == [*range(5_100, 5_900)]


async def test_a_scan_reads_the_lists_of_its_ranges_alone() -> None:
    world, read = await fill()
    fresh = world.open()
    world.blob.read.clear()
    held = await fresh.hold_version("c", 2, owner="scan", lease_ms=LEASE_MS)
    ranges = cut(held.version, 0, 3, rows=50)
    assert not any(map(is_list, world.blob.read))
    lists = {each.key for batch in held.version.batches for each in batch.lists}
    assert len(ranges) > 4
    found = list[pa.Table]()
    for each in ranges:
        world.blob.read.clear()
        parts = PartStore(world.blob, str)
        given = await with_parts(parts, each, 0, 3)
        assert set(world.blob.read) == lists & each.version.objects() < lists
        found += await RangeReader(parts).contents(given, 2, ["n"])
    expected = await world.store.snapshot(read, 2)
    assert sorted(pa.concat_tables(found)["n"].to_pylist()) == sorted(expected["n"].to_pylist())
    none = cut(held.version, 0, 3, pc.field("n") == 4_000)
    assert none == []


async def bytes_of_lists(parts: int) -> int:
    """Bytes that a filter reads which meets no row of so many parts."""
    world = World(Limits())
    read, _ = await world.store.create("c", Description(ROWS), lease_ms=None)
    await world.store.append_parts(
        "c", frontier(0), frontier(1), parts_alone(world, parts), writer="j"
    )
    await world.store.list_parts("c")
    assert (await world.raw()).batches[0].lists
    fresh = world.open()
    world.blob.read.clear()
    await fresh.snapshot(read, 0, where=pc.field("n") > parts + 10)
    return sum(len(world.blob._objects[key][0]) for key in world.blob.read)


async def test_a_filter_that_meets_none_of_24_000_parts_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await bytes_of_lists(24_000) == 0
    monkeypatch.setattr(listed, "_bounds", lambda parts: ())  # as older versions have written
    assert await bytes_of_lists(24_000) > 2_000_000


async def test_of_more_lists_than_memory_keeps_only_those_over_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await fill()
    lists = (await world.raw()).batches[0].lists
    over = 2
    monkeypatch.setattr(part_store, "LISTS_KEPT_MAX", len(lists) - over)
    fresh = world.open()
    whole = await fresh.state("c")
    for _ in range(4):
        world.blob.read.clear()
        assert await fresh.state("c") == whole
        assert sum(map(is_list, world.blob.read)) == over


def parts_alone(world: World, parts: int) -> list[Part]:
    """So many parts, whose objects nobody has."""
    width = HASH_MAX // parts
    return [
        Part(
            1_000_000, 10**7, 0, 0, 2, at * width, at * width + width - 1, b"c" * 160,
            part_key("c", world.ids(), world.clock.now_ms()), bounds={"n": (at, at + 9, False)},
        )
        for at in range(parts)
    ]  # fmt: skip


async def bytes_of_appends(parts: int, limits: Limits) -> float:
    """Bytes of log and objects for an append of no rows to a collection of so many parts."""
    world = World(limits)
    await world.store.create("c", Description(ROWS), lease_ms=None)
    made = parts_alone(world, parts)
    await world.store.append_parts("c", frontier(0), frontier(1), made, writer="job")
    await world.store.list_parts("c")
    for at in range(1, 140):  # past the rollup that still has the parts
        await world.store.compare_and_append("c", frontier(at), frontier(at + 1), None, writer="w")
    before, appends = world.consensus.written + world.blob.written, 256
    for at in range(140, 140 + appends):
        outcome = await world.store.compare_and_append(
            "c", frontier(at), frontier(at + 1), None, writer="w"
        )
        assert outcome == Appended(frontier(at + 1))
    assert sum(batch.rows for batch in (await world.raw()).batches) == parts * 1_000_000
    return (world.consensus.written + world.blob.written - before) / appends


async def test_an_append_writes_as_much_beside_forty_thousand_parts_as_beside_few() -> None:
    few, many = [await bytes_of_appends(parts, Limits()) for parts in (100, 40_000)]
    assert many < few + 200
    unlisted = await bytes_of_appends(4_000, Limits(listed_parts=10**9))
    assert unlisted > 10 * few


@pytest.mark.rule("P8", "P10")
async def test_listed_parts_go_with_their_list_and_nothing_is_left() -> None:
    world, read = await fill()
    before = {key for key in world.objects() if is_list(key)}
    assert before
    await world.store.downgrade(read, frontier(2))
    await world.store.compact("c")
    world.clock.move(100)
    await world.store.collect_garbage("c", 0)
    named = (await world.store.state("c")).objects() | (await world.raw()).objects()
    assert world.objects() == named
    assert not before & world.objects()
    await world.store.retire("c")
    await world.store.drop(read)
    world.clock.move(100)
    await world.store.collect_garbage("c", 0)
    assert world.objects() == set()


@pytest.mark.rule("P8")
async def test_parts_of_a_list_that_a_held_version_names_stay_while_it_is_held() -> None:
    world, read = await fill()
    held = await world.store.hold_version("c", 2, owner="scan", lease_ms=LEASE_MS)
    assert any(map(is_list, held.version.objects()))
    named = held.version.objects() | (await world.whole(held.version)).objects()
    assert len(named) > 16
    await world.write(2_000, 2_300)
    await world.store.compact("c")
    world.clock.move(100)
    await world.store.collect_garbage("c", 0)
    await world.store.reap_orphans("c", 50)
    assert named <= world.objects()
    await world.store.drop(held.capability)
    await world.store.collect_garbage("c", 0)
    assert not named & world.objects()
    assert (await world.store.snapshot(read, world.upper - 1)).num_rows == 900 - 10 + 30 + 300


async def test_a_version_of_a_collection_that_has_ended_is_held_at_its_last_time() -> None:
    world, _ = await fill()
    last = world.upper - 1
    await world.store.compare_and_append("c", frontier(world.upper), frontier(), None, writer="w")
    held = await world.store.hold_version("c", None, owner="scan", lease_ms=LEASE_MS)
    assert held.at == last
    assert len((await world.whole(held.version)).parts()) > 16


@pytest.mark.rule("P8")
async def test_a_list_that_no_version_came_to_name_is_an_orphan_and_its_parts_are_not() -> None:
    world, read = await fill()
    first = (await world.raw()).batches[0]
    whole = (await world.store.state("c")).batches[0]
    before = world.objects()
    await world.store._core.parts.in_lists("c", whole)  # and its writer dies
    assert len(world.objects()) == len(before) + len(first.lists)
    assert all("named by no version" in each for each in await world.problems())
    world.clock.move(100)
    assert await world.store.reap_orphans("c", 50_000) == len(first.lists)
    assert world.objects() == before
    assert (await world.open().snapshot(read, 2)).num_rows == 920


async def test_parts_that_a_job_appended_are_put_into_lists_once() -> None:
    world, read = await fill(UNLISTED)
    expected = (await world.store.snapshot(read, 2)).num_rows
    world.limits = TINY
    world.store = world.open()
    assert await world.store.list_parts("c")
    assert [bool(batch.lists) for batch in (await world.raw()).batches] == [True, False]
    looks = world.consensus.looks
    assert not await world.store.list_parts("c")
    assert world.consensus.looks == looks
    assert (await world.open().snapshot(read, 2)).num_rows == expected
    assert await world.problems() == []


async def test_a_merge_that_is_under_way_keeps_its_batches_from_lists_and_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "RANGE_BYTES", 2_000)  # several ranges, so several steps
    world, read = await fill(UNLISTED)
    expected = (await world.store.snapshot(read, 2)).num_rows
    world.limits = TINY
    world.store = world.open()
    for at in range(3):
        await world.write(1_000 + at * 300, 1_280 + at * 300)
    step = await world.store.compact_step("c", 1)
    assert (step.taken, step.more) == (False, True)
    assert not await world.store.list_parts("c")
    while not step.taken:
        step = await world.store.compact_step("c", 10**9)
        assert step.rows
    assert [bool(batch.lists) for batch in (await world.raw()).batches] == [True]
    snapshot = await world.open().snapshot(read, world.upper - 1)
    assert snapshot.num_rows == expected + 3 * 280


@pytest.mark.rule("S3")
@pytest.mark.parametrize("damage", ["gone", "changed", "another"])
async def test_a_list_that_is_missing_or_wrong_is_found_and_never_read_as_empty(
    damage: str,
) -> None:
    world, read = await fill()
    lists = [key for key in sorted(world.objects()) if is_list(key)]
    data = world.blob._objects[lists[0]][0]
    if damage == "gone":
        await world.blob.delete(lists[0])
    else:
        other = world.blob._objects[lists[1]][0] if damage == "another" else data[:-1] + b"x"
        await world.blob.put(lists[0], other)
    assert any(lists[0] in each for each in await world.problems())
    with pytest.raises(Corrupt, match="list-"):
        await world.open().snapshot(read, 2)
    with pytest.raises(Corrupt, match="list-"):
        await world.open().compact("c")


@pytest.mark.rule("P8")
async def test_parts_of_a_list_that_is_lost_stay_until_it_is_put_back() -> None:
    world, read = await fill()
    orphan = part_key("c", world.ids(), 0)
    await world.blob.put(orphan, b"left behind")
    expected = (await world.store.snapshot(read, 2)).num_rows
    lost = min(key for key in world.objects() if is_list(key))
    data = world.blob._objects[lost][0]
    await world.blob.delete(lost)
    before = world.objects()
    world.clock.move(100)
    with pytest.raises(Corrupt, match="list-"):
        await world.open().reap_orphans("c", 0)
    assert world.objects() == before
    check = StoreCheck(world.consensus, world.blob, world.clock)
    found = [each async for each in check.findings()]
    assert {each.object for each in found} > {lost, orphan}
    assert not any(each.harmless for each in found)
    await world.blob.put(lost, data)
    assert await world.open().reap_orphans("c", 0) == 1
    assert (await world.open().snapshot(read, 2)).num_rows == expected


@pytest.mark.rule("P8")
async def test_parts_of_a_lost_list_stay_while_a_held_version_needs_them() -> None:
    world, _ = await fill()
    held = await world.store.hold_version("c", 2, owner="scan", lease_ms=LEASE_MS)
    named = (await world.whole(held.version)).objects()
    lost = min(key for key in world.objects() if is_list(key))
    await world.write(2_000, 2_300)
    await world.store.compact("c")
    await world.blob.delete(lost)
    world.clock.move(100)
    with pytest.raises(Corrupt, match="list-"):
        await world.store.reap_orphans("c", 0)
    assert named <= world.objects()
    await world.store.drop(held.capability)
    await world.store.collect_garbage("c", 0)
    await world.store.reap_orphans("c", 0)
    assert not named & world.objects()


@pytest.mark.rule("P10")
async def test_a_damaged_list_in_the_garbage_stops_no_collection_and_leaves_nothing() -> None:
    world, _ = await fill()
    damaged = max(key for key in world.objects() if is_list(key))
    await world.write(2_000, 2_300)
    await world.store.compact("c")
    assert damaged in (await world.raw()).garbage
    await world.blob.put(damaged, b"damaged")
    world.clock.move(100)
    assert await world.store.collect_garbage("c", 0) > 16
    assert not (await world.raw()).garbage
    assert 0 < await world.store.reap_orphans("c", 0) <= TINY.listed_parts
    named = (await world.store.state("c")).objects() | (await world.raw()).objects()
    assert world.objects() == named


async def test_a_check_reads_each_list_a_few_times_however_many_parts_are_damaged() -> None:
    world, _ = await fill()
    lists = [key for key in world.objects() if is_list(key)]
    for key in world.objects() - set(lists):
        await world.blob.put(key, b"damaged")
    world.blob.read.clear()
    assert len(await world.problems()) > 16
    assert sum(map(is_list, world.blob.read)) <= 2 * len(lists)


async def test_only_versions_with_lists_have_the_format_that_older_processes_refuse() -> None:
    world, _ = await fill()
    plain = World(Limits(inline_bytes_max=0))
    await plain.store.create("c", Description(ROWS), lease_ms=None)
    await plain.write(0, 900)
    header = len(framed(ENTRY, b"")) - 4
    for each, newest in ((world, LISTED), (plain, PLAIN)):
        versions = await each.consensus.scan("c", 0)
        formats = [int.from_bytes(v.data[header - 2 : header], "little") for v in versions]
        assert max(formats) == newest
