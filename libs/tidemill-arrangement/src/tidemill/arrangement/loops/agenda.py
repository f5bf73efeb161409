"""What is to be looked at later, by time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.loops.tables import DUE, LENGTH, START, VISITING, Whole
from tidemill.arrangement.loops.times import join_times

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


@compiled
def list_later(
    slots: U64Array, pool: U64Array, column: Whole, due: I64Array, time: np.uint64, bits: Whole
) -> tuple[U64Array, I64Array]:
    """The times after `time` at which the due slots must be looked at again, and those slots.

    Where times are a chain, that is the next time in `column` of the slot's rows; from there on the
    slot lists itself again. Else it is the join of `time` with each of these times: so every join
    of times of which one was due is reached.

    Source: the rule Reached of the reduce model, arrangements.md 2.5.
    """
    bound: Whole = due.size
    if bits < 63:
        for i in range(due.size):
            bound += np.int64(slots[due[i], LENGTH])
    later_times, later_slots = np.empty(bound, np.uint64), np.empty(bound, np.int64)
    n = 0
    for i in range(due.size):
        slot = due[i]
        start = np.int64(slots[slot, START])
        end = start + np.int64(slots[slot, LENGTH])
        slots[slot, DUE] = 0
        if bits == 63:
            later = VISITING
            for row in range(start, end):
                if time < pool[row, column] < later:
                    later = pool[row, column]
            if later != VISITING:
                slots[slot, DUE] = later + np.uint64(1)
                later_times[n], later_slots[n] = later, slot
                n += 1
            continue
        for row in range(start, end):
            join = join_times(time, pool[row, column], bits)
            if join != time and slots[slot, DUE] != join + np.uint64(1):
                slots[slot, DUE] = join + np.uint64(1)
                later_times[n], later_slots[n] = join, slot
                n += 1
    return later_times[:n], later_slots[:n]
