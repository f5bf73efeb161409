"""Work that is supervised ends when it is asked to, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidemill.errors import (
    Corrupt,
    DeadlinePassed,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.host.settings import ProcessSettings
from tidemill.host.supervised import Supervised
from tidemill.runtime.clock import ManualClock
from tidemill.shard.claims.ending import CANCEL_AGAIN_S, end_task


class FailsWhenItStops:
    """A group of tasks of which one fails, in its own way, on being cancelled."""

    name = "View/v"

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.runs = 0

    async def prepare(self) -> None: ...

    async def release(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        self.runs += 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._part())
            self.began.set()

    async def _part(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise Unavailable("the store is away, too") from None


async def test_an_error_on_the_way_out_does_not_begin_the_work_again() -> None:
    runner = FailsWhenItStops()
    supervised = Supervised(runner, ManualClock(), ProcessSettings(), sole=False)
    working = asyncio.create_task(supervised.run())
    await runner.began.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 240)
    assert runner.runs == 1


async def test_a_group_of_tasks_does_swallow_a_cancellation() -> None:
    runner = FailsWhenItStops()
    working = asyncio.create_task(runner.run(lambda: None))
    await runner.began.wait()
    working.cancel()
    with pytest.raises(ExceptionGroup):
        await working


class PartFails:
    """A group of tasks of which one fails while the group waits for it."""

    name = "View/v"

    async def prepare(self) -> None: ...

    async def release(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._part())

    async def _part(self) -> None:
        await asyncio.sleep(0)
        raise UsageError("the topic was recreated", reason="TopicRecreated")


async def test_a_part_that_fails_stalls_the_work_and_is_no_cancellation() -> None:
    supervised = Supervised(PartFails(), ManualClock(), ProcessSettings())
    working = asyncio.create_task(supervised.run())
    async with asyncio.timeout(240):
        while supervised.health.reason != "Stalled":
            await asyncio.sleep(0)
    assert supervised.health.message == "the topic was recreated"
    await end_task(working, ManualClock())


class ComesLater:
    """A runner whose input is not there the first time."""

    name = "Source/planes"

    def __init__(self) -> None:
        self.runs = 0
        self.waited = asyncio.Event()
        self.began = asyncio.Event()

    async def prepare(self) -> None: ...

    async def release(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        self.runs += 1
        if self.runs == 1:
            self.waited.set()
            raise NotYet("planes/remap has not come past 1")
        ready()
        self.began.set()
        await asyncio.get_running_loop().create_future()


async def test_what_is_waited_for_may_come_later() -> None:
    runner, clock = ComesLater(), ManualClock()
    supervised = Supervised(runner, clock, ProcessSettings())
    working = asyncio.create_task(supervised.run())
    await runner.waited.wait()
    while supervised.retries == 0:
        await asyncio.sleep(0)
    assert supervised.health.reason == "Retrying"
    await asyncio.sleep(0)
    await clock.advance(10.0)
    await asyncio.wait_for(runner.began.wait(), 240)
    assert supervised.health.ready
    await end_task(working, ManualClock())


class ForgetsOnce:
    """Work that goes on after the first cancellation, as `asyncio.wait_for` lets it when both come
    at once.
    """

    name = "Source/s"

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.forgotten = 0

    async def prepare(self) -> None: ...

    async def release(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        try:
            self.began.set()
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.forgotten += 1
        ready()
        await asyncio.get_running_loop().create_future()


async def test_work_that_forgets_a_cancellation_is_cancelled_again() -> None:
    runner, clock = ForgetsOnce(), ManualClock()
    supervised = Supervised(runner, clock, ProcessSettings())
    working = asyncio.create_task(supervised.run())
    await runner.began.wait()
    stopping = asyncio.create_task(end_task(working, clock))
    async with asyncio.timeout(240):
        while not stopping.done():
            await clock.advance(CANCEL_AGAIN_S)
    assert runner.forgotten == 1
    await stopping


class Breaks:
    """Work that ends with an error nobody foresaw, so often, and then goes on."""

    name = "View/v"

    def __init__(self, error: BaseException, times: int) -> None:
        self._error = error
        self._times = times
        self.prepared = 0
        self.runs = 0

    async def prepare(self) -> None:
        self.prepared += 1

    async def release(self) -> None: ...

    async def run(self, ready: Callable[[], None]) -> None:
        self.runs += 1
        ready()
        if self.runs <= self._times:
            raise self._error
        await asyncio.get_running_loop().create_future()


async def runs_reach(runner: Breaks, clock: ManualClock, runs: int) -> None:
    async with asyncio.timeout(240):
        while runner.runs < runs:
            await clock.advance(0.25)
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "error",
    [
        IndexError("string index out of range: S3CR3T"),
        MemoryError(),
        ExceptionGroup("of tasks", [Unavailable("away"), OverflowError("S3CR3T")]),
    ],
)
async def test_w2_what_nobody_foresaw_breaks_one_resource_which_is_tried_again(
    error: Exception,
) -> None:
    runner, clock = Breaks(error, 6), ManualClock(1_000)
    supervised = Supervised(runner, clock, ProcessSettings(retry_s_min=1.0, broken_s_max=4.0))
    working = asyncio.create_task(supervised.run())
    begun_s = clock.monotonic_s()
    await runs_reach(runner, clock, 1)
    async with asyncio.timeout(240):
        while supervised.broken == 0:
            await asyncio.sleep(0)
    kind = next(k for k in ("IndexError", "MemoryError", "OverflowError") if k in repr(error))
    assert supervised.health.reason == "Broken"
    assert not supervised.health.ready
    assert f"{kind} in " in supervised.health.message
    assert "test_supervised:" in supervised.health.message
    assert "since 1970-01-01T00:00:0" in supervised.health.message
    assert "S3CR3T" not in supervised.health.message
    await runs_reach(runner, clock, 7)
    # The pauses were 1 + 2 + 4 + 4 + 4 + 4 seconds, as far as the clock moves by quarters.
    assert 19 <= clock.monotonic_s() - begun_s <= 22
    assert supervised.broken == 6
    assert supervised.health.ready
    assert runner.prepared == 7  # before each try
    await end_task(working, ManualClock())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UsageError("the column n is missing"), "Stalled"),
        (Corrupt("part 3 is damaged"), "Stalled"),
        (TidemillError("the server failed"), "Retrying"),
        (Unavailable("the store is away"), "Retrying"),
        (Indeterminate("the connection broke"), "Retrying"),
        (Fenced("another one has opened it"), "Retrying"),
        (DeadlinePassed("no answer came"), "Retrying"),
        (UnknownCapability("it was dropped"), "Retrying"),
        (UnknownCollection("there is no v/late"), "Retrying"),
    ],
)
async def test_only_what_a_person_can_change_stalls(error: TidemillError, reason: str) -> None:
    runner, clock = Breaks(error, 1), ManualClock()
    supervised = Supervised(runner, clock, ProcessSettings())
    working = asyncio.create_task(supervised.run())
    async with asyncio.timeout(240):
        while supervised.health.reason != reason:
            await asyncio.sleep(0)
    assert str(error) in supervised.health.message
    if reason == "Retrying":
        await runs_reach(runner, clock, 2)
        assert supervised.health.ready
    else:
        await clock.advance(3_600.0)
        assert runner.runs == 1
    assert supervised.broken == 0
    await end_task(working, ManualClock())
