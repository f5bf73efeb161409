"""Tables: an insert is at one instant, the upper moves on alone, tokens make retries harmless."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pyarrow as pa
import pytest

from tidemill.catalog.table_writer import TableWriter
from tidemill.errors import AlreadyUsed, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import sole_time

ROWS = pa.schema([("name", pa.string())])


def rows(*names: str) -> tuple[pa.Table, pa.Array]:
    return pa.table({"name": list(names)}, schema=ROWS), pa.array([1] * len(names), pa.int64())


class World:
    def __init__(self, now_ms: int = 5_000) -> None:
        self.clock = ManualClock(now_ms)
        ids = map(str, itertools.count())
        self.collections = Collections(MemoryConsensus(), MemoryBlob(), self.clock, ids.__next__)
        self.reached = 0

    async def table(self, *, timeline: bool = False) -> TableWriter:
        with suppress(AlreadyUsed):
            await self.collections.create("t", Description(ROWS))

        async def follow() -> int:
            return self.reached

        follows = follow if timeline else None
        return TableWriter("t", self.collections, self.clock, follows)

    async def upper(self) -> int:
        return sole_time((await self.collections.status("t")).upper)

    async def read_rows(self) -> list[tuple[str, int]]:
        table = await self.collections.read_updates("t")
        return sorted(zip(table["name"].to_pylist(), table["_time"].to_pylist(), strict=True))


async def test_inserts_are_at_the_instant_of_the_clock_each_at_its_own() -> None:
    world = World()
    table = await world.table()
    assert await table.insert(*rows("a", "b")) == 5_000
    assert await table.insert(*rows("c")) == 5_001
    world.clock.move(1.0)
    assert await table.insert(*rows("d")) == 6_000
    assert await world.read_rows() == [("a", 5_000), ("b", 5_000), ("c", 5_001), ("d", 6_000)]


async def test_two_writers_at_once_both_land() -> None:
    world = World()
    table = await world.table()
    times = await asyncio.gather(*(table.insert(*rows(name)) for name in "abcd"))
    assert len(set(times)) == 4
    assert [name for name, _ in await world.read_rows()] == list("abcd")


async def test_a_table_that_nobody_writes_is_readable_up_to_now() -> None:
    world = World()
    table = await world.table()
    advancing = asyncio.create_task(table.advance_forever(1.0))
    await world.clock.advance(3.0)
    assert await world.upper() == 8_001
    advancing.cancel()
    await asyncio.gather(advancing, return_exceptions=True)


async def test_a_table_on_another_timeline_waits_for_its_first_rows_then_follows() -> None:
    world = World()
    table = await world.table(timeline=True)
    advancing = asyncio.create_task(table.advance_forever(1.0))
    world.reached = 700
    await world.clock.advance(2.0)
    assert await world.upper() == 0
    assert await table.insert(*rows("a")) == 0
    await world.clock.advance(2.0)
    assert await world.upper() == 700
    assert await table.insert(*rows("b")) == 700
    assert await world.read_rows() == [("a", 0), ("b", 700)]
    advancing.cancel()
    await asyncio.gather(advancing, return_exceptions=True)


async def test_a_table_follows_its_timeline_after_first_rows_that_another_process_wrote() -> None:
    world = World()
    keeps, inserts = await world.table(timeline=True), await world.table(timeline=True)
    keeping = asyncio.create_task(keeps.advance_forever(1.0))
    for _ in range(50):
        world.clock.move(1.0)
        await asyncio.sleep(0)
    assert await world.upper() == 0  # it has looked, and waits
    assert await inserts.insert(*rows("a")) == 0
    world.reached = 40
    async with asyncio.timeout(20):
        while await world.upper() != 40:
            world.clock.move(1.0)
            await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_repeated_token_inserts_once() -> None:
    world = World()
    table = await world.table()
    assert await table.insert(*rows("a"), token="first") == 5_000
    assert await table.insert(*rows("a"), token="first") == 5_000
    assert await world.read_rows() == [("a", 5_000)]


@pytest.mark.rule("UP6")
async def test_v9_a_token_that_comes_with_other_rows_is_refused() -> None:
    """V9: another request under a token of somebody else was answered as done, and its rows were
    lost.
    """
    world = World()
    table = await world.table()
    at = await table.insert(*rows("a", "b"), token="first")
    for other in (rows("c"), rows("a"), (rows("a", "b")[0], pa.array([1, 2], pa.int64()))):
        with pytest.raises(UsageError, match="its token came with other updates before"):
            await table.insert(*other, token="first")
    assert await table.insert(*rows("b", "a"), token="first") == at
    restarted = await world.table()
    with pytest.raises(UsageError, match="its token came with other updates before"):
        await restarted.insert(*rows("c"), token="first")
    assert await restarted.insert(*rows("a", "b"), token="first") == at
    assert await world.read_rows() == [("a", at), ("b", at)]


async def test_w12_a_retry_of_a_removal_is_known_by_its_token() -> None:
    world = World()
    table = await world.table()
    await table.insert(*rows("a", "b"))
    gone = pa.array([-1], pa.int64())
    at = await table.insert(rows("a")[0], gone, token="t1")
    assert await table.insert(rows("a")[0], gone, token="t1") == at
    with pytest.raises(UsageError, match="more often than it is there"):
        await table.insert(rows("a")[0], gone, token="t2")


async def test_w12_of_two_removals_of_one_row_at_once_one_is_refused() -> None:
    world = World()
    table = await world.table()
    await table.insert(*rows("a"))
    gone = pa.array([-1], pa.int64())
    both = [table.insert(rows("a")[0], gone) for _ in range(2)]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(isinstance(outcome, UsageError) for outcome in outcomes) == [False, True]
