"""Outputs of views at rest: they cost nothing, are as far as their inputs, and say what one
evaluation says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import empty_updates
from tidemill.catalog.record_rows import shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Appended, Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import frontier, sole_time
from tidemill_compute.resting import LOOKS
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.takeover import Takeover, VersionChange
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

ROWS = pa.schema([("n", pa.int64())])
PROGRAM = "both(n) := s(n) ^ t(n); alone(n) := s(n) ^ not t(n); some(1) := s(_);"
PACE = "pace/1/here"
INPUTS = ("s", "t")
ONE, TWO = {"s": PACE, "t": PACE}, {"s": PACE, "t": "pace/2/there"}
"""Paces of the inputs: those of two tables, and those of a source and a table."""
DRAINED = 10_000
"""So many turns of the loop without progress are a view that stands."""


def target_of(text: str, name: str = "v", state: str = "v") -> ViewTarget:
    """A view `name` of the two inputs; the outputs of another version have another name."""
    schemas = {each: InputSchema(each, "relation", (("n", "int"),)) for each in INPUTS}
    program = check(parse(text), InputSchemas(schemas))
    outputs = {p: (f"{name}/{p}", shape_of_output(program, p)) for p in program.derived}
    inputs = {each: (each, shape_of_relation(each, ROWS)) for each in program.inputs}
    return ViewTarget(state, program, inputs, outputs, f"{name}/errors", f"{state}/state")


class World:
    """The stores, two inputs that somebody else writes and lets rest, and what they have held."""

    def __init__(self, text: str = PROGRAM, paces: Mapping[str, str] = ONE) -> None:
        self.paces = paces
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.consensus, self.blob = MemoryConsensus(), MemoryBlob()
        self.target = target_of(text)
        self.now = self.process(Fuse(None))
        self.held: dict[str, set[int]] = {each: set() for each in INPUTS}
        self.seen: dict[int, tuple[frozenset[int], frozenset[int]]] = {}

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.consensus, fuse)
        return Collections(consensus, self.blob, self.clock, self.ids.__next__)

    def view(
        self, collections: Collections, target: ViewTarget | None = None, pause_s: float = 0.0
    ) -> ViewDriver:
        settings = ComputeSettings(hold_interval_s=pause_s)
        view = ViewDriver(target or self.target, collections, self.clock, settings)
        view.may_rest()
        return view

    async def create(self) -> World:
        for each in INPUTS:
            await self.ensure(each, ROWS)
            await self.feed(each, 1)
        for name, shape in self.target.outputs.values():
            await self.ensure(name, shape.schema)
        await self.ensure(self.target.errors, ERROR_SCHEMA)
        await self.ensure(self.target.state, STATE_SCHEMA)
        for pace in {*self.paces.values()}:
            await self.now.open_pace(pace)
        return self

    async def ensure(self, name: str, schema: pa.Schema) -> None:
        await self.now.bind(name, Description(schema, retain_ms=2**40), frontier(0))

    async def feed(self, name: str, upper: int, *toggled: int) -> bool:
        """Rows that were there go, others come, where the input is; it is at `upper` then."""
        lower = sole_time((await self.now.status(name)).upper)
        rows = [(n, lower, -1 if n in self.held[name] else 1) for n in toggled]
        schema = empty_updates(ROWS).schema
        columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
        answer = await self.now.compare_and_append(
            name, frontier(lower), frontier(upper), pa.Table.from_arrays(columns, schema=schema),
            writer="test",
        )  # fmt: skip
        self.held[name] ^= set(toggled)
        return isinstance(answer, Appended)

    async def rest(self, *names: str) -> None:
        for name in names:
            upper = (await self.now.status(name)).upper
            pace = self.paces[name]
            number = await self.now.follow(name, (pace,), upper)
            assert number is not None
            reached = max(upper, (await self.now.status(pace)).upper, key=sole_time)
            assert name in await self.now.step_pace(pace, reached, {name: {name: number}}, ())

    async def step(self, upper: int) -> None:
        for pace in {*self.paces.values()}:
            await self.now.step_pace(pace, frontier(upper), {}, ())

    async def upper(self, name: str) -> int:
        return sole_time((await self.now.status(name)).upper)

    async def rows(self, name: str, at: int) -> list[int]:
        found = await self.now.read_without_hold(name, at)
        assert found is not None
        assert set(found["_diff"].to_pylist()) <= {1}
        return sorted(found.column(0).to_pylist())

    def versions(self) -> int:
        return sum(log[-1].number + 1 for log in self.consensus._logs.values())

    def written(self) -> list[str]:
        outputs = [name for name, _ in self.target.outputs.values()]
        return [*outputs, self.target.errors, self.target.state]


async def until(world: World, task: asyncio.Task[None], come: Callable[[], bool]) -> None:
    """A view works until a condition holds; its error is raised."""
    if not await comes(world, task, come, DRAINED):
        pytest.fail("the view stands")
    if task.done():
        task.result()


async def comes(
    world: World, task: asyncio.Task[None], come: Callable[[], bool], turns: int
) -> bool:
    """Whether a condition holds, or the view has died, within so many turns of the loop."""
    for _ in range(turns):
        if task.done() or come():
            return True
        await asyncio.sleep(0.0005)
        world.clock.move(0.01)
    return False


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    (how,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(how, Killed | asyncio.CancelledError | None):
        raise AssertionError("the view failed") from how


async def let_rest(world: World, view: ViewDriver, task: asyncio.Task[None], at: int) -> int:
    """Step the pace until the outputs follow; where it is then."""
    for upper in range(at + 1, at + 20):
        await world.step(upper)
        await until(world, task, lambda upper=upper: view.progress.lower >= upper)
        if await world.now.rests("v/state"):
            return upper
    pytest.fail("the outputs never rest")


async def view_at_rest(
    pause_s: float = 60.0,
) -> tuple[World, ViewDriver, asyncio.Task[None], int]:
    """A view that looks each pause and has begun to rest, its task, and the instant of that."""
    world = await World().create()
    view = world.view(world.now, pause_s=pause_s)
    task = asyncio.create_task(view.maintain_forever())
    for name, row in (("s", 7), ("t", 8)):
        await world.feed(name, 10, row)
    await until(world, task, lambda: view.progress.lower >= 10)
    await world.rest(*INPUTS)
    at = await let_rest(world, view, task, 10)
    return world, view, task, at


@pytest.mark.parametrize("paces", [ONE, TWO])
async def test_d5_outputs_of_a_view_advance_with_inputs_at_rest_at_no_cost(
    paces: Mapping[str, str],
) -> None:
    world = await World(paces=paces).create()
    view = world.view(world.process(Fuse(None)))
    task = asyncio.create_task(view.maintain_forever())
    for name, row in (("s", 7), ("t", 8)):
        await world.feed(name, 10, row)
    await until(world, task, lambda: view.progress.lower >= 10)
    await world.rest(*INPUTS)
    at = await let_rest(world, view, task, 10)
    before = world.versions()
    for upper in range(at + 1, at + 31):
        await world.step(upper)
        await until(world, task, lambda upper=upper: view.progress.lower >= upper)
        for name in world.written():
            assert await world.upper(name) == upper
    assert world.versions() - before == 30 * len({*paces.values()})
    # A row ends the rest of its input and of the outputs, at one upper; the other input rests on.
    upper = at + 31
    assert await world.feed("s", upper, 8)
    await world.step(upper)
    await until(world, task, lambda: view.progress.lower >= upper)
    assert await world.now.rests("t")
    assert [await world.upper(name) for name in world.written()] == [upper] * 5
    assert await world.rows("v/both", upper - 1) == [8]
    assert await world.rows("v/alone", upper - 2) == await world.rows("v/alone", 9) == [7]
    await stop(task)


async def test_d5_a_view_at_rest_is_not_evaluated_until_an_input_is_written() -> None:
    world, view, task, at = await view_at_rest()
    steps, begun_s = view.progress.steps, world.clock.monotonic_s()
    for upper in range(at + 1, at + 31):
        await world.step(upper)
        assert not await comes(world, task, lambda: view.progress.steps > steps, 10)
        assert await world.upper("v/both") == upper
    assert await world.feed("s", at + 31, 8)
    await world.step(at + 31)
    await until(world, task, lambda: view.progress.lower > at + 30)
    assert await world.rows("v/both", at + 30) == [8]
    assert world.clock.monotonic_s() - begun_s < 60
    await stop(task)


async def test_d5_a_view_at_rest_looks_at_its_pace_and_is_seldom_evaluated() -> None:
    world, view, task, at = await view_at_rest(pause_s=0.5)
    begun, steps = world.clock.monotonic_s(), view.progress.steps
    while world.clock.monotonic_s() - begun < 2 * LOOKS * 0.5:
        at += 1
        await world.step(at)
        await until(world, task, lambda at=at: view.progress.lower >= at)
    assert 1 <= view.progress.steps - steps <= 3
    await stop(task)


async def test_d5_a_view_goes_on_when_an_output_of_it_is_held() -> None:
    """A hold is a version of the output, which ends the rest of all of them."""
    world, view, task, at = await view_at_rest()
    begun_s = world.clock.monotonic_s()
    await world.now.read_hold("v/both", owner="reader")
    await world.step(at + 5)
    await until(world, task, lambda: view.progress.lower >= at + 5)
    assert await world.upper("v/both") == at + 5
    assert world.clock.monotonic_s() - begun_s < 60
    await stop(task)


async def test_d5_a_view_rests_under_the_outputs_of_another_one() -> None:
    world = await World().create()
    below = target_of(PROGRAM)
    above = target_of("again(n) := s(n);", "w", "w")
    copied = below.outputs["alone"][1].schema
    above = ViewTarget(
        "w", above.program, {"s": ("v/alone", shape_of_relation("s", copied))}, above.outputs,
        above.errors, above.state,
    )  # fmt: skip
    await world.ensure("w/again", above.outputs["again"][1].schema)
    await world.ensure("w/errors", ERROR_SCHEMA)
    await world.ensure("w/state", STATE_SCHEMA)
    views = [world.view(world.process(Fuse(None)), each) for each in (below, above)]
    tasks = [asyncio.create_task(view.maintain_forever()) for view in views]
    for name in INPUTS:
        await world.feed(name, 10, 1)
    await world.feed("t", 20, 1)
    await world.feed("s", 20)
    for view, task in zip(views, tasks, strict=True):
        await until(world, task, lambda view=view: view.progress.lower >= 20)
    await world.rest(*INPUTS)
    for upper in range(21, 40):
        await world.step(upper)
        for view, task in zip(views, tasks, strict=True):
            await until(world, task, lambda view=view, upper=upper: view.progress.lower >= upper)
    before = world.versions()
    await world.step(40)
    assert world.versions() - before == 1
    assert await world.upper("w/again") == 40
    assert await world.feed("s", 50, 1)
    await world.step(60)
    assert await world.upper("w/again") == await world.upper("v/alone") == 40
    await world.feed("t", 70)
    await until(world, tasks[1], lambda: views[1].progress.lower >= 50)
    assert await world.rows("w/again", 39) == [1]
    assert await world.rows("w/again", 49) == []
    for task in tasks:
        await stop(task)


@pytest.mark.rule("C1", "C4")
@pytest.mark.parametrize("paces", [ONE, TWO])
@pytest.mark.parametrize("seed", range(5))
async def test_d5_a_view_that_rests_and_dies_at_any_write_says_what_its_inputs_say(
    seed: int, paces: Mapping[str, str]
) -> None:
    """Inputs rest and are written in any order while processes with the view die."""
    random, world = Random(seed), await World(paces=paces).create()
    history: dict[int, dict[str, set[int]]] = {}
    at, deaths, rests = 1, 0, 0
    fuse = Fuse(random.randrange(5, 25))
    view = world.view(world.process(fuse))
    task = asyncio.create_task(view.maintain_forever())
    while at < 70:
        for name in random.sample(INPUTS, random.randrange(3)):
            toggled = random.sample(range(4), random.randrange(3))
            now = await world.upper(name)
            for instant in range(now):
                history.setdefault(instant, {}).setdefault(name, set(world.held[name]))
            await world.feed(name, max(now + 1, at), *toggled)
        least = min([await world.upper(name) for name in INPUTS])
        await world.rest(*[name for name in INPUTS if not await world.now.rests(name)])
        for _ in range(random.choice((1, 2, 12))):
            at += 1
            await world.step(at)
            await comes(world, task, lambda view=view, at=at: view.progress.lower >= at, 400)
            rests += not task.done() and await world.now.rests("v/state")
            if task.done() or random.random() < 0.05:
                await stop(task)
                deaths += fuse.blown
                fuse = Fuse(random.randrange(5, 30), after=random.random() < 0.5)
                view = world.view(world.process(fuse))
                task = asyncio.create_task(view.maintain_forever())
        assert least <= min([await world.upper(name) for name in INPUTS])
        for name in world.written():
            assert await world.upper(name) <= min([await world.upper(each) for each in INPUTS])
    await stop(task)
    for instant in range(at):
        for name in INPUTS:
            history.setdefault(instant, {}).setdefault(name, set(world.held[name]))
    upper = min([await world.upper(name) for name in world.written()])
    assert upper > 40
    for instant in range(1, upper):
        s, t = history[instant]["s"], history[instant]["t"]
        assert await world.rows("v/both", instant) == sorted(s & t), instant
        assert await world.rows("v/alone", instant) == sorted(s - t), instant
    assert deaths > 0
    assert rests > 3


@pytest.mark.parametrize(
    "text",
    [
        "tick(t) := s(_) ^ clock(0, 7) @time(t);",
        "soon(n) @time(30) := s(n);",
        "brief(n) @expires(30) := s(n);",
        "late(n) @next := s(n);",
    ],
)
async def test_d5_a_program_that_changes_as_time_passes_does_not_rest(text: str) -> None:
    target = target_of(text)
    assert not target.program.timeless
    assert target_of(PROGRAM).program.timeless
    world = World(PROGRAM)
    if not target.program.ticked:
        assert world.view(world.now, target).rest is None
    assert world.view(world.now).rest is not None


async def test_d5_a_changed_program_takes_over_from_outputs_at_rest() -> None:
    world = await World().create()
    view = world.view(world.process(Fuse(None)))
    task = asyncio.create_task(view.maintain_forever())
    await world.feed("s", 10, 1, 2)
    await world.feed("t", 10, 2)
    await until(world, task, lambda: view.progress.lower >= 10)
    await world.rest(*INPUTS)
    at = await let_rest(world, view, task, 10)
    await stop(task)

    async def make(name: str, begin: object) -> None:
        kind = name.rpartition("/")[2]
        row = world.target.outputs["alone"][1].schema
        await world.ensure(name, {"errors": ERROR_SCHEMA, "state": STATE_SCHEMA}.get(kind, row))

    decided: list[int] = []

    async def record(instant: int) -> None:
        decided.append(instant)

    new = "both(n) := s(n) ^ t(n); alone(n) := s(n); some(1) := s(_);"
    change = VersionChange(world.target, target_of(new, "v", "v@2"), target_of(new, "v@2", "v@2"))
    settings = ComputeSettings(hold_interval_s=0.0)
    takeover = Takeover(change, world.process(Fuse(None)), world.clock, settings, make, record)
    task = asyncio.create_task(takeover.run())
    for upper in range(at + 1, at + 2_000):
        await world.step(upper)
        for name in INPUTS:  # a hold of the new version may have ended the rest
            if not await world.now.rests(name):
                await world.feed(name, max(upper, await world.upper(name) + 1))
        for _ in range(10):
            await asyncio.sleep(0.001)
            world.clock.move(0.01)
        if task.done():
            break
    task.result()
    (common,) = decided
    assert at < common
    assert await world.rows("v/alone", common - 1) == [1]
    assert await world.rows("v/alone", common) == [1, 2]
