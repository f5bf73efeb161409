"""Pairs of rows that match and are present together."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, compiled
from tidemill.arrangement.relational.grouping import Buckets

Pairs = tuple[I64Array, I64Array, I64Array, I64Array]
"""Left row, right row, start and stop of what they share."""
PAIRS_MAX = 1 << 62
"""More pairs than any memory holds."""


@compiled
def _pair(
    ids: I64Array,
    order: I64Array,
    low: I64Array,
    high: I64Array,
    left_start: I64Array,
    left_stop: I64Array,
    right_start: I64Array,
    right_stop: I64Array,
    out: I64Array,
    most: int,
) -> int:
    """Fill `out` with the pairs while there is room; how many there are, as far as `most` and one
    row more.
    """
    found = 0
    room = out.shape[1]
    for row in range(ids.size):
        if ids[row] < 0:
            continue
        if found > most:
            break
        begin, end = left_start[row], left_stop[row]
        for at in range(low[row], high[row]):
            other = order[at]
            start = max(begin, right_start[other])
            stop = min(end, right_stop[other])
            if start < stop:
                if found < room:
                    out[0, found] = row
                    out[1, found] = other
                    out[2, found] = start
                    out[3, found] = stop
                found += 1
    return found


def _pairs(
    ids: I64Array,
    buckets: Buckets,
    low: I64Array,
    high: I64Array,
    left: tuple[I64Array, I64Array],
    right: tuple[I64Array, I64Array],
    most: int,
) -> Pairs | None:
    room = np.empty((4, max(16, len(ids))), np.int64)
    order = buckets.order
    found = _pair(ids, order, low, high, *left, *right, room, most)
    if found > most:
        return None
    if found > room.shape[1]:
        room = np.empty((4, found), np.int64)
        _pair(ids, order, low, high, *left, *right, room, most)
    return room[0, :found], room[1, :found], room[2, :found], room[3, :found]


@compiled
def _pair_buckets(
    ids: I64Array,
    starts: I64Array,
    order: I64Array,
    left_start: I64Array,
    left_stop: I64Array,
    right_start: I64Array,
    right_stop: I64Array,
    out: I64Array,
    most: int,
) -> int:
    """As `_pair`, with all rows of each bucket."""
    found = 0
    room = out.shape[1]
    for row in range(ids.size):
        if ids[row] < 0:
            continue
        if found > most:
            break
        begin, end = left_start[row], left_stop[row]
        for at in range(starts[ids[row]], starts[ids[row] + 1]):
            other = order[at]
            start = max(begin, right_start[other])
            stop = min(end, right_stop[other])
            if start < stop:
                if found < room:
                    out[0, found] = row
                    out[1, found] = other
                    out[2, found] = start
                    out[3, found] = stop
                found += 1
    return found


def join_buckets(
    ids: I64Array,
    buckets: Buckets,
    left: tuple[I64Array, I64Array],
    right: tuple[I64Array, I64Array],
    most: int = PAIRS_MAX,
) -> Pairs | None:
    """Each left row with the right rows of its bucket, as far as they are present together; None
    for more than `most`.

    Shapes: `ids` says for each left row the bucket, -1 for none; `left` and `right` are starts and
    stops. Cost: O(left + pairs of rows in one bucket); no memory where there are too many.
    """
    room = np.empty((4, max(16, len(ids), len(buckets.order))), np.int64)
    found = _pair_buckets(ids, buckets.starts, buckets.order, *left, *right, room, most)
    if found > most:
        return None
    if found > room.shape[1]:
        room = np.empty((4, found), np.int64)
        _pair_buckets(ids, buckets.starts, buckets.order, *left, *right, room, most)
    return room[0, :found], room[1, :found], room[2, :found], room[3, :found]


@compiled
def _search(values: I64Array, low: int, high: int, wanted: int) -> int:
    """The first place in values[low:high], ascending, that is at least `wanted`."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _narrow(
    ids: I64Array,
    starts: I64Array,
    values: I64Array,
    least: I64Array,
    greatest: I64Array,
    low: I64Array,
    high: I64Array,
) -> None:
    for row in range(ids.size):
        bucket = ids[row]
        if bucket < 0:
            continue
        first, last = starts[bucket], starts[bucket + 1]
        low[row] = _search(values, first, last, least[row])
        end = low[row]
        if greatest[row] >= least[row]:
            end = last
            if greatest[row] < np.int64(0x7FFF_FFFF_FFFF_FFFF):
                end = _search(values, low[row], last, greatest[row] + 1)
        high[row] = end


def join_ranges(
    ids: I64Array,
    buckets: Buckets,
    values: I64Array,
    limits: tuple[I64Array, I64Array],
    left: tuple[I64Array, I64Array],
    right: tuple[I64Array, I64Array],
    most: int = PAIRS_MAX,
) -> Pairs | None:
    """As `join_buckets`, of each bucket only rows whose value lies between the limits of the left
    row.

    `values` stand in the order of the buckets and ascend within each. Cost: O(left · log right +
    pairs in the ranges).
    """
    low = np.zeros(len(ids), np.int64)
    high = np.zeros(len(ids), np.int64)
    _narrow(ids, buckets.starts, values, limits[0], limits[1], low, high)
    return _pairs(ids, buckets, low, high, left, right, most)


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
