"""From start to stop: the components of a process, in order, and what ends it.

Components start one after the other and stop in the opposite order. SIGTERM or SIGINT asks for a
graceful stop; a second signal, or the end of the time for it, cancels what still runs. The first
component that fails stops the process and is named. Here stands the only `except Exception` of a
process.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import os
import signal
import sys
import threading
import time
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from tidemill.errors import TidemillError, UsageError
from tidemill.runtime.breaking import shown
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger

STOP_S_MAX = 10.0
SWITCH_S, SWITCH_CONTENDED_S = 0.0005, 0.00005
"""Seconds for which a thread has the interpreter while others wait, and while users do."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _HEAPS = -1, -2, -3, -8
_MALLOC_OPTIONS = {
    _TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 4 << 20, _MMAP_THRESHOLD: 32 << 20, _HEAPS: 2,
}  # fmt: skip
"""M_TRIM_THRESHOLD: so much stays free at the end of the heap.

M_TOP_PAD: by so much more it grows than is asked for. M_MMAP_THRESHOLD: what is smaller comes from
the heap; this is the most that glibc takes. M_ARENA_MAX: heaps that all threads share; each heap
keeps free pieces that no other one can use.
"""

_PIECE_BYTES = 1 << 17
"""A piece that comes from a heap, and whose end makes the heap look at how long its own end is."""

log = get_logger("lifecycle")


@dataclass(frozen=True, slots=True)
class Stopped:
    """Everything ended as it should, because of `reason`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The first component that failed, and how."""

    component: str
    error: BaseException

    def __str__(self) -> str:
        kind = "" if isinstance(self.error, TidemillError) else f"{type(self.error).__name__}: "
        return f"{self.component} failed: {kind}{self.error}"


Outcome: TypeAlias = Stopped | Failed


FULL_LOOK_DUE, FULL_LOOKS_APART = 2_000, 7_000
"""Looks at young objects, 4,000 each, between two full looks: one that can wait for a good moment,
and one that cannot.
"""

GROWN_BLOCKS = 2_000_000
"""Pieces of memory of the interpreter, some 80 bytes each: by so many more the garbage is looked
for.
"""

GROWN_UNSEEN_BYTES = 512 << 20
"""Bytes in memory, those of columns among them: by so many more the garbage is looked for, too."""


def collect_rarely() -> None:
    """Make the garbage collector of this process look at few objects at a time, and at old ones
    rarely.

    Engines make many objects that stay, and hardly any cycles. With the interpreter's own
    thresholds a third of a backlog's time went into looking at them again. Objects outside of
    cycles are freed at once as ever. For the main function of a process. Cost: cycles among old
    objects wait until 28 million objects more were made than freed, or as `FullLooks` says. All
    threads wait during a look: 1,000 objects are looked at when they are new, and 3,000 once more,
    a millisecond each.
    """
    gc.set_threshold(1_000, 2, FULL_LOOKS_APART)


