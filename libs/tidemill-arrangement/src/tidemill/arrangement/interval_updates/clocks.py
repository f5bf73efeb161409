"""The ticks of many clocks between limits of their own."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, compiled

_LAST = np.int64((1 << 63) - 1)


@compiled
def _count_ticks(
    offset: I64Array,
    period: I64Array,
    low: I64Array,
    high: I64Array,
    stop: I64Array,
    upper: int,
    first: I64Array,
) -> float:
    total = 0.0  # whole numbers may be too small for it
    for row in range(offset.size):
        high[row] = min(high[row], min(stop[row], upper) - 1)
        begin = offset[row]
        if low[row] > begin:
            more = (np.uint64(low[row]) - np.uint64(begin)) % np.uint64(period[row])
            begin = low[row]
            if more > 0:
                rest = np.int64(np.uint64(period[row]) - more)
                begin = begin + rest if begin <= _LAST - rest else _LAST
        first[row] = begin
        if begin <= high[row]:
            distance = np.uint64(high[row]) - np.uint64(begin)
            total += np.float64(distance // np.uint64(period[row])) + 1.0
    return total


@compiled
def _list_ticks(
    first: I64Array, period: I64Array, high: I64Array, rows: I64Array, times: I64Array
) -> None:
    at = 0
    for row in range(first.size):
        time = first[row]
        more = time <= high[row]
        while more:
            rows[at] = row
            times[at] = time
            at += 1
            more = np.uint64(high[row]) - np.uint64(time) >= np.uint64(period[row])
            if more:
                time += period[row]


def tick_pairs(
    offset: I64Array,
    period: I64Array,
    low: I64Array,
    high: I64Array,
    until: tuple[I64Array, int],
    most: int,
) -> tuple[I64Array, I64Array] | None:
    """Each row with the times offset + k · period, k >= 0, between its limits: (rows, times); None
    if there are too many.

    Times lie before both of `until`, a stop of each row and one for all: `high` is lowered to that.
    Values and periods are any words; no tick is at the last one. Cost: O(rows + ticks).
    """
    first = np.empty(len(offset), np.int64)
    found = _count_ticks(offset, period, low, high, *until, first)
    if found > most:
        return None
    total = int(found)
    rows, times = np.empty(total, np.int64), np.empty(total, np.int64)
    _list_ticks(first, period, high, rows, times)
    return rows, times
