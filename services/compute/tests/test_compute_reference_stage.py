"""Reference data whose stage dies at any write: each row once, where the durable map says."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import DIFF, empty_updates
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA
from tidemill.reclock import REMAP_SCHEMA, rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import U64_MAX, Partitions, frontier, sole_time
from tidemill_compute.events.reference import ReferenceStage, ReferenceTarget
from tidemill_compute.settings import ComputeSettings

DATA = pa.schema([("n", pa.int64())])
RAW = pa.schema([*DATA, ("_partition", pa.int64()), ("_offset", pa.uint64())])
TARGET = ReferenceTarget("s", "s/raw", "s/raw/letters", "s/remap", "s/map", "s/letters", "s", DATA)
INSTANTS = 20
FIRST = 3
"""The instant of the first binding."""


class World:
    """The stores, which outlive every process; the source and the timeline that move by
    themselves.
    """

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.now = self.process(Fuse(None))
        self.random = Random(seed)
        self.numbers = itertools.count()
        self.instants: dict[int, int] = {}
        self.reached = 0

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def stage(self, collections: Collections) -> ReferenceStage:
        async def timeline() -> int:
            return self.reached

        settings = ComputeSettings(hold_interval_s=0.0)
        return ReferenceStage(TARGET, collections, timeline, self.clock, settings)

    async def create(self) -> None:
        made = {
            "s/raw": RAW, "s/raw/letters": LETTER_SCHEMA, "s/remap": REMAP_SCHEMA,
            "s/map": EVENT_MAP_SCHEMA, "s/letters": LETTER_SCHEMA, "s": DATA,
        }  # fmt: skip
        for name, schema in made.items():
            held, _ = await self.now.create(name, Description(schema, retain_ms=0))
            if name in ("s", "s/map", "s/letters"):
                await self.now.retain(name, None)
            await self.now.drop(held)
        await self.stage(self.now).prepare()

    async def arrive(self, instant: int) -> None:
        """One system instant: some rows from the first binding on; now and then the timeline
        moves.
        """
        count = 0 if instant < FIRST else self.random.choice((0, 0, 1, 3)) + (instant == FIRST)
        rows = [(next(self.numbers), 0, instant * 10 + i, instant, 1) for i in range(count)]
        self.instants |= {row[0]: instant for row in rows}
        schema = empty_updates(RAW).schema
        columns = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)]
        bindings = [(Partitions(0, U64_MAX, 0), 0, 1)] if instant == 0 else []
        if instant == FIRST:
            bindings = [(Partitions(0, U64_MAX, 0), instant, -1)]
            bindings += [(Partitions(0, 0, 9), instant, 1), (Partitions(1, U64_MAX, 0), instant, 1)]
        for name, updates in (
            ("s/remap", rows_of_bindings(bindings)),
            ("s/raw", pa.Table.from_arrays(columns, schema=schema)),
            ("s/raw/letters", None),
        ):
            await self.now.compare_and_append(
                name, frontier(instant), frontier(instant + 1), updates, writer="test"
            )
        self.reached += self.random.choice((0, 0, 5, 40))

    async def upper(self, name: str) -> int:
        return sole_time((await self.process(Fuse(None)).status(name)).upper)


async def follow(world: World, stage: ReferenceStage, upper: int) -> None:
    """Run a stage until it has mapped everything before `upper` and written what that gives, or
    dies.
    """
    task = asyncio.create_task(stage.advance_forever())
    for _ in range(3_000):
        mapped = await world.upper("s/map") == upper
        if task.done() or (mapped and await world.upper("s") == await frontier_of(world)):
            break
        await asyncio.sleep(0)
        world.clock.move(0.1)
    else:
        pytest.fail("the stage stands still")
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, Killed | asyncio.CancelledError):
        raise AssertionError("the stage failed") from ended


async def moves(world: World) -> list[tuple[int, int]]:
    """The durable map: (system instant, instant of the timeline), ascending."""
    rows = (await world.process(Fuse(None)).read_updates("s/map")).to_pylist()
    return sorted((row["instant"], row["frontier"]) for row in rows if row[DIFF] > 0)


async def frontier_of(world: World) -> int:
    known = await moves(world)
    return known[-1][1] if known else 0


@pytest.mark.parametrize("seed", range(12))
async def test_each_row_is_there_once_from_where_the_timeline_was_before_it(seed: int) -> None:
    world = World(seed)
    await world.create()
    world.reached = world.random.choice((0, 100))
    instant = deaths = 0
    while instant < INSTANTS:
        for _ in range(world.random.randrange(1, 5)):
            if instant < INSTANTS:
                await world.arrive(instant)
                instant += 1
        for _ in range(world.random.randrange(1, 3)):
            fuse = Fuse(world.random.randrange(1, 7), after=world.random.random() < 0.5)
            await follow(world, world.stage(world.process(fuse)), instant)
            deaths += fuse.blown
    world.reached += 1
    await world.arrive(INSTANTS)
    await follow(world, world.stage(world.process(Fuse(None))), INSTANTS + 1)
    known = await moves(world)
    assert [at for _, at in known] == sorted({at for _, at in known})
    rows = (await world.process(Fuse(None)).read_updates("s")).to_pylist()
    expected = {}
    for n, came in world.instants.items():
        before = [at for moved, at in known if moved < came]
        after = [at for moved, at in known if moved >= came]
        if after:
            expected[n] = before[-1] if before else 0
    assert {row["n"]: row["_time"] for row in rows} == expected
    assert all(row[DIFF] == 1 for row in rows)
    assert all(expected[n] == 0 for n, came in world.instants.items() if came == FIRST)
    assert deaths > 0
