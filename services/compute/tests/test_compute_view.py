"""Views as processes that die at any write: the whole history must come out as if evaluated at
once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.catalog.record_rows import shape_of_events, shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.strategy import Strategy
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.faults.overtaken import Overtaken
from tidemill.testkit.twins.outputs import presences_of, written
from tidemill.time import frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

END = 40

PROGRAMS = {
    "join and absence": """
        seen(h, n) := ping(h, n) ^ host(h);
        quiet(h) := host(h) ^ not ping(h, _);
    """,
    "solutions that outlive what established them": """
        alarm(h) @expires(t + 9) := ping(h, n) @time(t) ^ host(h) if n > 1;
        calm(h) := host(h) ^ not alarm(h);
    """,
    "aggregates and clocks": """
        load(h) @count(n) @average(n) := ping(h, n);
        tick(h, t) := host(h) ^ clock(0, 7) @time(t);
        busy(h, n) := load(h) @count(n) ^ host(h);
    """,
    "recursion": """
        near(a, b) := ping(a, n) ^ ping(b, n);
        reach(a, b) := near(a, b);
        reach(a, c) := reach(a, b) ^ near(b, c);
    """,
    "solutions that outlive one of their facts": """
        met(h, n) := host(h) ^ ping(h, n) ~expires;
        first(h) @min(n) := met(h, n);
    """,
    "recursion that groups facts with ends": """
        link(a, b) @expires(30) := host(a) ^ host(b) if a <= b;
        hops(a, a) @min(0) := link(a, _);
        hops(a, c) @min(d + 1) := hops(a, b) @min(d) ^ link(b, c);
    """,
    "errors": "share(h, 6 / n) := ping(h, n);",
    "lattices and sets of another view": """
        most(h, m) := load(h) @max(m);
        unknown(h) := load(h) @max(m) if is_null(m);
        alike(s) @count(h) := load(h) @set(s);
        wide(h, length(s)) := span(h) @extent(_, _, s);
        all() @count(h) := load(h);
        passed(h, n) := load(h) ^ ping(h, n) ~provenance;
    """,
    "rows and columns that nobody looks at": """
        loud(h) := ping(h, n) if n >= 2;
        some(1) := ping("a", _) @time(t) ^ host(_) if t > 9 ^ t < 30;
    """,
}

OLDER_STATES = json.loads(Path(__file__).with_name("older_states.json").read_text())
"""Program, seed of the history, an instant, and the state just before it of a view that engines on
rows and columns kept."""

HOST = pa.schema([("name", pa.string())])
PING = pa.schema(
    [("h", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
SCHEMAS = {
    "host": InputSchema("host", "relation", (("name", "text"),)),
    "ping": InputSchema("ping", "events", (("h", "text"), ("n", "int"))),
}
INPUTS = {
    "host": ("host", shape_of_relation("host", HOST)),
    "ping": ("ping", shape_of_events("ping", PING)),
}
OTHER_VIEW = """
    load(h) @count(n) @set(n) @max(n) := ping(h, n);
    span(h) @extent(n, n, n) := ping(h, n) if n > 1;
"""


def checked(text: str) -> CheckedProgram:
    schemas, program = SCHEMAS, parse(text)
    used = {a.application.name for rule in program.rules for a in rule.atoms}
    return check(program, InputSchemas({n: s for n, s in schemas.items() if n in used}))


def outputs_of_the_other_view() -> CheckedProgram:
    """Make what it derives inputs."""
    program = checked(OTHER_VIEW)
    for name in program.derived:
        shape = shape_of_output(program, name)
        INPUTS[name] = name, shape
        SCHEMAS[name] = InputSchema(name, "events", shape.argument_columns, lattices=shape.lattices)
    return program


VIEWED = outputs_of_the_other_view()


def history(seed: int) -> dict[str, pa.Table]:
    """Updates of the inputs: hosts come and go, pings begin and may end."""
    random = Random(seed)
    hosts: list[tuple[object, ...]] = []
    for name in "abc":
        times = sorted(random.sample(range(END), 4))
        for time, diff in zip(times, (1, -1, 1, -1), strict=True):
            hosts.append((name, time, diff))
    pings: list[tuple[object, ...]] = []
    for _ in range(14):
        time = random.randrange(END)
        ends = random.choice((None, time + random.randrange(1, 15)))
        row = (random.choice("abc"), random.choice((0, 1, 2, 3, None)), time, ends)
        if row in [ping[:4] for ping in pings]:
            continue
        pings.append((*row, time, 1))
        if ends is not None and ends < END:
            pings.append((*row, ends, -1))
    given_ = {"host": table(hosts, HOST), "ping": table(pings, PING)}
    viewed = expected(VIEWED, given_)
    return {**given_, **{name: viewed[f"v/{name}"] for name in VIEWED.derived}}


def table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    updates = empty_updates(schema).schema
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(updates)]
    return consolidate(pa.Table.from_arrays(columns, schema=updates))


def expected(program: CheckedProgram, inputs: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The outputs and errors as the twin says them."""
    given = {n: presences_of(inputs[n], INPUTS[n][1]) for n in program.inputs}
    found = written(program, given, END)
    return {f"v/{name}": consolidate(rows) for name, rows in found.items()}


