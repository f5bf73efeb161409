"""The cases of the language with goals, through real views and actions that die at every write.

A case is fed in pieces, each to a process of its own that dies of a write. The first run dies
before the first write, later ones after each write of view, actions and their targets. Another
process goes on. The outboxes hold the expected firings, each key once, and the corrections hold
their later changes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate
from tidemill.catalog.record_rows import (
    PredicateShape,
    arrow_of,
    row_of,
    shape_of_events,
    shape_of_output,
)
from tidemill.catalog.schemas import (
    DONE_SCHEMA,
    ERROR_SCHEMA,
    OUTBOX_SCHEMA,
    STATE_SCHEMA,
    corrections_schema,
)
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.goals import Goal, action_key, compile_goal
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.ports import Expected, Version
from tidemill.testkit.conformance.casefiles import FoundCase, find_cases
from tidemill.testkit.conformance.language_events import Arrived, check_events, take_in
from tidemill.testkit.conformance.values import Json
from tidemill.testkit.evaluated import evaluated
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.turns import Turns
from tidemill.time import frontier
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.outbox import Firing, Took, untold
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import update_table

Delivery: TypeAlias = Literal["keyed", "askable", "at least once", "at most once"]

DELIVERIES: tuple[Delivery, ...] = ("keyed", "askable", "at least once", "at most once")
CORRECTED = ("key", "sequence", "instant", "old", "new")
EVERY_WRITE = {"X16", "X47", "X55", "X57", "X65", "X67"}
"""Two events of one fact, values that change and end, a late event, several goals, events that go
and return.
"""
WRITES_AT_LEAST = 8
"""State, an output and errors of the view, corrections, outbox and what is done, an effect, a hold:
one piece of a case.
"""

VECTORS = Path(__file__).parents[3] / "libs/tidemill-testkit/tests/vectors/language"
CASES = {
    found.case["id"]: found.case
    for found in find_cases(
        each for each in sorted(VECTORS.iterdir()) if "goals" in each.read_text()
    )
    if isinstance(found, FoundCase) and "goals" in found.case
}


class Death(Fuse):
    """A fuse that knows which write it blew at."""

    def __init__(self, writes: int) -> None:
        super().__init__(max(1, writes), after=writes > 0)
        self.where = ""


class NotedConsensus(MortalConsensus):
    """Says of each write which collection it is about."""

    def __init__(self, inner: MemoryConsensus, fuse: Fuse) -> None:
        super().__init__(inner, fuse)
        self._death = fuse

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        if isinstance(self._death, Death) and not self._death.blown:
            self._death.where = key
        return await super().compare_and_set(key, expected, version)


class Target:
    """A target of effects: their number under each key, in one of the ways of targets."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.effects: Counter[str] = Counter()

    async def take(self, firing: Firing) -> None:
        if self.delivery != "keyed" or firing.key not in self.effects:
            self.effects[firing.key] += 1


class TargetSink:
    """A sink onto a target, in a process that may die before and after each effect."""

    def __init__(self, target: Target, fuse: Fuse) -> None:
        self._target = target
        self._fuse = fuse
        self.at_most_once = target.delivery == "at most once"

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        self._fuse.check()
        if self._target.delivery != "askable":
            return frozenset()
        return frozenset(f.key for f in doubtful if f.key in self._target.effects)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        for firing in firings:
            if isinstance(self._fuse, Death) and not self._fuse.blown:
                self._fuse.where = "effect"
            await self._fuse.write(lambda firing=firing: self._target.take(firing))
            took([firing])

    async def close(self) -> None:
        return


