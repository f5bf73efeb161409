"""Views that share their inputs say what each says alone, whoever dies, comes late, goes or is
changed among them.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from dataclasses import dataclass, field, replace
from random import Random
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import accumulate, consolidate, empty_updates
from tidemill.catalog.record_rows import shape_of_events, shape_of_output
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.errors import AlreadyUsed, Exhausted
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.turns import PAUSE_S, Turns
from tidemill.testkit.twins.outputs import presences_of, written
from tidemill.time import Frontier, frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views import shared_inputs
from tidemill_compute.views.dataflow import DataflowMaintainer
from tidemill_compute.views.input_state import InputState
from tidemill_compute.views.shared_inputs import SharedInput, SharedInputs
from tidemill_compute.views.takeover import Takeover, VersionChange
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import Start

END = 36
PING = pa.schema(
    [("h", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
LINK = pa.schema([("a", pa.string()), ("b", pa.string())])
INPUTS = {
    "ping": ("ping", shape_of_events("ping", PING)),
    "link": ("link", replace(shape_of_events("link", LINK), arguments=2, timed=False)),
}
PROGRAMS = (
    "said(h, n) := ping(h, n) ^ link(h, _);",
    "load(h) @sum(n) @count(n) := ping(h, n); quiet(a, b) := link(a, b) ^ not ping(b, _);",
    "reach(a, b) := link(a, b); reach(a, c) := reach(a, b) ^ link(b, c); met(h, n) := ping(h, n);",
    "alarm(h, n) @expires(t + 9) := ping(h, n) @time(t) ^ link(h, _) if n > 1;",
    "share(h, 6 / n) := ping(h, n); pair(a, b, n) := link(a, b) ^ ping(a, n) ^ ping(b, n);",
    "same(h, n) := ping(h, n) ^ link(h, x) ^ ping(x, n);",
)


def checked(text: str) -> CheckedProgram:
    schemas = {
        "ping": InputSchema("ping", "events", (("h", "text"), ("n", "int"))),
        "link": InputSchema("link", "relation", (("a", "text"), ("b", "text"))),
    }
    program = parse(text)
    used = {a.application.name for rule in program.rules for a in rule.atoms}
    return check(program, InputSchemas({n: s for n, s in schemas.items() if n in used}))


def history(random: Random) -> dict[str, list[tuple[object, ...]]]:
    """Rows of the inputs with a time and a diff: pings that may end, links that come and go in
    several copies.
    """
    pings: dict[tuple[object, ...], tuple[object, ...]] = {}
    for _ in range(22):
        time, ends = random.randrange(END), None
        if random.random() < 0.5:
            ends = time + random.randrange(1, 12)
        pings.setdefault((random.choice("abcd"), random.randrange(4), time), (ends,))
    found: list[tuple[object, ...]] = []
    for key, (ends,) in pings.items():
        found.append((*key, ends, key[2], 1))
        if isinstance(ends, int) and ends < END:
            found.append((*key, ends, ends, -1))
    links: list[tuple[object, ...]] = []
    for pair in itertools.product("abcd", repeat=2):
        copies = 0
        for time in sorted(random.sample(range(END), 4)):
            diff = random.choice((1, 1, 2, -copies if copies else 1))
            copies += diff
            links.append((*pair, time, diff))
    return {"ping": found, "link": links}


def table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    updates = empty_updates(schema).schema
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(updates)]
    return consolidate(pa.Table.from_arrays(columns, schema=updates))


@dataclass
class Counts:
    """Counts of shared inputs and of events, over all starts of all processes."""

    reads: int = 0
    wanted: int = 0
    deaths: int = 0
    late: int = 0
    left: int = 0
    changed: int = 0
    crowd: int = 0


@dataclass
class Kept:
    """A view: what it is now, and from where on it can be compared."""

    target: ViewTarget
    start: int
    settings: ComputeSettings
    programs: list[tuple[int, CheckedProgram]]
    """Each program with the instant from which on it speaks."""


@dataclass
class World:
    """The stores, which outlive every process, the inputs that somebody else writes, and the
    views.
    """

    random: Random
    clock: ManualClock = field(default_factory=lambda: ManualClock(0))
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.stores = MemoryConsensus(), MemoryBlob()
        self.ids = map(str, itertools.count())
        self.now = self.process(Fuse(None))
        self.history = history(self.random)
        self.views: dict[str, Kept] = {}
        self.fed = 0

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    async def create(self) -> None:
        for name, (_, shape) in INPUTS.items():
            await self.ensure(name, Description(shape.schema, retain_ms=0), frontier(0))

    async def ensure(self, name: str, description: Description, start: Frontier) -> None:
        try:
            held, _ = await self.now.create(name, description, start=start)
        except AlreadyUsed:
            return
        if description.retain_ms is None:
            await self.now.retain(name, None)
        await self.now.drop(held)

    async def feed(self, upper: int) -> None:
        for name, rows in self.history.items():
            due = [row for row in rows if self.fed <= int(row[-2]) < upper]  # type: ignore[call-overload]  # a time
            await self.now.compare_and_append(
                name, frontier(self.fed), frontier(upper), table(due, INPUTS[name][1].schema),
                writer="test",
            )  # fmt: skip
        self.fed = upper

    def target(self, name: str, outputs: str, program: CheckedProgram) -> ViewTarget:
        shapes = {p: (f"{outputs}/{p}", shape_of_output(program, p)) for p in program.derived}
        inputs = {each: INPUTS[each] for each in program.inputs}
        return ViewTarget(
            name, program, inputs, shapes, f"{outputs}/errors", f"{name}/state",
            strategy=self.random.choice(("strata", "retraction")),
        )  # fmt: skip

    async def add(self, name: str, text: str, settings: ComputeSettings) -> None:
        """A view that begins where its inputs can be read from on."""
        target = self.target(name, name, checked(text))
        start = sole_time(await self.driver(target, settings, self.now, None).hold_inputs())
        for collection, shape in target.outputs.values():
            await self.ensure(collection, Description(shape.schema), frontier(start))
        await self.ensure(target.errors, Description(ERROR_SCHEMA), frontier(start))
        await self.ensure(target.state, Description(STATE_SCHEMA, retain_ms=0), frontier(start))
        await self.driver(target, settings, self.now, None).prepare()
        self.views[name] = Kept(target, start, settings, [(start, target.program)])

    async def drop(self, name: str) -> None:
        kept = self.views.pop(name)
        await self.driver(kept.target, kept.settings, self.now, None).release()

    def driver(
        self, target: ViewTarget, settings: ComputeSettings, collections: Collections,
        shared: SharedInputs | None,
    ) -> ViewDriver:  # fmt: skip
        return ViewDriver(target, collections, self.clock, settings, shared)

    async def live(self, fuse: Fuse, upper: int) -> None:
        """One life of a process that keeps all views; some of them are let go and begun again
        meanwhile.
        """
        collections, shared, random = self.process(fuse), SharedInputs(), self.random
        running: dict[str, tuple[ViewDriver, asyncio.Task[None]]] = {}

        def begin(name: str) -> None:
            kept = self.views[name]
            view = self.driver(kept.target, kept.settings, collections, shared)
            running[name] = view, asyncio.create_task(view.maintain_forever())

        for name in self.views:
            begin(name)
        restarts, turns = random.randrange(3), Turns(self.clock, 0.1)
        while any(view.progress.lower < upper for view, _ in running.values()):
            self.counts.crowd = max([self.counts.crowd, *(s.readers for s in shared.inputs())])
            if any(task.done() for _, task in running.values()):
                break
            await turns.take()
            if restarts and random.random() < 0.05:
                restarts -= 1
                name = random.choice(sorted(running))
                await self.stop(*running.pop(name))
                self.counts.left += 1
                begin(name)
        self.note(shared)
        for view, task in running.values():
            await self.stop(view, task)
        self.counts.deaths += fuse.blown

    async def stop(self, view: ViewDriver, task: asyncio.Task[None]) -> None:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if ended is not None and not isinstance(ended, Killed | asyncio.CancelledError):
            raise AssertionError("a view failed") from ended

    def note(self, shared: SharedInputs) -> None:
        for each in shared.inputs():
            self.counts.reads += each.reads
            self.counts.wanted += each.wanted

    async def change(self, name: str, text: str) -> None:
        """Another program takes over, in a process in which the other views go on."""
        kept, shared, collections = self.views[name], SharedInputs(), self.process(Fuse(None))
        program, version = checked(text), f"{name}@{next(self.ids)}"
        after = replace(self.target(version, name, program), state=f"{version}/state")
        beside = replace(self.target(version, version, program), state=f"{version}/state")
        at: list[int] = []

        async def make(collection: str, begin: Frontier) -> None:
            kind = collection.rpartition("/")[2]
            schema = {"errors": ERROR_SCHEMA, "state": STATE_SCHEMA}.get(kind)
            if schema is None:
                schema = shape_of_output(program, kind).schema
            retain = 0 if kind == "state" else None
            await self.ensure(collection, Description(schema, retain_ms=retain), begin)

        async def record(upper: int) -> None:
            at.append(upper)

        takeover = Takeover(
            VersionChange(kept.target, after, beside), collections, self.clock, kept.settings, make,
            record, shared,
        )  # fmt: skip
        others = [
            (each, asyncio.create_task(each.maintain_forever()))
            for each in (
                self.driver(other.target, other.settings, collections, shared)
                for mine, other in self.views.items()
                if mine != name
            )
        ]
        task = asyncio.create_task(takeover.run())
        fed = self.fed
        while not task.done():
            await asyncio.sleep(PAUSE_S)
            await self.clock.advance(0.05)
            waits = self.fed < fed + 3 and self.random.random() < 0.1
            if self.fed <= at[0] if at else waits:
                await self.feed(self.fed + 1)
        await task
        self.note(shared)
        for each, running in others:
            await self.stop(each, running)
        self.views[name] = replace(kept, target=after, programs=[*kept.programs, (at[0], program)])
        self.counts.changed += 1

    async def compare(self) -> None:
        """Every output of every view at every instant is what one evaluation of its program
        says.
        """
        reader = self.process(Fuse(None))
        inputs = {
            name: presences_of(table(rows, INPUTS[name][1].schema), INPUTS[name][1])
            for name, rows in self.history.items()
        }
        for name, kept in self.views.items():
            for (start, program), until in zip(
                kept.programs, [*(at for at, _ in kept.programs[1:]), self.fed], strict=True
            ):
                for output, rows in written(program, inputs, self.fed).items():
                    collection = f"{name}/{output}"
                    stored = await reader.read_updates(collection)
                    for at in range(start, until):
                        assert as_of(stored, at) == as_of(rows, at), (collection, at)


def as_of(updates: pa.Table, at: int) -> set[tuple[object, ...]]:
    rows = accumulate(updates, at)
    return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def chosen(random: Random) -> ComputeSettings:
    return ComputeSettings(step_changes_max=random.choice((3, 8, 50)), hold_interval_s=0.0)


@pytest.mark.rule("C1", "MV5", "D2", "K8")
@pytest.mark.parametrize("seed", range(6))
async def test_views_that_share_their_inputs_say_what_each_says_alone(seed: int) -> None:
    """Through splits of deliveries, restarts, views that die alone, come late, go for good and are
    changed.
    """
    random = Random(seed)
    world = World(random)
    await world.create()
    names = map("v{}".format, itertools.count())
    for text in (PROGRAMS[0], PROGRAMS[3], *random.sample(PROGRAMS, 3)):
        await world.add(next(names), text, chosen(random))
    while world.fed < END - 12:
        await world.feed(min(END - 12, world.fed + random.randrange(2, 12)))
        for fuse in (Fuse(random.randrange(2, 30), after=random.random() < 0.5), Fuse(None)):
            upper = world.fed - (random.randrange(3) if random.random() < 0.5 else 0)
            await world.live(fuse, upper)
        if random.random() < 0.5:
            await world.add(next(names), random.choice(PROGRAMS), chosen(random))
            world.counts.late += 1
        if random.random() < 0.3:
            await world.drop(random.choice(sorted(world.views)))
            await world.live(Fuse(None), world.fed)
    await world.live(Fuse(None), world.fed)
    await world.change(random.choice(sorted(world.views)), random.choice(PROGRAMS))
    await world.feed(END)
    await world.live(Fuse(None), END)
    await world.compare()
    counts = world.counts
    assert counts.deaths > 0
    assert counts.changed == 1
    assert counts.crowd >= 3, "no input was ever read by several views"
    assert counts.reads < counts.wanted, "every view read its inputs for itself"


async def test_an_input_without_a_view_is_gone() -> None:
    """Nothing is counted, so nothing can be forgotten: readings go with the last view."""
    random = Random(5)
    world = World(random)
    await world.create()
    settings = ComputeSettings(hold_interval_s=0.0)
    for name in ("v1", "v2", "v3"):
        await world.add(name, PROGRAMS[0], settings)
    await world.feed(9)
    collections, shared = world.process(Fuse(None)), SharedInputs()
    views = [
        world.driver(kept.target, settings, collections, shared) for kept in world.views.values()
    ]
    tasks = [asyncio.create_task(view.maintain_forever()) for view in views]
    for upper in (9, 14, 20):
        if world.fed < upper:
            await world.feed(upper)
        await reach(world, upper, *zip(views, tasks, strict=True))
    every = shared.inputs()
    assert [each.readers for each in every] == [3, 3]
    assert all(each.reads < each.wanted for each in every)
    stores = {rows.store for view in views for rows in view._maintainer._engine.shared.values()}  # type: ignore[attr-defined]
    assert [len(store.readers) for store in stores] == [3, 3], "rows were kept more than once"
    await world.stop(views[0], tasks[0])
    assert [each.readers for each in every] == [2, 2]
    assert [len(store.readers) for store in stores] == [2, 2]
    for view, task in zip(views[1:], tasks[1:], strict=True):
        await world.stop(view, task)
    assert all(each.readers == 0 for each in every)
    del every
    gc.collect()
    assert shared.inputs() == []


@pytest.mark.rule("C1", "D2")
async def test_a_view_stopped_while_it_evaluates_takes_nothing_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread is at its inputs when it is told to stop, and they are let go after that."""
    world, settings = World(Random(3)), ComputeSettings(hold_interval_s=0.0)
    await world.create()
    for name in ("v1", "v2"):
        await world.add(name, PROGRAMS[5], settings)
    await world.feed(9)
    collections, shared = world.process(Fuse(None)), SharedInputs()
    stopped, stays = (
        world.driver(kept.target, settings, collections, shared) for kept in world.views.values()
    )
    tasks = [asyncio.create_task(view.maintain_forever()) for view in (stopped, stays)]
    await reach(world, 9, *zip((stopped, stays), tasks, strict=True))
    inside, told, gone = Event(), Event(), Event()
    take, free = InputState.take_updates, InputState.let_go

    def slowly(living: InputState, upper: int) -> pa.Table:
        if living in stays._inputs.values():
            gone.wait(60)
        elif not inside.is_set():
            inside.set()
            told.wait(0.2)
        return take(living, upper)

    def let_go(living: InputState) -> None:
        free(living)
        told.set()

    monkeypatch.setattr(InputState, "take_updates", slowly)
    monkeypatch.setattr(InputState, "let_go", let_go)
    await world.feed(END)
    while not inside.is_set():
        await asyncio.sleep(0)
        world.clock.move(0.1)
    await world.stop(stopped, tasks[0])
    gone.set()
    await reach(world, END, (stays, tasks[1]))
    await world.stop(stays, tasks[1])
    await world.drop("v1")
    await world.compare()


