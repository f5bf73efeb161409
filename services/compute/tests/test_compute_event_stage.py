"""The event stage as a process that dies at any write and is started again."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import DIFF, empty_updates
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA, event_schema
from tidemill.reclock import REMAP_SCHEMA, rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.shard import Collections, Consensus, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import U64_MAX, Partitions, frontier, sole_time
from tidemill_compute.events import stage
from tidemill_compute.events.buffer import EventBuffer
from tidemill_compute.events.fold import EventFold, EventPolicy
from tidemill_compute.events.history import EventTarget
from tidemill_compute.events.progress import DECIDED, NOTHING_SEEN, Policy
from tidemill_compute.events.rows import EventColumns
from tidemill_compute.events.stage import EventStage
from tidemill_compute.settings import ComputeSettings

DATA = pa.schema([("host", pa.string()), ("at", pa.int64()), ("until", pa.int64())])
RAW = pa.schema(
    [*DATA, ("_partition", pa.int64()), ("_offset", pa.uint64()), ("_heartbeat", pa.int64())]
)
TARGET = EventTarget(
    "s", "s/raw", "s/raw/letters", "s/remap", "s/map", "s/letters", "s", event_schema(DATA)
)
INSTANTS = 30
WRITTEN = ("s/map", "s/letters", "s")


def policy(seed: int) -> EventPolicy:
    random = Random(seed)
    progress = Policy(random.randrange(4), random.choice((None, 4)))
    columns = EventColumns(("host", "at", "until"), "at", "until")
    return EventPolicy(columns, progress, random.random() < 0.5, random.choice((None, 9)))


def arrivals(seed: int) -> dict[int, pa.Table]:
    """Rows by system instant: out of order, some late, some without a time, some twice;
    heartbeats.
    """
    random = Random(seed)
    found = {}
    offsets = itertools.count()
    for instant in range(1, INSTANTS):
        rows = []
        for _ in range(random.choice((0, 0, 1, 3))):
            at = random.choice((None, -1, *([max(0, instant + random.randrange(-8, 12))] * 12)))
            until = None if at is None else at + random.choice((0, 3, 9))
            place = (random.randrange(2), next(offsets))
            rows.append((random.choice("ab"), at, until, *place, None, instant, 1))
            if random.random() < 0.15:
                beat = max(0, instant + random.randrange(-6, 14))
                place = (random.randrange(2), next(offsets))
                rows.append((None, None, None, *place, beat, instant, 1))
        schema = empty_updates(RAW).schema
        columns = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)]
        found[instant] = pa.Table.from_arrays(columns, schema=schema)
    return found


class World:
    """The stores, which outlive every process, and the inputs that somebody else writes."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.now = self.process(Fuse(None))
        self.arrivals = arrivals(seed)
        self.policy = policy(seed)

    def process(self, fuse: Fuse) -> Collections:
        consensus: Consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    async def create(self) -> None:
        made = {
            "s/raw": RAW, "s/raw/letters": LETTER_SCHEMA, "s/remap": REMAP_SCHEMA,
            "s/map": EVENT_MAP_SCHEMA, "s/letters": LETTER_SCHEMA, "s": event_schema(DATA),
        }  # fmt: skip
        for name, schema in made.items():
            retain_ms = None if name in WRITTEN else 0
            held, _ = await self.now.create(name, Description(schema, retain_ms=retain_ms))
            if retain_ms is None:
                await self.now.retain(name, None)
            await self.now.drop(held)
        await self.stage(self.now).prepare()

    def stage(self, collections: Collections, hold_interval_s: float = 0.0) -> EventStage:
        settings = ComputeSettings(hold_interval_s=hold_interval_s)
        return EventStage(TARGET, self.policy, collections, self.clock, settings)

    async def arrive(self, instant: int) -> None:
        bindings = [(Partitions(0, U64_MAX, 0), 0, 1)] if instant == 0 else []
        if instant == 1:
            bindings = [(Partitions(0, U64_MAX, 0), 1, -1)]
            bindings += [(Partitions(0, 0, 0), 1, 1), (Partitions(1, 1, 0), 1, 1)]
            bindings += [(Partitions(2, U64_MAX, 0), 1, 1)]
        for name, updates in (
            ("s/remap", rows_of_bindings(bindings)),
            ("s/raw", self.arrivals.get(instant)),
            ("s/raw/letters", None),
        ):
            await self.now.compare_and_append(
                name, frontier(instant), frontier(instant + 1), updates, writer="test"
            )

    def versions(self) -> int:
        return sum(log[-1].number + 1 for log in self.stores[0]._logs.values())

    async def contents(self) -> dict[str, list[tuple[object, ...]]]:
        """Written rows and uppers, as one value."""
        reader = self.process(Fuse(None))
        found = {}
        for name in WRITTEN:
            rows = await reader.read_updates(name)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            found[name] = sorted(values, key=repr)
            found[f"{name} upper"] = [(sole_time((await reader.status(name)).upper),)]
        return found


async def follow(world: World, stage: EventStage, upper: int) -> None:
    """Run a stage until it has folded everything before `upper`, or dies."""
    task = asyncio.create_task(stage.advance_forever())
    await reach(world, stage, task, upper)
    await end(task)


