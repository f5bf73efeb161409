"""Presences of the rows of a relation, from updates with diffs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemill.datalog.presence import END, Instant, Interval


@dataclass(frozen=True, slots=True)
class NegativeMultiplicity:
    """An input row was taken away more often than it was put in, first at `time`."""

    row: tuple[object, ...]
    time: int


def row_presences(
    updates: Iterable[tuple[tuple[object, ...], int, int]], upper: Instant = END
) -> dict[tuple[object, ...], list[Interval]] | NegativeMultiplicity:
    """Intervals in which each row is present: the sum of its diffs so far is above zero.

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
