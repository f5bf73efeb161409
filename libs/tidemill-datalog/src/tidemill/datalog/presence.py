"""Presence: sets of half-open intervals [start, end) of instants, and functions of the instant.

An instant is a whole number of milliseconds of the timeline; `-inf` is before all of them and `inf`
after. A set of intervals is a list in ascending order, without empty intervals and without two that
touch, so equal sets are equal lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.records import Record, format_record

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


ErrorMove: TypeAlias = tuple[str, int, int]
"""The text of an error, an instant, and 1 if it begins there or -1 if it ends."""


@dataclass(frozen=True, slots=True)
class ErrorPresence:
    """One stretch of an error: `text` is `REASON: FACTS`, `rule` the first rule with that text."""

    text: str
    rule: int
    start: Instant
    end: Instant


def fact_text(predicate: str, key: tuple[Any, ...]) -> str:
    """A fact with its time only, as error texts and proofs write it."""
    return format_record(Record(predicate, tuple(key[1:]), key[0]))


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
