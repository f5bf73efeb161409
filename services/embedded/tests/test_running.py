"""Work that is supervised ends when it is asked to, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidemill.runtime.clock import ManualClock
from tidemill.shard.claims.ending import CANCEL_AGAIN_S
from tidemill.time import NotYet, Unavailable, UsageError
from tidemill_embedded.running.runner import Supervised
from tidemill_embedded.settings import EmbeddedSettings


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
    supervised = Supervised(runner, ManualClock(), EmbeddedSettings(), claimed=True)
    working = asyncio.create_task(supervised.run_claimed())
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
    supervised = Supervised(PartFails(), ManualClock(), EmbeddedSettings())
    failures: list[BaseException] = []
    supervised.start(failures.append)
    async with asyncio.timeout(240):
        while supervised.health.reason != "Stalled":
            await asyncio.sleep(0)
    assert supervised.health.message == "the topic was recreated"
    await supervised.stop()
    assert failures == []


class ComesLater:
    """What it waits for is not there the first time."""

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
    supervised = Supervised(runner, clock, EmbeddedSettings())
    supervised.start(lambda error: None)
    await runner.waited.wait()
    while supervised.retries == 0:
        await asyncio.sleep(0)
    assert supervised.health.reason == "Retrying"
    await asyncio.sleep(0)
    await clock.advance(10.0)
    await asyncio.wait_for(runner.began.wait(), 240)
    assert supervised.health.ready
    await supervised.stop()


class ForgetsOnce:
    """Work that goes on after the first cancellation, as `asyncio.wait_for` lets it when both come at once."""

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
    supervised = Supervised(runner, clock, EmbeddedSettings())
    supervised.start(lambda error: None)
    await runner.began.wait()
    stopping = asyncio.create_task(supervised.stop())
    async with asyncio.timeout(240):
        while not stopping.done():
            await clock.advance(CANCEL_AGAIN_S)
    assert runner.forgotten == 1
    await stopping
