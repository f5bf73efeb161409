"""Waiting for a change of a collection: woken by commits that the process hears of, else by
clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.shard.ports import Clock


class Wakeups:
    """One event per collection that somebody waits for. Nothing depends on a wakeup being seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: dict[str, asyncio.Event] = {}
        self.told: Callable[[str], None] = lambda collection: None
        """Told of the commits of this process."""

    def event(self, collection: str) -> asyncio.Event:
        """Set at the next change; to be asked for before the state is looked at."""
        return self._events.setdefault(collection, asyncio.Event())

    def changed(self, collection: str) -> None:
        """This process has made a version: wake who waits, and tell of it."""
        self.wake(collection)
        self.told(collection)

    def wake(self, collection: str) -> None:
        """A version was made by somebody: wake who waits."""
        event = self._events.pop(collection, None)
        if event is not None:
            event.set()

    async def wait(self, event: asyncio.Event, pause_s: float) -> None:
        """Return when `event` is set, or after `pause_s`."""
        woken = asyncio.ensure_future(event.wait())
        paused = asyncio.ensure_future(self._clock.sleep(pause_s))
        try:
            await asyncio.wait((woken, paused), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            paused.cancel()
            await asyncio.gather(woken, paused, return_exceptions=True)
