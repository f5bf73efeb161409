"""Views on Spark against one process: python -m bench.spark.views [--only NAME] [--rows N].

Answers are compared first. Histories go through the job that the service starts, windows through
the driver of the view and a warm session. One process evaluates the same window in one range.
Seconds of a processor count this process and all that it began: the JVM, Python workers. Walls say
little on a machine with other work.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from statistics import median
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from bench.spark.scaling import heaviest, measure_scaling
from bench.spark.worlds import (
    CLOSURE,
    CUSTOMERS,
    HEAVY,
    JOIN,
    KEYED,
    ONE_FRAGMENT,
    RANGES,
    SCHEMAS,
    SPAN,
    TOWNS,
    TWO_FRAGMENTS,
    Numbers,
    Spark,
    Taken,
    World,
    by_job,
    edges_of,
    in_process,
    inputs_of,
    say,
    taken,
)
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.runtime.clock import SystemClock
from tidemill.spark.launcher import SparkLauncher
from tidemill.testkit.jobs import SessionLauncher
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import SparkHydrate
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.windows import planning, window_job
from tidemill_compute.views.windows.asking import Ask


async def histories(
    here: Spark, folder: Path, title: str, text: str, inputs: Mapping[str, pa.Table]
) -> None:
    """A history by one process and by a job, of which the answers are compared."""
    world = World(folder, text)
    await world.create()
    await world.feed(inputs, SPAN + 1)
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


UNDIVIDED = "the same, not divided"
TURNS = 3
"""Runs of each history, and pairs of windows of each view, one after the other in turns."""


async def compare_skew(here: Spark, folder: Path, rows: int) -> None:
    """Histories of even keys, and of one key with many rows: divided among ranges, and not."""
    found: dict[str, tuple[World, History, Mapping[str, int], list[Taken]]] = {}
    for title, heavy in (("even keys", 0.0), ("a key of 30 %", HEAVY)):
        world = World(folder / title, JOIN)
        await world.create()
        await world.feed(inputs_of(rows, heavy), SPAN + 1)
        history = await world.history()
        wanted = await world.digests(history, await in_process(world, history))
        whole = replace(
            history,
            inputs={
                name: (description, tuple(replace(part, heavy={}) for part in parts))
                for name, (description, parts) in history.inputs.items()
            },
        )
        found[title] = world, history, wanted, []
        if heavy:
            found[UNDIVIDED] = world, whole, wanted, []
    for _ in range(TURNS):
        for title, (world, history, wanted, runs) in found.items():
            with taken() as spread:
                mine = await by_job(history, here.at(world.place))
            assert await world.digests(history, mine) == wanted, title
            runs.append(spread)
    even = median(each.wall for each in found["even keys"][3])
    for title, (world, history, _, runs) in found.items():
        total, most = await heaviest(world, history, RANGES)
        wall = median(each.wall for each in runs)
        say(
            f"skew, {history.rows:,} updates, {title}: job {wall:.2f} s, {wall / even:.2f} of even "
            f"keys, {median(each.processor for each in runs):.2f} s of processor; {total:.2f} s of "
            f"a processor in {RANGES} ranges, {most:.2f} s in the heaviest of each fragment"
        )


class LiveWorld(World):
    """A view that is kept by windows while its inputs change."""

    async def begin(
        self, ask: Ask, alive: int, heavy: float = 0.0, launcher: SparkLauncher | None = None
    ) -> None:
        """So many orders, half of them paid; the view has taken them in, by a job if there are any.

        A share of the orders has one customer. This one moves, or as many as have as many orders.
        """
        self._heavy, self._turned = heavy, 0
        self._moving = np.array([7]) if heavy else np.arange(int(HEAVY * CUSTOMERS))
        await self.create()
        self._next = alive
        orders, paid = np.arange(alive), np.arange(0, alive, 2)
        towns = np.arange(CUSTOMERS)
        moved = _changes(SCHEMAS["town"], 1, towns, towns % TOWNS)
        await self._put(orders, paid, 1, moved)
        self.view = ViewDriver(
            self.target, self.collections, SystemClock(), ComputeSettings(spark_rows=10_000)
        )
        if launcher is not None:
            self.view.bulk = SparkHydrate(
                launcher, self.collections, SystemClock().now_ms, partial(token_hex, 8)
            )
        self.windows = 0

        async def count(packed: bytes) -> bytes:
            self.windows += 1
            return await ask(packed)

        self.view.engines = Engines(
            "spark", Windows(count, SystemClock().now_ms, partial(token_hex, 8)), 8 << 30
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

    async def move(self) -> None:
        """Customers with many orders together have another town, one of them or many."""
        before = self._moving + self._turned
        self._turned += 1
        who, towns = np.tile(self._moving, 2), np.concatenate([before, before + 1]) % TOWNS
        diffs = np.repeat([-1, 1], len(before))
        moved = _changes(SCHEMAS["town"], self.fed, who, towns, diffs)
        none = np.empty(0, np.int64)
        await self._put(none, none, self.fed, moved)
        await self.reach()

    async def _put(
        self, orders: Numbers, paid: Numbers, at: int, moved: pa.Table | None = None
    ) -> None:
        customers = np.where(orders % 100 < 100 * self._heavy, 7, orders * 7 % CUSTOMERS)
        tables = {
            "order": _changes(SCHEMAS["order"], at, orders, customers),
            "payment": _changes(SCHEMAS["payment"], at, paid, paid % 1_000),
        }
        await self.feed(tables if moved is None else tables | {"town": moved}, at + 1)

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


def _changes(
    schema: pa.Schema, at: int, first: Numbers, second: Numbers,
    diffs: Numbers | Sequence[int] = (1,),
) -> pa.Table:  # fmt: skip
    """Updates of one instant, of rows of two columns."""
    size = len(first)
    words = [first, second, np.full(size, at, np.uint64), np.resize(np.array(diffs), size)]
    return pa.table(dict(zip([*schema.names, TIME, DIFF], words, strict=True)))


async def live_skew(here: Spark, folder: Path, alive: int) -> None:
    """Windows of even keys, and of one key with many rows: divided among ranges, and not."""
    found: dict[str, tuple[LiveWorld, dict[str, list[Taken]]]] = {}
    for title, heavy in (("even keys", 0.0), ("a key of 30 %", HEAVY), (UNDIVIDED, HEAVY)):
        world = LiveWorld(folder / title, KEYED)
        with divided(title):
            await world.begin(_asking(here, world), alive, heavy, _launcher(here, world))
        found[title] = world, {"changed": [], "moved": []}
    for turn in range(2 * TURNS + 1):
        for title, (world, kept) in found.items():
            jobs = {"changed": partial(world.change, 100_000), "moved": world.move}
            for name, job in jobs.items():
                with divided(title), taken() as each:
                    await job()
                kept[name] += [each] if turn else []  # the first one warms up
    even = median(each.wall for each in found["even keys"][1]["changed"])
    for title, (world, kept) in found.items():
        await world.end()
        changed, moved = kept.values()
        wall = median(each.wall for each in changed)
        say(
            f"windows of 100,000 changes, {alive:,} orders alive, {title}: {wall:.2f} s, "
            f"{wall / even:.2f} of even keys, {median(e.processor for e in changed):.2f} s of "
            f"processor; other towns for {HEAVY:.0%} of the orders "
            f"{median(e.wall for e in moved):.2f} s, "
            f"{median(e.processor for e in moved):.2f} s of processor"
        )


def _asking(here: Spark, world: World) -> Ask:
    place = here.at(world.place)
    return lambda packed: asyncio.to_thread(window_job.run, packed, place)


def _launcher(here: Spark, world: World) -> SparkLauncher:
    return SessionLauncher(here.session, world.place)


@contextmanager
def divided(title: str) -> Iterator[None]:
    """Windows of one view are told of no heavy keys."""
    nothing = patch.object(planning, "heavy_in", lambda *told: ())
    with nothing if title == UNDIVIDED else nullcontext():
        yield


async def live(here: Spark, folder: Path, title: str, text: str, alive: int) -> float:
    """Windows of 1,000 and of 100,000 changes, and intervals of none, beside rows alive."""
    world = LiveWorld(folder, text)
    await world.begin(_asking(here, world), alive, 0.0, _launcher(here, world))
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


JOBS = ("history", "closure", "skew", "windows", "scaling")
NODES = 600
"""Nodes of the graph whose closure is kept, with two edges of each."""


async def measure_all(
    here: Spark, folder: Path, only: str, rows: int, alive: Sequence[int]
) -> None:
    """Compare, measure, print."""
    small = inputs_of(100_000, 0.0)
    await histories(here, folder / "warm", "a small one that warms up", TWO_FRAGMENTS, small)
    if only in ("", "history"):
        much = inputs_of(rows, 0.0)
        await histories(here, folder / "one", "one fragment", ONE_FRAGMENT, much)
        await histories(here, folder / "two", "two fragments", TWO_FRAGMENTS, much)
    if only in ("", "closure"):
        for turn in range(TURNS):  # the first one warms up
            place = folder / f"closure {turn}"
            await histories(here, place, f"closure of {NODES} nodes", CLOSURE, edges_of(NODES))
    if only in ("", "skew"):
        await compare_skew(here, folder / "skew", rows)
        await live_skew(here, folder / "live skew", alive[0])
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
        if chosen.only != "scaling":
            here = Spark(folder / "scratch")
            asyncio.run(measure_all(here, folder, chosen.only, chosen.rows, chosen.alive))
            here.session.stop()
        if chosen.only in ("", "scaling"):
            asyncio.run(measure_scaling(folder / "scaling", folder / "scratch", chosen.rows))


if __name__ == "__main__":
    main()