class World:
    """The stores, which outlive every process, and the inputs that somebody else writes."""

    def __init__(self, text: str, seed: int) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.program = checked(text)
        self.history = history(seed)
        self.now = self.process(Fuse(None))
        outputs = {p: (f"v/{p}", shape_of_output(self.program, p)) for p in self.program.derived}
        inputs = {name: INPUTS[name] for name in self.program.inputs}
        self.target = ViewTarget("v", self.program, inputs, outputs, "v/errors", "v/state")

    def process(self, fuse: Fuse, made: type[Collections] = Collections) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return made(consensus, self.stores[1], self.clock, self.ids.__next__)

    def view(
        self, collections: Collections, changes_max: int, strategy: Strategy = "strata"
    ) -> ViewDriver:
        settings = ComputeSettings(step_changes_max=changes_max, hold_interval_s=0.0)
        target = replace(self.target, strategy=strategy)
        return ViewDriver(target, collections, self.clock, settings)

    async def create(self, fed: int = 0) -> int:
        """Inputs that have been fed for a while, then the view; the instant at which it begins."""
        made = {name: shape.schema for name, (_, shape) in self.target.inputs.items()}
        for name, schema in made.items():
            await self._create(name, Description(schema, retain_ms=0), 0)
        if fed:
            await self.feed(0, fed)
        start = sole_time(await self.view(self.now, 5).hold_inputs())
        written = {name: shape.schema for name, shape in self.target.outputs.values()}
        for name, schema in (written | {"v/errors": ERROR_SCHEMA}).items():
            await self._create(name, Description(schema), start)
        await self._create("v/state", Description(STATE_SCHEMA, retain_ms=0), start)
        await self.view(self.now, 5).prepare()
        return start

    async def _create(self, name: str, description: Description, start: int) -> None:
        held, _ = await self.now.create(name, description, start=frontier(start))
        if description.retain_ms is None:
            await self.now.retain(name, None)
        await self.now.drop(held)

    async def feed(self, lower: int, upper: int, *inputs: str) -> None:
        for name in inputs or self.target.inputs:
            times = self.history[name]["_time"].to_numpy()
            part = self.history[name].filter(pa.array((times >= lower) & (times < upper)))
            await self.now.compare_and_append(
                name, frontier(lower), frontier(upper), part, writer="test"
            )

    async def contents(self) -> dict[str, pa.Table]:
        reader = self.process(Fuse(None))
        names = [name for name, _ in self.target.outputs.values()]
        return {name: consolidate(await reader.read_updates(name)) for name in [*names, "v/errors"]}


async def follow(world: World, view: ViewDriver, upper: int) -> None:
    """Run a view until it has written everything before `upper`, or dies."""
    task = asyncio.create_task(view.maintain_forever())
    while not task.done() and view.progress.lower < upper:
        await asyncio.sleep(0)
        world.clock.move(0.1)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, Killed | asyncio.CancelledError):
        raise AssertionError("the view failed") from ended


@pytest.mark.rule("C1", "C4", "MV3", "MV5", "D2")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(8))
async def test_a_view_that_dies_at_any_write_says_what_the_twin_says(name: str, seed: int) -> None:
    await live_and_die(name, seed)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(2))
async def test_a_view_with_more_columns_than_the_dataflow_takes_says_the_same(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.datalog.dataflow.missing_in", lambda checked: "wide rows")
    await live_and_die(name, seed)


async def live_and_die(name: str, seed: int) -> None:
    """Many lives of a process that keeps a view, most of which end at a write."""
    random = Random(f"{name} {seed}")
    world = World(PROGRAMS[name], seed)
    await world.create()
    fed = deaths = 0
    while fed < END:
        upper = min(END, fed + random.randrange(1, 15))
        await world.feed(fed, upper)
        fed = upper
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 6), after=random.random() < 0.5)
            strategy: Strategy = random.choice(("strata", "retraction"))
            view = world.view(world.process(fuse), random.randrange(1, 9), strategy)
            await follow(world, view, fed)
            deaths += fuse.blown
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    assert await world.contents() == expected(world.program, world.history)
    assert deaths > 0
    state = consolidate(await world.process(Fuse(None)).read_updates("v/state"))
    for at in range(END):
        assert set(as_of(state, at).values()) <= {1}, (
            at
        )  # no row is there twice, none less than not at all


@pytest.mark.parametrize(("name", "seed", "at", "rows"), OLDER_STATES)
async def test_a_view_goes_on_from_the_state_that_an_older_version_wrote(
    name: str, seed: int, at: int, rows: list[list[object]]
) -> None:
    """Engines before the dataflow wrote each solution as a row of its own."""
    world = World(PROGRAMS[name], seed)
    await world.create()
    await world.feed(0, END)
    state = [(*row, at - 1, 1) for row in rows]
    before = {"v/state": table(state, STATE_SCHEMA)}
    for collection, updates in expected(world.program, world.history).items():
        before[collection] = updates.filter(pa.array(updates["_time"].to_numpy() < at))
    for collection, updates in before.items():
        await world.now.compare_and_append(
            collection, frontier(0), frontier(at), updates, writer="an older version"
        )
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    assert await world.contents() == expected(world.program, world.history)


