"""Clocks: the only place where Tidemill learns what time it is, and the virtual one for tests."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

LEAP_S = 10
"""Seconds by which the wall clock may be put ahead and is believed at once."""

DOUBT_S = 10
"""Seconds for which a longer leap is not believed: a mistake may be put right meanwhile."""

SETTLE_ROUNDS = 20
"""Turns of the event loop that a woken task gets before virtual time moves on."""


class Clock(Protocol):
    """Port of time, for code that waits or stamps; no other code reads the time module."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step backwards when the machine is set."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never steps backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return no sooner than `seconds` from now."""
        ...


class SystemClock:
    """The clock of the machine, of which a leap ahead is doubted for a while.

    Rows that are stamped with an instant stand there until it comes. A clock that is wrong for a
    moment would hold a collection up for as long as it was ahead.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._apart_ns = wall_ns() - steady_ns()
        """The lead of the wall clock over the steady one, as far as it is believed."""
        self._leapt_ns: int | None = None
        """The reading of the steady clock when the wall clock was first too far ahead."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the machine's wall clock.

        If it has leapt ahead by more than `LEAP_S`, that counts once it has lasted for `DOUBT_S`.
        """
        steady_ns = self._steady_ns()
        apart_ns = self._wall_ns() - steady_ns
        if apart_ns - self._apart_ns <= LEAP_S * 1_000_000_000:
            self._apart_ns, self._leapt_ns = apart_ns, None
        elif self._leapt_ns is None:
            self._leapt_ns = steady_ns
        elif steady_ns - self._leapt_ns >= DOUBT_S * 1_000_000_000:
            self._apart_ns, self._leapt_ns = apart_ns, None
        return (steady_ns + self._apart_ns) // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return self._steady_ns() / 1_000_000_000

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is moved; sleepers wake in the order of their instants.

    `advance` is for tests that run tasks: it stops at each instant at which somebody wakes and lets
    the woken tasks act there. `move` only sets the time, from code that is not asynchronous.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed_us = 0
        self._numbers = count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Milliseconds of virtual time."""
        return self._start_ms + self._elapsed_us // 1000

    def monotonic_s(self) -> float:
        """Seconds of virtual time since the start."""
        return self._elapsed_us / 1_000_000

    @property
    def sleepers(self) -> int:
        """Number of tasks that wait for this clock."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Return once virtual time has advanced by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wake_us = self._elapsed_us + max(1, round(seconds * 1_000_000))
        heapq.heappush(self._sleepers, (wake_us, next(self._numbers), future))
        await future

    def move(self, seconds: float) -> None:
        """Set the time `seconds` ahead and wake whoever is due; nobody has run when this
        returns.
        """
        self._wake_until(self._elapsed_us + round(seconds * 1_000_000))

    async def advance(self, seconds: float) -> None:
        """Advance virtual time; every sleeper due on the way wakes and runs at its own instant."""
        target_us = self._elapsed_us + round(seconds * 1_000_000)
        await self.settle()
        while (due_us := self._next_due_us()) is not None and due_us <= target_us:
            self._wake_until(due_us)
            await self.settle()
        self._elapsed_us = max(self._elapsed_us, target_us)
        await self.settle()

    async def settle(self) -> None:
        """Run every task that can run; virtual time stands still."""
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(0)

    def _next_due_us(self) -> int | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake_until(self, target_us: int) -> None:
        self._elapsed_us = max(self._elapsed_us, target_us)
        while self._sleepers and self._sleepers[0][0] <= target_us:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
