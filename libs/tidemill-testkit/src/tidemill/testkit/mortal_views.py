"""Views over stores that outlive them, histories of their inputs, and the answers of the twin."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from random import Random  # noqa: TID251
from types import MappingProxyType

import pyarrow as pa

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.catalog.record_rows import shape_of_events, shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.identity import Same
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.strategy import Strategy
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.ports import Blob
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.faults.groups import MemoryGroups, MortalGroups
from tidemill.testkit.turns import PAUSE_S
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
    "values that another view tells": """
        rare(h) := least(h) @min(m) if m > 1;
        unknown(h) := least(h) @min(m) if is_null(m);
        counted(h, c) := least(h) @count(c) ~min;
        whole() @sum(c) := least(h) ~count @count(c) ~min;
    """,
    "rows and columns that nobody looks at": """
        loud(h) := ping(h, n) if n >= 2;
        some(1) := ping("a", _) @time(t) ^ host(_) if t > 9 ^ t < 30;
    """,
}

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
    least(h) @count(n) @min(n) := ping(h, n);
"""
RECURSIONS = {
    "least steps, from a stated fact": """
        step(a, b) := host(a) ^ host(b) if a != b;
        far("a") @min(0);
        far(b) @min(d + 1) := far(a) @min(d) ^ step(a, b) if d < 9;
        worst() @max(d) := far(_) @min(d);
    """,
    "sets and greatest values of texts": """
        step(a, b) := host(a) ^ host(b) if a < b;
        seen(a) @set(b) := step(a, b);
        seen(b) @set(s) := seen(a) @set(s) ^ step(a, b);
        most(a) @max(b) := step(a, b);
        most(b) @max(c) := most(a) @max(c) ^ step(a, b);
    """,
    "two predicates that swap columns": """
        up(h, n) := ping(h, n) ^ host(h);
        up(h, m) := down(n, h) ^ ping(_, n) ^ ping(h, m);
        down(n, g) := up(h, n) ^ ping(g, n) ^ host(h) ^ not ping(g, 0);
    """,
    "errors": """
        share(n, 6 / n) := ping(_, n) if n > 1;
        share(m, 6 / m) := share(n, _) ^ ping(h, n) ^ ping(h, m);
    """,
}  # fmt: skip
"""Programs whose recursion hands no argument on, so that it goes by rounds."""


def checked(text: str) -> CheckedProgram:
    """The program of a text over the inputs that it reads: one object for one text."""
    return _checked(text, tuple(SCHEMAS.values()))


@cache
def _checked(text: str, schemas: tuple[InputSchema, ...]) -> CheckedProgram:
    program = parse(text)
    used = {a.application.name for rule in program.rules for a in rule.atoms}
    return check(program, InputSchemas({s.name: s for s in schemas if s.name in used}))


def outputs_of_the_other_view() -> CheckedProgram:
    """Make what it derives inputs."""
    program = checked(OTHER_VIEW)
    for name in program.derived:
        shape = shape_of_output(program, name)
        INPUTS[name] = name, shape
        SCHEMAS[name] = InputSchema(
            name, "events", shape.argument_columns, lattices=shape.lattices, sure=shape.sure
        )
    return program


VIEWED = outputs_of_the_other_view()


@cache
def history(seed: int) -> Mapping[str, pa.Table]:
    """Updates of the inputs: hosts come and go, pings begin and may end. The twin is slow."""
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
    return MappingProxyType({**given_, **{name: viewed[f"v/{name}"] for name in VIEWED.derived}})


def table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Rows with their times and differences as consolidated updates."""
    updates = empty_updates(schema).schema
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(updates)]
    return consolidate(pa.Table.from_arrays(columns, schema=updates))


def expected(program: CheckedProgram, inputs: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The outputs and errors as the twin, which is slow, says them once of the same tables."""
    return {**_expected(Same(program), *(Same(inputs[name]) for name in program.inputs))}


@lru_cache(1_000)
def _expected(same: Same[CheckedProgram], *tables: Same[pa.Table]) -> Mapping[str, pa.Table]:
    program = same.of
    shapes = ((name, INPUTS[name][1]) for name in program.inputs)
    named = zip(shapes, tables, strict=True)
    given = {name: presences_of(each.of, shape) for (name, shape), each in named}
    found = written(program, given, END)
    return {f"v/{name}": consolidate(rows) for name, rows in found.items()}


class World:
    """The stores, which outlive every process, and the inputs that somebody else writes."""

    def __init__(
        self, text: str, seed: int, blob: Blob | None = None, groups: MemoryGroups | None = None
    ) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores: tuple[MemoryConsensus, Blob] = (
            MemoryConsensus() if groups is None else groups, blob or MemoryBlob()
        )  # fmt: skip
        self.program = checked(text)
        self.history = history(seed)
        self.now = self.process(Fuse(None))
        outputs = {p: (f"v/{p}", shape_of_output(self.program, p)) for p in self.program.derived}
        inputs = {name: INPUTS[name] for name in self.program.inputs}
        self.target = ViewTarget("v", self.program, inputs, outputs, "v/errors", "v/state")

    def process(self, fuse: Fuse, made: type[Collections] = Collections) -> Collections:
        store = self.stores[0]
        if isinstance(store, MemoryGroups):
            consensus: MortalConsensus = MortalGroups(store, fuse)
        else:
            consensus = MortalConsensus(store, fuse)
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


async def follow(world: World, view: ViewDriver, upper: int, pause_s: float = PAUSE_S) -> None:
    """Run a view until it has written everything before `upper`, or dies.

    It is evaluated on threads: who looks again after `pause_s` leaves them the processor.
    """
    task = asyncio.create_task(view.maintain_forever())
    while not task.done() and view.progress.lower < upper:
        await asyncio.sleep(pause_s)  # noqa: TID251  as said
        world.clock.move(0.1)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, Killed | asyncio.CancelledError):
        raise AssertionError("the view failed") from ended
