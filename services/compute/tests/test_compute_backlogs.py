"""A backlog of firings: taken a piece at a time, told alike, and no larger in memory than a piece.

The twin takes all changes at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.updates import update_schema
from tidemill.catalog.record_rows import PredicateShape, record_of
from tidemill.catalog.schemas import DONE_SCHEMA, corrections_schema, outbox_schema
from tidemill.datalog.goals import goal_over
from tidemill.errors import Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.durations import Milliseconds
from tidemill.runtime.resources.specs import RateSpec
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.effects import in_order
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import frontier
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.due import Due
from tidemill_compute.actions.firings import Firings
from tidemill_compute.actions.key_counts import KeyCounts
from tidemill_compute.actions.limiting import limiter_of
from tidemill_compute.actions.outbox import BEGIN, END, Firing, Took, firing_updates, untold
from tidemill_compute.actions.taking import Read, Taking
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.settings import ComputeSettings

ALARM = pa.schema([("tank", pa.string()), ("level", pa.int64()), ("max", pa.int64())])
SHAPE = PredicateShape(
    "alarm", ALARM, 2, timed=False, lattices=(("max", ("int",)),), sure=frozenset({"max"})
)
COLUMNS = {"alarm": (("tank", "text"), ("level", "int"))}
GOAL = goal_over("alarm(tank, 1) @max(m)", COLUMNS, "calls")
UPPER, AT_ONCE = 30, 7

Change = tuple[str, int, int, int, int]
"""tank, level, value, instant, difference."""


def changes(seed: int, tanks: int = 60) -> list[Change]:
    """Events that begin, get other values, end and come back: most of them at two instants."""
    random = Random(seed)
    found: list[Change] = []
    for number in range(tanks):
        level, there = random.choice([0, 1, 1, 1]), None
        for at in sorted({random.choice([3, 3, 11]), *random.sample(range(UPPER), 2)}):
            if there is not None:
                found.append((f"t{number}", level, there, at, -1))
            there = None if there is not None and random.random() < 0.4 else at
            if there is not None:
                found.append((f"t{number}", level, there, at, 1))
    return found


def table_of(rows: Sequence[Change]) -> pa.Table:
    schema = update_schema(ALARM)
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def keys(count: int) -> list[str]:
    return [sha256(str(n).encode()).hexdigest() for n in range(count)]


class SlowSink:
    """Takes a few effects of each call and refuses the rest; how many it was ever handed."""

    def __init__(self, random: Random, *, at_most_once: bool = False) -> None:
        self.told: list[Firing] = []
        self.most = self.refused = 0
        self.at_most_once = at_most_once
        self._random = random

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        mine = {each.key for each in self.told}
        return frozenset(each.key for each in doubtful if each.key in mine)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        self.most = max(self.most, len(firings))
        some = firings[: self._random.randrange(1, 9)]
        self.told += some
        took(some)
        if len(some) < len(firings):
            self.refused += 1
            raise Unavailable("slowly")

    async def close(self) -> None:
        """Nothing is open."""


class World:
    """The stores, which outlive every process, and the collection that somebody else writes."""

    def __init__(self, rows: Sequence[Change], *, follow: bool, limit: RateSpec | None) -> None:
        self.clock = ManualClock(0)
        self.stores = MemoryConsensus(), MemoryBlob()
        self.ids = map(str, itertools.count())
        self.rows = rows
        self.target = ActionTarget(
            "calls", GOAL, "alarm", SHAPE, "calls/outbox", "calls/done", "calls/corrections",
            follow, limit,
        )  # fmt: skip

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def action(self, sink: SlowSink, fuse: Fuse, at_once: int) -> ActionDriver:
        settings = ComputeSettings(hold_interval_s=0.0, action_changes_max=at_once)
        return ActionDriver(self.target, sink, self.process(fuse), self.clock, settings)

    async def create(self) -> None:
        store, follow = self.process(Fuse(None)), self.target.follow
        await store.create("alarm", Description(ALARM, retain_ms=0))
        outbox = outbox_schema(follow, limited=self.target.limit is not None)
        for part, schema in (
            ("outbox", outbox), ("done", DONE_SCHEMA), ("corrections", corrections_schema(SHAPE)),
        ):  # fmt: skip
            await store.create(f"calls/{part}", Description(schema))
        await self.action(SlowSink(Random(0)), Fuse(None), 1).prepare()
        await store.compare_and_append(
            "alarm", frontier(0), frontier(UPPER), table_of(self.rows), writer="test"
        )

    async def run(self, action: ActionDriver) -> None:
        """Run an action until all is carried out, or it dies."""
        task = asyncio.create_task(action.fire_forever())
        while not task.done() and action.counts.frontier < UPPER:
            await asyncio.sleep(0)
            self.clock.move(0.01)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, Killed | asyncio.CancelledError | Unavailable):
            raise AssertionError("the action failed") from ended

    def expected(self) -> tuple[list[Firing], list[tuple[str, int, int]]]:
        """Firings, and corrections of them, of all changes at once."""
        names = [name for name, _ in SHAPE.argument_columns]
        memory = Firings(GOAL, self.target.follow, limiter_of(self.target.limit, names))
        record = record_of(SHAPE)
        firings, corrections = memory.take((record(row[:3]), row[3], row[4]) for row in self.rows)
        return firings, sorted((each.key, each.sequence, each.instant) for each in corrections)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("limit", [None, RateSpec(count=2, per=Milliseconds(4))])
@pytest.mark.parametrize("seed", range(3))
async def test_a_backlog_is_told_once_and_in_order_however_it_is_cut(
    seed: int, limit: RateSpec | None, follow: bool
) -> None:
    random, world = Random(seed), World(changes(seed), follow=follow, limit=limit)
    firings, corrections = world.expected()
    await world.create()
    sink, deaths = SlowSink(random), 0
    for _ in range(30):
        fuse = Fuse(random.randrange(2, 12), after=random.random() < 0.5)
        await world.run(world.action(sink, fuse, AT_ONCE))
        deaths += fuse.blown
    reached = 0
    while reached < UPPER:
        last = world.action(sink, Fuse(None), AT_ONCE)
        await world.run(last)
        reached = last.counts.frontier
    assert sink.told == [each for each in firings if not each.limited]
    told = (await world.process(Fuse(None)).read_updates("calls/corrections")).to_pylist()
    assert sorted((row["key"], row["sequence"], row["instant"]) for row in told) == corrections
    assert sink.most <= AT_ONCE < len(firings) // 3, "it was handed all at once"
    assert deaths > 0, "nobody died"
    assert sink.refused > 0 or limit is not None, "nothing was refused"


async def test_marks_of_a_sink_of_at_most_once_are_written_before_its_effects() -> None:
    world = World(changes(4), follow=False, limit=None)
    firings, _ = world.expected()
    await world.create()
    sink = SlowSink(Random(4), at_most_once=True)
    for _ in range(2 * UPPER):
        await world.run(world.action(sink, Fuse(None), AT_ONCE))
    assert max(Counter(each.key for each in sink.told).values()) == 1
    due = iter(firings)
    assert all(each in due for each in sink.told), "out of order"
    assert 0 < sink.refused < len(firings) - len(sink.told), "nothing failed"


@given(st.integers(0, 1_000), st.integers(1, 20))
def test_pieces_have_each_event_whole_and_in_order(seed: int, rows_max: int) -> None:
    rows = table_of(changes(seed))
    memory = Firings(GOAL, follow=True)
    taking = Taking(SHAPE, memory)
    pieces = [taking.changes(piece) for piece in taking.pieces(rows, rows_max)]
    events = [
        {(time, memory.key_of(record)) for record, time, _ in piece if memory.asks(record)}
        for piece in pieces
    ]
    for earlier, later in itertools.pairwise(events):
        assert max(earlier) < min(later)
    asked = Counter(change for change in taking.changes(rows) if memory.asks(change[0]))
    assert Counter(c for piece in pieces for c in piece if memory.asks(c[0])) == asked
    # An event has at most two changes at an instant.
    assert len(pieces) == 1 or max(map(len, pieces)) <= rows_max + 2


@given(st.lists(st.integers(3, 19), max_size=30), st.integers(1, 12))
def test_steps_are_as_long_as_they_may_be_and_cut_no_instant(
    times: list[int], rows_max: int
) -> None:
    read = Read(3, 20, table_of([("t", 1, at, at, 1) for at in times]))
    assert [read.covers(at) for at in (2, 3, 19, 20)] == [False, True, True, False]
    lower = 3
    while lower < 20:
        upper = read.step_end(lower, rows_max)
        step = [at for at in times if lower <= at < upper]
        assert read.between(lower, upper).num_rows == len(step)
        assert lower < upper
        assert len(step) <= rows_max or len(set(step)) == 1
        more = [at for at in times if lower <= at <= upper]
        assert upper == 20 or len(more) > rows_max, "it could have been longer"
        lower = upper
    assert lower == 20


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(keys(4)), st.integers(0, 12), st.booleans())
    ),
    st.booleans(),
)
def test_what_is_due_is_in_the_order_of_effects(
    drawn: list[tuple[int, str, int, bool]], follow: bool
) -> None:
    firings = {}
    for instant, event, number, ends in drawn:
        key = f"{event}.{number}" if follow and number else event
        phase = END if follow and ends else BEGIN
        named = event if follow else ""
        firings[key] = Firing(key, "tell", instant, f"r{number}", "[]", None, named, phase)
    due = Due.in_outbox(firing_updates([*firings.values()], outbox_schema(follow)))
    assert list(due) == in_order(firings.values())
    assert [due[at] for at in range(len(due))] == list(due) == due[:]
    assert due.marks["key"].to_pylist() == [each.key for each in due]
    stretches = [(at, [*group]) for at, group in itertools.groupby(due, lambda each: each.instant)]
    assert [(at, due[start:stop]) for at, start, stop in due.instants()] == stretches


@given(st.lists(st.lists(st.sampled_from(keys(40)), max_size=30), max_size=12))
def test_numbers_by_key_are_those_of_a_counter(added: list[list[str]]) -> None:
    ours, twin = KeyCounts(), Counter[str]()
    for some in added:
        ours.add(some)
        twin.update(some)
        assert ours.of(keys(40)) == twin
    assert len(ours) == len(twin)
    ours.put({keys(1)[0]: 7, keys(41)[40]: 9})
    assert ours.of([*keys(1), keys(41)[40]]) == {keys(1)[0]: 7, keys(41)[40]: 9}


def test_keys_that_begin_alike_are_told_apart() -> None:
    alike = [f"{'ab' * 8}{n:048x}" for n in range(50)]
    ours = KeyCounts()
    ours.put({key: at + 1 for at, key in enumerate(alike[::2])})
    assert ours.of(alike) == {key: at + 1 for at, key in enumerate(alike[::2])}


def test_a_key_takes_few_bytes() -> None:
    ours = KeyCounts()
    for start in range(0, 20_000, 1_000):
        ours.add(keys(20_000)[start : start + 1_000])
    assert ours.nbytes == 36 * len(ours) == 36 * 20_000
