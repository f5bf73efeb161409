"""Pairs of equal keys of two sorted runs, found a bounded piece at a time, and what they make."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.columns import Columns
from tidemill.arrangement.kernels.products import product_fits
from tidemill.errors import UsageError

_PIECE = 256
"""The pairs that a first piece has room for: a tiny change pays for no more."""


@compiled
def first_at_least(column: U64Array, start: int, key: np.uint64) -> int:
    """The first position from `start` on in a sorted column with a value not below `key`.

    Cost: O(log of the distance).
    """
    if start >= column.size or column[start] >= key:
        return start
    step = 1
    while start + step < column.size and column[start + step] < key:
        start += step
        step *= 2
    end = min(start + step, column.size)
    start += 1
    while start < end:
        middle = (start + end) // 2
        if column[middle] < key:
            start = middle + 1
        else:
            end = middle
    return start


@compiled
def match_keys(
    a: U64Array, b: U64Array, places: I64Array, lefts: I64Array, rights: I64Array
) -> int:
    """The next pairs of positions of equal keys in two sorted columns, as many as there is room.

    `places` holds where to go on, also inside a key: row of `a`, start of its key's run in `b`, row
    of `b`. Returns how many pairs were written; fewer than there is room for: there are no more.
    Cost: O(pairs), and for each distinct key of the one column a search in the other.
    """
    i, j, k = places[0], places[1], places[2]
    n = 0
    while i < a.size and j < b.size:
        if a[i] < b[j]:
            i = first_at_least(a, i, b[j])
            continue
        if b[j] < a[i]:
            j = first_at_least(b, j, a[i])
            k = j
            continue
        while k < b.size and b[k] == a[i]:
            if n == lefts.size:
                places[0], places[1], places[2] = i, j, k
                return n
            lefts[n], rights[n] = i, k
            n += 1
            k += 1
        i += 1
        if i < a.size and a[i] == a[i - 1]:
            k = j
        else:
            j = k
    places[0], places[1], places[2] = i, j, k
    return n


@compiled
def _joined(
    lefts: I64Array, rights: I64Array,
    a_vals: U64Array, a_times: U64Array, a_diffs: I64Array,
    b_vals: U64Array, b_times: U64Array, b_diffs: I64Array,
    left_vals: U64Array, right_vals: U64Array, times: U64Array, diffs: I64Array,
) -> bool:  # fmt: skip
    for n in range(diffs.size):
        i, j = lefts[n], rights[n]
        left_vals[n], right_vals[n] = a_vals[i], b_vals[j]
        for lane in range(times.shape[0]):
            times[lane, n] = max(a_times[lane, i], b_times[lane, j])
        x, y = a_diffs[i], b_diffs[j]
        diffs[n] = x * y
        if not (-(2**31) < x < 2**31 and -(2**31) < y < 2**31) and not product_fits(x, y):
            return False
    return True


class RunJoin:
    """The join of two collections sorted by key, given out in pieces of bounded size."""

    __slots__ = ("_a", "_b", "_done", "_places")

    def __init__(self, a: Columns, b: Columns) -> None:
        self._a, self._b = a.contiguous(), b.contiguous()
        self._places = np.zeros(3, np.int64)
        self._done = not (len(a) and len(b))

    @property
    def done(self) -> bool:
        return self._done

    def work(self, limit: int) -> tuple[Columns, U64Array]:
        """At most `limit` more pairs: keys, left vals, joins of times, products of diffs; right
        vals.

        Not consolidated.

        Raises: UsageError if a product does not fit in 64 bits.
        Cost: O(limit), and a search for each key without a match.
        """
        lefts, rights = self._positions(limit)
        n = len(lefts)
        a, b = self._a, self._b
        left_vals, right_vals = np.empty(n, np.uint64), np.empty(n, np.uint64)
        times, diffs = np.empty((a.lanes, n), np.uint64), np.empty(n, np.int64)
        if not _joined(
            lefts, rights, a.vals, a.times, a.diffs, b.vals, b.times, b.diffs,
            left_vals, right_vals, times, diffs,
        ):  # fmt: skip
            raise UsageError("a product of diffs does not fit in 64 bits", reason="Overflow")
        return Columns(a.keys[lefts], left_vals, times, diffs), right_vals

    def _positions(self, limit: int) -> tuple[I64Array, I64Array]:
        lefts: list[I64Array] = []
        rights: list[I64Array] = []
        found, room = 0, _PIECE
        while not self._done and found < limit:
            piece = min(room, limit - found)
            left, right = np.empty(piece, np.int64), np.empty(piece, np.int64)
            n = match_keys(self._a.keys, self._b.keys, self._places, left, right)
            self._done = n < piece
            lefts.append(left[:n])
            rights.append(right[:n])
            found += n
            room *= 8
        if len(lefts) == 1:
            return lefts[0], rights[0]
        if not lefts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(lefts), np.concatenate(rights)


def join(a: Columns, b: Columns) -> tuple[Columns, U64Array]:
    """All pairs at once; as `RunJoin.work`."""
    matches = RunJoin(a, b)
    return matches.work(2**62)


@compiled
def cross_rows(
    vals: U64Array, times: U64Array, diffs: I64Array,
    other_vals: U64Array, other_times: U64Array, other_diffs: I64Array, start: int,
    left_vals: U64Array, right_vals: U64Array, out_times: U64Array, out_diffs: I64Array,
) -> bool:  # fmt: skip
    """Pairs from number `start` on of all rows with all others; whether all products of diffs fit.

    As many as there is room for, which is no more than there are. Cost: O(pairs).
    """
    i, j = start // other_diffs.size, start % other_diffs.size
    for n in range(out_diffs.size):
        left_vals[n], right_vals[n] = vals[i], other_vals[j]
        for lane in range(out_times.shape[0]):
            out_times[lane, n] = max(times[lane, i], other_times[lane, j])
        x, y = diffs[i], other_diffs[j]
        if not (-(2**31) < x < 2**31 and -(2**31) < y < 2**31) and not product_fits(x, y):
            return False
        out_diffs[n] = x * y
        j += 1
        if j == other_diffs.size:
            i, j = i + 1, 0
    return True
