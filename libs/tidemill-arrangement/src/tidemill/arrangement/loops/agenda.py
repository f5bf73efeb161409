"""What is to be looked at later, by time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, inlined
from tidemill.arrangement.loops.tables import Whole
from tidemill.arrangement.loops.times import precedes_time

Part = TypeVar("Part")


class Agenda(Generic[Part]):
    """Parts of rows or slots by the time at which their turn comes."""

    def __init__(self, pick: Callable[[Part, I64Array], Part]) -> None:
        self._pick = pick
        self._parts: dict[int, list[Part]] = {}
        self._times: list[int] = []

    @property
    def due(self) -> int | None:
        """The least time at which there is a part, in the order of words."""
        return self._times[0] if self._times else None

    def add(self, times: U64Array, part: Part) -> None:
        """Put off each row of `part` to its time. Cost: O(1) if all times are one, else a sort."""
        if not len(times):
            return
        if times[0] == times[-1] and bool((times == times[0]).all()):
            self._put(int(times[0]), part)
            return
        order = np.argsort(times, kind="stable")
        ordered = times[order]
        starts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        for places in np.split(order, starts):
            self._put(int(times[places[0]]), self._pick(part, places))

    def pop(self, time: int) -> list[Part]:
        """The parts whose time is `time`, which is none or the least; they are listed no more."""
        if not self._times or self._times[0] != time:
            return []
        heappop(self._times)
        return self._parts.pop(time)

    def _put(self, time: int, part: Part) -> None:
        parts = self._parts.get(time)
        if parts is None:
            heappush(self._times, time)
            self._parts[time] = [part]
        else:
            parts.append(part)


@inlined
def add_minimal(times: U64Array, first: Whole, n: Whole, time: np.uint64, bits: Whole) -> Whole:
    """Enter a time among the minimal ones from `first` to `n`; where they end then."""
    kept = first
    for i in range(first, n):
        if precedes_time(times[i], time, bits):
            kept = -1
            break
        if not precedes_time(time, times[i], bits):
            times[kept] = times[i]
            kept += 1
    if kept >= 0:
        times[kept] = time
    return n if kept < 0 else kept + 1