async def reach(world: World, upper: int, *running: tuple[ViewDriver, asyncio.Task[None]]) -> None:
    """Time passes until views have come to an instant. Raises: what ends one before that."""
    turns = Turns(world.clock, 0.1)
    while any(view.progress.lower < upper for view, _ in running):
        for _, task in running:
            if task.done():
                task.result()
        await turns.take()


async def alone(world: World, text: str, hosts: int) -> ViewTarget:
    """A view over a backlog: at each instant pings of so many hosts, each for that instant."""
    rows: list[tuple[object, ...]] = []
    for at in range(1, END - 1):
        for host in range(hosts):
            row = (f"h{at}-{host}", 1, at, at + 1)
            rows += [(*row, at, 1), (*row, at + 1, -1)]
    world.history["ping"] = rows
    await world.create()
    await world.add("v", text, ComputeSettings())
    await world.feed(END)
    return world.views["v"].target


async def run_alone(world: World, view: ViewDriver) -> None:
    task = asyncio.create_task(view.maintain_forever())
    await reach(world, END, (view, task))
    await world.stop(view, task)


async def test_a_step_without_room_for_it_begins_again_with_fewer_changes() -> None:
    """All pairs of the backlog are more than the view may hold, those of some instants are not."""
    world = World(Random(1))
    target = await alone(world, "pair(a, b) := ping(a, n) ^ ping(b, n);", 24)

    def view(bytes_max: int) -> ViewDriver:
        room = Allowance(bytes_max, "limits.view_bytes", "view v")
        settings = ComputeSettings(hold_interval_s=0.0)
        return world.driver(replace(target, allowance=room), settings, world.now, None)

    with pytest.raises(Exhausted) as given_up:
        await run_alone(world, view(2_000))
    assert given_up.value.setting == "limits.view_bytes"
    tight = view(900_000)
    await run_alone(world, tight)
    assert 1 < tight.progress.steps < END
    await world.compare()


