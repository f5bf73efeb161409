"""C2, eager goals: what has come fires before it is definite, and what fires is what would have
fired anyhow.

A source's own stage, a view and an eager action run as one process that dies at any of their
writes; another one goes on. In the end a plain action over the same output says what had to fire,
and what became of it.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import empty_updates
from tidemill.catalog.record_rows import shape_of_events, shape_of_output
from tidemill.catalog.schemas import (
    DONE_SCHEMA,
    ERROR_SCHEMA,
    EVENT_MAP_SCHEMA,
    OUTBOX_SCHEMA,
    STATE_SCHEMA,
    corrections_schema,
    event_schema,
)
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.check import check
from tidemill.datalog.eager import eager_refusal
from tidemill.datalog.goals import compile_goal
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.errors import Fenced
from tidemill.reclock import REMAP_SCHEMA, rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.ports import Expected, Version
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import U64_MAX, Partitions, frontier, sole_time
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.eager import EagerDriver
from tidemill_compute.actions.early import EarlyEvents, EarlyTarget
from tidemill_compute.actions.outbox import Firing, Sink, Took, untold
from tidemill_compute.actions.sink_sqlite import SqliteSink
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.events.fold import EventPolicy
from tidemill_compute.events.history import EventTarget
from tidemill_compute.events.progress import Policy
from tidemill_compute.events.rows import EventColumns
from tidemill_compute.events.stage import EventStage
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

DATA = pa.schema([("host", pa.string()), ("at", pa.int64()), ("until", pa.int64())])
RAW = pa.schema(
    [*DATA, ("_partition", pa.int64()), ("_offset", pa.uint64()), ("_heartbeat", pa.int64())]
)
SOURCE = EventTarget(
    "s", "s/raw", "s/raw/letters", "s/remap", "s/map", "s/letters", "s", event_schema(DATA)
)
INSTANTS, LAST = 24, 200


class Inline(Executor):
    """Work is done where it is asked for: a process whose turns are counted has no threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        found: Future[Any] = Future()
        try:
            found.set_result(fn(*args, **kwargs))
        except Exception as error:
            found.set_exception(error)
        return found


SKEW = 6
PROGRAMS = {
    "a join": ('hit(x) := s(host: "a", at: x) ^ s(host: "b");', "hit(x)"),
    "times": ('hit(x, y) := s(host: x, at: y) ^ s(host: "a", at: z) if z > y;', 'hit("b", y)'),
    "an expiry of its own": (
        'late(x) @expires(t + 7) := s(host: "a", at: x) @time(t); hit(x) := late(x) ^ s(host: "b");',
        "hit(x)",
    ),
    "a recursion": (
        'hit(x) := s(host: "a", at: x); hit(y) := hit(x) ^ s(host: "b", at: y) if y > x;', "hit(x)",
    ),
}  # fmt: skip
Mark = Literal["keyed", "askable", "at least once", "at most once"]
DELIVERIES: tuple[Mark, ...] = ("keyed", "askable", "at least once", "at most once")


def arrivals(seed: int) -> dict[int, pa.Table]:
    """Rows by system instant: out of order, some late, some twice, most within the skew; in the end
    one that makes all definite.
    """
    random, offsets = Random(seed), itertools.count()
    found: dict[int, list[tuple[object, ...]]] = {}
    for instant in range(1, INSTANTS):
        rows = found.setdefault(instant, [])
        for _ in range(random.choice((0, 1, 2))):
            at = max(0, instant + random.randrange(-SKEW - 3, 3))
            row = (random.choice("ab"), at, at + random.choice((0, 4, 9)))
            for _ in range(random.choice((1, 1, 1, 2))):
                rows.append((*row, random.randrange(2), next(offsets), None, instant, 1))
    found[LAST] = [("z", LAST, LAST + 1, p, next(offsets), None, LAST, 1) for p in range(2)]
    schema = empty_updates(RAW).schema
    return {
        instant: pa.Table.from_arrays(
            [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)], schema=schema
        )
        for instant, rows in found.items()
    }  # fmt: skip


