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
from statistics import median
from unittest.mock import patch

import pyarrow as pa

from bench.spark.live import LiveWorld, asking, launcher_of
from bench.spark.rounds import measure_rounds
from bench.spark.scaling import heaviest, measure_scaling
from bench.spark.worlds import (
    CLOSURE,
    HEAVY,
    JOIN,
    KEYED,
    ONE_FRAGMENT,
    RANGES,
    SPAN,
    TWO_FRAGMENTS,
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
from tidemill_compute.views.bulk import History
from tidemill_compute.views.windows import planning


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


async def live_skew(here: Spark, folder: Path, alive: int) -> None:
    """Windows of even keys, and of one key with many rows: divided among ranges, and not."""
    found: dict[str, tuple[LiveWorld, dict[str, list[Taken]]]] = {}
    for title, heavy in (("even keys", 0.0), ("a key of 30 %", HEAVY), (UNDIVIDED, HEAVY)):
        world = LiveWorld(folder / title, KEYED)
        with divided(title):
            await world.begin(asking(here, world), alive, heavy, launcher_of(here, world))
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


@contextmanager
def divided(title: str) -> Iterator[None]:
    """Windows of one view are told of no heavy keys."""
    nothing = patch.object(planning, "heavy_in", lambda *told: ())
    with nothing if title == UNDIVIDED else nullcontext():
        yield


async def live(here: Spark, folder: Path, title: str, text: str, alive: int) -> float:
    """Windows of 1,000 and of 100,000 changes, and intervals of none, beside rows alive."""
    world = LiveWorld(folder, text)
    await world.begin(asking(here, world), alive, 0.0, launcher_of(here, world))
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


JOBS = ("history", "closure", "rounds", "skew", "windows", "scaling")
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
    if only in ("", "rounds"):
        await measure_rounds(here, folder / "rounds")
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
