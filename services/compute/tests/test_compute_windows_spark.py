"""Windows in tasks of Spark, asked of a driver that stays, and of one that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from secrets import token_hex
from threading import Event

import msgspec
import pytest
from pyspark.sql import SparkSession

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.shard import DirectoryBlob
from tidemill.shard.ports import BlobEntry
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.launcher import Job, JobDone, JobFailed, SparkLauncher
from tidemill.spark.local import LocalLauncher
from tidemill.spark.local_settings import LocalSettings
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.jobs import SessionLauncher
from tidemill.testkit.mortal_views import END, World, expected, follow
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.windows.asking import WindowCounts
from tidemill_compute.views.windows.crew import Crew
from tidemill_compute.views.windows.mailbox import DONE, SessionSpec, asked_key, told_key
from tidemill_compute.views.windows.mailbox import END as END_IT
from tidemill_compute.views.windows.session import WindowSession
from tidemill_compute.views.windows.session_job import serve

PROGRAMS = {
    "errors": "share(h, 6 / n) := ping(h, n);",
    "two fragments": """
        named(n, h) := ping(h, n) ^ host(h);
        many(n) @count(h) @max(h) := named(n, h);
        few(n) := many(n) @count(c) if c < 2;
    """,
    "groups in parts, and solutions that outlive their facts": """
        alarm(h) @expires(t + 9) := ping(h, n) @time(t) ^ host(h) if n > 1;
        total() @sum(n) @count(h) := ping(h, n);
    """,
}


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@asynccontextmanager
async def session_of(
    launcher: SparkLauncher, place: BlobPlace, deadline_s: float = 600.0
) -> AsyncIterator[WindowSession]:
    open_ = partial(open_blob, place, partial(token_hex, 8))
    session = WindowSession(
        launcher, open_, SystemClock(), "test", partial(token_hex, 8), deadline_s
    )
    try:
        yield session
    finally:
        await session.close()


def world_in(folder: Path, name: str) -> tuple[World, BlobPlace]:
    blob = DirectoryBlob(folder / "blob", partial(token_hex, 8))
    return World(PROGRAMS[name], 3, blob), BlobPlace(f"file:{folder / 'blob'}")


async def live(
    world: World, session: WindowSession, at: Callable[[int], None], counts: WindowCounts
) -> int:
    """Feed the world piece by piece, and keep the view by windows; how many lives that took."""
    random, fed, lives = Random(5), 0, 0
    await world.create()
    while fed < END:
        upper = min(END, fed + random.randrange(5, 15))
        await world.feed(fed, upper)
        fed = upper
        at(fed)
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


@pytest.mark.server
@pytest.mark.parametrize("name", PROGRAMS)
async def test_windows_in_tasks_say_what_the_twin_says(
    tmp_path: Path, spark: SparkSession, name: str
) -> None:
    world, place = world_in(tmp_path, name)
    async with session_of(SessionLauncher(spark, place), place) as session:
        await live(world, session, lambda fed: None, counts := WindowCounts())
        assert session.begun == 1
    divided = name != "errors"
    assert counts.stages == (2 if divided else 1) * counts.windows
    assert (counts.exchanged > 0) == divided
    assert await world.contents() == expected(world.program, world.history)


def children() -> list[int]:
    """The processes that this one has started."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.server
async def test_a_driver_that_is_killed_is_begun_again_and_nothing_is_lost(tmp_path: Path) -> None:
    world, place = world_in(tmp_path, "two fragments")
    scratch = LocalSettings(memory_mb=600, scratch=str(tmp_path / "scratch"))
    launcher = LocalLauncher(tmp_path / "jobs", place, scratch)
    before, killed = {*children()}, []

    def kill(fed: int) -> None:
        mine = {*children()} - before
        if mine and not killed:
            for each in mine:
                os.kill(each, signal.SIGKILL)
                killed.append(each)

    async with session_of(launcher, place) as session:
        lives = await live(world, session, kill, WindowCounts())
        assert session.begun == 2
    assert len(killed) == 1
    assert lives > 0
    assert await world.contents() == expected(world.program, world.history)
    folders = [each.name for each in (tmp_path / "blob").iterdir() if each.name.startswith("job-")]
    assert [file for name in folders for file in (tmp_path / "blob" / name).iterdir()] == []


