"""The values of one fact as functions of the instant: merging alternative derivations (language.md
3.3).

A *part* is (start, end, expires, parafacts): one derivation of a fact, constant on [start, end). A
timeline is a list of parts in ascending order that do not overlap. Where derivations overlap,
`expires` takes the maximum and the other lattices merge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from tidemill.datalog.lattices import Lattice, Parafacts, Tally, merge_parafacts
from tidemill.datalog.presence import Instant
from tidemill.datalog.tables import Part
from tidemill.datalog.values import Failed

Report: TypeAlias = (
    "Callable[[str, Instant, Instant], None]"  # reason, start, end of a failed merge
)


def same_parafacts(a: Parafacts, b: Parafacts) -> bool:
    """Whether two neighbours in time may be drawn together without looking into tallies."""
    if a is b:
        return True
    if a is None or b is None or len(a) != len(b):
        return False
    return all(
        m == n and (v is w or (type(v) is not Tally and v == w))
        for (m, v), (n, w) in zip(a, b, strict=True)
    )


def merge_parts(parts: list[Part], lattices: Mapping[str, Lattice], report: Report) -> list[Part]:
    """The timeline of a fact with the given derivations.

    Where a merged value fails (a sum that overflows) the fact is absent and `report` is told.
    Cost: O(n log n) without parafacts, else O(n * derivations that overlap).
    """
    if len(parts) == 1:
        return parts
    parts.sort(key=_start)
    if all(parts[i][1] <= parts[i + 1][0] for i in range(len(parts) - 1)):
        return coalesce(parts)
    if all(part[3] is None for part in parts):
        return coalesce(_sweep_expiry(parts))
    return coalesce(_sweep_parafacts(parts, lattices, report))


def _start(part: Part) -> Instant:
    return part[0]


def _end(part: Part) -> Instant:
    return part[1]


def coalesce(parts: Sequence[Part]) -> list[Part]:
    """The same timeline with touching parts of one value drawn together."""
    joined: list[Part] = []
    for part in parts:
        if joined:
            last = joined[-1]
            if (
                last[1] == part[0]
                and last[2] == part[2]
                and (last[3] is part[3] or same_parafacts(last[3], part[3]))
            ):
                joined[-1] = (last[0], part[1], last[2], last[3])
                continue
        joined.append(part)
    return joined


def _sweep_expiry(parts: list[Part]) -> list[Part]:
    """Overlapping parts, sorted by start and without parafacts: at each instant the latest expiry."""
    borders = sorted({border for part in parts for border in part[:2]})
    swept: list[Part] = []
    heap: list[tuple[Instant, Instant]] = []  # (-expires, end)
    i = 0
    for start, end in pairwise(borders):
        while i < len(parts) and parts[i][0] <= start:
            heappush(heap, (-parts[i][2], parts[i][1]))
            i += 1
        while heap and heap[0][1] <= start:
            heappop(heap)
        if heap:
            swept.append((start, end, -heap[0][0], None))
    return swept


def _sweep_parafacts(
    parts: list[Part], lattices: Mapping[str, Lattice], report: Report
) -> list[Part]:
    borders = sorted({border for part in parts for border in part[:2]})
    swept: list[Part] = []
    living: list[Part] = []
    i = 0
    for start, end in pairwise(borders):
        living = [part for part in living if part[1] > start]
        while i < len(parts) and parts[i][0] <= start:
            living.append(parts[i])
            i += 1
        if not living:
            continue
        parafacts = living[0][3]
        expires = living[0][2]
        try:
            for part in living[1:]:
                parafacts = merge_parafacts(parafacts, part[3], lattices)
                expires = max(expires, part[2])
        except Failed as failed:
            report(failed.reason, start, end)
            continue
        swept.append((start, end, expires, parafacts))
    return swept


def absorb(
    timeline: list[Part], part: Part, lattices: Mapping[str, Lattice], report: Report
) -> list[Part]:
    """Merge one more derivation into a timeline in place; the parts that are new or changed.

    Empty if the timeline already said as much. Cost: O(log n + parts that overlap the new one).
    """
    start, end, expires, parafacts = part
    first = bisect_right(timeline, start, key=_end)
    last = first
    while last < len(timeline) and timeline[last][0] < end:
        last += 1
    local = timeline[first:last]
    if not local:
        timeline[first:first] = [part]
        return [part]
    if parafacts is None and all(known[3] is None for known in local):
        merged_parts, changed = _overlay(local, start, end, expires)
        if changed:
            timeline[first:last] = merged_parts
        return changed
    if len(local) == 1:
        known = local[0]
        covered = known[0] <= start and end <= known[1] and expires <= known[2]
        if covered and merge_or_none(known[3], parafacts, lattices) == known[3]:
            return []
    merged_parts = merge_parts([*local, part], lattices, report)
    timeline[first:last] = merged_parts
    return [new for new in merged_parts if not _said(new, local)]


def _overlay(
    local: Sequence[Part], start: Instant, end: Instant, expires: Instant
) -> tuple[list[Part], list[Part]]:
    """Lay a part without parafacts over those it overlaps: the new timeline there, and what
    changed.
    """
    merged: list[Part] = []
    changed: list[Part] = []
    at = start
    for known in local:
        first, last, known_expires, _ = known
        if at < first:
            gap: Part = (at, first, expires, None)
            merged.append(gap)
            changed.append(gap)
        if known_expires >= expires:
            merged.append(known)
            at = last
            continue
        if first < start:
            merged.append((first, start, known_expires, None))
        better: Part = (max(first, start), min(last, end), expires, None)
        merged.append(better)
        changed.append(better)
        if last > end:
            merged.append((end, last, known_expires, None))
        at = last
    if at < end:
        rest: Part = (at, end, expires, None)
        merged.append(rest)
        changed.append(rest)
    return (merged if len(changed) < 2 else coalesce(merged)), coalesce(changed)


def merge_or_none(a: Parafacts, b: Parafacts, lattices: Mapping[str, Lattice]) -> Parafacts:
    """The merged values, or nothing where the merge fails (the full merge then reports it)."""
    try:
        return merge_parafacts(a, b, lattices)
    except Failed:
        return None


def _said(new: Part, old: Sequence[Part]) -> bool:
    return any(
        part[0] <= new[0] and new[1] <= part[1] and part[2] == new[2] and part[3] == new[3]
        for part in old
    )
