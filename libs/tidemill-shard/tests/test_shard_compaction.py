"""Compaction: few batches, the same answers, results taken only if still valid, nothing leaked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count, pairwise
from math import log2
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, Limits, MemoryBlob, MemoryConsensus, compaction
from tidemill.shard.appending import Merged, apply_merge
from tidemill.shard.compaction import ALIKE_MIN, SMALL_ROWS, plan_all, plan_merge
from tidemill.shard.parts import Part
from tidemill.shard.ranges import cut
from tidemill.shard.state import Batch, State
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string())])


class World:
    """One store, as any number of processes see it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.consensus = MemoryConsensus()
        self.clock = ManualClock(1_000_000)
        self.blob = MemoryBlob(self.clock.now_ms)
        self.names = count()
        self.limits = limits or Limits(inline_bytes_max=0)
        self.now = self.open()

    def open(self) -> Collections:
        return Collections(
            self.consensus,
            self.blob,
            self.clock,
            lambda: f"{next(self.names):032x}",
            limits=self.limits,
        )

    async def write(self, start: int, stop: int, rows: int = 2, diff: int = 1) -> None:
        for time in range(start, stop):
            names = [f"r{(time * 7 + n) % max(50, rows)}" for n in range(rows)]
            table = pa.table(
                {
                    "row": names,
                    "_time": pa.array([time] * rows, pa.uint64()),
                    "_diff": pa.array([diff] * rows),
                }
            )
            await self.now.compare_and_append(
                "c", frontier(time), frontier(time + 1), table, writer="w"
            )


def part(key: str, time_min: int = 0, time_max: int = 9, rows: int = 10) -> Part:
    return Part(rows, 100, time_min, time_max, 1, key=key)


def state_of(*batches: tuple[int, int, list[Part]], since: int = 0, upper: int = 100) -> State:
    return State(
        Description(ROWS),
        frontier(since),
        frontier(upper),
        batches=tuple(Batch(frontier(low), done, tuple(some)) for low, done, some in batches),
    )


@pytest.mark.rule("P6", "F6")
def test_a_merge_is_taken_only_if_what_it_replaces_is_still_there() -> None:
    a, b, c = part("a"), part("b"), part("c")
    state = state_of((0, 0, [a]), (10, 0, [b]), (20, 0, [c]), since=5)
    merged = Merged(state.batches[:2], Batch(frontier(0), 4, (part("ab"),)))
    taken, after = apply_merge(state, merged, 7)
    assert taken
    assert [batch.parts for batch in after.batches] == [(part("ab"),), (c,)]
    assert after.garbage == {"a": 7, "b": 7}
    assert apply_merge(after, merged, 8) == (False, after)
    grown = replace(state, batches=(state.batches[0], replace(state.batches[1], parts=(b, c))))
    assert apply_merge(grown, merged, 8) == (False, grown)
    closed = replace(state_of(since=0), since=frontier(), upper=frontier())
    assert apply_merge(closed, merged, 8) == (False, closed)


@pytest.mark.rule("F6", "F7")
def test_a_merge_that_went_further_than_since_allows_is_refused() -> None:
    state = state_of((0, 0, [part("a")]), (10, 0, [part("b")]), since=5)
    for compacted, allowed in ((4, True), (5, False)):
        merged = Merged(state.batches, Batch(frontier(0), compacted, (part("ab"),)))
        assert apply_merge(state, merged)[0] is allowed


def test_an_object_that_is_still_named_elsewhere_is_no_garbage() -> None:
    shared = part("a", 0, 20)
    early, late = shared.before(10), shared.since(10)
    assert early is not None
    assert late is not None
    state = replace(state_of((0, 0, [early]), (5, 0, [part("b")])), staged={"w": (late,)})
    merged = Merged(state.batches, Batch(frontier(0), 0, (part("ab"),)))
    _, after = apply_merge(state, merged, 7)
    assert after.garbage == {"b": 7}


def test_batches_of_like_size_are_merged_and_an_old_large_one_is_left_alone() -> None:
    large, small = part("L", rows=10_000), [part(f"s{n}", rows=10) for n in range(5)]
    few = state_of((0, 0, [large]), *((10 + n, 0, [small[n]]) for n in range(3)))
    assert plan_merge(few) == ()
    assert plan_all(few) == few.batches
    enough = state_of((0, 0, [large]), *((10 + n, 0, [small[n]]) for n in range(5)))
    assert plan_merge(enough) == enough.batches[1:]


def test_one_batch_is_due_again_only_when_since_has_passed_all_its_times() -> None:
    one = state_of((0, 0, [part("a", 0, 9)]), since=5)
    assert plan_merge(one) == ()
    assert plan_all(one) == one.batches
    passed = state_of((0, 0, [part("a", 0, 9)]), since=11)
    assert plan_merge(passed) == passed.batches
    done = state_of((0, 9, [part("a", 9, 9)]), since=30)
    assert plan_merge(done) == plan_all(done) == ()


