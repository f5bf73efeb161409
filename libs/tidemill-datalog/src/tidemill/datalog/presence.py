"""Presence: sets of half-open intervals [start, end) of instants, and functions of the instant.

An instant is a whole number of milliseconds of the timeline; `-inf` is before all of them and `inf`
after. A set of intervals is a list in ascending order, without empty intervals and without two that
touch, so equal sets are equal lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidemill.datalog.records import Record

Instant: TypeAlias = "int | float"
Interval: TypeAlias = "tuple[Instant, Instant]"

BEGINNING: float = -math.inf
END: float = math.inf


@dataclass(frozen=True, slots=True)
class Presence:
    """One stretch of a record: present at every instant of [start, end)."""

    record: Record
    start: Instant = BEGINNING
    end: Instant = END


@dataclass(frozen=True, slots=True)
class NegativeMultiplicity:
    """An input row was taken away more often than it was put in, first at `time`."""

    row: tuple[object, ...]
    time: int


def normalise(intervals: Iterable[Interval]) -> list[Interval]:
    """The set of instants that lie in any of the intervals. Cost: O(n log n)."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def intersect(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The instants in both sets. Cost: O(n + m)."""
    both: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start < end:
            both.append((start, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return both


def subtract(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The instants of `left` that are not in `right`. Cost: O(n + m)."""
    rest: list[Interval] = []
    j = 0
    for start, end in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        k = j
        while k < len(right) and right[k][0] < end:
            if right[k][0] > start:
                rest.append((start, right[k][0]))
            start = max(start, right[k][1])
            k += 1
        if start < end:
            rest.append((start, end))
    return rest


def clip(intervals: Sequence[Interval], lower: Instant, upper: Instant) -> list[Interval]:
    """The instants of the set in [lower, upper); an end from `upper` on is none."""
    clipped: list[Interval] = []
    for start, end in intervals:
        if start < upper and end > lower:
            clipped.append((max(start, lower), end if end < upper else END))
    return clipped


def contains(intervals: Sequence[Interval], at: Instant) -> bool:
    """Whether the instant is in the set."""
    return any(start <= at < end for start, end in intervals)


def row_presences(
    updates: Iterable[tuple[tuple[object, ...], int, int]], upper: Instant = END
) -> dict[tuple[object, ...], list[Interval]] | NegativeMultiplicity:
    """When each row of a relation is present: while the sum of its diffs at instants <= T is above
    zero.

    Updates at or above `upper` have no effect. If a sum goes below zero, the earliest such instant
    of any row is returned instead, and there is no answer. Shapes: (row, time, diff) in any order.
    """
    diffs: dict[tuple[object, ...], dict[int, int]] = {}
    for row, time, diff in updates:
        if time < upper:
            at = diffs.setdefault(row, {})
            at[time] = at.get(time, 0) + diff
    wrong: NegativeMultiplicity | None = None
    present: dict[tuple[object, ...], list[Interval]] = {}
    for row, at in diffs.items():
        intervals, negative = _positive_stretches(at)
        if negative is not None and (wrong is None or negative < wrong.time):
            wrong = NegativeMultiplicity(row, negative)
        if intervals:
            present[row] = intervals
    return present if wrong is None else wrong


def _positive_stretches(diffs: Mapping[int, int]) -> tuple[list[Interval], int | None]:
    """Intervals with a running sum above zero, and the first instant with one below."""
    intervals: list[Interval] = []
    copies = 0
    since: int | None = None
    for time in sorted(diffs):
        copies += diffs[time]
        if copies < 0:
            return intervals, time
        if copies > 0 and since is None:
            since = time
        elif copies == 0 and since is not None:
            intervals.append((since, time))
            since = None
    if since is not None:
        intervals.append((since, END))
    return intervals, None
