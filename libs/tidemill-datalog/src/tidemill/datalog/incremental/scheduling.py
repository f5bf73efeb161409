"""In which order units run at one instant, for the two strategies of language.md 6.7.

`strata`: a vector of FIFO queues, one for each level, run in ascending order, each to its end; a
unit that is queued is not queued again. Levels refine strata: a unit stands above all that it
reads, so its inputs are complete when it starts, none is left over when it ends, and it runs once
at an instant.

`retraction`: one FIFO queue; every change of an input flows through at once, and what follows from
it too early is taken back. Units that remember what they saw wait until nothing else is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

Strategy: TypeAlias = Literal["strata", "retraction"]


class Runnable(Protocol):
    """What a scheduler knows of a unit."""

    number: int
    level: int
    scheduled: bool

    @property
    def waits_for_all(self) -> bool:
        """Whether the unit may only see what is final at the instant."""
        ...

    def run(self) -> None:
        """Bring the unit up to what its inputs are now."""
        ...


class StrataScheduler:
    """Queues by level. Cost of an instant: that of the units with work, and O(levels)."""

    eager = False

    def __init__(self, levels: int) -> None:
        self._queues: list[deque[Runnable]] = [deque() for _ in range(levels)]
        self._waiting = 0
        self.between: Callable[[], None] | None = None
        """Called before each level: what it schedules below is run first."""

    def schedule(self, unit: Runnable) -> None:
        """Queue a unit unless it is queued."""
        if not unit.scheduled:
            unit.scheduled = True
            self._waiting += 1
            self._queues[unit.level].append(unit)

    def run(self) -> None:
        """Run what is queued, level by level, until nothing is."""
        if self.between is None and not self._waiting:
            return
        level = 0
        while level < len(self._queues):
            if self.between is not None:
                self.between()
            below = self._lowest(level)
            if below is not None:
                level = below
            queue = self._queues[level]
            while queue:
                unit = queue.popleft()
                unit.run()
                unit.scheduled = False
                self._waiting -= 1
            if self.between is None and not self._waiting:
                return
            level += 1

    def _lowest(self, level: int) -> int | None:
        """The lowest level below this one at which something is queued."""
        if self.between is None:
            return None
        return next((i for i in range(level) if self._queues[i]), None)

    def flow(self) -> None:
        """Between two changes of one instant nothing runs: a level starts when its inputs are
        complete.
        """


class RetractionScheduler:
    """One queue. Cost of an instant: that of the units with work, which may run several times."""

    eager = True
    between: Callable[[], None] | None = None

    def __init__(self, levels: int) -> None:
        self._queue: deque[Runnable] = deque()
        self._patient: list[Runnable] = []

    def schedule(self, unit: Runnable) -> None:
        """Queue a unit unless it is queued."""
        if not unit.scheduled:
            unit.scheduled = True
            if unit.waits_for_all:
                self._patient.append(unit)
            else:
                self._queue.append(unit)

    def flow(self) -> None:
        """Let one change go as far as it goes at once."""
        while self._queue:
            unit = self._queue.popleft()
            unit.run()
            unit.scheduled = False

    def run(self) -> None:
        """Run until nothing is queued; a unit that waits for all runs when all below it are at
        rest.
        """
        self.flow()
        if self.between is not None:
            self.between()
            self.flow()
        while self._patient:
            unit = min(self._patient, key=_level)
            self._patient.remove(unit)
            unit.run()
            unit.scheduled = False
            self.flow()


def _level(unit: Runnable) -> tuple[int, int]:
    return unit.level, unit.number


Scheduler: TypeAlias = "StrataScheduler | RetractionScheduler"


def scheduler_of(strategy: Strategy, levels: int) -> Scheduler:
    """The scheduler of a strategy."""
    return StrataScheduler(levels) if strategy == "strata" else RetractionScheduler(levels)