@pytest.mark.rule("P6", "F5", "F11")
@pytest.mark.parametrize("inline", [0, 4096])
async def test_with_steps_in_between_batches_stay_few_and_answers_the_same(inline: int) -> None:
    world = World(Limits(inline_bytes_max=inline))
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    expected = {}
    written = 200
    for time in range(written):
        await world.write(time, time + 1)
        step = await world.now.compact_step("c")
        assert step.rows <= 4 * (2 * time + 2)
        if time % 20 == 0:
            expected[time] = (await world.now.snapshot(read, time)).to_pylist()
    status = await world.now.status("c")
    assert status.batches <= 4 + log2(written)
    for time, contents in expected.items():
        assert (await world.now.snapshot(read, time)).to_pylist() == contents
    assert status.updates == 2 * written


@given(st.lists(st.sampled_from([1, 3, 600, 5_000, 25_000]), min_size=1, max_size=60))
def test_batches_of_any_sizes_stay_few(sizes: list[int]) -> None:
    state, rewritten = state_of(), 0
    for at, rows in enumerate(sizes):
        added = Batch(frontier(at), 0, (part(f"{at}", at, at, rows),))
        state = replace(state, batches=(*state.batches, added))
        while chosen := plan_merge(state):
            rows = sum(batch.rows for batch in chosen)
            whole = Batch(chosen[0].lower, 0, (part(f"{at}-{rows}", 0, at, rows),))
            taken, state = apply_merge(state, Merged(chosen, whole))
            assert taken
            rewritten += rows
    doublings = log2(2 + sum(sizes) / SMALL_ROWS)
    assert len(state.batches) <= ALIKE_MIN - 1 + (ALIKE_MIN - 1) * doublings
    assert rewritten <= (ALIKE_MIN + doublings) * sum(sizes)


async def test_a_collection_of_large_appends_alone_is_merged_by_steps() -> None:
    world = World()
    await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, ALIKE_MIN, rows=3 * SMALL_ROWS)
    step = await world.now.compact_step("c", 10**9)
    assert (step.taken, (await world.now.status("c")).batches) == (True, 1)


@pytest.mark.rule("F6", "K15")
async def test_history_before_since_shrinks_to_one_instant() -> None:
    world = World()
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 60, rows=50)
    before = (await world.now.snapshot(read, 59)).to_pylist()
    assert (await world.now.status("c")).updates == 3000
    await world.now.downgrade(read, frontier(60))
    await world.now.compact("c")
    assert (await world.now.status("c")).updates == 50
    await world.write(60, 61)
    assert len(before) == 50
    assert sum(row["_diff"] for row in (await world.now.snapshot(read, 60)).to_pylist()) == 3002


@pytest.mark.rule("P6", "F6")
async def test_a_collection_whose_updates_all_cancel_is_compacted_and_goes_on() -> None:
    world = World()
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 1, rows=50)
    await world.write(1, 2, rows=50, diff=-1)
    read = await world.now.downgrade(read, frontier(2))
    await world.now.compact("c")
    assert [batch.pieces for batch in (await world.now.state("c")).batches] == [()]
    assert not (await world.now.compact_step("c")).more
    assert await world.now.compact_quiet("c") == 0
    assert await world.now.due_merge("c", quiet=True) is None
    await world.write(2, 3, rows=10)
    assert (await world.now.snapshot(read, 2)).num_rows == 10


@pytest.mark.rule("SU5")
async def test_a_reader_resumes_exactly_at_the_frontier_it_holds() -> None:
    world = World()
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 10)
    read = await world.now.downgrade(read, frontier(7))
    await world.now.compact("c")
    again = (await world.now.changes(read, 7, 10)).to_pylist()
    assert sorted({row["_time"] for row in again}) == [7, 8, 9]
    assert sum(row["_diff"] for row in again) == 6
    stream = world.now.subscribe(read, 6, snapshot=False, up_to=10)
    with pytest.raises(Exception, match="no longer distinguishable"):
        await anext(stream)


@pytest.mark.rule("P6")
async def test_what_is_appended_during_a_merge_stays_beside_its_result() -> None:
    world = World()
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 6)
    slow = world.open()

    original = world.blob.put
    during: list[int] = []

    async def put(key: str, data: bytes) -> None:
        if not during:
            during.append(1)
            await world.write(6, 9)
        await original(key, data)

    world.blob.put = put  # type: ignore[method-assign]  # this once
    await slow.compact("c")
    world.blob.put = original  # type: ignore[method-assign]  # as before
    assert during == [1]
    assert (await world.now.status("c")).batches <= 4
    contents = await world.now.snapshot(read, 8)
    assert sum(contents["_diff"].to_pylist()) == 18