async def test_without_spark_a_view_says_what_to_install(tmp_path: Path) -> None:
    _, place = world_in(tmp_path, "errors")
    launcher = LocalLauncher(
        tmp_path / "jobs", place, LocalSettings(), lacking=lambda: "pyspark is not installed"
    )
    async with session_of(launcher, place) as session:
        with pytest.raises(UsageError, match="no windows on Spark: pyspark is not installed"):
            await asyncio.wait_for(session.ask(b"a window"), 20)


class Racing(DirectoryBlob):
    """Objects whose folder goes away under a question: as the driver ends, or just before it."""

    def __init__(self, folder: Path, first: str) -> None:
        super().__init__(folder, partial(token_hex, 8))
        self.first = first
        self.ended, self.lost = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, data: bytes) -> None:
        if self.first == "driver":
            await self.ended.wait()
        self.lost.set()
        raise Unavailable(f"the object {key} could not be written: no such folder")


class Refusing:
    """A launcher that refuses all jobs, at the moment that the race asks for."""

    remote = False

    def __init__(self, inner: LocalLauncher, blob: Racing) -> None:
        self.inner, self.blob = inner, blob

    async def launch(self, job: Job) -> JobDone | JobFailed:
        if self.blob.first == "put":
            await self.blob.lost.wait()
            await asyncio.sleep(0.01)
        outcome = await self.inner.launch(job)
        self.blob.ended.set()
        return outcome

    async def tend_forever(self) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.parametrize("first", ["driver", "put"])
async def test_a_question_that_a_driver_takes_with_it_says_why_the_driver_ended(
    tmp_path: Path, first: str
) -> None:
    _, place = world_in(tmp_path, "errors")
    local = LocalLauncher(
        tmp_path / "jobs", place, LocalSettings(), lacking=lambda: "pyspark is not installed"
    )
    blob = Racing(tmp_path / "blob", first)
    session = WindowSession(
        Refusing(local, blob), lambda: blob, SystemClock(), "test", partial(token_hex, 8), 600.0
    )
    with pytest.raises(UsageError, match="no windows on Spark: pyspark is not installed"):
        await asyncio.wait_for(session.ask(b"a window"), 20)
    await session.close()


class Hanging:
    """A launcher whose driver works and answers nothing, as one whose executors never come."""

    remote = True

    def __init__(self) -> None:
        self.ended = 0

    async def launch(self, job: Job) -> JobDone | JobFailed:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
        raise AssertionError("it never ends by itself")

    async def tend_forever(self) -> None: ...

    async def close(self) -> None: ...


async def test_a_window_without_an_answer_ends_its_driver_and_says_which_setting_did(
    tmp_path: Path,
) -> None:
    _, place = world_in(tmp_path, "errors")
    launcher = Hanging()
    async with session_of(launcher, place, 0.1) as session:
        for begun in (1, 2):
            with pytest.raises(Unavailable, match=r"spark\.pods\.deadline_s"):
                await asyncio.wait_for(session.ask(b"a window"), 20)
            while launcher.ended < begun:
                await asyncio.sleep(0.01)
            assert session.begun == begun


class Serving:
    """A launcher whose driver runs here, shouts for windows, and has so many executors.

    A driver that is killed is followed by another, as in pods. It counts when it is not busy.
    """

    remote = False

    def __init__(self, place: BlobPlace) -> None:
        self.place, self.executors = place, 1
        self.driver: asyncio.Task[None] | None = None
        self.idle = Event()
        self.idle.set()

    async def launch(self, job: Job) -> JobDone | JobFailed:
        told = msgspec.msgpack.decode(job.spec, type=SessionSpec)
        blob = open_blob(self.place, partial(token_hex, 8))
        while self.driver is None or self.driver.cancelled():
            work = serve(told, blob, SystemClock(), bytes.upper, self.count)
            self.driver = asyncio.create_task(work)
            await asyncio.wait((self.driver,))
        return JobDone(b"")

    def count(self) -> int:
        self.idle.wait(20)
        return self.executors

    async def tend_forever(self) -> None: ...

    async def close(self) -> None: ...