class World:
    """The stores, the target, and the inputs of a case, which somebody else writes."""

    def __init__(self, case: Json, arrivals: Arrived, delivery: Delivery) -> None:
        self.case = case
        self.died_at: list[str] = []
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.now = self.process(Fuse(None))
        self.inputs = {
            name: [replace(p, record=_as_derived(p.record)) for p in presences]
            for name, presences in arrivals.presences.items()
        }
        self.program = self._checked()
        shapes = {name: self._input_shape(name) for name in self.program.inputs}
        outputs = {p: shape_of_output(self.program, p) for p in self.program.derived}
        self.view = ViewTarget(
            "v", self.program, {name: (name, shape) for name, shape in shapes.items()},
            {name: (f"v/{name}", shape) for name, shape in outputs.items()}, "v/errors", "v/state",
        )  # fmt: skip
        self.goals = [compile_goal(text, self.program) for text in case["goals"]]
        self.actions: list[ActionTarget] = []
        for at, goal in enumerate(self.goals):
            collection, shape = (self.view.inputs | self.view.outputs)[goal.predicate]
            names = (f"a{at}/{part}" for part in ("outbox", "done", "corrections"))
            self.actions.append(ActionTarget(f"a{at}", goal, collection, shape, *names))
        self.targets = [Target(delivery) for _ in self.goals]

    def _checked(self) -> CheckedProgram:
        """The program over inputs that carry what the case gives them."""
        known = check_events(self.case)
        carried = {
            name: {lattice for p in self.inputs.get(name, ()) for lattice, _ in p.record.parafacts}
            for name in known.inputs
        }
        inputs = {
            name: replace(schema, lattices=tuple((each, ("set",)) for each in carried[name]))
            for name, schema in known.inputs.items()
        }
        return check(known.program, InputSchemas(inputs))

    def _input_shape(self, predicate: str) -> PredicateShape:
        fields = [
            pa.field(f"c{at}", arrow_of(kind))
            for at, (_, kind) in enumerate(self.program.columns[predicate])
        ]
        fields += [pa.field("time", pa.int64()), pa.field("expires", pa.int64())]
        lattices = self.program.inputs[predicate].lattices
        shape = shape_of_events(predicate, pa.schema(fields))
        schema = pa.schema([*fields, *(pa.field(name, pa.string()) for name, _ in lattices)])
        written = frozenset(range(len(fields), len(schema)))
        return replace(shape, schema=schema, lattices=lattices, written=written)

    def process(self, fuse: Fuse) -> Collections:
        consensus = NotedConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def drivers(self, fuse: Fuse) -> tuple[ViewDriver, list[ActionDriver]]:
        """The view and the actions, as one mortal process has them."""
        collections = self.process(fuse)
        settings = ComputeSettings(hold_interval_s=0.0)
        return ViewDriver(self.view, collections, self.clock, settings), [
            ActionDriver(action, TargetSink(target, fuse), collections, self.clock, settings)
            for action, target in zip(self.actions, self.targets, strict=True)
        ]

    async def create(self) -> None:
        for collection, shape in self.view.inputs.values():
            await self._create(collection, shape.schema, retain_ms=0)
        view, actions = self.drivers(Fuse(None))
        await view.hold_inputs()
        for collection, shape in self.view.outputs.values():
            await self._create(collection, shape.schema)
        await self._create("v/errors", ERROR_SCHEMA)
        await self._create("v/state", STATE_SCHEMA, retain_ms=0)
        await view.prepare()
        for target, action in zip(self.actions, actions, strict=True):
            await self._create(target.outbox, OUTBOX_SCHEMA)
            await self._create(target.done, DONE_SCHEMA)
            await self._create(target.corrections, corrections_schema(target.shape))
            await action.prepare()

    async def _create(self, name: str, schema: pa.Schema, retain_ms: int | None = None) -> None:
        held, _ = await self.now.create(name, Description(schema, retain_ms=retain_ms))
        if retain_ms is None:
            await self.now.retain(name, None)
            await self.now.drop(held)

    async def feed(self, lower: int, upper: int) -> None:
        for predicate, (collection, shape) in self.view.inputs.items():
            row = row_of(shape)
            stays = [(row(p.record), p.start, p.end) for p in self.inputs.get(predicate, ())]
            moves = [(data, max(0, start), 1) for data, start, _ in stays]
            moves += [(data, end, -1) for data, _, end in stays]
            due = [(data, int(at), diff) for data, at, diff in moves if lower <= at < upper]
            table = consolidate(update_table(due, shape.schema))
            await self.now.compare_and_append(
                collection, frontier(lower), frontier(upper), table, writer="test"
            )

    async def read_outboxes(self) -> list[str]:
        """The contents of the outboxes, as the case writes them."""
        rows = []
        for action in self.actions:
            rows += (await self.now.read_updates(action.outbox)).to_pylist()
        assert {row["_diff"] for row in rows} <= {1}
        return [f"{row['instant']}: {row['record']}" for row in rows]

    async def keys(self, action: ActionTarget) -> Counter[str]:
        return Counter((await self.now.read_updates(action.outbox))["key"].to_pylist())

    async def corrections(self, action: ActionTarget) -> list[tuple[object, ...]]:
        rows = (await self.now.read_updates(action.corrections)).to_pylist()
        return [tuple(row[name] for name in CORRECTED) for row in rows]

    def expected_corrections(self, goal: Goal) -> list[tuple[object, ...]]:
        """Changes of events after they fired, read off the presences of one evaluation."""
        upper = self.case["upper"]
        evaluation = evaluated(self.program, self.inputs, upper=upper)
        found = evaluation.presences.get(goal.predicate, ())
        lives: dict[str, list[Presence]] = defaultdict(list)
        for presence in sorted(found, key=lambda p: p.start):
            matches = goal.bindings(presence.record) is not None
            key = action_key(goal.name, presence.record)
            if presence.start < upper and (matches or key in lives):
                lives[key].append(presence)
        return [
            (key, number, *change)
            for key, life in lives.items()
            for number, change in enumerate(_changes(life, upper), 1)
        ]


