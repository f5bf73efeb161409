"""The tasks of windows without Spark: python -m bench.spark.tasks [--alive N …].

The tasks of a window run in this process, one after the other. Seconds are those of a processor,
of the longest task of each fragment, and mean something on a machine with other work, too. They
leave out the share of Spark itself, which depends on no rows.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from statistics import median

import msgspec

from bench.spark.views import UNDIVIDED, LiveWorld, divided
from bench.spark.worlds import HEAVY, KEYED, TWO_FRAGMENTS, World, say
from tidemill.shard.stores import open_blob
from tidemill_compute.views.range_wire import LAST, Dealt
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.window_job import groups_for
from tidemill_compute.views.windows.work import WindowWork

CORES, WINDOWS, CHANGES = 2, 7, 100_000


class Tasks:
    """Answers windows in this process; `longest_s` is of the last one."""

    def __init__(self, world: World, folder: Path) -> None:
        self._blob = open_blob(world.place, partial(token_hex, 8))
        self._folder = folder
        self.longest_s = 0.0

    async def ask(self, packed: bytes) -> bytes:
        """The packed answer of a packed window."""
        self.longest_s = 0.0
        return msgspec.msgpack.encode(await answer(packed, self._blob, None, self._evaluate))

    async def _evaluate(self, packed: bytes, work: WindowWork) -> AsyncIterator[Dealt]:
        groups, waiting = groups_for(work.window, CORES), list[Dealt]()
        for fragment in work.fragments:
            mine = [each for each in waiting if each.stage == fragment.number]
            longest_s = 0.0
            for group in range(groups):
                begun = time.process_time()
                task = WindowWork(packed, self._blob, self._folder)
                told = [each async for each in task.stage(fragment.number, group, groups, mine)]
                longest_s = max(longest_s, time.process_time() - begun)
                waiting += [each for each in told if each.stage != LAST]
                for each in told:
                    if each.stage == LAST:
                        yield each
            self.longest_s += longest_s


async def _longest(tasks: Tasks, job: Callable[[], Awaitable[None]]) -> float:
    await job()
    return tasks.longest_s


async def heavy_keys(folder: Path, alive: int) -> None:
    """Windows of even keys, and of one key with many rows: divided among ranges, and not."""
    for title, heavy in (("even keys", 0.0), ("a key of 30 %", HEAVY), (UNDIVIDED, HEAVY)):
        world = LiveWorld(folder / title, KEYED)
        tasks = Tasks(world, folder / f"{title} files")
        changed, moved = list[float](), list[float]()
        with divided(title):
            await world.begin(tasks.ask, alive, heavy)
            for _ in range(WINDOWS):
                changed.append(await _longest(tasks, partial(world.change, CHANGES)))
                moved.append(await _longest(tasks, world.move))
        await world.end()
        say(
            f"windows of {CHANGES:,} changes, {alive:,} orders alive, {title}: the longest task "
            f"{median(changed[2:]):.2f} s; other towns for {HEAVY:.0%} of the orders "
            f"{median(moved[2:]):.2f} s"
        )


async def rows_alive(folder: Path, alive: Sequence[int]) -> None:
    """Windows of 1,000 changes beside more and more rows."""
    for size in alive:
        world = LiveWorld(folder / str(size), TWO_FRAGMENTS)
        tasks = Tasks(world, folder / f"{size} files")
        await world.begin(tasks.ask, size)
        found = [await _longest(tasks, partial(world.change, 1_000)) for _ in range(WINDOWS + 2)]
        await world.end()
        say(f"windows of 1,000 changes, {size:,} orders alive: {1000 * median(found[2:]):.0f} ms")


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alive", type=int, nargs="+", default=[1_000_000, 4_000_000])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(heavy_keys(Path(name), chosen.alive[0]))
        asyncio.run(rows_alive(Path(name), chosen.alive))


if __name__ == "__main__":
    main()
