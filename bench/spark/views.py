"""Views on Spark against one process: python -m bench.spark.views [--only NAME] [--rows N].

Answers are compared first. Histories go through the job that the service starts, windows through
the driver of the view and a warm session. One process evaluates the same window in one range.
Seconds of a processor count this process and all that it began: the JVM, Python workers. Walls say
little on a machine with other work.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from statistics import median
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
from tidemill.testkit.jobs import SessionLauncher
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import SparkHydrate, history_window
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.range_wire import Dealt
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.windows import window_job
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import WindowResult, pack_window
from tidemill_compute.views.windows.work import WindowWork

ONE_FRAGMENT = """
    paid(o) @sum(b) := order(o, _) ^ payment(o, b);
    open(o, c) := order(o, c) ^ not paid(o);
"""
TWO_FRAGMENTS = ONE_FRAGMENT + "load(c) @count(o) := open(o, c);"
JOIN = "in_town(o, t) := order(o, c) ^ town(c, t); load(c) @count(o) := order(o, c);"
SCHEMAS = {
    "order": pa.schema([("o", pa.int64()), ("c", pa.int64())]),
    "payment": pa.schema([("o", pa.int64()), ("amount", pa.int64())]),
    "town": pa.schema([("c", pa.int64()), ("town", pa.int64())]),
}
Numbers: TypeAlias = "npt.NDArray[np.int64]"
CUSTOMERS = 100_000
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
        "town": come_and_go([towns, towns % 50], SCHEMAS["town"], SPAN // 2),
    }  # fmt: skip


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


async def histories(here: Spark, folder: Path, title: str, text: str, rows: int) -> None:
    """A history by one process and by a job, of which the answers are compared."""
    world = World(folder, text)
    await world.create()
    await world.feed(inputs_of(rows, 0.0), SPAN + 1)
    history = await world.history()
    with taken() as alone:
        parts = await in_process(world, history)
    wanted = await world.digests(history, parts)
    with taken() as spread:
        mine = await by_job(history, here.at(world.place))
    assert await world.digests(history, mine) == wanted, title
    outputs = sum(part.rows for each in mine.values() for part in each)
    say(
        f"history, {title}, {history.rows:,} updates in, {outputs:,} out: one process "
        f"{alone.processor:.1f} s of processor, {alone.wall:.1f} s; job {spread.processor:.1f} s, "
        f"{spread.wall:.1f} s: {spread.processor / alone.processor:.2f} of the processor, "
        f"{alone.wall / spread.wall:.2f} times as fast; a worker had {here.worker_mb()} MB"
    )


async def heaviest(world: World, history: History) -> tuple[float, float]:
    """Seconds of a processor in `RANGES` ranges, and in the heaviest one of each fragment."""
    window = history_window(history, token_hex(8), SystemClock().now_ms())
    packed = pack_window(msgspec.structs.replace(window, ranges=RANGES))
    work, waiting, total, most = WindowWork(packed, world.blob, None), list[Dealt](), 0.0, 0.0
    for fragment in work.fragments:
        for name in work.divided.collections_of(fragment):
            for at in range(len(work.window.parts[name])):
                waiting += [each async for each in work.deal(fragment.number, name, at)]
        mine, times = [each for each in waiting if each.stage == fragment.number], []
        for number in range(RANGES):
            begun = time.process_time()
            found = [each async for each in work.stage(fragment.number, number, RANGES, mine)]
            times.append(time.process_time() - begun)
            waiting += found
        total, most = total + sum(times), most + max(times)
    return total, most


async def compare_skew(here: Spark, folder: Path, rows: int) -> None:
    """Histories of even keys, and of one key with many rows: divided among ranges, and not."""
    walls: dict[str, float] = {}
    for title, heavy in (("even keys", 0.0), ("a key of 30 %", HEAVY)):
        world = World(folder / title, JOIN)
        await world.create()
        await world.feed(inputs_of(rows, heavy), SPAN + 1)
        history = await world.history()
        wanted = await world.digests(history, await in_process(world, history))
        whole = replace(
            history,
            inputs={
                name: (description, tuple(replace(part, heavy={}) for part in found))
                for name, (description, found) in history.inputs.items()
            },
        )
        for how, each in {"": history, ", not divided": whole}.items():
            if how and not heavy:
                continue
            total, most = await heaviest(world, each)
            say(
                f"skew, {history.rows:,} updates, {title}{how}: {total:.1f} s of a processor in "
                f"{RANGES} ranges, {most:.1f} s in the heaviest of each fragment"
            )
            with taken() as spread:
                mine = await by_job(each, here.at(world.place))
            assert await world.digests(history, mine) == wanted, title
            walls[title + how] = spread.wall
            share = spread.wall / walls["even keys"]
            say(
                f"  by a job: {spread.processor:.1f} s of processor, {spread.wall:.1f} s, "
                f"{share:.2f} of even keys; a worker had {here.worker_mb()} MB"
            )


class LiveWorld(World):
    """A view that is kept by windows while its inputs change."""

    async def begin(self, here: Workplace, alive: int) -> None:
        """So many orders, half of them paid; the view has taken them in."""
        await self.create()
        self._next = alive
        orders, paid = np.arange(alive), np.arange(0, alive, 2)
        await self._put(orders, paid, 1)
        launcher = SessionLauncher(here.spark, self.place)
        self.view = ViewDriver(
            self.target, self.collections, SystemClock(), ComputeSettings(spark_rows=10_000)
        )
        self.view.bulk = SparkHydrate(
            launcher, self.collections, SystemClock().now_ms, partial(token_hex, 8)
        )
        self.windows = 0

        async def ask(packed: bytes) -> bytes:
            self.windows += 1
            return await asyncio.to_thread(window_job.run, packed, here)

        self.view.engines = Engines(
            "spark", Windows(ask, SystemClock().now_ms, partial(token_hex, 8)), 8 << 30
        )
        await self.view.prepare()
        self._task = asyncio.create_task(self.view.maintain_forever())
        await self.reach()

    async def change(self, rows: int) -> None:
        """Half as many new orders, and payments of these."""
        size = rows // 2
        orders = np.arange(self._next, self._next + size)
        self._next += size
        await self._put(orders, orders, self.fed)
        await self.reach()

    async def _put(self, orders: Numbers, paid: Numbers, at: int) -> None:
        def table(schema: pa.Schema, *columns: Numbers) -> pa.Table:
            size = len(columns[0])
            words = [*columns, np.full(size, at, np.uint64), np.ones(size, np.int64)]
            return pa.table(dict(zip([*schema.names, TIME, DIFF], words, strict=True)))

        tables = {
            "order": table(SCHEMAS["order"], orders, orders * 7 % CUSTOMERS),
            "payment": table(SCHEMAS["payment"], paid, paid % 1_000),
        }
        await self.feed(tables, at + 1)

    async def reach(self) -> None:
        """Wait until the view has taken in everything."""
        while self.view.progress.lower < self.fed:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.002)

    async def end(self) -> None:
        """Stop, and compare what windows wrote with what one process says of the same history."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        history = replace(await self.history(), upper=self.fed)
        parts = await in_process(self, history)
        wanted = await self.digests(history, parts)
        states = {name: await self.collections.state(name) for name in history.written}
        mine = {name: state.parts() for name, state in states.items()}
        assert await self.digests(history, mine) == wanted, "windows"


