"""An arrangement says what its collection says at every instant, whoever died at whatever write."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, Limits, MemoryBlob, MemoryConsensus
from tidemill.shard.listed import is_list
from tidemill.shard.part_store import LIMITS
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import frontier, sole_time
from tidemill_compute.arrangements import ArrangementDriver
from tidemill_compute.settings import ComputeSettings

ROWS = pa.schema([("plane", pa.string()), ("delay", pa.int64())])
END = 24
Row = tuple[object, ...]


class Bulk:
    """A job that appends all that is missing, as one that runs elsewhere would."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked = 0

    async def build(self, collection: str, arrangement: str) -> int:
        self.asked += 1
        alone = self.world.driver(self.world.now, spark_rows=1_000_000)
        lower = sole_time((await self.world.now.status(arrangement)).upper)
        upper = sole_time((await self.world.now.status(collection)).upper)
        await alone.hold()
        await alone._write(lower, upper, not (await self.world.now.state(arrangement)).batches)
        return alone.written


class SeenBlob(MemoryBlob):
    """Objects, and the names of those that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, key: str) -> bytes | None:
        self.read.append(key)
        return await super().get(key)


class World:
    """The stores, which outlive every process, and a collection whose rows come and go, some of
    them twice.
    """

    def __init__(self, seed: int, limits: Limits = LIMITS) -> None:
        self.clock, self.limits = ManualClock(0), limits
        self.ids = map(str, itertools.count())
        self.blob = SeenBlob()
        self.stores = MemoryConsensus(), self.blob
        self.now = self.process(Fuse(None))
        self.random = Random(seed)
        self.present: Counter[Row] = Counter()
        self.history: list[Counter[Row]] = []
        self.schema = ROWS
        self.bulk = Bulk(self)

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.blob, self.clock, self.ids.__next__, limits=self.limits)

    def driver(self, collections: Collections, spark_rows: int) -> ArrangementDriver:
        settings = ComputeSettings(
            hold_interval_s=0.0, arrange_spark_rows=spark_rows, poll_timeout_s=0.1
        )
        return ArrangementDriver("t", "by", collections, self.bulk, self.clock, settings)

    async def write(self, until: int) -> None:
        """Changes at each instant before `until`; what they leave is the history that is
        expected.
        """
        for at in range(len(self.history), until):
            more: Counter[Row] = Counter()
            for _ in range(self.random.choice((0, 1, 3))):
                row: Row = (f"p{self.random.randrange(4)}", self.random.randrange(3))
                row += (None,) * (len(self.schema) - len(ROWS))
                more[row] += 1 if self.random.random() < 0.6 or not self.present[row] else -1
            rows = [row for row, diff in more.items() if diff]
            columns = [
                pa.array([row[i] for row in rows], f.type) for i, f in enumerate(self.schema)
            ]
            table = pa.Table.from_arrays(columns, schema=self.schema)
            table = table.append_column("_time", pa.array([at] * len(rows), pa.uint64()))
            table = table.append_column("_diff", pa.array([more[row] for row in rows], pa.int64()))
            await self.now.compare_and_append(
                "t", frontier(at), frontier(at + 1), table, writer="test"
            )
            self.present.update(more)
            self.history.append(Counter({row: n for row, n in self.present.items() if n}))

    async def begin(self) -> int:
        """Create the arrangement where its collection can be read from on."""
        start = await self.driver(self.now, 1_000_000).hold()
        description = Description(self.schema, kind="arrangement", key=("delay",))
        held, _ = await self.now.create("by", description, start=start)
        await self.now.retain("by", None)
        await self.now.drop(held)
        return sole_time(start)

    async def upper(self) -> int:
        return sole_time((await self.process(Fuse(None)).status("by")).upper)

    async def contents(self, at: int) -> Counter[Row]:
        """The contents of the arrangement at an instant, with the present columns."""
        held, _ = await self.now.acquire("by", owner="test")
        table = await self.now.snapshot(held, at)
        await self.now.drop(held)
        found: Counter[Row] = Counter()
        for *row, diff in zip(*(column.to_pylist() for column in table.columns), strict=True):
            found[tuple(row)] += diff
        return found

    def expected(self, at: int) -> Counter[Row]:
        width = len(self.schema)
        return Counter({r + (None,) * (width - len(r)): n for r, n in self.history[at].items()})


async def follow(world: World, driver: ArrangementDriver, upper: int) -> bool:
    """Run a process until the arrangement has come to `upper`, or it dies: whether it died."""
    task = asyncio.create_task(driver.advance_forever())
    for _ in range(3_000):
        if task.done() or await world.upper() == upper:
            break
        await asyncio.sleep(0)
        world.clock.move(0.1)
    else:
        pytest.fail("the arrangement stands still")
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(ended, Killed):
        return True
    assert isinstance(ended, asyncio.CancelledError)
    return False


@pytest.mark.parametrize("seed", range(12))
async def test_it_is_the_collection_at_every_instant_whoever_dies_when(seed: int) -> None:
    world = World(seed)
    held, _ = await world.now.create("t", Description(ROWS, retain_ms=3))
    await world.now.drop(held)
    await world.write(world.random.randrange(1, 9))
    start = await world.begin()
    deaths = 0
    while len(world.history) < END:
        await world.write(min(END, len(world.history) + world.random.randrange(1, 6)))
        for _ in range(2):
            fuse = Fuse(world.random.randrange(1, 3), after=world.random.random() < 0.5)
            driver = world.driver(world.process(fuse), world.random.choice((1, 1_000_000)))
            deaths += await follow(world, driver, len(world.history))
        await world.now.compact("t")
        await world.now.compact("by")
    await follow(world, world.driver(world.process(Fuse(None)), 1_000_000), END)
    assert deaths > 0
    for at in range(start, END):
        assert await world.contents(at) == world.expected(at), at


async def test_many_updates_are_the_work_of_a_job_and_few_are_not() -> None:
    world = World(1)
    await world.now.drop((await world.now.create("t", Description(ROWS)))[0])
    await world.write(10)
    await world.begin()
    await follow(world, world.driver(world.process(Fuse(None)), 5), 10)
    assert world.bulk.asked == 1
    await world.write(11)
    await follow(world, world.driver(world.process(Fuse(None)), 5), 11)
    assert world.bulk.asked == 1
    assert await world.contents(10) == world.expected(10)


async def test_a_small_step_reads_no_list_of_the_parts_before_it() -> None:
    world = World(4, Limits(inline_bytes_max=0, part_bytes_max=200, listed_parts=2))
    await world.now.drop((await world.now.create("t", Description(ROWS)))[0])
    await world.write(20)
    await world.now.compact("t")
    assert (await world.now.newest("t")).batches[0].lists
    await world.begin()
    await follow(world, world.driver(world.process(Fuse(None)), 1_000_000), 20)
    assert any(map(is_list, world.blob.read))
    world.blob.read.clear()
    await world.write(22)
    await follow(world, world.driver(world.process(Fuse(None)), 1_000_000), 22)
    assert world.blob.read
    assert not any(map(is_list, world.blob.read))
    assert await world.contents(21) == world.expected(21)


async def test_it_gains_the_columns_that_its_collection_gains() -> None:
    world = World(2)
    await world.now.drop((await world.now.create("t", Description(ROWS)))[0])
    await world.write(6)
    await world.begin()
    await follow(world, world.driver(world.process(Fuse(None)), 1_000_000), 6)
    world.schema = ROWS.append(pa.field("note", pa.string()))
    world.present = Counter({(*row, None): n for row, n in world.present.items()})
    await world.now.extend_schema("t", world.schema)
    await world.write(12)
    await follow(world, world.driver(world.process(Fuse(None)), 1_000_000), 12)
    for at in range(12):
        assert await world.contents(at) == world.expected(at), at


async def test_it_ends_when_its_collection_is_closed() -> None:
    world = World(3)
    await world.now.drop((await world.now.create("t", Description(ROWS)))[0])
    await world.write(6)
    await world.begin()
    driver = world.driver(world.process(Fuse(None)), 1_000_000)
    await follow(world, driver, 6)
    await world.now.close_collection("t")
    async with asyncio.timeout(240):
        await driver.advance_forever()
    assert await world.upper() == 6
    assert await world.contents(5) == world.expected(5)
