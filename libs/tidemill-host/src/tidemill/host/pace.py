"""The pace of idle sources and tables: one commit each interval advances all of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tidemill.errors import Indeterminate, Unavailable
from tidemill.runtime.breaking import told
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.shard import Collections
from tidemill.time import Frontier, frontier

log = get_logger("pace")

PHASE = 10
"""A step comes this part of an interval behind its beginning: after the probes of who may have
moved.
"""

MISSED_MAX = 10
"""Intervals without a step after which each follower binds for itself, if the store lets it."""

Reach = Callable[[int, int], Frontier]
"""The upper of followers, by the clock and the interval, both in ms."""

Joining = tuple[Mapping[str, int], "asyncio.Future[bool]"]


def interval_end(now_ms: int, interval_ms: int) -> Frontier:
    """Behind the end of the interval: sources are bound at ends of intervals."""
    return frontier(-(-now_ms // interval_ms) * interval_ms + 1)


def moment(now_ms: int, interval_ms: int) -> Frontier:
    """Behind now: what is written to a table is there at the instant of the clock."""
    return frontier(now_ms + 1)


class Pace:
    """Advances what has one interval and rests in this process, each time as far as `reach` says.

    Only the process that looks after a follower lets it follow, and makes it leave when it stops
    looking. A source has thus been found unchanged within an interval or so.
    """

    def __init__(
        self, name: str, collections: Collections, clock: Clock, interval_ms: int, reach: Reach
    ) -> None:
        self.name = name
        self.interval_ms = interval_ms
        self._collections = collections
        self._clock = clock
        self._reach = reach
        self._joining: dict[str, Joining] = {}
        self._leaving: set[str] = set()
        self._following: frozenset[str] = frozenset()
        self.upper = frontier(0)
        """The upper of followers after the last step."""
        self._stepped_s = 0.0
        self._opening = asyncio.Lock()
        self._opened = False
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Create the pace, before any version names it.

        Followers of an earlier life of the process leave.
        """
        async with self._opening:
            if not self._opened:
                await self._collections.open_pace(self.name)
                self._opened = True

    async def join(self, group: str, numbers: Mapping[str, int]) -> bool:
        """Make these versions, with one upper, follow from the next step on.

        Returns whether they do, within some intervals.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._step_forever(), name=self.name)
        joined: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._joining[group] = numbers, joined
        patience_s = MISSED_MAX * self.interval_ms / 1000
        paused = asyncio.ensure_future(self._clock.sleep(patience_s))
        try:
            await asyncio.wait((joined, paused), return_when=asyncio.FIRST_COMPLETED)
            return joined.done() and joined.result()
        finally:
            paused.cancel()
            self._joining.pop(group, None)

    def leave(self, group: str) -> None:
        """Make the group leave at the next step, if nobody has made it leave."""
        self._leaving.add(group)

    def follows(self, group: str) -> bool:
        """Whether the group followed at the last step, and steps are made."""
        age_s = self._clock.monotonic_s() - self._stepped_s
        return group in self._following and age_s * 1000 < MISSED_MAX * self.interval_ms

    async def next_step(self) -> None:
        """Return when the next step has been tried."""
        await self._tried.wait()

    async def next_interval(self) -> None:
        """Return when the next interval has begun."""
        await self._clock.sleep((self.interval_ms - self._clock.now_ms() % self.interval_ms) / 1000)

    async def close(self) -> None:
        """Step no more: what follows stands where it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _step_forever(self) -> None:
        while True:
            phase_ms = self.interval_ms // PHASE
            behind_ms = (self._clock.now_ms() - phase_ms) % self.interval_ms
            await self._clock.sleep((self.interval_ms - behind_ms) / 1000)
            try:
                await self._step()
            except (Unavailable, Indeterminate):
                continue
            except Exception as error:  # who follows notices, and binds by itself again
                log.error("no step", pace=self.name, error=told(error), exc_info=error)
            finally:
                self._tried.set()
                self._tried = asyncio.Event()

    async def _step(self) -> None:
        if not (self._joining or self._leaving or self._following):
            return
        joining, leaving = dict(self._joining), frozenset(self._leaving)
        upper = self._reach(self._clock.now_ms(), self.interval_ms)
        numbers = {group: asked for group, (asked, _) in joining.items()}
        self._following = await self._collections.step_pace(self.name, upper, numbers, leaving)
        self._stepped_s, self.upper = self._clock.monotonic_s(), upper
        self._leaving -= leaving
        for group, (_, joined) in joining.items():
            if not joined.done():
                joined.set_result(group in self._following)


class Paces:
    """The paces of one process, one for each interval; `name` tells processes of one store
    apart, and what has another `reach`.
    """

    def __init__(
        self, name: str, collections: Collections, clock: Clock, reach: Reach = interval_end
    ) -> None:
        self._name = name
        self._reach = reach
        self._collections = collections
        self._clock = clock
        self._paces: dict[int, Pace] = {}

    def of(self, interval_ms: int) -> Pace:
        """The pace of sources with this interval."""
        known = self._paces.get(interval_ms)
        if known is None:
            name = f"tidemill/pace/{interval_ms}/{self._name}"
            known = self._paces[interval_ms] = Pace(
                name, self._collections, self._clock, interval_ms, self._reach
            )
        return known

    async def close(self) -> None:
        """Step no more."""
        await asyncio.gather(*(pace.close() for pace in self._paces.values()))
