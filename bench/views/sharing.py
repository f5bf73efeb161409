"""Ten views over one input beside one, in one process: costs when they share what they read, and
when each reads for itself.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import pyarrow as pa

from bench.views.job import Aim, Job, Report, Row
from tidemill.arrangement.updates import consolidate, stamp
from tidemill.catalog.record_rows import shape_of_output, shape_of_relation, table_of
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.lifecycle import give_back_memory, keep_freed_memory, resident_bytes
from tidemill.shard import Collections, Description, DirectoryBlob, Limits, SqliteConsensus
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

SALE = pa.schema([("o", pa.int64()), ("a", pa.int64()), ("k", pa.string())])
COLUMNS = (("o", "int"), ("a", "int"), ("k", "text"))
Programs = tuple[str, ...]
PROGRAMS: Programs = (
    "t(k) @sum(a) @count(o) := sale(o, a, k);",
    't(o, a) := sale(o, a, k) if a % 1000 == 7 ^ k != "none";',
    "t(k) @max(a) @count(o) := sale(o, a, k);",
    "t(o, a, k) := sale(o, a, k) if o % 1000 == 7;",
    "t(k) @min(a) @max(o) := sale(o, a, k);",
)
JOINING: Programs = (
    'kind("k1"); t(o, a, k) := sale(o, a, k) ^ kind(k);',
    'kind("k2"); t(o, a) := sale(o, a, k) ^ kind(k) if a != 7;',
    'kind("k3"); t(a, k) := kind(k) ^ sale(o, a, k) if o > 70;',
    'kind("k4"); t(o) := sale(o, _, k) ^ kind(k);',
    'kind("k5"); t(o, k) := sale(o, a, k) ^ kind(k) if a < o;',
)
"""Each joins the input, of which one row in a hundred has a match."""
WARM_ROWS, WARM_CHANGES = 100_000, 3
"""So many rows are a part of their own: the process has the code that writes and reads one."""
NOTHING_DECODED = Limits(cache_bytes_max=0)
"""Parts that the store has decoded are no rows of a view: up to 256 MB, however many views."""


class Service:
    """Collections over SQLite and a directory, an input and views of it."""

    def __init__(self, directory: Path, programs: Programs, views: int, shared: bool) -> None:
        ids = map("{:032x}".format, itertools.count())
        clock = SystemClock()
        self.collections = Collections(
            SqliteConsensus(directory / "log.sqlite"), DirectoryBlob(directory / "blob", ids.__next__),
            clock, ids.__next__, limits=NOTHING_DECODED,
        )  # fmt: skip
        settings, every = ComputeSettings(), SharedInputs()
        self.targets = [
            target_of(number, programs[number % len(programs)]) for number in range(views)
        ]
        self.views = [
            ViewDriver(target, self.collections, clock, settings, every if shared else None)
            for target in self.targets
        ]

    async def create(self) -> None:
        """All collections, empty."""
        written = {"sale": SALE}
        for target in self.targets:
            written |= {name: shape.schema for name, shape in target.outputs.values()}
            written |= {target.errors: ERROR_SCHEMA, target.state: STATE_SCHEMA}
        for name, schema in written.items():
            held, _ = await self.collections.create(name, Description(schema))
            await self.collections.retain(name, None)
            await self.collections.drop(held)

    async def append(self, rows: pa.Table, lower: int, upper: int) -> None:
        """More of the input, until every view says so."""
        await self.collections.compare_and_append(
            "sale", frontier(lower), frontier(upper), stamp(rows, upper - 1), writer="bench"
        )
        for target in self.targets:
            for name in (*(name for name, _ in target.outputs.values()), target.errors):
                await self.collections.wait_for_upper(name, upper - 1, 600.0)

    async def digests(self) -> dict[str, str]:
        """The output of every view, update by update."""
        found = {}
        for target in self.targets:
            for name, _ in target.outputs.values():
                rows = consolidate(await self.collections.read_updates(name))
                text = repr(rows.to_pydict()).encode()
                found[name] = f"{rows.num_rows} {sha256(text).hexdigest()[:16]}"
        return found


def target_of(number: int, text: str) -> ViewTarget:
    """One of the views."""
    schema = InputSchema("sale", "relation", COLUMNS)
    checked = check(parse(text), InputSchemas({"sale": schema}))
    outputs = {
        name: (f"v{number}/{name}", shape_of_output(checked, name)) for name in checked.derived
    }
    inputs = {"sale": ("sale", shape_of_relation("sale", SALE))}
    return ViewTarget(
        f"v{number}", checked, inputs, outputs, f"v{number}/errors", f"v{number}/state"
    )


def backlog(rows: int) -> pa.Table:
    """Sales of a hundred kinds."""
    n = np.arange(rows)
    kinds = pa.array([f"k{each % 100}" for each in n.tolist()])
    return pa.table({"o": n, "a": n * 7919 % 10_007, "k": kinds}, schema=SALE)


def held_bytes() -> int:
    """Bytes of the process, without freed memory: as a service at rest."""
    gc.collect()
    give_back_memory()
    return resident_bytes()


async def measure_kept(
    programs: Programs, rows: int, views: int, shared: bool, changes: int
) -> tuple[int, float, dict[str, str]]:
    """Bytes that views hold, seconds of the processor for one change, and what they wrote."""
    with tempfile.TemporaryDirectory() as directory:
        service = Service(Path(directory), programs, views, shared)
        await service.create()
        before = held_bytes()
        tasks = [asyncio.create_task(view.maintain_forever()) for view in service.views]
        await service.append(backlog(rows), 0, 2)
        busy = []
        for at in range(2, 2 + changes):
            start = process_time()
            await service.append(table_of([(rows + at, at, "k1")], SALE), at, at + 1)
            busy.append(process_time() - start)
        held = held_bytes() - before
        digests = await service.digests()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return held, median(busy[len(busy) // 5 :]), digests


def alone(
    programs: Programs, rows: int, views: int, shared: bool, changes: int
) -> tuple[int, float, dict[str, str]]:
    """The same in a process that has loaded and compiled all it needs, and holds nothing.

    Its memory is that of a service.
    """
    keep_freed_memory()
    asyncio.run(measure_kept(programs, WARM_ROWS, 1, shared, WARM_CHANGES))
    return asyncio.run(measure_kept(programs, rows, views, shared, changes))


def sharing(programs: Programs, rows: int, views: int, changes: int) -> Report:
    """One view, several that share, and several that do not, each in a process of its own."""
    report = Report()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for name, number, shared in (
            ("one", 1, True), ("shared", views, True), ("apart", views, False),
        ):  # fmt: skip
            asked = pool.submit(alone, programs, rows, number, shared, changes)
            held, busy, digests = asked.result()
            report.figures |= {
                f"{name}_bytes": held, f"{name}_row_bytes": held / rows, f"{name}_s": busy,
            }  # fmt: skip
            for output, digest in digests.items():
                if report.digests.setdefault(output, digest) != digest:
                    raise AssertionError(f"{output} differs: {name}")
    return report


JOBS: dict[str, Job] = {
    "sharing": Job((100_000, 10, 30), partial(sharing, PROGRAMS), (
        Row("one view of 100,000 rows: memory", "one_bytes", unit="bytes"),
        Row("ten views of them, times as much", "shared_bytes/one_bytes", Aim("most", 2.0), "times"),
        Row("the same, each for itself", "apart_bytes/one_bytes", unit="times"),
        Row("one view, processor for a change, durable to durable, median", "one_s"),
        Row("ten views, times as much", "shared_s/one_s", unit="times"),
        Row("the same, each for itself", "apart_s/one_s", unit="times"),
    ), scaled=(0,), least=1_000),
    "kept-row": Job((200_000, 10, 3), partial(sharing, JOINING), (
        Row("a row of three columns that a view joins, memory of the process", "one_row_bytes", Aim("most", 100), "bytes"),
        Row("ten views of the rows, times as much", "shared_bytes/one_bytes", Aim("most", 1.2), "times"),
        Row("the same, each for itself", "apart_bytes/one_bytes", unit="times"),
    ), scaled=(0,), least=1_000),
}  # fmt: skip
