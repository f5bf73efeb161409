"""Appends of what anyone would write alike, by a process whose knowledge may be old."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from tidemill.errors import Fenced
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_compute.appending import FENCE, append_through

ROWS = pa.schema([("n", pa.int64())])


class Counted(MemoryConsensus):
    """Counts the reads of the store."""

    reads = 0

    async def head(self, key: str) -> object:  # type: ignore[override]  # it only counts
        self.reads += 1
        return await super().head(key)

    async def scan(self, key: str, start: int) -> object:  # type: ignore[override]  # it only counts
        self.reads += 1
        return await super().scan(key, start)


class World:
    """One store, and two processes that share nothing else."""

    def __init__(self) -> None:
        self.consensus, self.ids = Counted(), map(str, itertools.count())
        stores = self.consensus, MemoryBlob(), ManualClock(), self.ids.__next__
        self.here, self.there = Collections(*stores), Collections(*stores)

    async def create(self) -> None:
        await self.here.bind("c", Description(ROWS), frontier(0))

    async def through(self, by: Collections, upper: int) -> int:
        """Bring the collection to an upper, from whatever one it has; the number of new updates."""
        return await append_through(by, "c", rows(0, upper), upper, "v")


def rows(lower: int, upper: int) -> pa.Table:
    """One row at each instant."""
    times = range(lower, upper)
    columns = [pa.array(times, pa.int64()), pa.array(times, pa.uint64())]
    return pa.table([*columns, pa.array([1] * len(times), pa.int64())], ["n", "_time", "_diff"])


async def test_one_that_writes_alone_reads_nothing_before_it_writes() -> None:
    world = World()
    await world.create()
    assert await world.through(world.here, 3) == 3
    reads = world.consensus.reads
    for upper in range(4, 10):
        assert await world.through(world.here, upper) == 1
    assert await world.through(world.here, 9) == 0
    assert world.consensus.reads == reads


@pytest.mark.rule("MV4", "UP5")
@pytest.mark.parametrize(("theirs", "missing"), [(5, 3), (8, 0), (9, 0)])
async def test_what_another_process_wrote_since_the_last_look_is_not_written_again(
    theirs: int, missing: int
) -> None:
    world = World()
    await world.create()
    assert await world.through(world.here, 2) == 2
    await world.through(world.there, theirs)
    assert await world.here.upper_seen("c") == frontier(2), "what it knows is old"
    assert await world.through(world.here, 8) == missing
    assert await world.here.upper_seen("c") == frontier(max(8, theirs))
    found = await world.here.read_updates("c")
    assert found.to_pydict() == rows(0, max(8, theirs)).to_pydict()


async def test_a_fence_that_it_has_not_seen_stops_it() -> None:
    world = World()
    await world.create()
    await world.through(world.here, 2)
    await world.there.compare_and_append(
        "c", frontier(2), frontier(FENCE), None, writer="another version"
    )
    assert await world.here.upper_seen("c") == frontier(2)
    for _ in range(2):  # now, and with the fence in sight
        with pytest.raises(Fenced):
            await world.through(world.here, 5)
    assert (await world.here.read_updates("c")).num_rows == 2
