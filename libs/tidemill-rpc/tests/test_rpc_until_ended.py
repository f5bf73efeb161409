"""Work on a thread has ended when its caller goes on, cancelled or not."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from tidemill.rpc.turns import until_ended


async def test_the_result_and_the_error_of_the_work_are_its_callers() -> None:
    loop = asyncio.get_running_loop()
    assert await until_ended(loop.run_in_executor(None, lambda: 7), lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        await until_ended(loop.run_in_executor(None, lambda: 1 // 0), lambda: None)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_caller_goes_on_once_the_thread_is_free(times: int) -> None:
    """The work hears of it although it has begun another part after the first call."""
    inside, first, over = Event(), Event(), Event()
    calls: list[Event] = [first, over]

    def work() -> None:
        inside.set()
        assert first.wait(60)
        assert over.wait(60)

    def call_off() -> None:
        if calls:
            calls.pop(0).set()

    working = asyncio.get_running_loop().run_in_executor(None, work)
    caller = asyncio.create_task(until_ended(working, call_off))
    await asyncio.to_thread(inside.wait, 60)
    caller.cancel()
    if times > 1:
        await asyncio.to_thread(first.wait, 60)
        caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert working.done()
    assert not calls
