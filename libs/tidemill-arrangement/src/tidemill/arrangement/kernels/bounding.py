"""Times against the interval of a batch, and small batches made in one call."""

from __future__ import annotations

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.runs import sum_few

OVERFLOW = -1
"""In place of a count: a sum of diffs does not fit in 64 bits."""


@compiled
def outside(times: U64Array, lower: U64Array, upper: U64Array) -> int:
    """The first time that is not beyond `lower` or is beyond `upper`, or −1.

    Shapes: times (lanes, n), frontiers (elements, lanes).
    """
    lanes = times.shape[0]
    for i in range(times.shape[1]):
        after = False
        for element in range(lower.shape[0]):
            reached = True
            for lane in range(lanes):
                reached &= times[lane, i] >= lower[element, lane]
            after |= reached
        if not after:
            return i
        for element in range(upper.shape[0]):
            reached = True
            for lane in range(lanes):
                reached &= times[lane, i] >= upper[element, lane]
            if reached:
                return i
    return -1


@compiled
def pack_few(
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array,
    lower: U64Array, upper: U64Array, rows: U64Array, sums: I64Array,
) -> int:  # fmt: skip
    """A handful of updates as sorted rows with a word for each column, equal ones summed.

    Shapes: rows (n, 2 + lanes), sums (n,); frontiers (elements, lanes).
    Returns how many rows there are, `OVERFLOW`, or −2 − i if time i is outside the interval.
    Cost: O(n²).
    """
    at = outside(times, lower, upper)
    if at >= 0:
        return -2 - at
    for i in range(keys.size):
        rows[i, 0], rows[i, 1], sums[i] = keys[i], vals[i], diffs[i]
        for lane in range(times.shape[0]):
            rows[i, 2 + lane] = times[lane, i]
    return int(sum_few(rows, sums))
