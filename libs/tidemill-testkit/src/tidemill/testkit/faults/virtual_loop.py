"""An event loop that never waits: its time passes when no task can run, its order follows a seed.

A process is a group of tasks that can be killed or stopped between any two of its steps, as by an
operating system. No handler runs then, no answer is received, and requests to others go on.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random  # noqa: TID251  seeded, so that a failure repeats
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Stuck(RuntimeError):
    """Nobody can run and nobody waits for an instant: on a real loop this would hang for ever."""


class _Turn(NamedTuple):
    handle: asyncio.Handle
    context: Context
    callback: Callable[..., object]
    arguments: tuple[Any, ...]  # whatever a callback is given


@dataclass(eq=False, slots=True)
class Process:
    """Tasks that live and die together; `steps` counts how often one of them has run.

    It dies on its own just before step `dies_at`, or stands still just before step `stops_at`.
    """

    name: str
    steps: int = 0
    dies_at: int | None = None
    stops_at: int | None = None
    stopped: bool = False
    dead: bool = False
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)  # of any result
    _missed: list[_Turn] = field(default_factory=list)

    def kill(self) -> None:
        """Never run again."""
        self.dead = self.stopped = True

    def _may_run(self, turn: _Turn) -> bool:
        if not self.stopped:
            self.steps += 1
            if self.steps == self.dies_at:
                self.kill()
            self.stopped = self.stopped or self.steps == self.stops_at
        if self.stopped:
            self._missed.append(turn)
        return not self.stopped

    def _missed_turns(self) -> list[_Turn]:
        missed, self._missed = self._missed, []
        return missed


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process that this code belongs to; None is the world around."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs whoever can run in an order drawn from `random`, then moves to the next instant that is
    due.

    Everything that happens follows from the seed; `trace` is a digest of it.
    """

    def __init__(self, random: Random) -> None:
        self._now_s = 0.0
        self._random = random
        self._turns: list[_Turn] = []
        self._trace = blake2b(digest_size=16)
        self._nobody = Context()
        super().__init__(_NoFiles(self._pass_time))

    @property
    def trace(self) -> str:
        """A digest of who ran when."""
        return self._trace.hexdigest()

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._enter(_Turn(handle, context, callback, args))
        return handle

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # as the loop's own
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks = [each for each in process.tasks if not each.done()]
            process.tasks.append(task)
        return task

    def begin(self, process: Process, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the main task of a process."""
        context = Context()
        context.run(PROCESS.set, process)
        return self.create_task(main, context=context)

    def serve(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run what goes on whatever happens to the process that asked for it."""
        return self.create_task(work, context=Context())

    def resume(self, process: Process) -> None:
        """Continue a stopped process where it was."""
        process.stopped = process.dead
        for turn in () if process.stopped else process._missed_turns():
            self._enter(turn)

    async def bury(self, process: Process) -> None:
        """End the tasks of a dead process properly: they may still run handlers, to nobody's
        harm.
        """
        process.stopped, process.dies_at, process.stops_at = False, None, None
        for task in process.tasks:
            task.cancel()
        for turn in process._missed_turns():
            self._enter(turn)
        await asyncio.gather(*process.tasks, return_exceptions=True)

    async def end_all(self) -> None:
        """Cancel whatever is under way in the world around: nothing is left when the loop is
        closed.
        """
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _enter(self, turn: _Turn) -> None:
        self._turns.append(turn)
        super().call_soon(self._take_turn, context=self._nobody)

    def _take_turn(self) -> None:
        """Run one of all who can, whoever's turn this would have been."""
        place = self._random.randrange(len(self._turns))
        self._turns[place], self._turns[-1] = self._turns[-1], self._turns[place]
        turn = self._turns.pop()
        if turn.handle.cancelled():
            return
        process = turn.context.get(PROCESS)
        if process is not None:
            if not process._may_run(turn):
                return
            self._trace.update(f"{self._now_s:.6f} {process.name}\n".encode())
        turn.context.run(turn.callback, *turn.arguments)

    def _pass_time(self, seconds: float | None) -> None:
        if seconds is None:
            raise Stuck("nobody can run, and nobody waits for an instant")
        self._now_s += seconds


class LoopClock:
    """A clock of a process on the loop: right about how long, `skew_ms` off about when."""

    def __init__(self, loop: VirtualLoop, start_ms: int, skew_ms: int = 0) -> None:
        self._loop = loop
        self._start_ms = start_ms
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._start_ms + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251  the time of the virtual loop


class _NoFiles(selectors.BaseSelector):
    """Watches nothing; where others would wait, it says how long."""

    def __init__(self, waited: Callable[[float | None], None]) -> None:
        self._waited = waited

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._waited(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}