def resident_bytes() -> int:
    """Bytes of this process in memory; 0 where the kernel does not tell."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * mmap.PAGESIZE
    return 0


class FullLooks:
    """Full looks of the garbage collector, put off while hardly anything is garbage.

    A full look while a question reasons takes 150 ms for its 1.3 million objects. With the programs
    that a server remembers it takes as long at any other time. Objects that are there when little
    is held stay without a look, until they have grown by `GROWN_BLOCKS`. Columns are no pieces of
    the interpreter: a look comes as well when the process has grown by `GROWN_UNSEEN_BYTES`. Growth
    counts from the least that was held since the last look.
    """

    def __init__(self, resident: Callable[[], int] = resident_bytes) -> None:
        """`resident` are the bytes of the process in memory."""
        self._resident = resident
        self._blocks, self._bytes = sys.getallocatedblocks(), resident()

    def put_off(self) -> None:
        """Put off the full look that is due, at a moment such as the end of the last question.

        Cost: 60 ns if none is due, else a millisecond. After growth it is a full look.
        """
        if gc.get_count()[2] < FULL_LOOK_DUE:
            return
        blocks, resident = sys.getallocatedblocks(), self._resident()
        grown = blocks > self._blocks + GROWN_BLOCKS
        if grown or resident > self._bytes + GROWN_UNSEEN_BYTES:
            gc.unfreeze()
            gc.collect()
            self._blocks, self._bytes = sys.getallocatedblocks(), self._resident()
        else:
            self._blocks, self._bytes = min(self._blocks, blocks), min(self._bytes, resident)
        gc.freeze()


def keep_loaded() -> None:
    """Have the garbage collector never look again at what this process holds now: its modules.

    A full look at the modules of a server and its engine takes 120 ms, in which nothing else
    happens. For a process that has just loaded what stays until its end. Cost: nothing; cycles that
    are garbage by now stay.
    """
    gc.freeze()


def give_way_often(contended: bool = False) -> None:
    """Make a computing thread give way to one that has waited for half a millisecond, not for five.

    While users contend a twentieth of a millisecond is enough. An answer goes over several threads:
    the event loop, the store's, one that decodes. At each of them, and after each call of a library
    that lets others run, it waits for the interpreter while another thread computes. For the main
    function of a process. Cost: a few hundredths of the computation while others wait, and more
    while users contend; nothing else.
    """
    sys.setswitchinterval(SWITCH_CONTENDED_S if contended else SWITCH_S)


def columns_of_the_library() -> None:
    """Take all columns from the C library, those of Parquet and of messages among them.

    Arrow's own allocator keeps freed memory of each thread, which nobody can give back. For a
    process that has not imported Arrow; no effect afterwards, or where its environment says
    otherwise.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def keep_freed_memory() -> None:
    """Keep freed memory of this process, up to 64 MB, for its next use.

    Each window makes columns of a few hundred kilobytes and frees them. Returned to the kernel each
    time, and cleared by it when they are taken again, they cost two fifths of a window's time.
    Arrow takes its columns from there, too: its own allocator asks for pages of two megabytes, and
    returns them within a hundredth of a second. For the main function of a process, after its
    imports; no effect where the C library has no such settings.
    """
    with suppress(AttributeError, OSError):
        set_option = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS.items():
            set_option(option, value)
        arrow = sys.modules.get("pyarrow")
        if arrow is not None:
            arrow.set_memory_pool(arrow.system_memory_pool())


def forget_overloads() -> None:
    """Free the overloaded signatures that imported modules have registered for tools.

    `typing.overload` keeps each of them for `typing.get_overloads`, which no running program calls.
    The client of Redis has some seven hundred: a tenth of the memory of an idle process. For the
    main function of a process, after its imports.
    """
    typing.clear_overloads()


class _NoPandas:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Nothing of any other module. Raises: ModuleNotFoundError."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)


def leave_pandas_out() -> None:
    """Have Arrow take values as they are, without a look at whether they are of pandas.

    The first list that becomes a column imports pandas otherwise, if it is installed, which takes
    longer than the start of a process. Arrow still makes a data frame for whoever asks. For the
    main function of a process, after its imports; no effect once Arrow knows pandas.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        arrow.array([True])
    finally:
        sys.meta_path.remove(finder)


REST_S = 5.0
"""Seconds without work after which a process counts as at rest."""

REST_SHARE = 0.2
"""Share of one processor, of a process at rest."""

WORK_S = 1.0
"""Processor time since the last time, after which it pays to give memory back once more."""


GROWN_S = 0.25
"""Seconds between two looks at the memory of a process."""

GROWN_BYTES = 128 << 20
"""Bytes by which a process has grown when its freed memory is given back."""

KEPT_BYTES = 1100 << 20
"""A process below so many bytes gives nothing back while it works."""


async def give_back_at_rest(
    clock: Clock,
    spent_s: Callable[[], float] = time.process_time,
    give_back: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Give freed memory back to the kernel whenever this process has come to rest, for ever.

    `keep_freed_memory` keeps it for the next window; a process that waits keeps it from others.
    `spent_s` is the processor time of the process. Cost: milliseconds of a thread of its own; the
    first window after a rest takes its memory from the kernel again.
    """
    given_back_s, before_s = 0.0, spent_s()
    while True:
        await clock.sleep(REST_S)
        now_s = spent_s()
        if now_s - before_s < REST_S * REST_SHARE and now_s - given_back_s > WORK_S:
            await (give_back() if give_back else asyncio.to_thread(give_back_memory))
            given_back_s = now_s
        before_s = now_s


