"""Twins of the loops over present rows, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Interval = tuple[int, int]
Rows = Sequence[tuple[int, ...]]


def numbers(rows: Rows) -> list[int]:
    """The number of each row: rows are numbered as they first come."""
    known: dict[tuple[int, ...], int] = {}
    return [known.setdefault(row, len(known)) for row in rows]


def pairs(
    left: Sequence[tuple[int, Interval]],
    right: Sequence[tuple[int, Interval, int]],
    limits: Sequence[Interval],
) -> set[tuple[int, int, int, int]]:
    """Rows (group, presence) and (group, presence, value) that match: value in range, present
    together.
    """
    found = set()
    for i, (group, (start, stop)) in enumerate(left):
        for j, (other, (begin, end), value) in enumerate(right):
            first, last = max(start, begin), min(stop, end)
            if group == other and limits[i][0] <= value <= limits[i][1] and first < last:
                found.add((i, j, first, last))
    return found


def within(
    intervals: Sequence[Interval], lower: int, upper: int
) -> list[tuple[int, int, int | None]]:
    """(row, start, stop) of the rows present in a window, as seen in it: a stop is None where there
    is none.
    """
    return [
        (row, max(start, lower), stop if stop < upper else None)
        for row, (start, stop) in enumerate(intervals)
        if any(start <= at < stop for at in range(lower, upper))
    ]


def turns(
    intervals: Sequence[Interval], seen: int, lower: int, upper: int
) -> set[tuple[int, int, int]]:
    """Changes of presence as (row, instant, diff), at instants from `lower` on.

    A row begins where it is present and was not at the instant before, and ends the other way
    round. Instants before `seen` are not seen.
    """
    found = set()
    for row, (start, stop) in enumerate(intervals):
        present = [at for at in range(seen, upper) if start <= at < stop]
        for at in range(lower, upper):
            if at in present and at - 1 not in present:
                found.add((row, at, 1))
            if at not in present and at - 1 in present:
                found.add((row, at, -1))
    return found


def ticks(offset: int, period: int, low: int, high: int) -> list[int]:
    """The times of a clock between two limits."""
    return [time for time in range(offset, high + 1, period) if time >= low]


def remains(
    rows: Sequence[tuple[int, Interval]], cover: Sequence[tuple[int, Interval]], instants: range
) -> set[tuple[int, int]]:
    """(row, instant) where the row is present and nothing of its group in the cover is."""
    return {
        (i, at)
        for i, (group, (start, stop)) in enumerate(rows)
        for at in instants
        if start <= at < stop and not any(other == group and a <= at < b for other, (a, b) in cover)
    }


def best_at(
    rows: Sequence[tuple[int, Interval, int | None]], group: int, at: int
) -> tuple[int, int | None]:
    """Number of rows of a group that are present at an instant, and their least rank."""
    present = [rank for mine, (a, b), rank in rows if mine == group and a <= at < b]
    known = [rank for rank in present if rank is not None]
    return len(present), min(known, default=None)


def stretches(
    updates: Sequence[tuple[int, int, int]],
) -> tuple[set[tuple[int, int, int | None]], dict[int, tuple[int, int]]] | int:
    """When each group has a copy, by updates (group, time, diff) in the order of their times, None
    for no end.

    With those that have one at the end: since when, how many. Or the first time at which one has
    less than none.
    """
    found: set[tuple[int, int, int | None]] = set()
    held: dict[int, tuple[int, int]] = {}
    for at in sorted({time for _, time, _ in updates}):
        for group in {mine for mine, time, _ in updates if time == at}:
            change = sum(diff for mine, time, diff in updates if (mine, time) == (group, at))
            since, before = held.get(group, (at, 0))
            after = before + change
            if after < 0:
                return at
            held.pop(group, None)
            if after:
                held[group] = (since, after)
            elif before:
                found.add((group, since, at))
    return found | {(group, since, None) for group, (since, _) in held.items()}, held


def quotient(values: Sequence[int | float], divisor: int) -> float:
    """The exact sum divided by a whole number, rounded once."""
    return float(sum(map(Fraction, values), Fraction(0)) / divisor)
