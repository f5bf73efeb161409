"""Components start in order, stop in the opposite order, and the first failure is named."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from mmap import mmap

import pytest

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime import lifecycle
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.runtime.lifecycle import (
    GROWN_BLOCKS,
    GROWN_BYTES,
    GROWN_S,
    GROWN_UNSEEN_BYTES,
    KEPT_BYTES,
    REST_S,
    Failed,
    FullLooks,
    Scope,
    Stopped,
    Supervisor,
    closing,
    collect_rarely,
    exit_code,
    give_back_at_rest,
    give_back_when_grown,
    give_way_often,
    keep_loaded,
    resident_bytes,
)
from tidemill.testkit.runs import hold_again


class Story:
    """Components that write down what happens to them."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def component(self, name: str, *, stubborn: bool = False, fails: Exception | None = None):  # type: ignore[no-untyped-def]
        async def run(scope: Scope) -> None:
            self.events.append(f"{name} starts")
            await asyncio.sleep(0)
            scope.ready()
            if fails is not None:
                raise fails
            try:
                await (asyncio.Event().wait() if stubborn else scope.until_stopping())
                self.events.append(f"{name} stops")
            except asyncio.CancelledError:
                self.events.append(f"{name} is cancelled")
                raise

        return run


async def test_the_stop_order_is_the_start_order_reversed() -> None:
    story = Story()
    supervisor = Supervisor(ManualClock())
    supervisor.add("log", story.component("log"))

    supervisor.add("http", story.component("http"))
    supervisor.add("query", story.component("query"))
    running = asyncio.create_task(supervisor.run())
    await ManualClock().settle()
    supervisor.stop("asked to")
    outcome = await running
    assert outcome == Stopped("asked to")
    assert exit_code(outcome) == 0
    assert story.events == [
        "log starts", "http starts", "query starts", "query stops", "http stops", "log stops",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_gracefully(number: signal.Signals) -> None:
    story = Story()
    supervisor = Supervisor(SystemClock())
    supervisor.add("a", story.component("a"))
    running = asyncio.create_task(supervisor.run())
    await ManualClock().settle()
    os.kill(os.getpid(), number)
    assert await running == Stopped(f"signal {number.name}")
    assert story.events[-1] == "a stops"


async def test_the_first_failure_is_named_and_stops_the_rest() -> None:
    story = Story()
    supervisor = Supervisor(ManualClock())
    supervisor.add("log", story.component("log"))
    supervisor.add("ingest", story.component("ingest", fails=Unavailable("broker gone")))
    outcome = await supervisor.run()
    assert isinstance(outcome, Failed)
    assert str(outcome) == "ingest failed: broker gone"
    assert exit_code(outcome) == 1
    assert story.events == ["log starts", "ingest starts", "log stops"]


async def test_what_comes_after_a_failed_start_is_not_started() -> None:
    story = Story()

    async def break_early(scope: Scope) -> None:
        raise KeyError("config")

    supervisor = Supervisor(ManualClock())
    supervisor.add("early", break_early)
    supervisor.add("later", story.component("later"))
    outcome = await supervisor.run()
    assert str(outcome) == "early failed: KeyError: 'config'"
    assert story.events == []


async def test_a_component_that_just_ends_is_a_failure_unless_it_may() -> None:
    async def end(scope: Scope) -> None:
        scope.ready()

    supervisor = Supervisor(ManualClock())
    supervisor.add("short", end, may_end=True)
    supervisor.add("service", end)
    assert str(await supervisor.run()) == (
        "service failed: RuntimeError: it ended without being asked to"
    )


async def test_who_does_not_stop_in_time_is_cancelled() -> None:
    story = Story()
    clock = ManualClock()
    supervisor = Supervisor(clock, stop_s_max=10)
    supervisor.add("polite", story.component("polite"))
    supervisor.add("stubborn", story.component("stubborn", stubborn=True))
    running = asyncio.create_task(supervisor.run())
    await clock.settle()
    supervisor.stop("enough")
    await clock.advance(9.9)
    assert not running.done()
    await clock.advance(0.1)
    assert await running == Stopped("enough")
    assert story.events[-2:] == ["stubborn is cancelled", "polite stops"]


async def test_a_second_signal_does_not_wait() -> None:
    story = Story()
    clock = ManualClock()
    supervisor = Supervisor(clock)
    supervisor.add("stubborn", story.component("stubborn", stubborn=True))
    running = asyncio.create_task(supervisor.run())
    await clock.settle()
    os.kill(os.getpid(), signal.SIGTERM)
    await clock.settle()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == Stopped("signal SIGTERM")
    assert clock.monotonic_s() == 0


async def test_a_stop_before_the_start_is_remembered() -> None:
    story = Story()
    supervisor = Supervisor(ManualClock())
    supervisor.add("a", story.component("a"))
    supervisor.stop("never mind")
    assert await supervisor.run() == Stopped("never mind")
    assert story.events == []


async def test_a_resource_of_ours_is_closed_however_the_body_ends() -> None:
    class Held:
        closed = False

        async def close(self) -> None:
            self.closed = True

    held = Held()

    async def leave_early() -> None:
        async with closing(held) as inside:
            assert inside is held
            raise UsageError("left early")

    with pytest.raises(UsageError):
        await leave_early()
    assert held.closed


@pytest.mark.parametrize("fails", [False, True])
async def test_a_task_of_a_component_ends_with_it_or_ends_it(fails: bool) -> None:
    tasks: list[asyncio.Task[None]] = []
    supervisor = Supervisor(ManualClock())

    async def work() -> None:
        if fails:
            raise Unavailable("the task broke")
        supervisor.stop("enough")
        await asyncio.Event().wait()

    async def component(scope: Scope) -> None:
        tasks.append(asyncio.create_task(work()))
        scope.ready()
        await scope.until_stopping_or(tasks[0])

    supervisor.add("worker", component)
    outcome = await supervisor.run()
    assert isinstance(outcome, Failed if fails else Stopped)
    assert ("the task broke" in str(outcome)) == fails
    assert tasks[0].cancelled() != fails


def test_objects_that_stay_are_not_looked_at_again_and_again() -> None:
    def collections() -> int:
        before = sum(generation["collections"] for generation in gc.get_stats())
        kept = [[at] for at in range(30_000)]
        assert len(kept) == 30_000
        return sum(generation["collections"] for generation in gc.get_stats()) - before

    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        usual = collections()
        collect_rarely()
        gc.collect()
        assert collections() < usual
    finally:
        gc.set_threshold(*thresholds)


def test_a3_the_collector_looks_at_few_young_objects_at_a_time() -> None:
    """All threads wait while it looks: with 200,000 of them that was 30 ms and more."""
    seen: list[int] = []

    def begins(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 1:
            seen.append(sum(len(gc.get_objects(generation)) for generation in (0, 1)))

    thresholds = gc.get_threshold()
    gc.callbacks.append(begins)
    try:
        collect_rarely()
        gc.collect()
        kept = [[at] for at in range(1_500_000)]
        assert len(kept) == 1_500_000
    finally:
        gc.callbacks.remove(begins)
        gc.set_threshold(*thresholds)
    assert seen
    assert max(seen) < 30_000


@pytest.mark.parametrize("cycles", [False, True])
def test_a3_a_full_look_is_put_off_until_what_is_held_has_grown(
    monkeypatch: pytest.MonkeyPatch, cycles: bool
) -> None:
    """A question that reasons holds 1.3 million objects: 150 ms, in which nobody has an answer."""

    def full_looks() -> int:
        return int(gc.get_stats()[2]["collections"])

    def reason() -> None:
        held = [list[object]([at]) for at in range(400_000)]
        if cycles:
            for each in held:
                each.append(each)

    monkeypatch.setattr(lifecycle, "FULL_LOOK_DUE", 50)
    monkeypatch.setattr(lifecycle, "GROWN_BLOCKS", 1_200_000)
    thresholds = gc.get_threshold()
    try:
        collect_rarely()
        gc.collect()
        looks, before = FullLooks(), full_looks()
        for _ in range(4):
            reason()
            assert sys.getallocatedblocks() < looks._blocks + 2_400_000
            looks.put_off()
        assert full_looks() - before == (2 if cycles else 0)
        assert gc.get_count()[2] < 50
    finally:
        gc.set_threshold(*thresholds)
        hold_again()


class Ring:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("before", [(), (512 << 20,)])
def test_a_full_look_comes_as_well_when_columns_have_grown(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, ...]
) -> None:
    """Columns are no pieces of the interpreter, and growth counts from the least, not the peak."""
    monkeypatch.setattr(lifecycle, "FULL_LOOK_DUE", 0)
    resident = [sum(before)]
    try:
        gc.collect()
        looks, ring = FullLooks(lambda: resident[0]), weakref.ref(Ring())
        resident[0] = 0
        looks.put_off()
        assert ring() is not None
        resident[0] = GROWN_UNSEEN_BYTES + 1
        looks.put_off()
        assert ring() is None
    finally:
        hold_again()


@pytest.mark.parametrize("before", [0, 3_000_000])
def test_a_full_look_after_a_peak_waits_for_no_second_peak(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    blocks = [before]
    monkeypatch.setattr(lifecycle, "FULL_LOOK_DUE", 0)
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks[0])
    try:
        gc.collect()
        looks, ring = FullLooks(lambda: 0), weakref.ref(Ring())
        for blocks[0] in (0, GROWN_BLOCKS + 1):
            assert ring() is not None
            looks.put_off()
        assert ring() is None
    finally:
        hold_again()


def test_a3_the_collector_never_looks_at_what_is_loaded() -> None:
    """A full look at the modules of a server is 120 ms, in which nobody has an answer."""
    loaded = [["a module"]]
    assert any(each is loaded for each in gc.get_objects())
    keep_loaded()
    assert not any(each is loaded for each in gc.get_objects())


TAKEN_AGAIN = """
import resource, sys
from tidemill.runtime.lifecycle import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * 400_000 for _ in range(20)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_was_freed_is_taken_again_without_the_kernel() -> None:
    pages: dict[str, int] = {}
    for way in ("kept", "given back"):
        command = [sys.executable, "-c", TAKEN_AGAIN, way]
        pages[way] = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert 4 * pages["kept"] < pages["given back"]


async def test_a_process_at_rest_gives_memory_back_once_after_its_work() -> None:
    clock, spent, given_back = ManualClock(), [0.0], list[float]()

    async def give_back() -> None:
        given_back.append(clock.monotonic_s())

    resting = asyncio.create_task(give_back_at_rest(clock, lambda: spent[0], give_back))

    async def passes(steps: int, works_s: float) -> int:
        """Count of times that memory is given back meanwhile."""
        before = len(given_back)
        for _ in range(steps):
            spent[0] += works_s
            await clock.advance(REST_S)
        return len(given_back) - before

    await clock.advance(0)
    assert await passes(3, REST_S) == 0  # it works
    assert await passes(10, 0.01) == 1  # it rests, and has nothing more to give
    assert await passes(3, REST_S) == 0
    assert await passes(10, 0.01) == 1
    resting.cancel()


async def test_a_process_that_grows_gives_memory_back_each_time_it_has_grown_much() -> None:
    clock, resident, given_back = ManualClock(), [KEPT_BYTES + GROWN_BYTES], list[float]()

    async def give_back() -> None:
        given_back.append(clock.monotonic_s())
        resident[0] -= GROWN_BYTES // 2

    tending = asyncio.create_task(give_back_when_grown(clock, lambda: resident[0], give_back))

    async def grows(by: int) -> int:
        """Count of times that memory is given back meanwhile."""
        before, resident[0] = len(given_back), resident[0] + by
        await clock.advance(GROWN_S)
        return len(given_back) - before

    await clock.advance(0)
    assert [await grows(GROWN_BYTES // 2) for _ in range(4)] == [0, 0, 1, 0]
    assert [await grows(-GROWN_BYTES), await grows(GROWN_BYTES), await grows(1)] == [0, 0, 1]
    assert await grows(-resident[0]) == 0
    assert [await grows(KEPT_BYTES + GROWN_BYTES), await grows(1)] == [0, 1]  # it was small
    tending.cancel()


def test_a_process_knows_its_size() -> None:
    before = resident_bytes()
    with mmap(-1, 64 << 20) as block:  # what was freed before is of no use for it
        block.write(b"x" * len(block))
        assert resident_bytes() - before > len(block) // 2


GIVEN_BACK = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tidemill.runtime.lifecycle import give_back_memory, keep_freed_memory

def taken() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def use() -> None:
    b"x" * 24_000_000

keep_freed_memory()
with ThreadPoolExecutor(1) as threads:
    threads.submit(use).result() if sys.argv[1] == "thread" else use()
    before = taken()
    give_back_memory()
    print(before - taken())
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_memory_that_is_kept_is_given_back(where: str) -> None:
    """Each heap gives back its end, not the one of the main thread alone."""
    command = [sys.executable, "-c", GIVEN_BACK, where]
    given_kb = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert given_kb > 20_000


COLUMNS = """
import pyarrow
from tidemill.runtime.lifecycle import keep_freed_memory

keep_freed_memory()
print(pyarrow.default_memory_pool().backend_name)
"""


def test_columns_are_of_the_memory_that_is_kept() -> None:
    command = [sys.executable, "-c", COLUMNS]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"system\n"


OVERLOADS = """
import gc
from types import FunctionType
from typing import get_overloads
from tidemill.runtime.lifecycle import forget_overloads
from redis.commands.core import BasicKeyCommands

def held() -> int:
    gc.collect()
    return sum(type(thing) is FunctionType for thing in gc.get_objects())

assert get_overloads(BasicKeyCommands.get)
before = held()
forget_overloads()
assert not get_overloads(BasicKeyCommands.get)
print(before - held())
"""


def test_signatures_that_only_tools_read_are_forgotten() -> None:
    command = [sys.executable, "-c", OVERLOADS]
    assert int(subprocess.run(command, capture_output=True, check=True).stdout) > 500


DATA_FRAMES = """
import sys
import pyarrow
from tidemill.runtime.lifecycle import leave_pandas_out

if sys.argv[1] == "left out":
    leave_pandas_out()
table = pyarrow.table({"at": pyarrow.array([1, 2])})
print("pandas" in sys.modules, table.to_pandas()["at"].tolist())
"""


def test_lists_become_columns_without_pandas_and_data_frames_are_still_made() -> None:
    said = {}
    for way in ("left out", "as ever"):
        command = [sys.executable, "-c", DATA_FRAMES, way]
        said[way] = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert said == {"left out": "False [1, 2]\n", "as ever": "True [1, 2]\n"}


HEAPS = """
import sys, threading
from tidemill.runtime.lifecycle import keep_freed_memory

def reserved() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmSize"))

if sys.argv[1] == "kept":
    keep_freed_memory()
threading.stack_size(1 << 18)
before, took, stay = reserved(), threading.Barrier(9), threading.Barrier(9)

def take() -> None:
    block = b"x" * 40_000
    took.wait()
    stay.wait()

threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
took.wait()
print(reserved() - before)
stay.wait()
"""


def test_threads_share_the_heaps_of_a_process() -> None:
    reserved_kb: dict[str, int] = {}
    for way in ("kept", "as it is"):
        command = [sys.executable, "-c", HEAPS, way]
        reserved_kb[way] = int(subprocess.run(command, capture_output=True, check=True).stdout)
    # One heap reserves 64 MiB.
    assert reserved_kb["kept"] + 4 * 65_536 < reserved_kb["as it is"]


def test_a3_who_waits_for_the_interpreter_waits_a_moment() -> None:
    """A hundred turns of one thread cost another one half a millisecond each."""
    stop, computed_s = threading.Event(), []

    def compute() -> None:
        while not stop.is_set():
            sum(range(200))
        computed_s.append(time.thread_time())

    def waited_s() -> float:
        stop.clear()
        computing = threading.Thread(target=compute)
        computing.start()
        for _ in range(100):
            time.sleep(0)
            threading.Event().wait(0.0001)  # lets the interpreter go, and wants it back
        stop.set()
        computing.join()
        return computed_s.pop()

    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.02)
        seldom = waited_s()
        give_way_often()
        often_s = sys.getswitchinterval()
        assert waited_s() < seldom / 3
        give_way_often(contended=True)
        assert sys.getswitchinterval() < often_s
    finally:
        sys.setswitchinterval(usual)
