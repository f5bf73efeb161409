"""From sums before and diffs now to what changes in a collection with one row for each key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled


@compiled
def replace_sums(
    keys: U64Array, times: U64Array, diffs: I64Array, sums: I64Array,
    out_keys: U64Array, out_vals: U64Array, out_times: U64Array, out_diffs: I64Array,
) -> int:  # fmt: skip
    """For each update of a key's sum the row with the sum before goes, the one with the new comes.

    Updates are sorted by key and time; `sums` holds, for each distinct key in order, the sum before
    all of them. A sum of zero has no row. Rows come out sorted by (key, val) if no key has two
    updates; sums are words in two's complement.
    Returns how many rows were written, or −1 if a sum does not fit in 64 bits.
    """
    n, at = 0, -1
    total = np.int64(0)
    for i in range(keys.size):
        if i == 0 or keys[i] != keys[i - 1]:
            at += 1
            total = sums[at]
        summed = total + diffs[i]
        if ((total ^ summed) & (diffs[i] ^ summed)) < 0:
            return -1
        before, after = np.uint64(total), np.uint64(summed)
        for turn in range(2):
            leaves = (before < after) == (turn == 0)
            val = before if leaves else after
            if val != 0:
                out_keys[n], out_vals[n] = keys[i], val
                out_times[0, n], out_diffs[n] = times[0, i], -1 if leaves else 1
                n += 1
        total = summed
    return n


@compiled
def span_of_sums(diffs: I64Array, sums: I64Array) -> tuple[int, np.uint64, np.uint64]:
    """How many rows `replace_sums` writes if each key has one update; the least and greatest val.

    Fewer than none: a sum does not fit in 64 bits. Cost: O(n).
    """
    rows, low, high = 0, ~np.uint64(0), np.uint64(0)
    for i in range(diffs.size):
        summed = sums[i] + diffs[i]
        if ((sums[i] ^ summed) & (diffs[i] ^ summed)) < 0:
            return -1, low, high
        for total in (sums[i], summed):
            if total != 0:
                low, high = min(low, np.uint64(total)), max(high, np.uint64(total))
                rows += 1
    return rows, low, high


@compiled
def pack_replaced_sums(
    keys: U64Array, times: U64Array, diffs: I64Array, sums: I64Array, table: U64Array,
    rows: U64Array, out_diffs: npt.NDArray[np.int8],
) -> None:  # fmt: skip
    """What `replace_sums` writes if each key has one update, as packed rows of (key, val, time).

    `rows` are zero before. Cost: O(n).
    """
    n = 0
    for i in range(keys.size):
        before, after = np.uint64(sums[i]), np.uint64(sums[i] + diffs[i])
        for val in (min(before, after), max(before, after)):
            if val != 0:
                rows[n, 0] |= (keys[i] - table[0, 0]) << table[0, 3]
                rows[n, table[1, 2]] |= (val - table[1, 0]) << table[1, 3]
                rows[n, table[2, 2]] |= (times[0, i] - table[2, 0]) << table[2, 3]
                out_diffs[n] = 1 if val == after else -1
                n += 1


@compiled
def distinct_of(sorted_keys: U64Array, out: U64Array) -> int:
    """The distinct values of a sorted column; how many. Cost: O(n)."""
    n = 0
    for i in range(sorted_keys.size):
        if i == 0 or sorted_keys[i] != sorted_keys[i - 1]:
            out[n] = sorted_keys[i]
            n += 1
    return n


@compiled
def heavy_keys(sorted_keys: U64Array, least: int, out: U64Array) -> int:
    """The values that come at least `least` times in a sorted column; how many. Cost: O(n)."""
    n, start = 0, 0
    for i in range(sorted_keys.size):
        if sorted_keys[i] != sorted_keys[start]:
            start = i
        if i - start + 1 == least:
            out[n] = sorted_keys[i]
            n += 1
    return n


@compiled
def rank_in(distinct: U64Array, column: U64Array, ranks: U64Array) -> None:
    """The position of each value of a sorted column among its sorted distinct values.

    Cost: O(n).
    """
    at = 0
    for i in range(column.size):
        while distinct[at] != column[i]:
            at += 1
        ranks[i] = np.uint64(at)


@compiled
def not_after(owners: U64Array, times: U64Array, moments: U64Array, asked: I64Array) -> U64Array:
    """Positions of the rows whose owner is asked for a moment that is at or after the row's time.

    Shapes: owners (n,), times (lanes, n), moments (lanes, owners), asked (owners,) of zero or one.
    Cost: O(n · lanes).
    """
    found = np.empty(owners.size, np.uint64)
    n = 0
    for i in range(owners.size):
        owner = owners[i]
        visible = asked[owner] != 0
        for lane in range(times.shape[0]):
            visible &= times[lane, i] <= moments[lane, owner]
        if visible:
            found[n] = i
            n += 1
    return found[:n]