class NotedConsensus(MortalConsensus):
    """Says which collection a process died of."""

    def __init__(self, inner: MemoryConsensus, fuse: Fuse, died_at: set[str]) -> None:
        super().__init__(inner, fuse)
        self._fuse_of, self._died_at = fuse, died_at

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        try:
            return await super().compare_and_set(key, expected, version)
        except Killed:
            self._died_at.add(key)
            raise


@dataclass
class Place:
    """A target of effects, with their number under each key; `seen` holds the definite keys at
    each.
    """

    delivery: Mark = "keyed"
    effects: Counter[str] = field(default_factory=Counter)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)


class PlaceSink:
    """A sink onto a place, in a process that may die before and after each effect."""

    def __init__(self, world: World, fuse: Fuse) -> None:
        self._world, self._fuse = world, fuse
        self.at_most_once = world.place.delivery == "at most once"

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        self._fuse.check()
        known = self._world.place.effects
        if self._world.place.delivery != "askable":
            return frozenset()
        return frozenset(firing.key for firing in doubtful if firing.key in known)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        for firing in firings:
            await self._fuse.write(lambda firing=firing: self._take(firing))
            took([firing])

    async def _take(self, firing: Firing) -> None:
        place = self._world.place
        if place.delivery != "keyed" or firing.key not in place.effects:
            place.effects[firing.key] += 1
        definite = sole_time((await self._world.now.status("v/hit")).upper)
        place.seen.setdefault(firing.key, (firing.instant, definite))

    async def close(self) -> None:
        return


