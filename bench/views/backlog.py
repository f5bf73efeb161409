"""Views as the service keeps them: a backlog from durable collections into durable outputs, then
one row at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa

from bench.views.flight_inputs import inputs, programs
from bench.views.inputs import ORDERS, PAYMENTS, I64Array, trades
from bench.views.job import Aim, Job, Report, Row
from tidemill.arrangement.updates import consolidate, stamp
from tidemill.catalog.record_rows import (
    PredicateShape,
    row_of,
    shape_of_events,
    shape_of_output,
    shape_of_relation,
    table_of,
)
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, DirectoryBlob, SqliteConsensus
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import update_table

LIFE_MS = 10_000
APPENDED_MAX = 50_000


class Service:
    """Collections over SQLite and a directory, and one view of them."""

    def __init__(
        self, directory: Path, checked: CheckedProgram, shapes: Mapping[str, PredicateShape]
    ) -> None:
        ids = map("{:032x}".format, itertools.count())
        self._clock = SystemClock()
        consensus = SqliteConsensus(directory / "log.sqlite")
        blob = DirectoryBlob(directory / "blob", ids.__next__)
        self.collections = Collections(consensus, blob, self._clock, ids.__next__)
        self.shapes = {name: shapes[name] for name in checked.inputs}
        outputs = {name: (f"v/{name}", shape_of_output(checked, name)) for name in checked.derived}
        given = {name: (name, shape) for name, shape in self.shapes.items()}
        self.target = ViewTarget("v", checked, given, outputs, "v/errors", "v/state")
        self.view = ViewDriver(self.target, self.collections, self._clock, ComputeSettings())

    async def create(self) -> None:
        """All collections, empty."""
        written = {c: shape.schema for c, shape in self.target.outputs.values()}
        written |= {name: shape.schema for name, shape in self.shapes.items()}
        written |= {"v/errors": ERROR_SCHEMA, "v/state": STATE_SCHEMA}
        for name, schema in written.items():
            held, _ = await self.collections.create(name, Description(schema))
            await self.collections.retain(name, None)
            await self.collections.drop(held)

    async def append(self, name: str, updates: pa.Table, upper: int) -> None:
        """More of one input."""
        held = (await self.collections.status(name)).upper
        await self.collections.compare_and_append(
            name, held, frontier(upper), updates, writer="bench"
        )

    async def fill(self, name: str, updates: pa.Table, upper: int) -> None:
        """A backlog of one input, in batches as a source writes them."""
        times = updates["_time"].to_numpy()
        for at in range(APPENDED_MAX, len(times), APPENDED_MAX):
            cut = int(times[at])
            first = np.searchsorted(times, sole_time((await self.collections.status(name)).upper))
            await self.append(name, updates.slice(first, np.searchsorted(times, cut) - first), cut)
        first = np.searchsorted(times, sole_time((await self.collections.status(name)).upper))
        await self.append(name, updates.slice(first), upper)

    async def wait_for_upper(self, upper: int) -> None:
        """Wait until all that the view writes is definite below `upper`."""
        for name in (*(c for c, _ in self.target.outputs.values()), "v/errors"):
            await self.collections.wait_for_upper(name, upper - 1, 600.0)

    async def digests(self) -> dict[str, str]:
        """The output of the view, update by update."""
        found = {}
        for name, _ in self.target.outputs.values():
            rows = consolidate(await self.collections.read_updates(name))
            text = repr(rows.to_pydict()).encode()
            found[name] = f"{rows.num_rows} {sha256(text).hexdigest()[:16]}"
        return found


def by_time(updates: pa.Table) -> pa.Table:
    """Updates in the order of their times."""
    return updates.take(pa.array(np.argsort(updates["_time"].to_numpy(), kind="stable")))


def updates_of(presences: list[Presence], shape: PredicateShape, upper: int) -> pa.Table:
    """The updates of an input that stand for presences."""
    row = row_of(shape)
    rows = [(row(p.record), int(p.start), int(p.end)) for p in presences if p.end < U64_MAX]
    changes = [(data, start, 1) for data, start, _ in rows]
    changes += [(data, end, -1) for data, _, end in rows if end < upper]
    changes += [(row(p.record), int(p.start), 1) for p in presences if p.end >= U64_MAX]
    return by_time(update_table([c for c in changes if c[1] < upper], shape.schema))


async def time_catching_up(service: Service, given: Mapping[str, pa.Table], upper: int) -> float:
    """Seconds of the processor that the view takes to catch up with a backlog."""
    await service.create()
    for name in service.shapes:
        await service.fill(name, given[name], upper)
    start = process_time()
    task = asyncio.create_task(service.view.maintain_forever())
    reached = asyncio.create_task(service.wait_for_upper(upper))
    await asyncio.wait((task, reached), return_when=asyncio.FIRST_COMPLETED)
    seconds = process_time() - start
    if task.done():
        await task  # it failed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return seconds


def measured(
    checked: CheckedProgram,
    shapes: Mapping[str, PredicateShape],
    given: Mapping[str, pa.Table],
    upper: int,
) -> tuple[float, dict[str, str]]:
    """Seconds of the processor for a backlog, and what the view has written."""

    async def work() -> tuple[float, dict[str, str]]:
        with tempfile.TemporaryDirectory() as directory:
            service = Service(Path(directory), checked, shapes)
            return await time_catching_up(service, given, upper), await service.digests()

    return asyncio.run(work())


def order_inputs(
    events: int,
) -> tuple[CheckedProgram, dict[str, PredicateShape], dict[str, pa.Table], int]:
    """Orders and payments with texts as keys, each present for ten seconds."""
    columns = {
        "placed": (("o", "text"), ("a", "int"), ("k", "text")),
        "paid": (("o", "text"), ("b", "int")),
    }
    schemas = {n: InputSchema(n, "events", c) for n, c in columns.items()}
    checked = check(parse(PAYMENTS), InputSchemas(schemas))
    kinds = {"text": pa.string(), "int": pa.int64()}
    shapes = {
        name: shape_of_events(name, pa.schema(
            [*((c, kinds[k]) for c, k in of), ("time", pa.int64()), ("expires", pa.int64())]
        ))
        for name, of in columns.items()
    }  # fmt: skip
    stream = trades(events)
    sides, keys, amounts = stream.columns
    upper = events + 1
    given = {}
    for name, of in (("placed", sides == ORDERS), ("paid", sides != ORDERS)):
        given[name] = order_updates(shapes[name], keys[of], amounts[of], stream.times[of], upper)
    return checked, shapes, given, upper


def order_updates(
    shape: PredicateShape, keys: I64Array, amounts: I64Array, times: I64Array, upper: int
) -> pa.Table:
    """Events that begin at their times and end ten seconds later."""
    names = [pa.array([f"order-{key}" for key in keys.tolist()]), pa.array(amounts)]
    if shape.arguments == 3:
        names.append(pa.array([f"shop-{key % 50}" for key in keys.tolist()]))
    rows = pa.Table.from_arrays(
        [*names, pa.array(times), pa.array(times + LIFE_MS)], schema=shape.schema
    )
    begins, ends = stamp(rows, 0), stamp(rows, 0, -1)
    begins = begins.set_column(len(rows.schema), "_time", pa.array(times.astype(np.uint64)))
    ends = ends.set_column(len(rows.schema), "_time", pa.array((times + LIFE_MS).astype(np.uint64)))
    ends = ends.slice(0, 0) if upper <= LIFE_MS else ends.filter(pa.array(times + LIFE_MS < upper))
    return by_time(pa.concat_tables([begins, ends]))


def orders(events: int) -> Report:
    """A backlog of orders and payments into three predicates."""
    report = Report()
    for size in (5_000, events):  # the first plans and compiles
        seconds, digests = measured(*order_inputs(size))
        report.figures["throughput"] = size / seconds
        report.digests = digests
    return report


def flights(months: int) -> Report:
    """The demo's views over some months, one after the other, as the service takes a backlog."""
    report = Report()
    with tempfile.TemporaryDirectory() as directory:
        given = inputs(Path(directory), months)
    upper = int(max(presence.start for presence in given["flights"]))
    kinds = {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}
    total = 0.0
    for name, checked in programs().items():
        shapes, tables = {}, {}
        for each in checked.inputs:
            fields = [(c, kinds[k]) for c, k in checked.columns[each]]
            if each in ("flights", "weather"):
                times = [("time", pa.int64()), ("expires", pa.int64())]
                shapes[each] = shape_of_events(each, pa.schema([*fields, *times]))
            else:
                shapes[each] = shape_of_relation(each, pa.schema(fields))
            tables[each] = updates_of(list(given[each]), shapes[each], upper)

        seconds, digests = measured(checked, shapes, tables, upper)
        report.figures[f"{name}_s"] = seconds
        report.digests |= {f"{name} {output}": digest for output, digest in digests.items()}
        total += report.figures[f"{name}_s"]
    report.figures["all_s"] = total
    return report