async def test_heartbeats_tell_the_executors_and_leave_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill_compute.views.windows.session.ALIVE_S", 0.05)
    _, place = world_in(tmp_path, "errors")
    launcher = Serving(place)
    async with session_of(launcher, place) as session:
        assert session.executors == 0
        assert await session.ask(b"a window") == b"A WINDOW"
        for launcher.executors in (2, 1):
            async with asyncio.timeout(20):
                while session.executors != launcher.executors:
                    await asyncio.sleep(0.01)
        (folder,) = (tmp_path / "blob").glob("job-*")
        assert len([*folder.iterdir()]) < 10
    assert session.executors == 0


async def test_an_answer_that_comes_after_the_next_heartbeat_leaves_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill_compute.views.windows.session.ALIVE_S", 0.05)
    _, place = world_in(tmp_path, "errors")
    launcher = Serving(place)
    async with session_of(launcher, place) as session, asyncio.timeout(30):
        await session.ask(b"a window")
        (folder,) = (tmp_path / "blob").glob("job-*")
        launcher.idle.clear()
        while len(late := [*folder.glob("*.asked")]) < 4:
            await asyncio.sleep(0.01)
        launcher.idle.set()
        while any(each.exists() or each.with_suffix(".told").exists() for each in late):
            await asyncio.sleep(0.01)


class Overtaken(DirectoryBlob):
    """Objects of which the first listing misses one that is put meanwhile, and has the next."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, partial(token_hex, 8))
        self.missed: int | None = number

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        number, self.missed = self.missed, None
        if number is None:
            return await super().list(prefix)
        for at, question in enumerate((b"one", b"two", END_IT), number):
            await self.put(asked_key("f", at), question)
        missed = asked_key("f", number)
        return [each for each in await super().list(prefix) if each.key != missed]


@pytest.mark.parametrize("number", [1, 3])
async def test_a_question_that_a_listing_misses_is_answered(tmp_path: Path, number: int) -> None:
    """The driver looks for the first question; what was answered before may be gone."""
    blob = Overtaken(tmp_path, number)
    await serve(SessionSpec("f", 9.0), blob, SystemClock(), bytes.upper, lambda: 1)
    told = [await blob.get(told_key("f", at)) for at in (number, number + 1)]
    assert told == [DONE + b"ONE", DONE + b"TWO"]


async def test_a_driver_in_the_place_of_a_killed_one_answers_what_is_asked_then(
    tmp_path: Path,
) -> None:
    _, place = world_in(tmp_path, "errors")
    launcher = Serving(place)
    async with session_of(launcher, place) as session, asyncio.timeout(30):
        for word in (b"one", b"two", b"three"):
            assert await session.ask(word) == word.upper()
            assert launcher.driver is not None
            launcher.driver.cancel()
        assert session.begun == 1


async def test_a_crew_is_as_large_as_the_windows_of_the_last_minute_could_use() -> None:
    clock = ManualClock()
    crew = Crew(clock, cores_each=2, keep_s=60.0)
    assert crew.wanted == 1
    crew.take(5)
    await clock.advance(30)
    crew.take(2)
    assert crew.wanted == 3
    await clock.advance(31)
    assert crew.wanted == 1


def test_heartbeats_at_once_forget_the_same_windows(restless: None) -> None:
    """Threads of the driver answer them: none forgets a window that another has forgotten."""
    crew = Crew(SystemClock(), cores_each=2, keep_s=-1.0)

    def beat(_: int) -> int:
        for _ in range(200):
            crew.take(5)
        return crew.wanted

    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(beat, range(400))} == {1}