class World:
    """The stores, which outlive every process, and the rows that somebody else writes."""

    def __init__(self, seed: int, program: str = "a join", delivery: Mark = "keyed") -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.died_at: set[str] = set()
        self.now = self.process(Fuse(None))
        self.place = Place(delivery)
        self.arrivals, self.fed = arrivals(seed), 0
        columns = EventColumns(("host", "at", "until"), "at", "until")
        self.policy = EventPolicy(columns, Policy(SKEW), corrections=seed % 3 == 2)
        text, goal = PROGRAMS[program]
        shape = shape_of_events("s", event_schema(DATA))
        schema = {"s": _schema(shape.argument_columns)}
        self.program = check(parse(text), InputSchemas(schema))
        self.goal = compile_goal(goal, self.program, "tell")
        assert eager_refusal(self.program, self.goal, {}) is None
        outputs = {p: shape_of_output(self.program, p) for p in self.program.derived}
        self.view = ViewTarget(
            "v", self.program, {"s": ("s", shape)},
            {p: (f"v/{p}", each) for p, each in outputs.items()}, "v/errors", "v/state",
        )  # fmt: skip
        self.target = self._named("tell")
        self.allowance = Allowance()
        self.settings = ComputeSettings(hold_interval_s=0.0)

    def _named(self, prefix: str) -> ActionTarget:
        parts = (f"{prefix}/{part}" for part in ("outbox", "done", "corrections"))
        return ActionTarget(prefix, self.goal, "v/hit", self.view.outputs["hit"][1], *parts)

    def process(self, fuse: Fuse) -> Collections:
        consensus = NotedConsensus(self.stores[0], fuse, self.died_at)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    async def create(self) -> None:
        made = {
            "s/raw": RAW, "s/raw/letters": LETTER_SCHEMA, "s/remap": REMAP_SCHEMA,
            "s/map": EVENT_MAP_SCHEMA, "s/letters": LETTER_SCHEMA, "s": event_schema(DATA),
            "v/errors": ERROR_SCHEMA, "v/state": STATE_SCHEMA,
            **{name: shape.schema for name, shape in self.view.outputs.values()},
            "tell/corrections": corrections_schema(self.target.shape),
            "tell/outbox": OUTBOX_SCHEMA, "tell/done": DONE_SCHEMA,
        }  # fmt: skip
        held = []
        for name, schema in made.items():
            kept = name in ("v/hit", "tell/done", "tell/corrections")
            capability, _ = await self.now.create(
                name, Description(schema, retain_ms=None if kept else 0)
            )
            if kept:
                await self.now.retain(name, None)
            held.append(capability)
        stage, view, action = self.drivers(Fuse(None))
        await stage.prepare()
        await view.prepare()
        await action.prepare()
        for capability in held:
            await self.now.drop(capability)

    def drivers(
        self, fuse: Fuse, sink: Sink | None = None
    ) -> tuple[EventStage, ViewDriver, Watched]:
        collections = self.process(fuse)
        stage = EventStage(SOURCE, self.policy, collections, self.clock, self.settings)
        shared = SharedInputs()
        shared.threads = Inline()
        view = ViewDriver(self.view, collections, self.clock, self.settings, shared)
        target = EarlyTarget(
            "hit", self.program, {"s": (SOURCE, self.policy, self.view.inputs["s"][1])}, "v/state",
            allowance=self.allowance,
        )  # fmt: skip
        early = EarlyEvents(target, "tell", collections, self.settings, Inline())
        sink = PlaceSink(self, fuse) if sink is None else sink
        return (
            stage,
            view,
            Watched(self.target, sink, collections, self.clock, self.settings, early),
        )

    async def feed(self, upper: int) -> None:
        """Rows of the instants before `upper`."""
        bindings = []
        if self.fed == 0:
            bindings = [(Partitions(0, U64_MAX, 0), 0, 1), (Partitions(0, U64_MAX, 0), 1, -1)]
            bindings += [(Partitions(0, 0, 0), 1, 1), (Partitions(1, 1, 0), 1, 1)]
            bindings += [(Partitions(2, U64_MAX, 0), 1, 1)]
        due = [rows for instant, rows in self.arrivals.items() if self.fed <= instant < upper]
        for name, updates in (
            ("s/remap", rows_of_bindings(bindings)),
            ("s/raw", pa.concat_tables([empty_updates(RAW), *due])),
            ("s/raw/letters", None),
        ):
            await self.now.compare_and_append(
                name, frontier(self.fed), frontier(upper), updates, writer="test"
            )
        self.fed = upper

    async def keys(self, name: str = "tell/outbox") -> Counter[str]:
        """Number of times that each key was put into an outbox."""
        rows = (await self.now.read_updates(name)).to_pylist()
        assert all(row["_diff"] == 1 for row in rows if row["key"])
        return Counter(row["key"] for row in rows if row["key"])

    async def corrections(self, name: str = "tell") -> list[str]:
        rows = (await self.now.read_updates(f"{name}/corrections")).to_pylist()
        names = ("key", "sequence", "instant", "old", "new")
        return sorted(repr([row[each] for each in names]) for row in rows)

    async def definite(self) -> tuple[Counter[str], list[str]]:
        """Firings and corrections of a plain action over the same output."""
        for part, schema in (
            ("outbox", OUTBOX_SCHEMA), ("done", DONE_SCHEMA),
            ("corrections", corrections_schema(self.target.shape)),
        ):  # fmt: skip
            await self.now.create(f"plain/{part}", Description(schema))
        silent = PlaceSink(World(0), Fuse(None))
        silent._take = _nothing  # type: ignore[method-assign]  # it is the outbox that is looked at
        plain = ActionDriver(self._named("plain"), silent, self.now, self.clock, self.settings)
        task = asyncio.create_task(plain.fire_forever())
        upper = sole_time((await self.now.status("v/hit")).upper)

        async def there() -> bool:
            return plain.counts.frontier >= upper

        await turn(self, [task], there)
        return await self.keys("plain/outbox"), await self.corrections("plain")


async def _nothing(firing: Firing) -> None:
    """No effect."""


def _schema(columns: Sequence[tuple[str, str]]) -> InputSchema:
    return InputSchema("s", "events", tuple(columns))  # type: ignore[arg-type]  # types of the language


