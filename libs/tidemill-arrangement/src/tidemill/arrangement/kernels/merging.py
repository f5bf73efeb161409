"""Merge two sorted runs of updates, a bounded number of rows at a time."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.columns import Columns
from tidemill.arrangement.kernels.consolidating import overflow


@compiled
def _before(
    a_keys: U64Array, a_vals: U64Array, a_times: U64Array, i: int,
    b_keys: U64Array, b_vals: U64Array, b_times: U64Array, j: int,
) -> int:  # fmt: skip
    """Negative, zero or positive as row `i` of a is before, equal to or after row `j` of b."""
    if a_keys[i] != b_keys[j]:
        return -1 if a_keys[i] < b_keys[j] else 1
    if a_vals[i] != b_vals[j]:
        return -1 if a_vals[i] < b_vals[j] else 1
    for lane in range(a_times.shape[0]):
        if a_times[lane, i] != b_times[lane, j]:
            return -1 if a_times[lane, i] < b_times[lane, j] else 1
    return 0


@compiled
def _merge(
    a_keys: U64Array, a_vals: U64Array, a_times: U64Array, a_diffs: I64Array,
    b_keys: U64Array, b_vals: U64Array, b_times: U64Array, b_diffs: I64Array,
    fuel: int, keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array,
    places: I64Array,
) -> int:  # fmt: skip
    i, j, n = places[0], places[1], places[2]
    end_a, end_b, lanes = a_diffs.size, b_diffs.size, times.shape[0]
    read = 0
    while read < fuel and (i < end_a or j < end_b):
        order = 1
        if j == end_b:
            order = -1
        elif i < end_a:
            order = _before(a_keys, a_vals, a_times, i, b_keys, b_vals, b_times, j)
        if order <= 0:
            keys[n], vals[n], diffs[n] = a_keys[i], a_vals[i], a_diffs[i]
            for lane in range(lanes):
                times[lane, n] = a_times[lane, i]
            i += 1
            read += 1
        else:
            keys[n], vals[n], diffs[n] = b_keys[j], b_vals[j], b_diffs[j]
            for lane in range(lanes):
                times[lane, n] = b_times[lane, j]
        if order >= 0:
            read += 1
            if order == 0:
                summed = diffs[n] + b_diffs[j]
                if ((diffs[n] ^ summed) & (b_diffs[j] ^ summed)) < 0:
                    return -1
                diffs[n] = summed
            j += 1
        n += diffs[n] != 0
    places[0], places[1], places[2] = i, j, n
    return read


class RunMerge:
    """The merge of two sorted, consolidated runs, done a piece at a time."""

    __slots__ = ("_a", "_b", "_out", "_places")

    def __init__(self, a: Columns, b: Columns) -> None:
        self._a, self._b = a.contiguous(), b.contiguous()
        # NB: one row more than can stay: a sum is written before it is known to be zero.
        rows = len(a) + len(b) + 1
        self._out = Columns(
            np.empty(rows, np.uint64), np.empty(rows, np.uint64),
            np.empty((a.lanes, rows), np.uint64), np.empty(rows, np.int64),
        )  # fmt: skip
        self._places = np.zeros(3, np.int64)

    @property
    def complete(self) -> bool:
        return int(self._places[0] + self._places[1]) == len(self._a) + len(self._b)

    def work(self, fuel: int) -> int:
        """Read at most `fuel` rows, or one more where two make one; how many were read.

        Raises: UsageError if a sum of diffs does not fit in 64 bits.
        Cost: O(fuel).
        """
        a, b, out = self._a, self._b, self._out
        read: int = _merge(
            a.keys, a.vals, a.times, a.diffs, b.keys, b.vals, b.times, b.diffs, fuel,
            out.keys, out.vals, out.times, out.diffs, self._places,
        )  # fmt: skip
        if read < 0:
            raise overflow()
        return read

    def outcome(self) -> Columns:
        """What was merged so far, sorted and consolidated; all of it once complete."""
        return self._out.slice(0, int(self._places[2]))


def merge(a: Columns, b: Columns) -> Columns:
    """The sorted, consolidated union of two sorted, consolidated runs. Cost: O(n)."""
    if not len(a) or not len(b):
        return b if len(b) else a
    merging = RunMerge(a, b)
    merging.work(len(a) + len(b))
    return merging.outcome()