async def tend_memory(clock: Clock) -> None:
    """Give freed memory of this process back to the kernel at rest, and when it has grown."""
    grown = give_back_when_grown(clock, resident_bytes)
    await asyncio.gather(give_back_at_rest(clock), grown)


async def give_back_when_grown(
    clock: Clock,
    resident: Callable[[], int],
    give_back: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Give freed memory back to the kernel each time that a large process has grown much, for ever.

    Freed memory lies in pieces between what stays, and the next window does not fit into all of
    them. They were half of the memory of a backlog with a join. `resident` are the bytes of the
    process. Cost: milliseconds of a thread of its own for each hundred megabytes. The kernel clears
    what is taken again.
    """
    least = max(KEPT_BYTES, resident())
    while True:
        await clock.sleep(GROWN_S)
        now = resident()
        least = max(KEPT_BYTES, min(least, now))
        if now - least > GROWN_BYTES:
            await (give_back() if give_back else asyncio.to_thread(give_back_memory))
            least = max(KEPT_BYTES, resident())


def give_back_memory() -> None:
    """Give the freed memory of this process back to the kernel: of columns, and of the C library.

    No effect where the C library cannot.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError, RuntimeError):  # the last one for want of threads
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        _give_back_ends(library)


def _give_back_ends(library: ctypes.CDLL) -> None:
    """Give back the free end of each heap, which `malloc_trim` does for the first one alone.

    A heap gives its end back when a large piece is freed, if the end is longer than the threshold.
    Threads that begin at once get different heaps. Afterwards memory is kept as
    `keep_freed_memory` says.
    """
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    heaps = _MALLOC_OPTIONS[_HEAPS]
    together = threading.Barrier(heaps, timeout=1.0)

    def free_piece() -> None:
        piece = library.malloc(_PIECE_BYTES)
        with suppress(threading.BrokenBarrierError):
            together.wait()
        library.free(piece)

    freeing = [threading.Thread(target=free_piece, name="giving-back") for _ in range(heaps)]
    for option in (_TRIM_THRESHOLD, _TOP_PAD):
        library.mallopt(option, _PIECE_BYTES)
    try:
        for thread in freeing:
            thread.start()
        for thread in freeing:
            thread.join()
    finally:
        for option in (_TRIM_THRESHOLD, _TOP_PAD):
            library.mallopt(option, _MALLOC_OPTIONS[option])


def exit_code(outcome: Outcome) -> int:
    """Exit code of the process."""
    return 0 if isinstance(outcome, Stopped) else 1