@pytest.mark.rule("MV2")
async def test_a_view_over_inputs_without_their_past_begins_with_what_they_hold() -> None:
    world = World(PROGRAMS["join and absence"], 3)
    start = await world.create(fed=17)
    assert start > 0
    await world.feed(17, END)
    for writes in (2, 1):
        await follow(world, world.view(world.process(Fuse(writes)), 5), END)
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    whole = expected(world.program, world.history)
    for name, rows in (await world.contents()).items():
        for at in range(start, END):
            assert as_of(rows, at) == as_of(whole[name], at)


def as_of(updates: pa.Table, at: int) -> dict[tuple[object, ...], int]:
    sums: dict[tuple[object, ...], int] = {}
    for *row, time, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        if time <= at:
            sums[tuple(row)] = sums.get(tuple(row), 0) + diff
    return {row: n for row, n in sums.items() if n}


@pytest.mark.rule("C1", "C4")
@pytest.mark.parametrize("seed", range(3))
async def test_a_view_comes_as_far_as_the_input_that_is_furthest_behind(seed: int) -> None:
    random = Random(seed)
    world = World(PROGRAMS["join and absence"], seed)
    await world.create()
    fed = dict.fromkeys(world.target.inputs, 0)
    apart = 0
    while min(fed.values()) < END:
        name = random.choice([each for each, upper in fed.items() if upper < END])
        upper = min(END, fed[name] + random.randrange(1, 15))
        await world.feed(fed[name], upper, name)
        fed[name] = upper
        behind = min(fed.values())
        apart += behind < max(fed.values())
        await follow(world, world.view(world.process(Fuse(None)), 5), behind)
        for output, _ in world.target.outputs.values():
            assert (await world.now.status(output)).upper == frontier(behind)
    assert await world.contents() == expected(world.program, world.history)
    assert apart > 0


@pytest.mark.rule("C2", "C3", "MV3")
async def test_a_view_has_both_frontiers_and_its_readers_keep_since() -> None:
    world = World("never(h) := host(h) ^ ping(h, 99);  here(h) := host(h);", 2)
    await world.create()
    outputs = [*(name for name, _ in world.target.outputs.values()), "v/errors"]
    for name in outputs:
        await world.now.retain(name, 5)
    await world.feed(0, 10)
    await follow(world, world.view(world.process(Fuse(None)), 5), 10)
    reader = await world.now.read_hold("v/here", owner="reader", lease_ms=None)
    assert reader.frontier == frontier(5)
    await world.feed(10, END)
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    statuses = {name: await world.now.status(name) for name in outputs}
    assert {status.upper for status in statuses.values()} == {frontier(END)}
    assert statuses["v/here"].since == reader.frontier
    assert statuses["v/never"].since == frontier(END - 5)
    await world.now.drop(reader)
    assert (await world.now.status("v/here")).since == frontier(END - 5)


@pytest.mark.rule("MV7", "D2")
@pytest.mark.parametrize(
    "name", ["join and absence", "solutions that outlive what established them"]
)
async def test_what_is_no_output_is_rebuilt_after_a_restart(name: str) -> None:
    world = World(PROGRAMS[name], 2)
    await world.create()
    for upper in range(4, END + 1, 4):
        await world.feed(upper - 4, upper)
        # Another process each time: of the inputs and of what follows from them it knows nothing.
        await follow(world, world.view(world.process(Fuse(None)), 5), upper)
    assert await world.contents() == expected(world.program, world.history)


@pytest.mark.rule("MV4", "C1")
@pytest.mark.parametrize("name", ["join and absence", "aggregates and clocks"])
async def test_a_view_that_is_overtaken_within_an_interval_adopts_it_and_writes_the_rest(
    name: str,
) -> None:
    world = World(PROGRAMS[name], 2)
    await world.create()
    loser = world.process(Fuse(None), Overtaken)
    await world.feed(0, END)
    await follow(world, world.view(loser, 5), END)
    assert await world.contents() == expected(world.program, world.history)
    assert isinstance(loser, Overtaken)
    assert loser.overtaken > 2


@pytest.mark.rule("MV5")
async def test_inputs_keep_the_history_that_their_outputs_keep_and_no_more() -> None:
    world = World(PROGRAMS["join and absence"], 2)
    await world.create()
    outputs = [name for name, _ in world.target.outputs.values()]

    async def since(names: list[str]) -> list[int]:
        return [sole_time((await world.now.status(name)).since) for name in names]

    view = world.view(world.process(Fuse(None)), 5)
    await world.feed(0, 20)
    await follow(world, view, 20)
    assert await since(list(world.target.inputs)) == [0, 0] == await since(outputs)
    for name in [*outputs, "v/errors"]:
        await world.now.retain(name, 0)
    await world.feed(20, END)
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    kept = await since(list(world.target.inputs))
    assert max(kept) <= min(await since(outputs))
    assert min(kept) > 20
