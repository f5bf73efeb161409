"""Compiled loops that bind offsets to our times.

Importing it imports numba: callers that may not need it import it where they do.
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

    The columns are those of `Bindings`. Rows mostly come in the order of their log: each is looked
    for where the one before was.
    Cost: O(n) where neighbours share range and binding, else O(n log bindings).
    """
    at, place = -1, 0
    for i in range(partitions.size):
        partition, offset = np.uint64(partitions[i]), offsets[i]
        inside = at >= 0 and starts[at] <= partition
        if not inside or (at + 1 < starts.size and starts[at + 1] <= partition):
            at = _upper_bound(starts, 0, starts.size, partition) - 1
            place = int(first[at])
        end = int(first[at + 1])
        here = place < end and bound[place] > offset
        if not here or (place > first[at] and bound[place - 1] > offset):
            place = _upper_bound(bound, int(first[at]), end, offset)
        targets[i] = times[place] if place < end else ended[at]
