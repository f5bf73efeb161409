"""Compiled loops that bind offsets to our times.

Importing it loads loops: callers that may not need it import it where they do.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled


@compiled
def _upper_bound(column: U64Array, low: int, high: int, value: np.uint64) -> int:
    """The first place from `low` to `high` whose value is above `value`, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if column[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def bind_offsets(
    starts: U64Array, first: I64Array, bound: U64Array, times: U64Array, ended: U64Array,
    partitions: I64Array, offsets: U64Array, targets: U64Array,
) -> None:  # fmt: skip
    """For each row the time of the first binding of its range that is above its offset.

    The columns are those of `Bindings`. Rows of one range mostly come in the order of their log. So
    each search begins at the result of the row before in its range. Ranges may be mixed.

    Cost: O(n) for rows in that order, else O(n log bindings).
    """
    places, last = first[:-1].copy(), starts.size - 1
    at = 0
    for i in range(partitions.size):
        partition, offset = np.uint64(partitions[i]), offsets[i]
        if starts[at] > partition or (at < last and starts[at + 1] <= partition):
            at = min(partitions[i], last)  # partitions that are bound one by one count from 0
            if starts[at] != partition:
                at = _upper_bound(starts, 0, starts.size, partition) - 1
        low, end, place = first[at], first[at + 1], places[at]
        if place > low and bound[place - 1] > offset:
            place = _upper_bound(bound, low, place - 1, offset)
        elif place < end and bound[place] <= offset:
            place += 1
            if place < end and bound[place] <= offset:
                place = _upper_bound(bound, place + 1, end, offset)
        places[at] = place
        targets[i] = times[place] if place < end else ended[at]
