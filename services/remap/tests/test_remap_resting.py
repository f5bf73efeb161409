"""Sources at rest: advanced together by one commit an interval, and bound again as soon as
something comes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tidemill.errors import Unavailable
from tidemill.host.pace import Paces
from tidemill.host.resting import Rest
from tidemill.reclock import REMAP_SCHEMA, RemapTrace, bindings_of_rows
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.pacing import LONG
from tidemill.time import PARTITIONED, Partitions, frontier, partition_offsets, sole_time
from tidemill_remap.driver import RemapDriver

INTERVAL_MS = 1_000


class World:
    """Sources in one process: what their logs have, what is bound, and a writer that keeps up with
    it.
    """

    def __init__(self, sources: int) -> None:
        self.clock = ManualClock(10_500)
        self.consensus = MemoryConsensus()
        ids = map(str, itertools.count())
        self.collections = Collections(self.consensus, MemoryBlob(), self.clock, ids.__next__)
        self.paces = Paces("here", self.collections, self.clock)
        self.names = [f"s{n}" for n in range(sources)]
        self.offsets = dict.fromkeys(self.names, 0)
        self.away: set[str] = set()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.writing = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        for name in self.names:
            for each in (f"{name}/remap", name):
                await self.collections.bind(
                    each, Description(REMAP_SCHEMA, retain_ms=2**40), frontier(0)
                )
            self.tasks[name] = asyncio.create_task(self.mint(name))
            self.tasks[f"{name} writer"] = asyncio.create_task(self.write(name))
        try:
            yield self
        finally:
            for task in self.tasks.values():
                task.cancel()
            await asyncio.gather(*self.tasks.values(), return_exceptions=True)
            await self.paces.close()

    async def mint(self, name: str) -> None:
        remap, bound = f"{name}/remap", (f"{name}/remap", name)
        rest = Rest(name, bound, self.collections, self.paces.of(INTERVAL_MS))

        async def probe() -> dict[int, int]:
            if name in self.away:
                raise Unavailable("the log is away")
            return {0: self.offsets[name]}

        driver = RemapDriver(name, remap, self.collections, self.clock, INTERVAL_MS, rest=rest)
        await driver.mint_forever(probe)

    async def write(self, name: str) -> None:
        """Write the bound records as reclock does, without rows."""
        while True:
            if not await self.collections.rest_over(f"{name}/remap", 0.5):
                continue
            upper = (await self.collections.status(name)).upper
            bound = (await self.collections.status(f"{name}/remap")).upper
            if self.writing and upper != bound:
                await self.collections.compare_and_append(name, upper, bound, None, writer="w")
            await self.clock.sleep(0.25)

    async def upper(self, collection: str) -> int:
        return sole_time((await self.collections.status(collection)).upper)

    async def wait_for_rest(self) -> None:
        for _ in range(40):
            await self.clock.advance(1.0)
            if all([await self.collections.rests(name) for name in self.names]):
                await self.clock.advance(2.0)
                return
        pytest.fail("the sources do not rest")

    def versions(self) -> int:
        return sum(log[-1].number + 1 for log in self.consensus._logs.values())

    async def at(self, name: str, time: int) -> dict[int, int]:
        trace: RemapTrace[Partitions] = RemapTrace(PARTITIONED, 0)
        rows = await self.collections.read_updates(f"{name}/remap")
        trace.insert(bindings_of_rows(rows), frontier(await self.upper(f"{name}/remap")))
        return partition_offsets(trace.at(time))


@pytest.mark.parametrize("sources", [1, 25])
async def test_d5_an_interval_costs_one_commit_however_many_sources_are_idle(sources: int) -> None:
    async with World(sources).running() as world:
        await world.wait_for_rest()
        before, begun = world.versions(), await world.upper("s0")
        await world.clock.advance(20.0)
        assert world.versions() - before == 20
        for name in world.names:
            assert await world.upper(name) == await world.upper(f"{name}/remap")
            assert await world.upper(name) == begun + 20 * INTERVAL_MS


async def test_d5_a_record_ends_the_rest_of_its_source_within_an_interval_and_of_no_other() -> None:
    async with World(2).running() as world:
        await world.wait_for_rest()
        definite = await world.upper("s0")
        world.offsets["s0"] = 7
        await world.clock.advance(1.5)
        assert await world.at("s0", definite - 1) == {0: 0}
        assert await world.at("s0", await world.upper("s0/remap") - 1) == {0: 7}
        assert await world.upper("s0/remap") <= definite + 2 * INTERVAL_MS
        assert not await world.collections.rests("s0")
        assert await world.collections.rests("s1")
        await world.wait_for_rest()
        assert await world.at("s0", await world.upper("s0") - 1) == {0: 7}


async def test_d5_a_source_that_nobody_sees_any_more_stands_while_others_rest_on() -> None:
    async with World(2).running() as world:
        await world.wait_for_rest()
        world.away.add("s0")
        await world.clock.advance(2.0)
        assert isinstance(world.tasks["s0"].exception(), Unavailable)
        stands, begun = await world.upper("s0"), await world.upper("s1")
        await world.clock.advance(30.0)
        assert await world.upper("s0") == await world.upper("s0/remap") == stands
        assert await world.upper("s1") == begun + 30 * INTERVAL_MS
        world.tasks["s0"] = asyncio.create_task(world.mint("s0"))
        world.away.clear()
        await world.clock.advance(2.0)
        assert await world.upper("s0/remap") == await world.upper("s1")


async def test_d5_a_source_does_not_rest_before_what_is_bound_is_written() -> None:
    async with World(1).running() as world:
        world.writing = False
        await world.clock.advance(20.0)
        assert not await world.collections.rests("s0/remap")
        world.writing = True
        await world.wait_for_rest()


async def test_d5_who_keeps_a_source_from_rest_makes_it_try_less_and_less_often() -> None:
    async with World(1).running() as world:
        rests = 0
        for _ in range(2 * LONG):
            await world.clock.advance(1.0)
            if await world.collections.rests("s0"):
                rests += 1
                await world.collections.rouse("s0")
        assert 2 <= rests <= 8


async def test_d5_where_no_steps_are_made_sources_bind_by_themselves() -> None:
    async with World(2).running() as world:
        await world.wait_for_rest()
        await world.paces.close()
        stands = await world.upper("s1")
        await world.clock.advance(5.0)
        assert await world.upper("s1") == stands
        await world.clock.advance(25.0)
        assert await world.upper("s1") >= stands + 10 * INTERVAL_MS
