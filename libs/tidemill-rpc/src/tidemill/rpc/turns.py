"""Threads beside the event loop for users' calls: of each user one task at a time, of few users.

Every thread that computes has a share of the interpreter. A user with much work slows the others
down by one share, however much that is; its other calls wait. Work on columns leaves the
interpreter to others, so that a user may have several threads with such work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import walk_tb
from typing import TypeVar
from weakref import WeakValueDictionary

from tidemill.arrangement.looks import FOR_OTHERS, LOOK, Look, Things, let_go, looking
from tidemill.rpc.identity import NOBODY, caller
from tidemill.rpc.precedence import Interrupt, Precedence

AT_ONCE = 4
"""So many users are worked for at once; the others wait for their turn."""

THREADS = 64
"""Threads for files and for work on columns: so many that some are free for whoever has none."""

THREADS_OF_USER = min(max(2, os.cpu_count() or 1), THREADS // 8)
"""Threads that work on columns for one user at once."""

THREADS_OF_NOBODY = THREADS_OF_USER + 4
"""Threads that work on columns for sources and views at once."""

FREED_INLINE_MAX = 2_500
"""So many things are freed in a quarter of a millisecond."""

BYTES_INLINE_MAX = 64 << 10
"""Bytes that are read, written or cut into lines in some milliseconds at most."""

_MAY_GO_ON = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_AGAIN_S = 0.05
"""After so long work that has not ended is called off again: it may have begun another part."""

T = TypeVar("T")

PRECEDENCE = Precedence()
"""Of the calls of this process over its long work."""

_THREADS = ThreadPoolExecutor(AT_ONCE, "asked")
_FREEING = ThreadPoolExecutor(1, "freeing")
_Semaphores = WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str | None], asyncio.Semaphore]
_TURNS: _Semaphores = WeakValueDictionary()
_FREE_THREADS: _Semaphores = WeakValueDictionary()


def _of_caller(semaphores: _Semaphores, count: int) -> asyncio.Semaphore:
    """The semaphore of the caller, or of work for others, which so many pass at once."""
    name = None if _for_nobody() else caller.get().name
    place = asyncio.get_running_loop(), name
    return semaphores.setdefault(place, asyncio.Semaphore(count))


def _for_nobody() -> bool:
    """Whether the work is that of sources and views, or others wait for it."""
    return FOR_OTHERS.get() or caller.get() is NOBODY


def threads_for_many() -> ThreadPoolExecutor:
    """Threads of an event loop whose long work is taken to them by `on_thread`."""
    return ThreadPoolExecutor(THREADS, "asyncio")


def looks_beside(now_s: Callable[[], float]) -> Look:
    """The look of threads beside the event loop: work pauses for calls of users other than its own.

    The work of sources and views is that of nobody.
    """
    return lambda: PRECEDENCE.give_way(caller.get().name, now_s)


class Looks:
    """Looks of long work: what another thread interrupts it with is called at its next one."""

    def __init__(self) -> None:
        self._then: Callable[[], None] | None = None

    def interrupt(self, then: Callable[[], None]) -> None:
        """Call `then` at the next look."""
        self._then = then

    def __call__(self) -> None:
        """Look once, on the thread that works."""
        then, self._then = self._then, None
        if then is not None:
            then()


async def beside(size: int, work: Callable[[], T]) -> T:
    """The result of `work` on about `size` bytes: at once if they are few, else on a thread.

    Threads are taken in turn, as `in_turn` does.
    """
    return work() if size <= BYTES_INLINE_MAX else await in_turn(work)


async def in_turn(
    work: Callable[[], T],
    call_off: Callable[[], None] | None = None,
    interrupt: Interrupt | None = None,
) -> T:
    """The result of `work`, on a thread, once no other work of the caller runs.

    A cancelled caller keeps its turn until the thread is free. With `call_off`, which is to end the
    work soon, it waits for that. At its looks the work pauses for calls of other users; `interrupt`
    is given by work whose looks are its own.
    """
    loop, name = asyncio.get_running_loop(), caller.get().name
    turn = _of_caller(_TURNS, 1)
    await turn.acquire()

    def given_way() -> T:
        looks = Looks()
        LOOK.set(looks)
        with PRECEDENCE.work(name, interrupt or looks.interrupt, loop.time):
            return work()

    working = _begun(_THREADS, given_way, turn)
    try:
        if call_off is None:
            return await asyncio.shield(working)
        return await until_ended(working, call_off)
    finally:
        del working  # its error leads to this frame


async def on_thread(work: Callable[[], T]) -> T:
    """The result of `work`, on one of the threads of the event loop, once the caller may have one.

    A cancelled caller keeps its thread until the thread is free. One user keeps an eighth of the
    threads at most, so that others have some, and whoever reads a file.
    """
    free = _of_caller(_FREE_THREADS, THREADS_OF_NOBODY if _for_nobody() else THREADS_OF_USER)
    await free.acquire()
    return await asyncio.shield(_begun(None, work, free))


async def let_go_beside(*many: Things) -> None:
    """Free many things, beside the event loop; not behind other work of the caller.

    One thread frees for all, since each one that does so has a share of the interpreter: a call may
    wait behind what others free.
    """

    def free() -> None:
        for things in many:
            let_go(things)

    if sum(map(len, many)) <= FREED_INLINE_MAX:
        free()
    else:
        work = partial(copy_context().run, looking, free)
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(_FREEING, work))


def _begun(
    threads: ThreadPoolExecutor | None, work: Callable[[], T], held: asyncio.Semaphore
) -> asyncio.Future[T]:
    """The work on one of the threads, by default of the event loop; `held` is released at its
    end.
    """

    def done(ended: asyncio.Future[T]) -> None:
        held.release()
        if not ended.cancelled():
            ended.exception()  # nobody may be left to hear of it

    def worked() -> T:
        try:
            return work()
        except BaseException as error:
            _let_go_of_frames(error)
            raise

    try:
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(threads, copy_context().run, worked)
    except BaseException:  # no thread can be started
        held.release()
        raise
    working.add_done_callback(done)
    return working


def _let_go_of_frames(error: BaseException | None) -> None:
    """Free what the frames of an error hold, here and now: whoever hears of it needs none of it.

    An error and a frame that names it hold each other, and with them all that the frame has read.
    The collector would find a refused program of 16 kB by some 10,000 objects, among old ones. An
    error that was raised before may lead to a generator, or a coroutine, that goes on.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, _ in walk_tb(error.__traceback__):
            if not frame.f_code.co_flags & _MAY_GO_ON:
                with suppress(RuntimeError):  # it still runs
                    frame.clear()
        error = error.__cause__ or error.__context__


async def until_ended(working: asyncio.Future[T], call_off: Callable[[], None]) -> T:
    """The result of `working`, which another thread computes.

    IMPORTANT: a cancelled caller calls the work off and returns once the thread is free, however
    often it is cancelled. Otherwise its own cleaning up would change what the work still reads and
    writes.
    """
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            call_off()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([working], timeout=_AGAIN_S)
        if not working.cancelled():
            working.exception()  # nobody is left to hear of it
        raise
    finally:
        del working  # its error leads to this frame
