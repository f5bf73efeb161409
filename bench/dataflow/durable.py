"""Views alone, from durable inputs to durable answers: a backlog in the store, and one view."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from secrets import token_hex
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench.dataflow.answers import expected, same
from bench.dataflow.streams import RULES, Rows, stream
from tidemill.arrangement.updates import DIFF, TIME, consolidate
from tidemill.catalog.record_rows import PredicateShape, shape_of_events, shape_of_output
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, DirectoryBlob
from tidemill.shard.consensus_sqlite import SqliteConsensus
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

BATCH_MS = 1_000
"""Event time of one commit to an input."""
TEXTS = frozenset({"tank", "id", "order"})
"""Columns that are texts in the pipeline."""
TENTHS = 10


class Kept(NamedTuple):
    """A run of one view: seconds, those of the processor, seconds of each tenth, its answers."""

    took: float
    used: float
    tenths: list[float]
    answers: dict[str, pa.Table]


def kinds_of(columns: tuple[str, ...]) -> tuple[tuple[str, ColumnType], ...]:
    """Names and types of an input's arguments."""
    return tuple((name, "text" if name in TEXTS else "int") for name in columns)


def updates_of(rows: Rows, columns: tuple[str, ...], schema: pa.Schema) -> pa.Table:
    """The begins and ends of events as updates, by instant."""
    arrays = [
        pa.array(map(str, values.tolist())) if name in TEXTS else pa.array(values)
        for name, values in zip(columns, rows.arguments, strict=True)
    ]
    begun = pa.table([*arrays, pa.array(rows.times), pa.array(rows.ends)], schema=schema)
    times = np.concatenate([rows.times, rows.ends])
    order = np.argsort(times, kind="stable")
    diffs = np.repeat(np.array([1, -1]), len(rows.times))[order]
    table = pa.concat_tables([begun, begun]).take(pa.array(order))
    table = table.append_column(TIME, pa.array(times[order].astype(np.uint64)))
    return table.append_column(DIFF, pa.array(diffs))


class Durable:
    """A folder with the inputs of one rule, and views over them."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._folder = folder
        self._clock = SystemClock()
        text, self._inputs = RULES[name]
        schemas = {
            each: InputSchema(each, kind, kinds_of(columns))
            for each, (kind, columns) in self._inputs.items()
        }
        self.program = check(parse(text), InputSchemas(schemas))
        self.rows = stream(name, count)
        self.end = max(int(each.times[-1]) for each in self.rows.values()) + 1
        self._shapes: dict[str, tuple[str, PredicateShape]] = {}
        for each, schema in schemas.items():
            arrow = {"text": pa.string(), "int": pa.int64()}
            fields = [(column, arrow[kind]) for column, kind in schema.columns]
            whole = pa.schema([*fields, ("time", pa.int64()), ("expires", pa.int64())])
            self._shapes[each] = each, shape_of_events(each, whole)

    def _process(self) -> Collections:
        blob = DirectoryBlob(self._folder / "blob", lambda: token_hex(8))
        log = SqliteConsensus(self._folder / "log.db")
        return Collections(log, blob, self._clock, lambda: token_hex(16))

    async def load(self) -> None:
        """Write the backlog, one commit for each second of it."""
        store = self._process()
        for each, (name, shape) in self._shapes.items():
            await store.create(name, Description(shape.schema, retain_ms=0), start=frontier(0))
            table = updates_of(self.rows[each], self._inputs[each][1], shape.schema)
            times = table.column(TIME).to_numpy()
            lower = 0
            for upper in [*range(BATCH_MS, self.end, BATCH_MS), self.end]:
                first, last = np.searchsorted(times, np.array([lower, upper], np.uint64)).tolist()
                part = table.slice(first, last - first)
                await store.compare_and_append(
                    name, frontier(lower), frontier(upper), part, writer="bench"
                )
                lower = upper
        await store.close()

    async def run(self, run: str) -> Kept:
        """Keep the view from an empty start until it has said everything."""
        store = self._process()
        outputs = {
            each: (f"{run}/{each}", shape_of_output(self.program, each))
            for each in self.program.derived
        }
        target = ViewTarget(
            run, self.program, self._shapes, outputs, f"{run}/errors", f"{run}/state"
        )
        made = {name: shape.schema for name, shape in outputs.values()}
        for name, schema in {
            **made, target.errors: ERROR_SCHEMA, target.state: STATE_SCHEMA,
        }.items():  # fmt: skip
            await store.create(name, Description(schema), start=frontier(0))
        view = ViewDriver(target, store, self._clock, ComputeSettings())
        began, used, reached = perf_counter(), process_time(), [(0, 0.0)]
        task = asyncio.create_task(view.maintain_forever())
        while not task.done() and reached[-1][0] < self.end:
            await asyncio.sleep(0.01)
            if view.progress.lower > reached[-1][0]:
                reached.append((view.progress.lower, perf_counter() - began))
        used = process_time() - used
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = {
            each: consolidate(await store.read_updates(name)) for each, (name, _) in outputs.items()
        }
        await store.close()
        tenths = np.diff(np.interp(np.linspace(0, self.end, TENTHS + 1), *np.array(reached).T))
        return Kept(reached[-1][1], used, tenths.tolist(), found)


def durable(name: str, count: int, runs: int) -> None:
    """Print how fast one view is kept, whole and by tenths. Answers are compared first.

    Raises: SystemExit where the answers differ from those of DuckDB.
    """
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_durable(Durable(Path(folder), name, count), name, runs))


async def _durable(world: Durable, name: str, runs: int) -> None:
    await world.load()
    total = sum(len(each.times) for each in world.rows.values())
    columns = {each: list(found[1]) for each, found in RULES[name][1].items()}
    theirs = expected(name, world.rows, columns)
    for answer in (await world.run("first")).answers.values():
        if not same(answer, theirs):
            raise SystemExit(f"{name}: the view and DuckDB give different answers")
    del theirs
    found = [await world.run(str(number)) for number in range(runs)]
    took, used = median(each.took for each in found), median(each.used for each in found)
    speeds = f"{total / took:,.0f} rows/s, {total / used:,.0f} in a second of the processor"
    tenths = [median(each) for each in zip(*(run.tenths for run in found), strict=True)]
    rates = " ".join(f"{total / TENTHS / each / 1e6:.2f}" for each in tenths)
    print(f"{name} as a view, durable to durable: {speeds}")
    print(f"{name} as a view, million rows/s of each tenth: {rates}")
