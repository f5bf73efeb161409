"""Waiting for a change of a collection: woken by commits that the process hears of, else by
clock.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from tidemill.shard.ports import Clock


class Change:
    """The next change of a collection, and who waits for it."""

    def __init__(self) -> None:
        self.waiting: set[asyncio.Future[None]] = set()
        self.come = False

    def set(self) -> None:
        """It has come: whoever waits goes on."""
        self.come = True
        for future in self.waiting:
            _wake(future)


class Wakeups:
    """One change per collection that somebody waits for. Nothing depends on a wakeup being seen.

    Belongs to one event loop for as long as anybody waits. Hundreds of subscribers wait for one
    collection: each costs a future, and one task of the process sleeps for all of them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changes: dict[str, Change] = {}
        self._pauses: list[tuple[float, int, asyncio.Future[None]]] = []
        """When the pause of each is over, the first one first; also of some that wait no longer."""
        self._numbers = count()
        self._waiting = 0
        self._sleeping: tuple[float, asyncio.Task[None]] | None = None
        """The task that sleeps, and until when."""
        self.told: Callable[[str], None] = lambda collection: None
        """Told of the commits of this process."""

    def change(self, collection: str) -> Change:
        """The next change; to be asked for before the state is looked at."""
        return self._changes.setdefault(collection, Change())

    def changed(self, collection: str) -> None:
        """This process has made a version: wake who waits, and tell of it."""
        self.wake(collection)
        self.told(collection)

    def wake(self, collection: str) -> None:
        """A version was made by somebody: wake who waits."""
        change = self._changes.pop(collection, None)
        if change is not None:
            change.set()

    async def wait(self, change: Change, pause_s: float) -> None:
        """Return when `change` has come, or after `pause_s`."""
        if change.come:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over_s = self._clock.monotonic_s() + pause_s
        heapq.heappush(self._pauses, (over_s, next(self._numbers), woken))
        self._waiting += 1
        change.waiting.add(woken)
        if self._sleeping is None or over_s < self._sleeping[0]:
            self._sleep()
        try:
            await woken
        finally:
            woken.cancel()
            change.waiting.discard(woken)
            self._waiting -= 1
            if not self._waiting:
                self._pauses.clear()
                self._stop()

    def _sleep(self) -> None:
        """Sleep until the first pause is over, in a task."""
        self._stop()
        while self._pauses and self._pauses[0][2].done():
            heapq.heappop(self._pauses)
        if self._pauses:
            over_s = self._pauses[0][0]
            self._sleeping = over_s, asyncio.create_task(self._end_pauses(over_s))

    def _stop(self) -> None:
        if self._sleeping is not None:
            self._sleeping[1].cancel()
            self._sleeping = None

    async def _end_pauses(self, over_s: float) -> None:
        """Wake whoever has waited until `over_s`, once it has come, and sleep for the next."""
        await self._clock.sleep(over_s - self._clock.monotonic_s())
        self._sleeping = None
        now_s = max(over_s, self._clock.monotonic_s())
        while self._pauses and self._pauses[0][0] <= now_s:
            _wake(heapq.heappop(self._pauses)[2])
        self._sleep()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
