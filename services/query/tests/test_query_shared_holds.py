"""Subscribers of one collection share one hold, at the least instant that any of them needs."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from random import Random

import pyarrow as pa
import pytest

from tidemill.errors import UnknownCollection
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus, ReadCapability
from tidemill.time import frontier, sole_time
from tidemill_query.shared_holds import SharedHolds, Subscriber

SCHEMA = pa.schema([("n", pa.int64())])
LEASE_MS = 4_000


class World:
    """A collection without history of its own whose upper is 100."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        ids = map(str, itertools.count())
        self.collections = Collections(MemoryConsensus(), MemoryBlob(), self.clock, ids.__next__)
        self.holds = SharedHolds(self.collections, self.clock, LEASE_MS)

    async def create(self) -> None:
        held, _ = await self.collections.create("c", Description(SCHEMA, retain_ms=1))
        await self.move(100)
        await self.collections.drop(held)

    async def move(self, upper: int) -> None:
        at = (await self.collections.status("c")).upper
        empty = SCHEMA.append(pa.field("_time", pa.uint64())).append(pa.field("_diff", pa.int64()))
        await self.collections.compare_and_append(
            "c", at, frontier(upper), empty.empty_table(), writer="test"
        )

    async def holds_now(self) -> list[int]:
        """The instants that are held, once all has been said of them."""
        for _ in range(20):
            await asyncio.sleep(0)
        holders = (await self.collections.status("c")).holders
        return [sole_time(each.frontier) for each in holders]


async def test_a3_hundred_subscribers_are_one_hold_and_two_commits() -> None:
    world = World()
    await world.create()
    before = (await world.collections.status("c")).version
    async with AsyncExitStack() as all_of_them:
        for _ in range(100):
            await all_of_them.enter_async_context(world.holds.following("c", None))
        assert len(await world.holds_now()) == 1
    assert await world.holds_now() == []
    assert (await world.collections.status("c")).version == before + 2


@pytest.mark.parametrize("seed", range(20))
async def test_a3_the_hold_is_at_the_least_place_of_those_who_follow(seed: int) -> None:
    rng, world = Random(seed), World()
    await world.create()
    leaving: dict[Subscriber, AsyncExitStack] = {}
    upper = 100
    for _ in range(40):
        act = rng.randrange(4)
        if act == 0 or not leaving:
            stack = AsyncExitStack()
            subscriber = await stack.enter_async_context(world.holds.following("c", None))
            leaving[subscriber] = stack
        elif act == 1:
            await leaving.pop(rng.choice(list(leaving))).aclose()
        elif act == 2:
            upper += rng.randrange(1, 20)
            await world.move(upper)
        else:
            rng.choice(list(leaving)).reached(rng.randrange(90, upper))
        held = await world.holds_now()
        assert len(held) == bool(leaving)
        assert all(held[0] <= each.at for each in leaving)
        if leaving and act == 3:
            assert held == [min(each.at for each in leaving)]
    for stack in leaving.values():
        await stack.aclose()


async def test_a3_who_begins_before_the_hold_has_one_of_its_own() -> None:
    world = World()
    await world.create()
    since = sole_time((await world.collections.status("c")).since)
    keep, _ = await world.collections.acquire("c")
    async with world.holds.following("c", None) as first:
        first.reached(since + 1)
        await world.holds_now()
        await world.move(200)
        async with world.holds.following("c", since) as early:
            assert early.held.id != first.held.id
            assert early.at == since
            assert sorted(await world.holds_now()) == [since, since, since + 1]
        async with world.holds.following("c", None) as late:
            assert late.at >= since
    assert keep is not None
    assert await world.holds_now() == [since]


async def test_a3_a_hold_outlives_its_lease_and_one_that_was_lost_is_taken_anew() -> None:
    world = World()
    await world.create()
    async with world.holds.following("c", None) as first:
        for _ in range(12):
            await world.clock.advance(LEASE_MS / 4000)
        assert len(await world.holds_now()) == 1
        world.clock.move(2 * LEASE_MS / 1000)  # the process stood still
        await world.move(300)
        await world.clock.advance(LEASE_MS / 4000)
        async with world.holds.following("c", None) as second:
            assert second.held.id != first.held.id
            assert len(await world.holds_now()) == 1


async def test_a3_a_hold_whose_keeper_ended_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await world.create()
    asked: list[str] = []

    async def renew(held: ReadCapability) -> None:
        asked.append(held.id)
        raise UnknownCollection(held.collection)

    async with world.holds.following("c", None) as first:
        with monkeypatch.context() as patched:
            patched.setattr(world.collections, "renew", renew)
            await world.clock.advance(LEASE_MS / 4000)
            await world.clock.settle()
        assert asked == [first.held.id]
        async with world.holds.following("c", None) as second:
            assert second.held.id != first.held.id
