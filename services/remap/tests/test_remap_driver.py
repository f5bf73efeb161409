"""Bindings of one source: monotone, one to an interval, the same for every minter of a race."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.catalog.bindings import read_bound_offsets
from tidemill.errors import Indeterminate
from tidemill.reclock import REMAP_SCHEMA, RemapTrace, bindings_of_rows
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus, UpperMismatch
from tidemill.shard.capabilities import AppendOutcome
from tidemill.time import (
    PARTITIONED,
    Frontier,
    Partitions,
    frontier,
    partition_frontier,
    partition_offsets,
    sole_time,
)
from tidemill_remap.driver import PATIENCE, RECORDS_PER_BINDING, RemapDriver, steps_between

INTERVAL_MS = 1_000


class World:
    """One remap collection, whose history is kept, and the log that probes look at."""

    def __init__(self) -> None:
        self.clock = ManualClock(10_500)
        self.stores = MemoryConsensus(), MemoryBlob()
        ids = map(str, itertools.count())
        self.collections = Collections(*self.stores, self.clock, ids.__next__)
        self.offsets = {0: 0, 1: 0}
        self.probes = 0

    async def create(self) -> World:
        held, _ = await self.collections.create("s/remap", Description(REMAP_SCHEMA, kind="remap"))
        await self.collections.retain("s/remap", None)
        await self.collections.drop(held)
        return self

    async def probe(self) -> dict[int, int]:
        self.probes += 1
        return dict(self.offsets)

    def driver(
        self, collections: Collections | None = None, *, shared: bool = False
    ) -> RemapDriver:
        return RemapDriver(
            "s", "s/remap", collections or self.collections, self.clock, INTERVAL_MS, shared=shared
        )

    @asynccontextmanager
    async def minting(self, *drivers: RemapDriver) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(driver.mint_forever(self.probe)) for driver in drivers]
        await self.clock.settle()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def trace(self) -> RemapTrace[Partitions]:
        """All bindings; it refuses those that are not antichains with each element once."""
        upper = (await self.collections.status("s/remap")).upper
        found: RemapTrace[Partitions] = RemapTrace(PARTITIONED, 0)
        found.insert(bindings_of_rows(await self.collections.read_updates("s/remap")), upper)
        return found

    async def at(self, time: int) -> dict[int, int]:
        """Offsets of the source at `time`, by the bindings."""
        trace = await self.trace()
        return partition_offsets(trace.at(time))


async def test_a_probe_is_bound_at_the_end_of_its_interval_and_an_idle_source_goes_on() -> None:
    world = await World().create()
    driver = world.driver()
    async with world.minting(driver):
        world.offsets = {0: 3, 1: 5}
        await world.clock.advance(1.0)
        assert sole_time((await world.collections.status("s/remap")).upper) == 12_001
        await world.clock.advance(4.0)
    assert sole_time((await world.collections.status("s/remap")).upper) == 16_001
    assert await world.at(10_999) == {}
    assert await world.at(11_000) == {0: 0, 1: 0}
    assert await world.at(12_000) == await world.at(16_000) == {0: 3, 1: 5}
    assert driver.counts.minted == world.probes == 6
    assert driver.counts.bound == driver.counts.known == {0: 3, 1: 5}
    # Elements that stay are not written again.
    rows = (await world.collections.read_updates("s/remap")).num_rows
    assert rows == len(
        {
            tuple(row.items())
            for row in (await world.collections.read_updates("s/remap")).to_pylist()
        }
    )
    assert rows < 20


async def test_a_backlog_is_bound_in_parts_within_one_interval() -> None:
    world = await World().create()
    driver = world.driver()
    async with world.minting(driver):
        await world.clock.advance(1.0)
        world.offsets = {0: 4 * RECORDS_PER_BINDING, 1: RECORDS_PER_BINDING}
        await world.clock.advance(1.0)
    assert await world.at(12_000) == {0: 0, 1: 0}
    for part, time in enumerate(range(12_996, 13_001), start=1):
        each = part * RECORDS_PER_BINDING // 5
        assert await world.at(time) == {0: 4 * each, 1: each}
    assert driver.counts.bound == world.offsets


@given(
    st.dictionaries(st.integers(0, 3), st.integers(0, 40 * RECORDS_PER_BINDING)),
    st.dictionaries(st.integers(0, 3), st.integers(0, 40 * RECORDS_PER_BINDING)),
    st.integers(0, 200),
)
def test_parts_of_a_backlog_grow_to_what_is_known(
    bound: dict[int, int], known: dict[int, int], most: int
) -> None:
    steps = steps_between(bound, known, most)
    assert steps[-1] == known
    assert 1 <= len(steps) <= most + 1
    behind = sum(max(0, known[p] - bound.get(p, 0)) for p in known)
    assert len(steps) == most + 1 or behind <= len(steps) * RECORDS_PER_BINDING
    before = {p: bound.get(p, 0) for p in known}
    for step in steps:
        for p in known:
            assert step[p] >= before[p] or known[p] < bound.get(p, 0)
        added = sum(max(0, step[p] - before[p]) for p in known)
        assert added <= -(-behind // len(steps)) + len(known)
        before = dict(step)


async def test_minters_of_one_source_agree_on_every_binding() -> None:
    world = await World().create()
    others = Collections(*world.stores, world.clock, map("o{}".format, itertools.count()).__next__)
    first, second = world.driver(), world.driver(others)
    async with world.minting(first, second):
        for step in range(1, 9):
            world.offsets = {0: step, 1: 2 * step, 2: step // 3}
            await world.clock.advance(1.0)
    assert first.counts.minted + second.counts.minted == 9
    assert first.counts.lost + second.counts.lost > 0, "nobody lost a race: nothing was tested"
    trace = await world.trace()
    before = trace.at(0)
    for time in range(11_000, 20_000, 1_000):
        now = trace.at(time)
        assert before.precedes(now)
        before = now


@pytest.mark.rule("G14")
@pytest.mark.timeout(10)  # a driver that takes back what is bound proposes for ever
async def test_g14_what_another_source_has_bound_is_not_taken_back_by_a_probe_behind_it() -> None:
    """Nor held up by it: who sees less binds what is bound, and goes on."""
    world = await World().create()
    world.offsets = {0: 9, 1: 4}
    async with world.minting(world.driver(shared=True)):
        await world.clock.advance(1.0)
    world.offsets, behind = {0: 7, 2: 3}, world.driver(shared=True)
    probes = world.probes
    async with world.minting(behind):
        await world.clock.advance(3.0)
        assert world.probes - probes == behind.counts.minted == 3
        assert behind.counts.bound == await world.at(15_000) == {0: 9, 1: 4, 2: 3}
        world.offsets = {0: 11, 2: 3}
        await world.clock.advance(1.0)
    assert await world.at(16_000) == {0: 11, 1: 4, 2: 3}


async def test_d3_who_stands_by_sees_what_is_bound_and_binds_when_nobody_else_does() -> None:
    world = await World().create()
    others = Collections(*world.stores, world.clock, map("o{}".format, itertools.count()).__next__)
    first, second = world.driver(shared=True), world.driver(others, shared=True)
    standing = asyncio.create_task(second.mint_forever(world.probe))
    async with world.minting(first):
        for step in range(1, 9):
            world.offsets = {0: step, 1: 2 * step}
            await world.clock.advance(1.0)
        assert sorted(each.stands_by for each in (first, second)) == [False, True]
        assert first.counts.lost + second.counts.lost <= 2, "they race at each interval"
        assert first.counts.bound == second.counts.bound == {0: 8, 1: 16}
        minter, other = sorted((first, second), key=lambda each: each.stands_by)
        minted = other.counts.minted
    if minter is second:
        standing.cancel()
        standing = asyncio.create_task(first.mint_forever(world.probe))
    world.offsets = {0: 20, 1: 20}
    await world.clock.advance(PATIENCE + 2.0)
    assert not other.stands_by
    assert other.counts.minted > minted
    trace = await world.trace()
    assert partition_offsets(trace.current) == {0: 20, 1: 20}
    standing.cancel()
    with suppress(asyncio.CancelledError):
        await standing


async def test_a_minter_that_comes_later_goes_on_where_the_last_one_ended() -> None:
    world = await World().create()
    assert await read_bound_offsets(world.collections, "s/remap", 0, "s") == {}
    world.offsets = {0: 7, 1: 1}
    async with world.minting(world.driver()):
        await world.clock.advance(1.0)
    again = world.driver()
    assert await read_bound_offsets(world.collections, "s/remap", 0, "s") == {0: 7, 1: 1}
    world.offsets = {0: 9, 1: 1}
    await world.clock.advance(30.0)
    async with world.minting(again):
        await world.clock.advance(1.0)
    assert await world.at(41_000) == {0: 7, 1: 1}
    assert await world.at(42_000) == {0: 9, 1: 1}
    assert again.counts.minted == 2


class Doubtful(Collections):
    """Appends whose outcome the caller is not told: every second one happened, the others did
    not.
    """

    doubts = 0

    async def compare_and_append(
        self,
        collection: str,
        expected: Frontier,
        new: Frontier,
        updates: pa.Table | None,
        *,
        writer: str,
        token: str | None = None,
    ) -> AppendOutcome:
        self.doubts += 1
        if self.doubts % 2 == 0:
            raise Indeterminate("nobody answered")
        outcome = await super().compare_and_append(
            collection, expected, new, updates, writer=writer, token=token
        )
        if self.doubts % 4 == 1 and not isinstance(outcome, UpperMismatch) and self.doubts > 1:
            raise Indeterminate("the answer was lost")
        return outcome


async def test_an_append_whose_outcome_is_unknown_is_read_back() -> None:
    world = await World().create()
    collections = Doubtful(
        *world.stores, world.clock, map("d{}".format, itertools.count()).__next__
    )
    driver = world.driver(collections)
    async with world.minting(driver):
        for step in range(1, 9):
            world.offsets = {0: step, 1: step}
            await world.clock.advance(1.0)
    assert collections.doubts > 12, "no outcome was in doubt: nothing was tested"
    trace = await world.trace()
    for step in range(1, 9):
        time = 11_000 + 1_000 * step
        assert partition_offsets(trace.at(time)) == {0: step, 1: step}


async def test_a_closed_remap_collection_ends_the_minter() -> None:
    world = await World().create()
    await world.collections.close_collection("s/remap")
    driver = world.driver()
    await driver.mint_forever(world.probe)
    assert (world.probes, driver.counts.minted) == (0, 0)


async def test_nothing_is_bound_before_it_is_probed() -> None:
    world = await World().create()
    gone = asyncio.Event()

    async def stuck() -> dict[int, int]:
        gone.set()
        await asyncio.Event().wait()
        return {}

    task = asyncio.create_task(world.driver().mint_forever(stuck))
    await world.clock.advance(5.0)
    await gone.wait()
    assert (await world.collections.status("s/remap")).upper == frontier(1)
    assert (await world.trace()).current == partition_frontier({})
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class SetClock(ManualClock):
    """A clock of which the time of day is set while it runs."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_v14_a_clock_that_was_set_back_and_right_again_holds_nothing_up() -> None:
    world = World()
    clock = world.clock = SetClock(100_500)
    await world.create()
    async with world.minting(world.driver()):
        await clock.advance(5)
        clock.ahead_ms = -60_000
        before = sole_time((await world.collections.status("s/remap")).upper)
        await clock.advance(2)
        assert sole_time((await world.collections.status("s/remap")).upper) == before
        clock.ahead_ms = 0
        await clock.advance(2)
        upper = sole_time((await world.collections.status("s/remap")).upper)
        assert clock.now_ms() - upper <= INTERVAL_MS