async def test_a_view_of_many_living_texts_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More texts than the bound, all of rows that are there: nothing is gained by new numbers."""
    monkeypatch.setattr(shared_inputs, "TEXTS_MAX", 4)
    shared = SharedInputs()
    texts = shared.texts(1)
    for number in range(100):
        texts.number(f"text {number}")
    fresh = shared.texts(1)
    assert fresh is not texts, "most of them are of rows that are gone"
    for number in range(100):
        fresh.number(f"text {number}")
    shared.texts_begun(fresh)
    assert shared.texts(1) is fresh
    for number in range(101):
        fresh.number(f"later {number}")
    assert shared.texts(1) is not fresh


async def test_texts_of_rows_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are alive get new numbers from the rows of the engine: nothing is read again."""
    monkeypatch.setattr(shared_inputs, "TEXTS_MAX", 200)
    world, shared = World(Random(1)), SharedInputs()
    target = await alone(world, "seen(h) := ping(h, n) if n > 0;", 90)
    settings = ComputeSettings(step_changes_max=100, hold_interval_s=0.0)
    begun, present = [], SharedInput.present

    async def count(*given: Any) -> pa.Table:
        begun.append(given)
        return await present(*given)

    monkeypatch.setattr(SharedInput, "present", count)
    await run_alone(world, world.driver(target, settings, world.now, shared))
    assert len(shared.texts(END * 90)) < END * 90 / 2
    assert not begun
    await world.compare()


@pytest.mark.rule("C1", "D2")
@pytest.mark.parametrize("seed", range(4))
async def test_views_say_the_same_whenever_their_texts_are_numbered_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any step, in processes that die, and among others that have the old numbers still."""
    random, renewed = Random(seed), list[bool]()
    texts, go_on = SharedInputs.texts, DataflowMaintainer.go_on

    def sometimes_anew(shared: SharedInputs, alive: int) -> Texts:
        if random.random() < 0.2:
            shared._texts = None
        return texts(shared, alive)

    def counted(maintainer: DataflowMaintainer, start: Start) -> bool:
        renewed.append(go_on(maintainer, start))
        return renewed[-1]

    monkeypatch.setattr(SharedInputs, "texts", sometimes_anew)
    monkeypatch.setattr(DataflowMaintainer, "go_on", counted)
    world = World(random)
    await world.create()
    for number, text in enumerate(PROGRAMS):
        await world.add(f"v{number}", text, chosen(random))
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(3, 14)))
        await world.live(Fuse(random.randrange(2, 60), after=random.random() < 0.5), world.fed)
        await world.live(Fuse(None), world.fed)
    await world.compare()
    assert world.counts.deaths > 0
    assert renewed.count(True) > 10