async def live(here: Spark, folder: Path, title: str, text: str, alive: int) -> float:
    """Windows of 1,000 and of 100,000 changes, and intervals of none, beside rows alive."""
    world = LiveWorld(folder, text)
    await world.begin(here.at(world.place), alive)
    for _ in range(3):  # the first one looks at all keys, two more warm up
        await world.change(1_000)
    small, large = list[Taken](), list[Taken]()
    for found, rows, times in ((small, 1_000, 8), (large, 100_000, 4)):
        for _ in range(times):
            with taken() as each:
                await world.change(rows)
            found.append(each)
    windows, idle = world.windows, []
    for _ in range(10):
        with taken() as each:
            await world.feed({}, world.fed + 1)
            await world.reach()
        idle.append(each.processor)
    assert world.windows == windows, "an interval without a change asked a driver"
    await world.end()
    one: float = median(each.processor for each in small)
    rate = 100_000 / median(each.processor for each in large)
    say(
        f"windows, {title}, {alive:,} orders alive: 1,000 changes {one:.2f} s of processor, "
        f"{median(each.wall for each in small):.2f} s; windows of 100,000 {rate:,.0f} changes a "
        f"second of processor; idle {1_000 * median(idle):.0f} ms"
    )
    return one


class Spark:
    """A warm session of two cores."""

    def __init__(self, folder: Path) -> None:
        self.session = local_session("bench", LocalSettings(scratch=str(folder)))

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


JOBS = ("history", "skew", "windows")


async def measure_all(
    here: Spark, folder: Path, only: str, rows: int, alive: Sequence[int]
) -> None:
    """Compare, measure, print."""
    await histories(here, folder / "warm", "a small one that warms up", TWO_FRAGMENTS, 100_000)
    if only in ("", "history"):
        await histories(here, folder / "one", "one fragment", ONE_FRAGMENT, rows)
        await histories(here, folder / "two", "two fragments", TWO_FRAGMENTS, rows)
    if only in ("", "skew"):
        await compare_skew(here, folder / "skew", rows)
    if only in ("", "windows"):
        for title, text in (("one fragment", ONE_FRAGMENT), ("two fragments", TWO_FRAGMENTS)):
            took = [await live(here, folder / f"{title} {n}", title, text, n) for n in alive]
            for more, less in zip(took[1:], took, strict=False):
                print(f"  {more / less:.2f} times the processor beside more rows", flush=True)


def main() -> None:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=JOBS, default="")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--alive", type=int, nargs="+", default=[1_000_000, 10_000_000])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = Spark(folder / "scratch")
        asyncio.run(measure_all(here, folder, chosen.only, chosen.rows, chosen.alive))
        here.session.stop()


if __name__ == "__main__":
    main()
