"""Questions on threads: who goes away or waits too long has them ended, and nobody has all of
them.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.parser import parse
from tidemill.errors import Exhausted, Unavailable
from tidemill.host.questions.limits import QuestionLimits
from tidemill.host.questions.working import Workers
from tidemill.rpc.identity import Principal, caller
from tidemill.rpc.turns import AT_ONCE


class Endless:
    """Work that goes on until its allowance says that nobody waits."""

    def __init__(self) -> None:
        self.running = 0
        self.ended = 0
        self._lock = threading.Lock()

    def work(self, allowance: Allowance) -> None:
        with self._lock:
            self.running += 1
        try:
            while True:
                allowance.take(0)
        finally:
            with self._lock:
                self.running -= 1
                self.ended += 1


async def until_running(endless: Endless, count: int) -> None:
    async with asyncio.timeout(60):
        while endless.running != count:
            await asyncio.sleep(0.01)


def asked(workers: Workers, endless: Endless, user: str) -> asyncio.Task[None]:
    """A question of a user that never ends by itself."""
    allowance = workers.allowance()

    async def ask() -> None:
        caller.set(Principal(user, ()))
        await workers.run(allowance, endless.work, allowance)

    return asyncio.create_task(ask())


async def test_s9_work_ends_when_its_caller_is_gone() -> None:
    workers, endless = Workers(QuestionLimits()), Endless()
    task = asked(workers, endless, "a")
    await until_running(endless, 1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (endless.running, endless.ended) == (0, 1)


async def test_s9_work_that_takes_too_long_is_given_up_with_the_setting() -> None:
    workers, endless = Workers(QuestionLimits(seconds=0.2)), Endless()
    with pytest.raises(Exhausted, match=r"limits\.question_s") as caught:
        await asked(workers, endless, "a")
    assert caught.value.setting == "limits.question_s"
    assert endless.ended == 1


async def test_s9_one_caller_never_has_all_threads() -> None:
    workers, endless = Workers(QuestionLimits()), Endless()
    many = [asked(workers, endless, "hostile") for _ in range(5 * AT_ONCE)]
    await until_running(endless, 1)
    await asyncio.sleep(0.1)
    assert endless.running == 1 < AT_ONCE

    async def honest() -> int:
        caller.set(Principal("honest", ()))
        return await workers.run(workers.allowance(), lambda: 7)

    async with asyncio.timeout(60):
        assert [await asyncio.create_task(honest()) for _ in range(20)] == [7] * 20
    for task in many:
        task.cancel()
    await asyncio.wait(many)
    assert endless.running == 0


async def test_a3_a_long_question_is_read_with_pauses_and_ends_when_nobody_waits() -> None:
    caller.set(Principal("a", ()))
    workers, text = Workers(QuestionLimits()), f"p(x) := {' ^ '.join(['q(x)'] * 500)};"
    allowance, paused = workers.allowance(), list[int]()
    allowance.interrupt(lambda: paused.append(threading.get_ident()))
    await workers.run(allowance, parse, text)
    assert len(paused) == 1
    assert paused[0] != threading.get_ident()
    allowance.call_off()
    with pytest.raises(Unavailable, match="called off"):
        await workers.run(allowance, parse, text)