def single(alive: int, changes: int) -> Report:
    """One order more at a time beside those that are alive, until it is durable and readable."""
    report = Report()
    seconds: list[float] = []
    busy: list[float] = []
    checked, shapes, given, upper = order_inputs(alive)

    async def work() -> None:
        with tempfile.TemporaryDirectory() as directory:
            service = Service(Path(directory), checked, shapes)
            await service.create()
            for name in service.shapes:
                await service.fill(name, given[name], upper)
            task = asyncio.create_task(service.view.maintain_forever())
            await service.wait_for_upper(upper)
            for at in range(upper, upper + changes):
                row = (f"order-{at}", at, f"shop-{at % 50}", at, at + LIFE_MS)
                placed = shapes["placed"].schema
                more = stamp(table_of([row], placed), at)
                await service.append("paid", stamp(shapes["paid"].schema.empty_table(), at), at + 1)
                start, worked = perf_counter(), process_time()
                await service.append("placed", more, at + 1)
                await service.wait_for_upper(at + 1)
                seconds.append(perf_counter() - start)
                busy.append(process_time() - worked)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            report.digests |= await service.digests()

    asyncio.run(work())
    report.latencies(seconds[len(seconds) // 5 :], "change_")
    report.latencies(busy[len(busy) // 5 :], "busy_")
    return report


JOBS: dict[str, Job] = {
    "backlog": Job((1_000_000,), orders, (
        Row("backlog of orders and payments, durable to durable", "throughput", unit="/s"),
    ), scaled=(0,), least=1_000),
    "backlog-flights": Job((6,), flights, tuple(
        Row(f"{name}, six months of the demo, durable to durable", f"{figure}_s")
        for name, figure in (
            ("weather-at-departure", "weather-at-departure"), ("punctuality", "punctuality"),
            ("knock-ons", "knock-ons"), ("network", "network"), ("all four", "all"),
        )
    )),
    "change": Job((10_000, 300), single, (
        Row("one row more beside 10,000, five operators, durable to durable, median", "change_p50_s", Aim("most", 0.003)),
        Row("the same, p99", "change_p99_s"),
        Row("the same, seconds of the processor, median", "busy_p50_s"),
    ), scaled=(1,)),
}  # fmt: skip
