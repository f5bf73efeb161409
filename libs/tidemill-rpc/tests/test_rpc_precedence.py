"""Long work pauses for short calls of other users, and keeps half of the time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context

import pytest

from tidemill.datalog.allowance import Allowance
from tidemill.errors import Unavailable
from tidemill.rpc.identity import NOBODY, Principal, caller
from tidemill.rpc.precedence import NOBODYS_PAUSE_S_MAX, PAUSE_S_MAX, Precedence
from tidemill.rpc.turns import PRECEDENCE, Looks, in_turn, looks_beside

WAIT_S = 30.0


class Work:
    """Long work on this thread, by a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[Callable[[], None]] = []

    def interrupt(self, then: Callable[[], None]) -> None:
        self.asked.append(then)

    def looks(self) -> int:
        """Do the work that is due at a look; the number of pieces."""
        asked, self.asked = self.asked, []
        for then in asked:
            then()
        return len(asked)


def test_a3_work_is_interrupted_by_calls_of_others_and_of_nobody_else() -> None:
    precedence, work = Precedence(), Work()
    with precedence.work("eve", work.interrupt, lambda: work.now_s):
        precedence.begin("eve")
        assert work.looks() == 0
        precedence.begin("ann")
        precedence.end("ann")
        assert work.looks() == 1
    precedence.begin("ann")
    assert work.looks() == 0


def test_a3_the_end_of_the_last_long_work_is_told() -> None:
    """Then little is held, and the garbage collector may look at all of it."""
    precedence, work, told = Precedence(), Work(), list[bool]()
    precedence.idle = lambda: told.append(not precedence._works)
    with precedence.work("eve", work.interrupt, lambda: work.now_s):
        with precedence.work("ann", work.interrupt, lambda: work.now_s):
            pass
        assert not told
    assert told == [True]


class Waits(threading.Condition):
    """Ends no wait before its time, and moves the clock of the work to its end."""

    def __init__(self, precedence: Precedence, work: Work) -> None:
        super().__init__(precedence._lock)
        self.work = work
        self.waited: list[float] = []
        precedence._ended = self

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self.work.now_s += timeout or 0.0
        return False


@pytest.mark.parametrize("went_on_s", [0.0, 0.02, 10.0])
@pytest.mark.parametrize("works", [1, 2])
def test_a3_a_pause_is_no_longer_than_the_time_since_the_last_one_of_the_user(
    went_on_s: float, works: int
) -> None:
    precedence, work = Precedence(), Work()
    waits = Waits(precedence, work)
    with ExitStack() as under_way:
        for number in range(2):
            if number < works:
                entered = precedence.work("eve", work.interrupt, lambda: work.now_s)
                under_way.enter_context(entered)
            work.asked.clear()
            precedence.begin("ann")
            for then in work.asked[number:] if works > 1 else work.asked:
                then()
            precedence.end("ann")
            work.now_s += went_on_s
        assert waits.waited == [PAUSE_S_MAX, pytest.approx(min(went_on_s, PAUSE_S_MAX))]


def test_a3_the_work_of_nobody_pauses_for_a_quarter_of_the_time_under_any_flood() -> None:
    precedence, work = Precedence(), Work()
    waits = Waits(precedence, work)
    precedence.begin("ann")
    for _ in range(10_000):
        precedence.give_way(NOBODY.name, lambda: work.now_s)
        work.now_s += 0.001
    assert 0.2 < sum(waits.waited) / work.now_s <= 0.26
    assert max(waits.waited) <= NOBODYS_PAUSE_S_MAX


def test_a3_all_threads_of_a_user_pause_together() -> None:
    """Else one that goes on holds up the call for which the other one pauses."""
    precedence, waiting = Precedence(), threading.Barrier(3)
    precedence.begin("ann")

    def look() -> None:
        waiting.wait()
        precedence.give_way("eve", lambda: 0.0)
        waiting.wait()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    waiting.wait()
    while len(precedence._ended._waiters) < 2:  # type: ignore[attr-defined]  # of a Condition
        pass
    precedence.end("ann")
    waiting.wait()
    for thread in threads:
        thread.join()


def test_a3_a_look_beside_the_loop_is_of_the_user_that_calls_or_of_nobody() -> None:
    asked: list[str] = []
    look = looks_beside(lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PRECEDENCE, "give_way", lambda user, now_s: asked.append(user))
        look()
        copy_context().run(lambda: (caller.set(Principal("eve", ())), look()))
    assert asked == [NOBODY.name, "eve"]


def test_a3_work_that_begins_during_a_call_of_another_user_pauses_at_its_first_look() -> None:
    precedence, work = Precedence(), Work()
    precedence.begin("eve")
    with precedence.work("eve", work.interrupt, lambda: work.now_s):
        assert work.looks() == 0  # its own call is no reason
    precedence.begin("ann")
    with precedence.work("eve", work.interrupt, lambda: work.now_s):
        precedence.end("ann")
        assert work.looks() == 1


def test_a3_users_contend_while_there_is_work_of_one_or_several_call() -> None:
    precedence, work, heard = Precedence(), Work(), list[bool]()
    precedence.contended = heard.append
    precedence.begin("ann")
    assert heard == []
    with precedence.work("eve", work.interrupt, lambda: work.now_s):
        assert heard == [True]
        precedence.end("ann")
        assert heard == [True]  # the next call has made hops before it is known as one
    assert heard == [True, False]
    precedence.begin("bob")
    precedence.begin("ann")
    assert heard.pop()
    precedence.end("bob")
    precedence.end("ann")
    assert not heard.pop()


def test_a3_an_allowance_calls_once_what_interrupts_it_and_is_called_off_all_the_same() -> None:
    allowance, called = Allowance(), list[int]()
    allowance.interrupt(lambda: called.append(1))
    assert called == []
    allowance.take(1)
    allowance.take(1)
    assert called == [1]
    allowance.interrupt(allowance.call_off)
    allowance.take(1)
    for _ in range(2):
        with pytest.raises(Unavailable, match="called off"):
            allowance.take(1)


def test_a3_a_look_calls_once_what_interrupts_it() -> None:
    look, called = Looks(), list[int]()
    look()
    look.interrupt(lambda: called.append(1))
    assert called == []
    look()
    look()
    assert called == [1]


async def test_a3_a_thread_stands_still_while_the_call_of_another_user_goes_on() -> None:
    allowance, began, over = Allowance(), threading.Event(), threading.Event()
    looked: list[bool] = []

    def work() -> None:
        began.set()
        while not over.is_set():
            allowance.take(0)
            looked.append(True)

    caller.set(Principal("eve", ()))
    working = asyncio.create_task(in_turn(work, allowance.call_off, allowance.interrupt))
    assert await asyncio.to_thread(began.wait, WAIT_S)
    await asyncio.sleep(PAUSE_S_MAX)
    stood = 0
    for _ in range(200):
        PRECEDENCE.begin("ann")
        try:
            await asyncio.sleep(0.005)  # it comes to its next look
            before = len(looked)
            await asyncio.sleep(0.005)
            stood += len(looked) == before
        finally:
            PRECEDENCE.end("ann")
        if stood:
            break
        await asyncio.sleep(PAUSE_S_MAX)
    before = len(looked)
    async with asyncio.timeout(WAIT_S):
        while len(looked) == before:
            await asyncio.sleep(0.01)
    over.set()
    await working
    assert stood
