"""Collections of a view of orders and payments, and what windows over them cost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.spark.__main__ import seconds_of_processors
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.record_rows import shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, DirectoryBlob, SqliteConsensus
from tidemill.shard.encoding import unpack_part
from tidemill.shard.hashing import key_hashes
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.stores import BlobPlace
from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session
from tidemill.spark.workplace import Workplace
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import history_window
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.windows import window_job
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import WindowResult, pack_window

ONE_FRAGMENT = """
    paid(o) @sum(b) := order(o, _) ^ payment(o, b);
    open(o, c) := order(o, c) ^ not paid(o);
"""
TWO_FRAGMENTS = ONE_FRAGMENT + "load(c) @count(o) := open(o, c);"
JOIN = "in_town(o, t) := order(o, c) ^ town(c, t); load(c) @count(o) := order(o, c);"
KEYED = "in_town(o, c, t) := order(o, c) ^ town(c, t);"
CLOSURE = "reach(x, y) := edge(x, y); reach(x, z) := reach(x, y) ^ edge(y, z);"
SCHEMAS = {
    "edge": pa.schema([("a", pa.int64()), ("b", pa.int64())]),
    "line": pa.schema([("o", pa.int64()), ("i", pa.int64()), ("c", pa.int64())]),
    "order": pa.schema([("o", pa.int64()), ("c", pa.int64())]),
    "payment": pa.schema([("o", pa.int64()), ("amount", pa.int64())]),
    "town": pa.schema([("c", pa.int64()), ("town", pa.int64())]),
}
Numbers: TypeAlias = "npt.NDArray[np.int64]"
CUSTOMERS, TOWNS = 100_000, 50
SPAN = 100_000
"""Instants of a history."""
HEAVY = 0.3
"""The share of rows with one key."""
RANGES = 16
"""Ranges of which the heaviest is looked for, as there are for 16 executors."""


def come_and_go(columns: Sequence[Numbers], schema: pa.Schema, stay: int) -> pa.Table:
    """Rows that begin at random instants of a history, and end so much later."""
    size = len(columns[0])
    begin = np.random.default_rng(size).integers(1, SPAN - stay, size)
    both = [pa.array(np.concatenate([each, each])) for each in columns]
    times = np.concatenate([begin, begin + stay]).astype(np.uint64)
    diffs = np.repeat(np.array([1, -1]), size)
    return pa.table(dict(zip([*schema.names, TIME, DIFF], [*both, times, diffs], strict=True)))


def inputs_of(rows: int, heavy: float) -> dict[str, pa.Table]:
    """About so many updates of orders and payments; a share of the orders has one customer."""
    size, random = rows // 4, np.random.default_rng(7)
    orders, customers = np.arange(size), random.integers(0, CUSTOMERS, size)
    customers[random.random(size) < heavy] = 7
    amounts = random.integers(0, 1_000, size)
    towns = np.arange(CUSTOMERS)
    return {
        "order": come_and_go([orders, customers], SCHEMAS["order"], SPAN // 10),
        "payment": come_and_go([random.permutation(orders), amounts], SCHEMAS["payment"], SPAN // 20),
        "town": come_and_go([towns, towns % TOWNS], SCHEMAS["town"], SPAN // 2),
    }  # fmt: skip


def edges_of(nodes: int) -> dict[str, pa.Table]:
    """Two edges of each node to any of them, each present for a part of the history."""
    begin = np.repeat(np.arange(nodes), 2)
    end = np.random.default_rng(7).integers(0, nodes, len(begin))
    return {"edge": come_and_go([begin, end], SCHEMAS["edge"], SPAN // 2)}


class World:
    """Collections of a view in a folder; the view has written nothing."""

    def __init__(self, folder: Path, text: str) -> None:
        numbers = count()
        folder.mkdir(parents=True)
        self.place = BlobPlace(f"file:{folder / 'objects'}")
        self.blob = DirectoryBlob(folder / "objects", partial(token_hex, 8))
        self.collections = Collections(
            SqliteConsensus(folder / "log"), self.blob, SystemClock(),
            lambda: f"{next(numbers):032d}",
        )  # fmt: skip
        parsed = parse(text)
        used = {a.application.name for rule in parsed.rules for a in rule.atoms}
        names = [name for name in SCHEMAS if name in used]
        program = check(
            parsed,
            InputSchemas(
                {
                    n: InputSchema(n, "relation", tuple((c, "int") for c in SCHEMAS[n].names))
                    for n in names
                }
            ),
        )
        self.target = ViewTarget(
            "v", program, {n: (n, shape_of_relation(n, SCHEMAS[n])) for n in names},
            {p: (f"v/{p}", shape_of_output(program, p)) for p in program.derived},
            "v/errors", "v/state",
        )  # fmt: skip
        self.fed = 0

    async def create(self) -> None:
        """Create all collections."""
        made = {n: Description(SCHEMAS[n], retain_ms=0) for n in self.target.inputs}
        made |= {n: Description(shape.schema) for n, shape in self.target.outputs.values()}
        made["v/errors"] = Description(ERROR_SCHEMA)
        made["v/state"] = Description(STATE_SCHEMA, retain_ms=0)
        for name, description in made.items():
            await self.collections.create(name, description, start=frontier(0))

    async def feed(self, tables: Mapping[str, pa.Table], upper: int) -> None:
        """Updates of the inputs, below an instant."""
        for name in self.target.inputs:
            rows = tables.get(name)
            await self.collections.compare_and_append(
                name, frontier(self.fed), frontier(upper), rows, writer="bench"
            )
        self.fed = upper

    async def history(self) -> History:
        """The history that a job would evaluate."""
        states = {name: await self.collections.state(name) for name in self.target.inputs}
        names = ["v/state", *(name for name, _ in self.target.outputs.values()), "v/errors"]
        written = {name: await self.collections.description(name) for name in names}
        inputs = {name: (state.description, state.parts()) for name, state in states.items()}
        return History(self.target, ComputeSettings(), 0, SPAN + 1, inputs, written)

    async def digests(
        self, history: History, parts: Mapping[str, Sequence[Part]]
    ) -> dict[str, int]:
        """A number for the updates of each collection, in whatever parts and order they are."""
        store = PartStore(self.blob, str)
        found = {}
        for name, description in history.written.items():
            total = 0
            for part in parts.get(name, ()):
                table = await store.table(part, description, keep=False)
                total += digest(table)
            found[name] = total % (1 << 64)
        return found


def digest(table: pa.Table) -> int:
    """The sum of hashes of rows at instants, times their differences."""
    hashes = key_hashes(table.drop_columns([DIFF]), tuple(table.column_names[:-1]))
    with np.errstate(over="ignore"):
        return int((hashes * table.column(DIFF).to_numpy().astype(np.uint64)).sum(dtype=np.uint64))


@dataclass(slots=True)
class Taken:
    """Seconds of processors and of a clock."""

    processor: float = 0.0
    wall: float = 0.0


@contextmanager
def taken() -> Iterator[Taken]:
    """The seconds that something takes."""
    found, processor, wall = Taken(), seconds_of_processors(), time.perf_counter()
    yield found
    found.processor = seconds_of_processors() - processor
    found.wall = time.perf_counter() - wall


def say(line: str) -> None:
    """A line, with the load of the machine."""
    print(f"{line}  (load {os.getloadavg()[0]:.0f})", flush=True)


def parts_in(found: WindowResult) -> dict[str, list[Part]]:
    """The parts of an answer."""
    assert not found.failure, found.message
    return {name: [*map(unpack_part, parts)] for name, parts in found.parts.items()}


async def by_job(history: History, here: Workplace) -> dict[str, list[Part]]:
    """The parts that a job writes."""
    packed = pack_window(history_window(history, token_hex(8), SystemClock().now_ms()))
    told = await asyncio.to_thread(window_job.run, packed, here)
    return parts_in(msgspec.msgpack.decode(told, type=WindowResult))


async def in_process(world: World, history: History) -> dict[str, list[Part]]:
    """The parts that this process writes, in one range."""
    window = history_window(history, token_hex(8), SystemClock().now_ms())
    packed = pack_window(msgspec.structs.replace(window, ranges=1))
    return parts_in(await answer(packed, world.blob, None, evaluate_here))


class Spark:
    """A warm session."""

    def __init__(self, folder: Path, cores: int = 2) -> None:
        settings = LocalSettings(cores=cores, scratch=str(folder))
        self.session = local_session("bench", settings)

    def at(self, place: BlobPlace) -> Workplace:
        """A workplace over some objects."""
        return Workplace(self.session, place, lambda line: None)

    def worker_mb(self) -> int:
        """The most memory that a Python worker has had, in MB."""
        most = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(
                    line.split(":", 1) for line in status.read_text().splitlines() if ":" in line
                )
                words = (status.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if b"worker_daemon" in words and "VmHWM" in fields:
                most = max(most, int(fields["VmHWM"].split()[0]) >> 10)
        return most
