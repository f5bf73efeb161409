"""Twins of the kernels: what each gives, said over rows of whole numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

Row = tuple[int, int, tuple[int, ...], int]
"""Key, val, time, diff."""

Joined = tuple[int, int, int, tuple[int, ...], int]
"""Key, left val, right val, time, diff."""


def consolidated(rows: Iterable[Row]) -> list[Row]:
    """One row for each key, val and time, in their order, none of diff zero."""
    sums: defaultdict[tuple[int, int, tuple[int, ...]], int] = defaultdict(int)
    for key, val, time, diff in rows:
        sums[key, val, time] += diff
    return [(*place, diff) for place, diff in sorted(sums.items()) if diff]


def joined(left: Iterable[Row], right: Iterable[Row]) -> list[Joined]:
    """All pairs of rows with one key, at the join of their times, with the product of diffs."""
    others = list(right)
    return [
        (key, v, w, tuple(max(x, y) for x, y in zip(t, u, strict=True)), n * m)
        for key, v, t, n in left
        for other, w, u, m in others
        if other == key
    ]


def is_beyond(time: Sequence[int], frontier: Iterable[Sequence[int]]) -> bool:
    """Whether some element is at or before `time` in every lane."""
    return any(_less_equal(element, time) for element in frontier)


def advanced(time: Sequence[int], since: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The meet over all elements of since of their joins with `time`, by definition."""
    joins = [[max(t, f) for t, f in zip(time, element, strict=True)] for element in since]
    return tuple(min(lane) for lane in zip(*joins, strict=True)) if joins else tuple(time)


def accumulated(rows: Iterable[Row], at: Sequence[int]) -> dict[tuple[int, int], int]:
    """The multiplicity of each key and val at a time, zeros left out."""
    sums: defaultdict[tuple[int, int], int] = defaultdict(int)
    for key, val, time, diff in rows:
        if _less_equal(time, at):
            sums[key, val] += diff
    return {record: n for record, n in sums.items() if n}


def weighted_sums(keys: Iterable[int], rows: Iterable[Row]) -> list[int]:
    """For each key the sum of val times diff of its rows."""
    listed = list(rows)
    return [sum(val * diff for of, val, _, diff in listed if of == key) for key in keys]


def _less_equal(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))