class Watched(EagerDriver):
    """Says when it has nothing left to do."""

    idle = False

    async def _more(self) -> None:
        self.idle = True
        await super()._more()
        self.idle = False


async def turn(
    world: World, tasks: list[asyncio.Task[None]], there: Callable[[], Awaitable[bool]]
) -> None:
    """Run tasks until they are there, or one has died; then end them."""
    for _ in range(20_000):
        if any(task.done() for task in tasks) or await there():
            break
        await asyncio.sleep(0)
        world.clock.move(0.01)
    else:
        pytest.fail("the process stands still")
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, Killed | asyncio.CancelledError):
            raise AssertionError("the process failed") from ended


async def live(world: World, fuse: Fuse, sink: Sink | None = None) -> Watched:
    """Run a process until it has done all that can be done, or dies."""
    stage, view, action = world.drivers(fuse, sink)

    async def there() -> bool:
        if stage.folded < world.fed or not action.idle:
            return False
        early = action.early
        whole = all(feed._folded >= world.fed for feed in early._feeds.values()) and early._looked
        if not whole and early.given_up == "":
            return False
        ended = sole_time((await world.now.status("s")).upper)
        return min(view.progress.lower, action.counts.frontier) >= ended

    tasks = [asyncio.create_task(stage.advance_forever())]
    tasks += [asyncio.create_task(view.maintain_forever())]
    tasks += [asyncio.create_task(action.fire_forever())]
    await turn(world, tasks, there)
    return action


async def judge(world: World) -> None:
    """Whether what fired is what is definite in the end, once each, and was done as its class
    promises.
    """
    keys, effects = await world.keys(), world.place.effects
    told = await world.corrections()
    definite, corrections = await world.definite()
    assert keys == definite
    assert set(keys.values()) == {1}
    assert told == corrections
    if world.place.delivery in ("keyed", "askable"):
        assert effects == keys
    elif world.place.delivery == "at least once":
        assert effects.keys() == keys.keys()
    else:
        assert effects <= keys


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("seed", range(6))
async def test_c2_what_has_come_fires_before_it_is_definite_and_is_what_becomes_definite(
    seed: int, program: str
) -> None:
    """C2: while nobody dies; instant by instant, so that upper is behind what has come by the
    skew.
    """
    world = World(seed, program)
    await world.create()
    foreseen = 0
    for upper in (*range(2, INSTANTS + 1, 3), INSTANTS, LAST, LAST + 1):
        await world.feed(upper)
        foreseen += (await live(world, Fuse(None))).foreseen
    await judge(world)
    early = [key for key, (instant, definite) in world.place.seen.items() if instant >= definite]
    assert 0 < len(early) <= foreseen  # the view may have gone on before the effect
    status = await world.now.status("tell/outbox")
    assert sole_time(status.since) == sole_time(status.upper) - 1, "what was noted before is kept"
    held = await world.now.read_hold("tell/outbox", owner="test", lease_ms=None)
    rows = (await world.now.snapshot(held, sole_time(status.since))).to_pylist()
    notes = {row["record"] for row in rows if not row["key"]}
    assert notes == {""}, "what was foreseen has not begun"


