"""Turns of an event loop whose tasks also wait for threads, files and sockets."""

from __future__ import annotations

import asyncio

from tidemill.runtime.clock import ManualClock

AT_ONCE = 8
"""Turns between two pauses. A wait for other tasks alone needs many, and no real time."""
PAUSE_S = 0.001


class Turns:
    """Turns in each of which virtual time moves on by `seconds`.

    A thread or a socket takes as long however often one looks. A loop that only turns meanwhile
    takes a processor from it: every few turns are followed by a pause in real time.
    """

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._taken = 0

    async def take(self) -> None:
        """Give all other tasks a turn, then move the time."""
        self._taken += 1
        await asyncio.sleep(0 if self._taken % AT_ONCE else PAUSE_S)  # noqa: TID251  real threads
        self._clock.move(self._seconds)
