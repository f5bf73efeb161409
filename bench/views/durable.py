"""Views alone, from durable inputs to durable answers: a backlog in the store, and one view.

DuckDB is the judge of the answers.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bench.views.durable_answers import expected, same
from bench.views.durable_inputs import RULES, Rows, stream
from bench.views.job import Aim, Job, Report, Row
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
FIFTHS = 5
ROWS_FEW = 20_000


class Kept(NamedTuple):
    """A run of one view: seconds, those of the processor, seconds of each fifth, its answers."""

    took: float
    used: float
    fifths: list[float]
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

    async def _load(self) -> None:
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

    async def load_and_run(self) -> Kept:
        """Write the backlog, and keep the view of it until it has said everything."""
        await self._load()
        return await self._run("view")

    async def _run(self, run: str) -> Kept:
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
        fifths = np.diff(np.interp(np.linspace(0, self.end, FIFTHS + 1), *np.array(reached).T))
        return Kept(reached[-1][1], used, fifths.tolist(), found)


def durable(name: str, rows: int) -> Report:
    """The speed at which one view is kept, whole, and in the last fifth as against the first."""
    report = Report()
    for count in (ROWS_FEW, rows):  # the first plans and compiles
        with tempfile.TemporaryDirectory() as folder:
            world = Durable(Path(folder), name, count)
            kept = asyncio.run(world.load_and_run())
        total = sum(len(each.times) for each in world.rows.values())
        report.figures = {
            "throughput": total / kept.took, "per_busy": total / kept.used,
            "first_s": kept.fifths[0], "last_s": kept.fifths[-1],
        }  # fmt: skip
    columns = {each: list(found) for each, (_, found) in RULES[name][1].items()}
    theirs = expected(name, world.rows, columns)
    for answer in kept.answers.values():
        if not same(answer, theirs):
            raise AssertionError(f"{name}: the view and DuckDB give different answers")
        report.digests["updates"] = f"{answer.num_rows:,}"
    return report


def _rows(title: str, least: float) -> tuple[Row, ...]:
    return (
        Row(title, "throughput", Aim("least", least), "/s"),
        Row("the same, for each second of the processor", "per_busy", unit="/s"),
        Row("its last fifth, times as long as the first", "last_s/first_s", Aim("most", 1.2), "times"),
    )  # fmt: skip


JOBS: dict[str, Job] = {
    f"durable-{name}": Job((rows,), partial(durable, name), _rows(title, least), scaled=(0,), least=1_000)
    for name, rows, title, least in (
        ("resample", 5_000_000, "resampling of 5 M readings of 1,000 tanks, durable to durable", 1_000_000),
        ("join", 2_500_000, "join of 2.5 M orders and 2.5 M payments, durable to durable", 500_000),
        ("hot", 5_000_000, "one filter of 5 M readings, durable to durable", 1_000_000),
    )
}  # fmt: skip
