"""Rounds of live windows in a real session, of which the driver or the workers are killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from secrets import token_hex

import pytest
from pyspark.sql import SparkSession

from tidemill.errors import Unavailable
from tidemill.runtime.clock import SystemClock
from tidemill.shard import DirectoryBlob
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.launcher import SparkLauncher
from tidemill.spark.local import LocalLauncher
from tidemill.spark.local_settings import LocalSettings
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.jobs import SessionLauncher
from tidemill.testkit.mortal_views import END, World, expected, follow
from tidemill_compute.views.bulk import History
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.windows import rounds
from tidemill_compute.views.windows.asking import WindowCounts
from tidemill_compute.views.windows.session import WindowSession

PATHS = """
    step(n, m) := ping(h, n) ^ ping(h, m) if n < m;
    path(n, m) := step(n, m);
    path(n, k) := path(n, m) ^ path(m, k);
"""
ROUND = re.compile(r"-([0-9]+)-[0-9]+-[0-9]+-[0-9a-f]{16}")
"""The name of an object that a round has sent, with the number of the round."""


@pytest.fixture(autouse=True)
def _many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are said to have so many rows that all processes choose rounds."""

    def many(history: History) -> dict[str, int]:
        return dict.fromkeys(history.target.inputs, 100_000)

    monkeypatch.setattr(History, "input_rows", property(many))


@asynccontextmanager
async def session_of(launcher: SparkLauncher, place: BlobPlace) -> AsyncIterator[WindowSession]:
    open_ = partial(open_blob, place, partial(token_hex, 8))
    session = WindowSession(launcher, open_, SystemClock(), "test", partial(token_hex, 8), 600.0)
    try:
        yield session
    finally:
        await session.close()


async def live(world: World, session: WindowSession, counts: WindowCounts) -> int:
    """Feed the world piece by piece, and keep the view by windows; how many lives that took."""
    random, fed, lives = Random(5), 0, 0
    await world.create()
    while fed < END:
        upper = min(END, fed + random.randrange(15, 25))
        await world.feed(fed, upper)
        fed = upper
        while True:
            view = world.view(world.process(Fuse(None)), 20)
            view.engines = Engines(
                "spark", Windows(session.ask, world.clock.now_ms, lambda: "test"), 1 << 30
            )
            view.engines.counts = counts
            lives += 1
            try:
                await follow(world, view, fed, 0.01)
                break
            except AssertionError as error:
                if not isinstance(error.__cause__, Unavailable):
                    raise
    return lives


def processes() -> dict[int, tuple[int, bytes]]:
    """The parent and the command of each process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(entry.name)] = parent, (entry / "cmdline").read_bytes()
    return found


def mine(wanted: Callable[[bytes], bool]) -> list[int]:
    """The processes that descend from this one, and whose command is wanted."""
    known, ours = processes(), {os.getpid()}
    while more := {pid for pid, (parent, _) in known.items() if parent in ours} - ours:
        ours |= more
    return [pid for pid in ours - {os.getpid()} if wanted(known.get(pid, (0, b""))[1])]


def workers() -> list[int]:
    """Python workers of executors: what their parent has forked."""
    known = processes()
    pids = mine(lambda command: b"worker_daemon" in command)
    return [pid for pid in pids if pid in known and known[pid][0] in pids]


def sent(folder: Path) -> list[int]:
    """The rounds of the objects that are there."""
    names = [each.name for each in folder.rglob("*")]
    return [int(found[1]) for found in map(ROUND.search, names) if found]


async def kill_between_rounds(
    folder: Path, pids: Callable[[], list[int]], killed: list[int]
) -> None:
    """Kill processes once, when there is an object of the second round."""
    while not killed:
        if max(sent(folder), default=0) > 1:
            for pid in pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        await asyncio.sleep(0.001)


@pytest.mark.server
async def test_workers_that_are_killed_between_rounds_lose_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is a job of its own; a task of the next one finds no engine in its process."""
    monkeypatch.setattr(rounds, "FEW_BYTES", -1)
    world, place = world_in(tmp_path)
    killed: list[int] = []
    killing = asyncio.create_task(kill_between_rounds(tmp_path / "blob", workers, killed))
    async with session_of(SessionLauncher(spark, place), place) as session:
        await live(world, session, counts := WindowCounts())
    await asyncio.wait_for(killing, 1)
    assert killed
    assert counts.stages > 3 * counts.windows
    assert await world.contents() == expected(world.program, world.history)


@pytest.mark.server
async def test_a_driver_that_is_killed_between_rounds_loses_nothing(tmp_path: Path) -> None:
    world, place = world_in(tmp_path)
    scratch = LocalSettings(memory_mb=600, scratch=str(tmp_path / "scratch"))
    launcher = LocalLauncher(tmp_path / "jobs", place, scratch)
    before, killed = {*mine(lambda command: True)}, list[int]()

    def drivers() -> list[int]:
        return [pid for pid in mine(lambda command: True) if pid not in before]

    killing = asyncio.create_task(kill_between_rounds(tmp_path / "blob", drivers, killed))
    async with session_of(launcher, place) as session:
        lives = await live(world, session, WindowCounts())
        assert session.begun == 2
    await asyncio.wait_for(killing, 1)
    assert killed
    assert lives > 0
    assert await world.contents() == expected(world.program, world.history)


def world_in(folder: Path) -> tuple[World, BlobPlace]:
    blob = DirectoryBlob(folder / "blob", partial(token_hex, 8))
    return World(PATHS, 3, blob), BlobPlace(f"file:{folder / 'blob'}")