async def reach(world: World, stage: EventStage, task: asyncio.Task[None], upper: int) -> None:
    """Wait until a running stage has folded everything before `upper`, or died."""
    for _ in range(5_000):
        if task.done() or stage.folded == upper:
            break
        await asyncio.sleep(0)
        world.clock.move(0.1)
    else:
        pytest.fail(f"the stage stands still at {stage.folded}")


async def end(task: asyncio.Task[None]) -> None:
    """Stop a stage; it may have died already."""
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, Killed | asyncio.CancelledError):
        raise AssertionError("the stage failed") from ended


async def run_without_deaths(seed: int) -> dict[str, list[tuple[object, ...]]]:
    world = World(seed)
    await world.create()
    for instant in range(INSTANTS):
        await world.arrive(instant)
    await follow(world, world.stage(world.now), INSTANTS)
    return await world.contents()


@pytest.mark.parametrize("rows", [stage.STEP_ROWS, 2])
@pytest.mark.parametrize("seed", range(6))
async def test_a_stage_that_dies_at_any_write_gives_what_one_that_lives_gives(
    seed: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await run_without_deaths(seed)
    monkeypatch.setattr(stage, "STEP_ROWS", rows)
    random = Random(seed)
    world = World(seed)
    await world.create()
    instant = deaths = 0
    while instant < INSTANTS:
        for _ in range(random.randrange(1, 6)):
            if instant < INSTANTS:
                await world.arrive(instant)
                instant += 1
        for _ in range(random.randrange(1, 3)):
            fuse = Fuse(random.randrange(1, 9), after=random.random() < 0.5)
            await follow(world, world.stage(world.process(fuse)), instant)
            deaths += fuse.blown
    await follow(world, world.stage(world.process(Fuse(None))), INSTANTS)
    assert await world.contents() == expected
    assert deaths > 0


@pytest.mark.parametrize("seed", range(6))
async def test_what_silence_decided_is_not_decided_again(seed: int) -> None:
    """After a death at any write, events and letters follow from the rows and the map alone."""
    random = Random(seed)
    world = World(seed)
    world.policy = replace(
        world.policy, progress=Policy(1, 6, silence_ms=3), max_ahead_ms=None, corrections=False
    )
    for quiet in range(8, 27):
        world.arrivals.pop(quiet, None)
    await world.create()
    deaths = instant = 0
    while instant < INSTANTS:
        fuse = Fuse(random.randrange(15, 45), after=random.random() < 0.5)
        stage = world.stage(world.process(fuse))
        task = asyncio.create_task(stage.advance_forever())
        while instant < INSTANTS and not task.done():
            await world.arrive(instant)
            instant += 1
            await reach(world, stage, task, instant)
        await end(task)
        deaths += fuse.blown
    await follow(world, world.stage(world.process(Fuse(None))), INSTANTS)
    found = await world.contents()
    changes = await world.process(Fuse(None)).read_updates("s/map")
    decided = {
        row["instant"]: row["frontier"] for row in changes.to_pylist()
        if row["partition"] == DECIDED and row[DIFF] > 0
    }  # fmt: skip
    assert decided
    assert deaths > 0
    buffer = EventBuffer.empty(event_schema(DATA), corrections=False)
    fold = EventFold(world.policy, buffer, NOTHING_SEEN)
    rows = pa.concat_tables([world.arrivals[t] for t in sorted(world.arrivals)])
    fold.step(rows, [(0, 0), (1, 2)], INSTANTS, decided)
    _, letters = fold.take()
    events = buffer.release(fold.progress.frontier)
    assert found["s upper"] == [(fold.progress.frontier,)]
    for name, table in (("s", events), ("s/letters", letters)):
        values = zip(*(column.to_pylist() for column in table.columns), strict=True)
        assert found[name] == sorted(values, key=repr)


def beats(instant: int, *named: tuple[int, int | None, int | None]) -> pa.Table:
    """Rows of one instant: (partition, the time of an event, what a heartbeat names)."""
    schema = empty_updates(RAW).schema
    rows = [("a", at, None, p, n, beat, instant, 1) for n, (p, at, beat) in enumerate(named)]
    return pa.Table.from_arrays(
        [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)], schema=schema
    )


def test_c2_a_heartbeat_moves_its_partition_without_skew_and_is_no_event() -> None:
    """C2: what a heartbeat promises is promised; other partitions are waited for as before."""
    columns = EventColumns(("host", "at", "until"), "at", "until")
    buffer = EventBuffer.empty(event_schema(DATA), corrections=False)
    fold = EventFold(EventPolicy(columns, Policy(skew_ms=5)), buffer, NOTHING_SEEN)
    fold.step(beats(3, (0, 20, None), (1, 30, None)), [(0, 0), (1, 2)], 4)
    assert (fold.progress.frontier, fold.moved_by) == (15, "rows")
    fold.step(beats(4, (0, None, 24)), [], 5)
    assert (fold.progress.frontier, fold.moved_by) == (24, "heartbeat")
    fold.step(beats(5, (0, None, 90)), [], 6)
    assert fold.progress.frontier == 25  # partition 1 has promised no more
    fold.step(beats(6, (1, None, 10)), [], 7)
    assert fold.progress.frontier == 25  # what is less than what was promised takes nothing back
    events = buffer.release(25)
    assert events["at"].to_pylist() == [20]
    assert fold.take()[1].num_rows == 0


