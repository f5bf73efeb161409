"""Tables at rest: they go with the clock at no cost, and an insert is there at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from tidemill.catalog.table_writer import TableWriter
from tidemill.host.pace import Paces, moment
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier, sole_time
from tidemill_compute.table_rest import TableRest

ROWS = pa.schema([("n", pa.int64())])
INTERVAL_MS = 1_000


class World:
    """Tables that one process looks after, and another process of the same store."""

    def __init__(self, tables: int) -> None:
        self.clock = ManualClock(10_500)
        self.consensus, self.blob = MemoryConsensus(), MemoryBlob()
        self.ids = map(str, itertools.count())
        self.here, self.there = self.process(), self.process()
        self.paces = Paces("tables/here", self.here, self.clock, moment)
        self.names = [f"t{n}" for n in range(tables)]
        self.writers = {name: self.writer(name, self.here) for name in self.names}

    def process(self) -> Collections:
        return Collections(self.consensus, self.blob, self.clock, self.ids.__next__)

    def writer(self, name: str, collections: Collections) -> TableWriter:
        return TableWriter(name, collections, self.clock, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        for name in self.names:
            await self.here.bind(name, Description(ROWS, retain_ms=2**40), frontier(0))
        tasks = [asyncio.create_task(self.advance(name)) for name in self.names]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.paces.close()

    async def advance(self, name: str) -> None:
        rest = TableRest(self.writers[name], self.here, self.paces.of(INTERVAL_MS))
        await self.writers[name].advance_forever(INTERVAL_MS / 1000, rest.rest_if_idle)

    async def wait_for_rest(self) -> None:
        for _ in range(40):
            await self.clock.advance(1.0)
            if all([await self.here.rests(name) for name in self.names]):
                await self.clock.advance(2.0)
                return
        pytest.fail("the tables do not rest")

    async def upper(self, name: str) -> int:
        return sole_time((await self.there.status(name)).upper)

    def behind_ms(self, upper: int) -> int:
        return self.clock.now_ms() - (upper - 1)

    def versions(self) -> int:
        return sum(log[-1].number + 1 for log in self.consensus._logs.values())


def row(n: int) -> tuple[pa.Table, pa.Array]:
    return pa.table({"n": [n]}, schema=ROWS), pa.array([1], pa.int64())


@pytest.mark.parametrize("tables", [1, 25])
async def test_d5_an_interval_costs_one_commit_however_many_tables_are_idle(tables: int) -> None:
    async with World(tables).running() as world:
        await world.wait_for_rest()
        before = world.versions()
        for _ in range(20):
            await world.clock.advance(1.0)
            for name in world.names:
                assert 0 <= world.behind_ms(await world.upper(name)) <= INTERVAL_MS
        assert world.versions() - before == 20


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_d5_an_insert_into_a_table_at_rest_is_there_at_the_instant_of_the_clock(
    elsewhere: bool,
) -> None:
    async with World(2).running() as world:
        await world.wait_for_rest()
        await world.clock.advance(0.3)
        writer = world.writer("t0", world.there) if elsewhere else world.writers["t0"]
        at = await writer.insert(*row(7))
        assert at == world.clock.now_ms()
        for each in (world.here, world.there):
            found = await each.read_without_hold("t0", at)
            assert found is not None
            assert found["n"].to_pylist() == [7]
        assert not await world.here.rests("t0")
        assert await world.here.rests("t1")


async def test_d5_a_table_follows_the_clock_before_during_and_after_its_rest() -> None:
    async with World(1).running() as world:
        writer, lags, rested = world.writer("t0", world.there), list[int](), 0
        for tenth in range(600):
            await world.clock.advance(0.1)
            if tenth > 20:
                lags.append(world.behind_ms(await world.upper("t0")))
            rested += await world.here.rests("t0")
            if tenth % 100 == 33:
                await writer.insert(*row(tenth))
        assert rested > 200
        assert max(lags) <= 2 * INTERVAL_MS
        rows = await world.there.read_updates("t0")
        assert len(rows) == 6


async def test_d5_a_table_whose_process_is_gone_is_moved_on_by_the_next_one() -> None:
    async with World(1).running() as world:
        await world.wait_for_rest()
    stands = await world.upper("t0")
    await world.clock.advance(30.0)
    assert await world.upper("t0") == stands
    assert await world.writer("t0", world.there).advance() is True
    assert world.behind_ms(await world.upper("t0")) == 0