def _as_derived(record: Record) -> Record:
    """A record with its provenance as views write it: a set, also of one."""
    carried = [
        (name, value if isinstance(value, frozenset) else frozenset((value,)))
        for name, value in record.parafacts
    ]
    assert {name for name, _ in carried} <= {"provenance"}
    return replace(record, parafacts=tuple(carried))


async def live(world: World, fuse: Fuse, upper: int) -> None:
    """Run a process until its view and all its actions have come to `upper`, or it dies."""
    view, actions = world.drivers(fuse)
    tasks = [asyncio.create_task(view.maintain_forever())]
    tasks += [asyncio.create_task(action.fire_forever()) for action in actions]
    turns = Turns(world.clock, 0.01)
    while not any(task.done() for task in tasks):
        if min(view.progress.lower, *(a.counts.frontier for a in actions)) >= upper:
            break
        await turns.take()
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, Killed | asyncio.CancelledError):
            raise AssertionError("the process failed") from ended


def _changes(life: Sequence[Presence], upper: int) -> Iterator[tuple[object, ...]]:
    """(instant, old, new) wherever an event is not what it was; its end at its expiry is none."""
    for before, after in pairwise([*life, None]):
        assert before is not None
        old, end = format_record(before.record), before.end
        if after is not None and after.start == end:
            yield end, old, format_record(after.record)
            continue
        if end < upper and (before.record.expires or inf) > end:
            yield end, old, None
        if after is not None:
            yield after.start, None, format_record(after.record)


async def run(case: Json, delivery: Delivery, death: int) -> World:
    """A case in up to three pieces, in each of which a process dies at that write and another one
    goes on.
    """
    world = World(case, await take_in(case), delivery)
    await world.create()
    upper = case["upper"]
    instants = sorted({p.start for each in world.inputs.values() for p in each})
    pieces = [int(at) + 1 for at in instants[:: max(1, len(instants) - 1)] if at + 1 < upper]
    for lower, stop in pairwise([0, *pieces, upper]):
        await world.feed(lower, stop)
        fuse = Death(death)
        await live(world, fuse, stop)
        if fuse.blown:
            world.died_at.append(fuse.where)
            await live(world, Fuse(None), stop)
    return world