async def test_without_the_look_ahead_nothing_fires_before_it_is_definite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The companion: it is the look ahead that fires early, and all fires without it."""

    async def nothing(early: EarlyEvents, upper: int) -> list[Presence]:
        early._looked = True
        return []

    monkeypatch.setattr(EarlyEvents, "find", nothing)
    world = World(1)
    await world.create()
    for upper in (*range(2, INSTANTS + 1, 3), LAST, LAST + 1):
        await world.feed(upper)
        assert (await live(world, Fuse(None))).foreseen == 0
    await judge(world)
    assert all(instant < definite for instant, definite in world.place.seen.values())


@pytest.mark.parametrize("delivery", DELIVERIES)
async def test_c2_a_process_that_dies_at_any_write_fires_the_same_set_once(delivery: Mark) -> None:
    """C2: of the stage, the view or the action, with some of the keys fired ahead and some not."""
    died_at: set[str] = set()
    deaths = foreseen = 0
    for seed, program in enumerate(PROGRAMS):
        random, world = Random(seed), World(seed, program, delivery)
        await world.create()
        steps = sorted({*random.sample(range(2, INSTANTS), 7), LAST, LAST + 1})
        for upper in steps:
            await world.feed(upper)
            for _ in range(random.randrange(1, 4)):
                fuse = Fuse(random.randrange(1, 14), after=random.random() < 0.5)
                foreseen += (await live(world, fuse)).foreseen
                deaths += fuse.blown
            foreseen += (await live(world, Fuse(None))).foreseen
        await judge(world)
        died_at |= world.died_at
    assert deaths > 20
    assert foreseen > 0
    assert {"tell/outbox", "tell/done", "tell/corrections", "s/map"} <= died_at


@pytest.mark.parametrize("death", range(1, 31, 2))
@pytest.mark.parametrize("after", [False, True])
async def test_c2_each_write_of_a_step_in_turn(death: int, after: bool) -> None:
    """C2: a death before or after the first, second … write of a process that has events to
    foresee.
    """
    world = World(4, "times", DELIVERIES[death % 4])
    await world.create()
    for upper in (8, 14, LAST, LAST + 1):
        await world.feed(upper)
        await live(world, Fuse(death, after=after))
        await live(world, Fuse(None))
    await judge(world)


async def test_c2_a_paused_owner_that_wakes_puts_nothing_down_and_is_refused(
    tmp_path: Path,
) -> None:
    """C2: the outbox is written strictly from where its writer saw it end; the sink has a newer
    fence.
    """
    world, path = World(1), tmp_path / "calls.db"
    world.settings = ComputeSettings(hold_interval_s=1e9)  # the paused one can read on
    await world.create()
    await world.feed(8)
    paused = await live(world, Fuse(None), SqliteSink(path, "calls", "tell"))
    await world.feed(14)
    await paused.early.advance()
    before = len(paused._memory.fired.known)
    newer = await live(world, Fuse(None), SqliteSink(path, "calls", "tell"))
    keys = set(await world.keys())
    assert before < len(keys), "nothing was put down meanwhile"
    await paused._step()
    for action in (newer, paused):
        known = action._memory.fired.known
        assert known.of(keys).keys() == keys, "it did not learn what the newer one has put down"
        assert len(known) == len(keys)
    await world.feed(LAST)
    await world.feed(LAST + 1)
    await live_without_action(world)
    with pytest.raises(Fenced):
        await paused._step()
    assert paused.counts.fenced == 1
    await live(world, Fuse(None), SqliteSink(path, "calls", "tell"))
    with closing(sqlite3.connect(path)) as db:
        found = Counter(key for (key,) in db.execute("SELECT key FROM calls"))
    world.place.effects = found
    await judge(world)


async def live_without_action(world: World) -> None:
    """Run the stage and the view until they have come to the end."""
    stage, view, _ = world.drivers(Fuse(None))

    async def there() -> bool:
        ended = sole_time((await world.now.status("s")).upper)
        return stage.folded >= world.fed and view.progress.lower >= ended

    tasks = [asyncio.create_task(stage.advance_forever())]
    await turn(world, [*tasks, asyncio.create_task(view.maintain_forever())], there)


async def test_c2_what_is_too_much_to_look_ahead_over_fires_when_it_is_definite() -> None:
    """C2: the memory of the view bounds what is looked over; beyond it the action goes on
    without.
    """
    world = World(1)
    world.allowance = Allowance(100, "limits.view_bytes", "view v")
    await world.create()
    for upper in (8, 16, LAST, LAST + 1):
        await world.feed(upper)
        action = await live(world, Fuse(None))
        assert "limits.view_bytes" in action.early.given_up
        assert action.foreseen == 0
    await judge(world)
