"""From sums before and diffs now to what changes in a collection with one row for each key."""

from __future__ import annotations

import numpy as np

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
def distinct_of(sorted_keys: U64Array, out: U64Array) -> int:
    """The distinct values of a sorted column; how many. Cost: O(n)."""
    n = 0
    for i in range(sorted_keys.size):
        if i == 0 or sorted_keys[i] != sorted_keys[i - 1]:
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
