"""Ticked views over inputs that somebody else writes, and processes that die."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from tidemill.catalog.record_rows import (
    PredicateShape,
    record_of,
    shape_of_events,
    shape_of_output,
    shape_of_relation,
)
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.records import format_record
from tidemill.datalog.tick_plan import TickPlan
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.turns import Turns
from tidemill.time import frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

END = 40
PUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
PING = pa.schema(
    [("h", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
INPUTS: dict[str, tuple[str, PredicateShape]] = {
    "put": (
        "put",
        shape_of_relation("puts", PUT),
    ),  # the program's name and the collection's differ
    "ping": ("ping", shape_of_events("pings", PING)),
}
SCHEMAS = {
    "put": InputSchema("put", "relation", (("k", "text"), ("v", "int"))),
    "ping": InputSchema("ping", "events", (("h", "text"), ("n", "int"))),
    "now": InputSchema("now", "relation", (("", "int"),)),
}
Answers: TypeAlias = "list[tuple[dict[str, set[str]], set[str]]]"
"""Records by predicate, and errors, at each instant."""


def checked(text: str) -> CheckedProgram:
    """A program over the inputs."""
    program = parse(text)
    used = {a.application.name for rule in program.rules for a in rule.atoms}
    return check(program, InputSchemas({n: s for n, s in SCHEMAS.items() if n in used}))


class World:
    """The stores, which outlive every process, and the inputs that somebody else writes."""

    def __init__(self, text: str, plan: TickPlan, inputs: Mapping[str, pa.Table]) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.program = checked(text)
        self.plan = plan
        self.inputs = inputs
        self.now = self.process(Fuse(None))
        self.fed = 0

    def process(self, fuse: Fuse) -> Collections:
        """The stores as a process sees them that dies by a fuse."""
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def target(self, **changed: Any) -> ViewTarget:
        """The view, its inputs and outputs."""
        outputs = {p: (f"v/{p}", self.shape(p)) for p in self.program.derived}
        inputs = {name: INPUTS[name] for name in self.program.inputs if name in INPUTS}
        return ViewTarget(
            "v", self.program, inputs, outputs, "v/errors", "v/state", self.plan, **changed
        )

    def shape(self, predicate: str) -> PredicateShape:
        """The columns of an output."""
        shape = shape_of_output(self.program, predicate)
        return shape.with_node() if self.plan.nodes > 1 else shape

    def view(self, collections: Collections, ticks_max: int = 5, **changed: Any) -> ViewDriver:
        """A driver of the view that runs at most so many ticks in a step."""
        settings = ComputeSettings(window_ticks_max=ticks_max, hold_interval_s=0.0)
        return ViewDriver(self.target(**changed), collections, self.clock, settings)

    async def create(self) -> None:
        """Create all collections, empty, and prepare the view."""
        target = self.target()
        for name, (_, shape) in target.inputs.items():
            await self._create(name, Description(shape.schema, retain_ms=0), 0)
        start = sole_time(await self.view(self.now).hold_inputs())
        written = {name: shape.schema for name, shape in target.outputs.values()}
        for name, schema in (written | {"v/errors": ERROR_SCHEMA}).items():
            await self._create(name, Description(schema), start)
        await self._create("v/state", Description(STATE_SCHEMA, retain_ms=0), start)
        await self.view(self.now).prepare()

    async def _create(self, name: str, description: Description, start: int) -> None:
        held, _ = await self.now.create(name, description, start=frontier(start))
        if description.retain_ms is None:
            await self.now.retain(name, None)
        await self.now.drop(held)

    async def feed(self, upper: int) -> None:
        """Write the inputs before an instant."""
        for name in self.target().inputs:
            times = self.inputs[name]["_time"].to_numpy()
            part = self.inputs[name].filter(pa.array((times >= self.fed) & (times < upper)))
            await self.now.compare_and_append(
                name, frontier(self.fed), frontier(upper), part, writer="test"
            )
        self.fed = upper

    async def follow(self, view: ViewDriver, upper: int) -> None:
        """Run a view until it has written everything before `upper`, or dies."""
        task, turns = asyncio.create_task(view.maintain_forever()), Turns(self.clock, 0.1)
        while not task.done() and view.progress.lower < upper:
            await turns.take()
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, Killed | asyncio.CancelledError):
            raise AssertionError("the view failed") from ended

    async def answers(self) -> Answers:
        """Records by predicate and errors at each instant, as the collections have them."""
        target = self.target()
        texts: dict[str, Any] = {}
        for name, (collection, shape) in target.outputs.items():
            texts[name] = (await self.now.read_updates(collection), record_of(shape))
        errors = await self.now.read_updates("v/errors")
        found: Answers = []
        for at in range(END):
            records = {
                name: {format_record(make(row)) for row in as_of(rows, at)}
                for name, (rows, make) in texts.items()
            }
            found.append((records, {str(text) for (text,) in as_of(errors, at)}))
        return found


def as_of(updates: pa.Table, at: int) -> set[tuple[object, ...]]:
    """The rows present at an instant, each once."""
    sums: dict[tuple[object, ...], int] = {}
    for *row, time, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        if time <= at:
            sums[tuple(row)] = sums.get(tuple(row), 0) + diff
    found = {row: n for row, n in sums.items() if n}
    assert set(found.values()) <= {1}, "a row is there twice, or less than not at all"
    return set(found)