def test_c2_a_heartbeat_too_far_ahead_is_a_dead_letter_and_moves_nothing() -> None:
    """C2: one wrong heartbeat cannot make everything that follows late."""
    columns = EventColumns(("host", "at", "until"), "at", "until")
    buffer = EventBuffer.empty(event_schema(DATA), corrections=False)
    policy = EventPolicy(columns, Policy(), max_ahead_ms=10)
    fold = EventFold(policy, buffer, NOTHING_SEEN)
    fold.step(beats(4, (0, None, 14), (0, None, 15)), [(0, 0), (1, 1)], 5)
    assert fold.progress.frontier == 14
    (letter,) = fold.take()[1].to_pylist()
    assert letter["reason"] == "ahead: the heartbeat until 15 is past 14"
    assert (letter["raw"], letter["offset"]) == ("tidemill-heartbeat: 15", 1)


BOUND = ("s/remap", "s/raw", "s/raw/letters", "s/map", "s/letters")
PACE = "pace"


async def rest(world: World, at: int, upper: int) -> None:
    """All that is bound follows the pace from `at` to `upper`, as remap lets it; then the source
    has left.
    """
    numbers = {}
    for each in BOUND:
        number = await world.now.follow(each, (PACE,), frontier(at))
        assert number is not None, f"{each} is not where the source is"
        numbers[each] = number
    for step in range(at, upper + 1):
        assert await world.now.step_pace(PACE, frontier(step), {"s": numbers}, ()) == {"s"}
        numbers = {}
        await world.clock.settle()


async def run_with_deaths(seed: int) -> tuple[dict[str, list[tuple[object, ...]]], bool]:
    """Contents after instants that came at any moment of a step, and deaths at any write.

    And whether a step was folded and mapped while the events of the one before it were not written.
    """
    random, world, ahead = Random(seed), World(seed), False
    await world.create()

    async def feed() -> None:
        for instant in range(INSTANTS):
            await world.arrive(instant)
            for _ in range(random.randrange(40)):
                await asyncio.sleep(0)

    feeding = asyncio.create_task(feed())
    while not feeding.done():
        fuse = Fuse(random.randrange(8, 30), after=random.random() < 0.5)
        stage = world.stage(world.process(fuse), hold_interval_s=5.0)
        task = asyncio.create_task(stage.advance_forever())
        while not task.done() and not feeding.done():
            await asyncio.sleep(0)
            world.clock.move(0.1)
            ahead = ahead or stage._mapped > stage._taken > stage.folded > 0
        await end(task)
    await feeding
    await follow(world, world.stage(world.process(Fuse(None))), INSTANTS)
    return await world.contents(), ahead


async def test_a_stage_that_folds_while_events_are_written_gives_the_same() -> None:
    aheads = 0
    for seed in range(12):
        contents, ahead = await run_with_deaths(seed)
        assert contents == await run_without_deaths(seed)
        aheads += ahead
    assert aheads > 0


@pytest.mark.parametrize("seed", range(12))
async def test_d5_a_stage_whose_source_rests_gives_what_one_that_follows_each_instant_gives(
    seed: int,
) -> None:
    """Rest at any moment without rows, deaths at any write; while it rests the stage writes
    nothing.
    """
    random, world, expected = Random(seed), World(seed), World(seed)
    for each in (world, expected):
        each.policy = replace(policy(seed), progress=Policy(seed % 4))
        assert each.stage(each.now).follows_rows_alone
        await each.create()
        for quiet in (*range(6, 13), *range(17, 24)):
            each.arrivals.pop(quiet, None)
    for instant in range(INSTANTS):
        await expected.arrive(instant)
    await follow(expected, expected.stage(expected.now), INSTANTS)
    await world.now.open_pace(PACE)
    instant = deaths = rests = 0
    while instant < INSTANTS:
        fuse = Fuse(random.randrange(15, 45), after=random.random() < 0.5)
        stage = world.stage(world.process(fuse))
        task = asyncio.create_task(stage.advance_forever())
        while instant < INSTANTS and not task.done():
            ends = {7: 12, 18: 23}.get(instant)
            if ends is not None:
                await reach(world, stage, task, instant)
                if task.done():
                    continue
                before = world.versions()
                await rest(world, instant, ends)
                await reach(world, stage, task, ends)
                rests += not task.done()
                # All begin to follow; one step lets them join, and one more brings them to each
                # instant.
                assert world.versions() - before == len(BOUND) + 1 + ends - instant
                instant = ends
            await world.arrive(instant)
            instant += 1
            await reach(world, stage, task, instant)
        await end(task)
        deaths += fuse.blown
    await follow(world, world.stage(world.process(Fuse(None))), INSTANTS)
    assert await world.contents() == await expected.contents()
    assert rests > 0
    assert deaths > 0
