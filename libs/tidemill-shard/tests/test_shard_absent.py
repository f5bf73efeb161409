"""Rows that are taken away have to be there, where a caller asks for that."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pyarrow as pa
import pytest

from tidemill.errors import UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    AppendOutcome,
    Collections,
    Description,
    MemoryBlob,
    MemoryConsensus,
    WriteCapability,
)
from tidemill.time import frontier

ROWS = pa.schema([("n", pa.int64())])
UPDATES = pa.schema([*ROWS, ("_time", pa.uint64()), ("_diff", pa.int64())])


class World:
    """One store, and processes over it."""

    def __init__(self, *, allow_negative: bool = False) -> None:
        clock, names = ManualClock(), itertools.count()
        stores = MemoryConsensus(), MemoryBlob()
        self.description = Description(ROWS, allow_negative=allow_negative, user_writable=True)
        self.processes = [
            Collections(*stores, clock, lambda: f"{next(names):032x}") for _ in range(2)
        ]

    async def writers(self, count: int) -> list[WriteCapability]:
        here = self.processes[0]
        _, first = await here.create("c", self.description)
        assert first is not None
        others = [await here.clone(first) for _ in range(count - 1)]
        return [first, *[each for each in others if isinstance(each, WriteCapability)]]

    async def write(
        self,
        held: WriteCapability,
        new: int,
        *rows: tuple[int, int, int],
        token: str | None = None,
        process: int = 0,
    ) -> WriteCapability:
        outcome = await self.outcome(held, new, *rows, token=token, process=process)
        assert isinstance(outcome, Appended)
        return held.at(outcome.upper)

    async def outcome(
        self,
        held: WriteCapability,
        new: int,
        *rows: tuple[int, int, int],
        token: str | None = None,
        process: int = 0,
    ) -> AppendOutcome:
        table = pa.Table.from_pylist(
            [{"n": n, "_time": time, "_diff": diff} for n, time, diff in rows], UPDATES
        )
        return await self.processes[process].update_and_downgrade(
            held, table, frontier(new), token=token, body=repr(rows), there=True
        )

    async def refuse(self, held: WriteCapability, new: int, *rows: tuple[int, int, int]) -> str:
        before = await self.processes[1].status("c")
        with pytest.raises(UsageError) as caught:
            await self.outcome(held, new, *rows)
        assert caught.value.details["reason"] == "NotThere"
        assert (await self.processes[1].status("c")) == before
        return str(caught.value)

    async def contents(self, at: int) -> dict[int, int]:
        found = await self.processes[1].read_without_hold("c", at)
        assert found is not None
        return dict(zip(found["n"].to_pylist(), found["_diff"].to_pylist(), strict=True))


async def test_up3_an_absent_row_is_not_taken_away_and_nothing_is_written() -> None:
    world = World()
    (held,) = await world.writers(1)
    says = await world.refuse(held, 5, (1, 0, 1), (2, 3, -1))
    assert "taken away more often than it is there, at 3" in says
    held = await world.write(held, 5, (1, 0, 2), (2, 1, 1))
    await world.refuse(held, 9, (1, 5, -2), (1, 6, -1))
    await world.refuse(held, 9, (1, 7, -3), (1, 8, 1))
    held = await world.write(held, 9, (1, 5, -2), (1, 6, 1), (1, 7, -1), (3, 6, 1))
    assert await world.contents(4) == {1: 2, 2: 1}
    assert await world.contents(8) == {2: 1, 3: 1}
    assert held.frontier == frontier(9)


async def test_up3_rows_of_writers_that_are_ahead_count() -> None:
    world = World()
    first, second = await world.writers(2)
    first = await world.write(first, 50, (1, 40, 1), (2, 40, 1))
    await world.refuse(second, 20, (1, 10, -1))
    second = await world.write(second, 60, (1, 45, -1))
    # Taken away by the one that is ahead: the other one may not take it away before.
    await world.refuse(first, 70, (1, 55, -1))
    first = await world.write(first, 70, (2, 55, -1))
    assert await world.contents(44) == {1: 1, 2: 1}
    assert await world.contents(56) == {}


async def test_up3_a_row_that_a_later_update_needs_is_not_taken_away_before() -> None:
    world = World()
    first, second = await world.writers(2)
    first = await world.write(first, 5, (1, 0, 1))
    second = await world.write(second, 50, (1, 40, -1))
    await world.refuse(first, 30, (1, 10, -1))
    first = await world.write(first, 30, (1, 10, 1))
    first = await world.write(first, 60, (1, 35, -1))
    assert await world.contents(41) == {}


async def test_up3_where_counts_may_be_negative_everything_is_taken_away() -> None:
    world = World(allow_negative=True)
    (held,) = await world.writers(1)
    await world.write(held, 5, (1, 0, -1))
    assert await world.contents(4) == {1: -1}


async def test_up3_a_repeated_token_is_answered_although_the_row_is_gone() -> None:
    world = World()
    (held,) = await world.writers(1)
    held = await world.write(held, 5, (1, 0, 1))
    for _ in range(2):
        assert isinstance(await world.outcome(held, 9, (1, 6, -1), token="t"), Appended)
    assert await world.contents(8) == {}


@pytest.mark.parametrize("seed", range(6))
async def test_up3_of_writers_that_race_for_a_row_one_gets_it(seed: int) -> None:
    """Writers of two processes take one row away at once, in any interleaving of their awaits."""
    random, world = Random(seed), World()
    held, *others = await world.writers(5)
    await world.write(held, 10, (7, 0, 1))

    async def takes(each: WriteCapability, process: int) -> None:
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        outcome = await world.outcome(each, 20, (7, 15, -1), process=process)
        assert isinstance(outcome, Appended)

    racing = [takes(each, n % 2) for n, each in enumerate(others)]
    ended = await asyncio.gather(*racing, return_exceptions=True)
    refusals = [each for each in ended if isinstance(each, UsageError)]
    assert [each.details["reason"] for each in refusals] == ["NotThere"] * 3
    assert ended.count(None) == 1
