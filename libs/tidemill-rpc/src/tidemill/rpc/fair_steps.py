"""Fair queueing of the event loop: the user that has had least does the next step.

A step of a call is its work between two waits. A flood of calls is many steps that can be done at
once. Without an order of users, a single question waits for all of them at each of its own steps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CREDIT_S = 0.1
"""A user who asks for little goes before others until it has had so much more than its share.

It is the burst for which others wait. A question takes some milliseconds of the event loop, and
several times as many on a busy machine.
"""

CROWDED_S = 1.0
"""Users share the loop for so long after two of them have taken turns; a lone user is never queued.
"""

FORGET_AT = 10_000
"""So many users are remembered; whoever has no more than the credit is forgotten then."""


class FairSteps:
    """Start-time fair queueing over users: steps are measured, the least served user is next.

    Nothing is left idle: a step waits only while others can be done. Cost: a microsecond for a step
    that need not wait, two turns of the loop for one that does. Source: Goyal, Vin and Cheng,
    "Start-time Fair Queueing", SIGCOMM 1996.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._had_s: dict[str, float] = {}
        self._virtual_s = 0.0
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._handed_out = False
        self._scheduled = False
        self._latest = ""
        self._crowded_until_s = -1.0
        self._crowded = False

    def steps_of(self, user: str, call: Awaitable[T]) -> Awaitable[T]:
        """The same call, whose steps wait for their turn while other users are active.

        Raises: what it raises.
        """
        return _Queued(self, user, call)

    def goes_at_once(self, user: str) -> bool:
        """Whether the step of a user need not be queued; the user is seen to be active."""
        now_s = self.now_s()
        if user != self._latest:
            self._crowded_until_s = now_s + CROWDED_S if self._latest else now_s
            self._latest = user
        self._crowded = now_s < self._crowded_until_s
        within = not self._crowded or self._had(user) <= self._virtual_s
        return within and user not in self._queues

    def spend(self, user: str, seconds: float) -> None:
        """Count what a step has taken."""
        had_s = self._had_s[user] = self._had(user) + seconds
        if not self._crowded:
            self._virtual_s = max(self._virtual_s, had_s)
        if len(self._had_s) > FORGET_AT:
            floor_s = self._virtual_s - CREDIT_S
            self._had_s = {name: had for name, had in self._had_s.items() if had > floor_s}

    def queue(self, user: str) -> asyncio.Future[None]:
        """A future that is done at the turn of the user; `leave` has to follow."""
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(user, deque()).append(turn)
        self._schedule()
        return turn

    def leave(self, user: str, turn: asyncio.Future[None]) -> None:
        """Pass the turn on, once the step has been done or is given up."""
        if turn.done() and not turn.cancelled():
            self._handed_out = False
        self._schedule()

    def _had(self, user: str) -> float:
        floor_s = self._virtual_s - CREDIT_S
        return max(self._had_s.get(user, floor_s), floor_s)

    def _schedule(self) -> None:
        """Choose behind everything that is ready now: who goes on in this turn of the loop has its
        say.
        """
        if self._queues and not self._scheduled and not self._handed_out:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._scheduled = False
        while self._queues and not self._handed_out:
            user = min(self._queues, key=self._had)
            turn = self._queues[user].popleft()
            if not self._queues[user]:
                del self._queues[user]
            if not turn.done():  # whoever waited for it may be gone
                self._virtual_s = max(self._virtual_s, self._had(user))
                self._handed_out = True
                turn.set_result(None)


class _Queued(Generic[T]):
    """Awaits a call step by step."""

    def __init__(self, steps: FairSteps, user: str, call: Awaitable[T]) -> None:
        self._steps = steps
        self._user = user
        self._call = call

    def __await__(self) -> Generator[Any, Any, T]:
        steps, user = self._steps, self._user
        inner: Any = self._call.__await__()
        thrown: BaseException | None = None
        while True:
            turn: asyncio.Future[None] | None = None
            # A cancelled call cleans up in its turn; who waits for that is cancelled at once.
            waits = thrown is None or isinstance(thrown, asyncio.CancelledError)
            if not steps.goes_at_once(user) and waits:
                turn = steps.queue(user)
                try:
                    yield from turn
                except BaseException as error:
                    thrown = error
            began_s = steps.now_s()
            try:
                waited_for = inner.throw(thrown) if thrown is not None else next(inner)
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]  # the value of the call
            finally:
                steps.spend(user, steps.now_s() - began_s)
                thrown = None  # an error holds this frame: in it, it would be a cycle
                if turn is not None:
                    steps.leave(user, turn)
            try:
                yield waited_for
            except BaseException as error:
                thrown = error
            finally:
                del waited_for  # it holds an error, which would hold this frame