async def test_two_that_compact_at_once_do_no_harm_and_leak_nothing() -> None:
    world = World()
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 20)
    before = (await world.now.snapshot(read, 19)).to_pylist()
    await asyncio.gather(*(world.open().compact("c") for _ in range(3)))
    assert (await world.now.snapshot(read, 19)).to_pylist() == before
    assert (await world.now.status("c")).batches == 1
    world.clock.move(10)
    await world.now.collect_garbage("c", 1_000)
    parts = [entry.key for entry in await world.blob.list("") if "part" in entry.key]
    assert set(parts) == (await world.now.state("c")).objects()


async def test_a_large_merge_goes_one_hash_range_at_a_time(monkeypatch: Any) -> None:
    world = World(Limits(inline_bytes_max=0, part_bytes_max=4_000))
    read, _ = await world.now.create("c", Description(ROWS, key=("row",)), lease_ms=None)
    await world.write(0, 8, rows=50)
    before = sorted(map(str, (await world.now.snapshot(read, 7)).to_pylist()))
    stored = sum(part.size for part in (await world.now.state("c")).parts())
    monkeypatch.setattr(compaction, "RANGE_BYTES", stored // 4)
    steps = []
    while True:
        step = await world.now.compact_step("c", fuel_rows=1)
        steps.append(step)
        if not step.more:
            break
    assert len(steps) >= 4
    assert [step.taken for step in steps] == [False] * (len(steps) - 1) + [True]
    status = await world.now.status("c")
    assert (status.batches, status.updates) == (1, 400)
    parts = (await world.now.state("c")).parts()
    spans = sorted((each.hash_min, each.hash_max) for each in parts)
    assert len(spans) >= 4
    assert all(a[1] < b[0] or a == b for a, b in pairwise(spans))
    assert sorted(map(str, (await world.now.snapshot(read, 7)).to_pylist())) == before
    one = await world.now.snapshot(read, 7, equal={"row": "r3"})
    assert [str(row) for row in one.to_pylist()] == [row for row in before if "'r3'" in row]


async def test_parts_of_a_range_of_a_merge_are_ranges_within_it(monkeypatch: Any) -> None:
    """Readers that divide a version by hash read each of them once."""
    world = World(Limits(inline_bytes_max=0, part_bytes_max=2_000))
    await world.now.create("c", Description(ROWS, key=("row",)), lease_ms=None)
    await world.write(0, 4, rows=400)
    stored = sum(part.size for part in (await world.now.state("c")).parts())
    monkeypatch.setattr(compaction, "RANGE_BYTES", stored // 4)
    await world.now.compact("c")
    version = await world.now.state("c")
    spans = sorted((each.hash_min, each.hash_max) for each in version.parts())
    assert len(spans) > 8
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    named = [each.key for ranged in cut(version, 0, 4, rows=200) for each in ranged.version.parts()]
    assert len(named) == len(set(named)) == len(spans)


@pytest.mark.rule("P8")
async def test_a_merge_whose_inputs_were_collected_is_given_up() -> None:
    world = World()
    await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 8)
    slow, quick = world.open(), world.open()
    await slow.state("c")
    await quick.compact("c")
    world.clock.move(100)
    await quick.collect_garbage("c", 0)
    await slow.compact("c")
    step = await slow.compact_step("c")
    assert not step.more
    assert (await world.now.status("c")).batches == 1


@pytest.mark.rule("P8")
async def test_a_read_that_comes_too_late_for_an_object_reads_the_newest_version() -> None:
    world = World(Limits(inline_bytes_max=0, cache_bytes_max=0))
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 8)
    before = (await world.now.snapshot(read, 7)).to_pylist()
    other, original, raced = world.open(), world.blob.get, []

    async def get(key: str) -> bytes | None:
        if not raced:
            raced.append(key)
            await other.compact("c")
            await other.collect_garbage("c", 0)
        return await original(key)

    world.blob.get = get  # type: ignore[method-assign]  # a race, once
    assert (await world.now.snapshot(read, 7)).to_pylist() == before
    assert raced


async def test_a_tombstone_keeps_no_object() -> None:
    world = World()
    read, _ = await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 5)
    await world.now.close_collection("c")
    await world.now.downgrade(read, frontier())
    assert (await world.now.status("c")).garbage == 5
    world.clock.move(5)
    assert await world.now.collect_garbage("c", 1_000) == 5
    assert await world.blob.list("") == []


async def test_many_small_writes_do_not_fill_the_log() -> None:
    world = World(Limits())
    await world.now.create("c", Description(ROWS), lease_ms=None)
    await world.write(0, 20)
    status = await world.now.status("c")
    assert 0 < status.inline_bytes == status.bytes
    assert await world.blob.list("") == []
    await world.write(20, 21, rows=30_000)
    assert (await world.now.status("c")).inline_bytes == status.inline_bytes
