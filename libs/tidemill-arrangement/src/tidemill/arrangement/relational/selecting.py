"""Short passes over columns that a window begins and ends with: ranges, rows that are kept, what
begins and ends.

Each is one compiled call where NumPy would take several, which is most of the price of a window of
few rows.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, compiled

_FOREVER = (1 << 63) - 1


@compiled
def _extent(values: I64Array) -> tuple[int, int]:
    least, greatest = values[0], values[0]
    for row in range(values.size):
        least = min(least, values[row])
        greatest = max(greatest, values[row])
    return least, greatest


def extent(values: I64Array) -> tuple[int, int]:
    """The least and the greatest of some words, of which there is one at least. Cost: O(n)."""
    return _extent(np.ascontiguousarray(values))


@compiled
def _clip(
    start: I64Array, stop: I64Array, lower: int, upper: int, rows: I64Array, out: I64Array
) -> int:
    found = 0
    for row in range(start.size):
        begin, end = start[row], stop[row]
        if begin < upper and end > lower and begin < end:
            rows[found] = row
            out[0, found] = max(begin, lower)
            out[1, found] = end if end < upper else _FOREVER
            found += 1
    return found


def clipped(
    start: I64Array, stop: I64Array, lower: int, upper: int
) -> tuple[I64Array, I64Array, I64Array]:
    """The rows present in [lower, upper), and their starts and stops in it: the greatest word for
    no stop.

    Cost: O(n).
    """
    n = len(start)
    rows, out = np.empty(n, np.int64), np.empty((2, n), np.int64)
    found = _clip(start, stop, lower, upper, rows, out)
    return rows[:found], out[0, :found], out[1, :found]


@compiled
def _inside(start: I64Array, stop: I64Array, lower: int, upper: int) -> bool:
    for row in range(start.size):
        begin, end = start[row], stop[row]
        if begin < lower or begin >= upper or begin >= end or upper <= end < _FOREVER:
            return False
    return True


def inside(start: I64Array, stop: I64Array, lower: int, upper: int) -> bool:
    """Whether `clipped` would leave all rows as they are: they begin in [lower, upper) and end
    there or never.

    Cost: O(n), less where they are not.
    """
    return bool(_inside(start, stop, lower, upper))


@compiled
def _turn(start: I64Array, stop: I64Array, seen: int, lower: int, upper: int, out: I64Array) -> int:
    found = 0
    for row in range(start.size):
        if seen == lower or start[row] >= lower:
            out[0, found], out[1, found], out[2, found] = row, max(start[row], lower), 1
            found += 1
    for row in range(start.size):
        if stop[row] < upper:
            out[0, found], out[1, found], out[2, found] = row, stop[row], -1
            found += 1
    return found


def turns(
    start: I64Array, stop: I64Array, seen: int, lower: int, upper: int
) -> tuple[I64Array, I64Array, I64Array]:
    """What begins (1) and then what ends (-1) at instants in [lower, upper): rows, instants, diffs.

    The rows are of a window from `seen` on; what is present at an instant before `lower` does not
    begin again. Cost: O(n).
    """
    out = np.empty((3, 2 * len(start)), np.int64)
    found = _turn(start, stop, seen, lower, upper, out)
    return out[0, :found], out[1, :found], out[2, :found]


@compiled
def _last(stop: I64Array, upper: int) -> tuple[int, int]:
    ending, living = 0, 0
    for row in range(stop.size):
        ending += stop[row] == upper
        living += stop[row] > upper
    return ending, living


def lasting(stop: I64Array, upper: int) -> tuple[int, int]:
    """How many rows stop at an instant, and how many stop after it. Cost: O(n)."""
    ending, living = _last(stop, upper)
    return ending, living


@compiled
def _within(values: I64Array, low: int, high: int, rows: I64Array) -> int:
    found = 0
    for row in range(values.size):
        if low <= values[row] <= high:
            rows[found] = row
            found += 1
    return found


def within(values: I64Array, low: int, high: int) -> I64Array:
    """The rows with a word between two others, or equal to one. Cost: O(n)."""
    rows = np.empty(len(values), np.int64)
    return rows[: _within(values, low, high, rows)]


@compiled
def _counting(rows: I64Array) -> bool:
    at = 0
    while at < rows.size and rows[at] == at:
        at += 1
    return at == rows.size


def counting(rows: I64Array) -> bool:
    """Whether these are the numbers from zero on, one after the other.

    Cost: O(n), less where they are not.
    """
    return bool(_counting(rows))


@compiled
def _uniform_facts(
    ids: I64Array,
    start: I64Array,
    stop: I64Array,
    expires: I64Array,
    firsts: I64Array,
    same: BoolArray,
) -> int:
    for group in range(firsts.size):
        same[group] = True
    several = 0
    for row in range(ids.size):
        first = firsts[ids[row]]
        alike = start[row] == start[first] and stop[row] == stop[first]
        if not (alike and expires[row] == expires[first]) and same[ids[row]]:
            same[ids[row]] = False
            several += 1
    return several


def uniform_facts(
    ids: I64Array, start: I64Array, stop: I64Array, expires: I64Array, firsts: I64Array
) -> tuple[BoolArray, int]:
    """For each group whether all of its rows come and go together with one expiry; how many do not.

    Cost: O(n).
    """
    same = np.empty(len(firsts), np.bool_)
    return same, _uniform_facts(ids, start, stop, expires, firsts, same)


@compiled
def _lone(ids: I64Array, sizes: I64Array, rows: I64Array) -> int:
    for row in range(ids.size):
        sizes[ids[row]] += 1
    found = 0
    for row in range(ids.size):
        if sizes[ids[row]] == 1:
            rows[found] = row
            found += 1
    return found


def lone_rows(ids: I64Array, groups: int) -> I64Array:
    """The rows whose number no other row has. Cost: O(n + groups)."""
    rows = np.empty(len(ids), np.int64)
    return rows[: _lone(ids, np.zeros(groups, np.int64), rows)]


__all__ = [
    "clipped", "counting", "extent", "inside", "lasting", "lone_rows", "turns",
    "uniform_facts", "within",
]  # fmt: skip