async def judge(world: World) -> None:
    """Whether outboxes and corrections hold what the case says, and each target had what its class
    promises.
    """
    told = [line.replace("-inf:", "0:") for line in world.case["fired"]]
    assert sorted(await world.read_outboxes()) == sorted(told)
    for action, goal, target in zip(world.actions, world.goals, world.targets, strict=True):
        keys, effects = await world.keys(action), target.effects
        corrections = await world.corrections(action)
        assert sorted(corrections, key=repr) == sorted(world.expected_corrections(goal), key=repr)
        assert set(keys.values()) <= {1}
        if target.delivery in ("keyed", "askable"):
            assert effects == keys
        elif target.delivery == "at least once":
            assert effects.keys() == keys.keys()
        else:
            assert effects <= keys


@pytest.mark.parametrize("name", sorted(EVERY_WRITE))
async def test_a_case_fires_what_it_says_whatever_write_a_process_dies_of(name: str) -> None:
    for death in itertools.count():
        world = await run(CASES[name], DELIVERIES[death % len(DELIVERIES)], death)
        await judge(world)
        if not world.died_at:
            break
    assert death > WRITES_AT_LEAST


@pytest.mark.parametrize("name", sorted(CASES.keys() - EVERY_WRITE))
async def test_every_case_with_a_goal_fires_what_it_says_after_deaths_here_and_there(
    name: str,
) -> None:
    random = Random(name)
    world = await run(CASES[name], random.choice(DELIVERIES), random.randrange(WRITES_AT_LEAST))
    await judge(world)
    assert world.died_at


async def test_deaths_are_at_every_kind_of_write_and_a_target_without_memory_shows_them() -> None:
    """It has effects twice, or not at all; so for the others something was prevented."""
    died_at: set[str] = set()
    effects: dict[Delivery, list[int]] = defaultdict(list)
    for death, delivery in itertools.product(range(3, 13), ("at least once", "at most once")):
        world = await run(CASES["X66"], delivery, death)
        died_at.update(world.died_at)
        effects[delivery].append(sum(target.effects.total() for target in world.targets))
    parts = ("outbox", "done", "corrections")
    assert {f"a0/{part}" for part in parts} | {"v/errors", "effect"} <= died_at
    assert max(effects["at least once"]) > len(CASES["X66"]["fired"]) > min(effects["at most once"])


async def test_sets_are_told_as_what_they_are() -> None:
    """In the record, in the arguments of an effect and in those of a correction, and they are of
    its key.
    """
    case = {
        "program": "of(k) @set(v) := r(k, v); same(s) ~set := of(_) @set(s);",
        "inputs": ['r("a", 1) @time(1)', 'r("a", 2) @time(2)'],
        "upper": 10,
        "goals": ["same(s)", "of(k)"],
        "fired": [
            "1: same({1}) @time(1)", "2: same({1,2}) @time(2)",
            '1: of("a") @time(1) @set({1})', '2: of("a") @time(2) @set({1,2})',
        ],
    }  # fmt: skip
    world = await run(case, "keyed", 9)
    await judge(world)
    outbox = (await world.now.read_updates(world.actions[0].outbox)).to_pylist()
    told = {row["arguments"]: row["key"] for row in outbox}
    expected = Record("same", (frozenset((1, 2)),), 2)
    assert told.keys() == {"[[1]]", "[[1, 2]]"}
    assert told["[[1, 2]]"] == action_key("same(s)", expected)
    (gone,) = (await world.now.read_updates(world.actions[0].corrections)).to_pylist()
    assert (gone["arg_c0"], gone["old"], gone["new"]) == ("{1}", "same({1}) @time(1)", None)