class Scope:
    """Life of a running component, as it sees it itself."""

    def __init__(self) -> None:
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()

    def ready(self) -> None:
        """Say that the component does its work from now on; the next one may start."""
        self._started.set()

    @property
    def stopping(self) -> bool:
        """Whether the component is asked to end."""
        return self._stopping.is_set()

    async def until_stopping(self) -> None:
        """Return when the component is asked to end."""
        await self._stopping.wait()

    async def until_stopping_or(self, task: asyncio.Task[None]) -> None:
        """Return when the component is asked to end or `task` has; it is over in either case.

        Raises: the error of the task.
        """
        stopping = asyncio.create_task(self.until_stopping())
        await asyncio.wait((stopping, task), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


Component: TypeAlias = Callable[[Scope], Awaitable[None]]
"""Runs until `scope.stopping`; calls `scope.ready()` once."""


@dataclass(slots=True)
class _Running:
    name: str
    scope: Scope
    task: asyncio.Task[None]


@dataclass(slots=True)
class _Planned:
    name: str
    component: Component
    may_end: bool


@dataclass(slots=True)
class Supervisor:
    """Runs components until a signal, a failure, or `stop`."""

    clock: Clock
    stop_s_max: float = STOP_S_MAX
    _planned: list[_Planned] = field(default_factory=list)
    _running: list[_Running] = field(default_factory=list)
    _reason: asyncio.Future[Outcome] | None = None
    _early: Outcome | None = None

    def add(self, name: str, component: Component, *, may_end: bool = False) -> None:
        """Start `component` after those added before. Without `may_end`, its end is a failure."""
        if self._running:
            raise UsageError(f"component {name} refused: the process already runs")
        self._planned.append(_Planned(name, component, may_end))

    def stop(self, reason: str) -> None:
        """Ask for a graceful stop."""
        self._finish(Stopped(reason))

    async def run(self) -> Outcome:
        """Start everything, wait for the reason to end, stop everything; the reason."""
        loop = asyncio.get_running_loop()
        self._reason = loop.create_future()
        if self._early is not None:
            self._finish(self._early)
        try:
            with _signals(loop, self._signalled):
                for planned in self._planned:
                    if self._reason.done():
                        break
                    await self._start(planned)
                await asyncio.wait([self._reason])
                await self._stop_all()
        finally:
            for running in self._running:
                running.task.cancel()
        outcome = self._reason.result()
        log.info("stopped", outcome=str(outcome))
        return outcome

    def _signalled(self, received: signal.Signals) -> None:
        if self._reason is not None and self._reason.done():
            log.warning("second signal: cancelling", signal=received.name)
            for running in self._running:
                running.task.cancel()
        self._finish(Stopped(f"signal {received.name}"))

    def _finish(self, outcome: Outcome) -> None:
        if self._reason is None:
            self._early = self._early or outcome
        elif not self._reason.done():
            self._reason.set_result(outcome)

    async def _start(self, planned: _Planned) -> None:
        """Return when the component is ready, has ended, or something else ends the process."""
        assert self._reason is not None
        scope = Scope()
        task = asyncio.create_task(self._watch(planned, scope), name=planned.name)
        self._running.append(_Running(planned.name, scope, task))
        ready = asyncio.create_task(scope._started.wait())
        await asyncio.wait((ready, task, self._reason), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            log.info("component ready", component=planned.name)
        ready.cancel()

    async def _watch(self, planned: _Planned, scope: Scope) -> None:
        try:
            await planned.component(scope)
        except Exception as error:  # the outermost loop: name it, end the process
            failure = Failed(planned.name, error)
            expected = isinstance(error, TidemillError)
            log.error(
                "component failed",
                component=planned.name,
                exc_info=not expected,
                error=shown(error),
            )
            self._finish(failure)
        else:
            if not (scope.stopping or planned.may_end):
                self._finish(Failed(planned.name, RuntimeError("it ended without being asked to")))

    async def _stop_all(self) -> None:
        """Stop in the opposite order of the start; cancel what is still there at the deadline."""
        deadline_s = self.clock.monotonic_s() + self.stop_s_max
        for running in reversed(self._running):
            running.scope._stopping.set()
            if running.task.done():
                continue
            left_s = max(0.0, deadline_s - self.clock.monotonic_s())
            timer = asyncio.ensure_future(self.clock.sleep(left_s))
            await asyncio.wait((running.task, timer), return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            if not running.task.done():
                log.warning("component did not stop in time: cancelling", component=running.name)
                running.task.cancel()
                await asyncio.wait([running.task])
            log.info("component stopped", component=running.name)


@contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, received: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call `received` for SIGTERM and SIGINT while the body runs; then handlers are as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


class Closable(Protocol):
    """An object that holds something until it is closed."""

    async def close(self) -> None:
        """Release what it holds."""


C = TypeVar("C", bound=Closable)


@asynccontextmanager
async def closing(resource: C) -> AsyncIterator[C]:
    """Close `resource` when the body is left, however it is left."""
    try:
        yield resource
    finally:
        await resource.close()
