"""Look up keys in packed, sorted rows: what they hold, added up or row by row.

The columns of a layout are key, val, time lanes. Diffs are one for each row, or one for all.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import DiffArray, I64Array, U64Array, compiled, inlined
from tidemill.arrangement.kernels.packing import field_of
from tidemill.arrangement.kernels.products import product_fits


@inlined
def key_of(rows: U64Array, i: int, table: U64Array) -> np.uint64:
    """The key of packed row `i`."""
    key: np.uint64 = ((rows[i, 0] >> table[0, 3]) & table[0, 1]) + table[0, 0]
    return key


@compiled
def seek_key(rows: U64Array, table: U64Array, start: int, key: np.uint64) -> int:
    """The first row from `start` on whose key is not below `key`.

    Starts where the key would be if keys were spread evenly, and goes on in growing steps.
    Cost: O(log of the distance), less for keys spread evenly.
    """
    last = rows.shape[0] - 1
    if start > last:
        return int(start)
    first_key, last_key = key_of(rows, start, table), key_of(rows, last, table)
    if first_key >= key:
        return int(start)
    if last_key < key:
        return int(last + 1)
    low, high = start, last  # the key of the one is below, of the other not below
    share = np.float64(key - first_key) / np.float64(last_key - first_key)
    guess = low + max(1, int(share * (high - low)))
    step = 1
    if guess < high:
        if key_of(rows, guess, table) < key:
            low = guess
            while low + step < high and key_of(rows, low + step, table) < key:
                low += step
                step *= 2
            high = min(high, low + step)
        else:
            high = guess
            while high - step > low and key_of(rows, high - step, table) >= key:
                high -= step
                step *= 2
            low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        if key_of(rows, middle, table) < key:
            low = middle
        else:
            high = middle
    return int(high)


@compiled
def match_packed(
    keys: U64Array, rows: U64Array, table: U64Array,
    places: I64Array, lefts: I64Array, rights: I64Array,
) -> int:  # fmt: skip
    """The next pairs of positions of equal keys in a sorted column and in packed rows.

    As `match_keys`, with packed rows in place of the second column.
    """
    i, j, k = places[0], places[1], places[2]
    n, size = 0, rows.shape[0]
    while i < keys.size and j < size:
        key = keys[i]
        here = key_of(rows, j, table)
        if key < here:
            i += 1
            if i < keys.size and keys[i] < here:
                step = 1
                while i + step < keys.size and keys[i + step] < here:
                    i += step
                    step *= 2
                end = min(i + step, keys.size)
                i += 1
                while i < end:
                    middle = (i + end) // 2
                    if keys[middle] < here:
                        i = middle + 1
                    else:
                        end = middle
            continue
        if here < key:
            j = seek_key(rows, table, j, key)
            k = j
            continue
        while k < size and key_of(rows, k, table) == key:
            if n == lefts.size:
                places[0], places[1], places[2] = i, j, k
                return n
            lefts[n], rights[n] = i, k
            n += 1
            k += 1
        i += 1
        if i < keys.size and keys[i] == key:
            k = j
        else:
            j = k
    places[0], places[1], places[2] = i, j, k
    return n


@compiled
def gather_packed(
    rows: U64Array, table: U64Array, diffs: DiffArray, positions: I64Array,
    vals: U64Array, times: U64Array, out_diffs: I64Array,
) -> None:  # fmt: skip
    """Vals, times and diffs of the packed rows at `positions`. Cost: O(n), at random places."""
    each = 1 if diffs.size > 1 else 0
    for n in range(positions.size):
        at = positions[n]
        vals[n] = field_of(rows, at, table, 1)
        for lane in range(times.shape[0]):
            times[lane, n] = field_of(rows, at, table, 2 + lane)
        out_diffs[n] = diffs[at * each]


@compiled
def join_packed(
    lefts: I64Array, rights: I64Array, swapped: bool,
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array,
    rows: U64Array, table: U64Array, row_diffs: DiffArray,
    out_keys: U64Array, left_vals: U64Array, right_vals: U64Array, out_times: U64Array,
    out_diffs: I64Array,
) -> bool:  # fmt: skip
    """What pairs of an update and a packed row make; whether all products of diffs fit.

    With `swapped` the packed row is the left side. Cost: O(n).
    """
    each = 1 if row_diffs.size > 1 else 0
    for n in range(lefts.size):
        i, at = lefts[n], rights[n]
        out_keys[n] = keys[i]
        val = field_of(rows, at, table, 1)
        left_vals[n] = val if swapped else vals[i]
        right_vals[n] = vals[i] if swapped else val
        for lane in range(out_times.shape[0]):
            out_times[lane, n] = max(times[lane, i], field_of(rows, at, table, 2 + lane))
        x, y = diffs[i], np.int64(row_diffs[at * each])
        out_diffs[n] = x * y
        if not (-(2**31) < x < 2**31 and -(2**31) < y < 2**31) and not product_fits(x, y):
            return False
    return True


@compiled
def add_sums(
    keys: U64Array,
    rows: U64Array,
    table: U64Array,
    diffs: DiffArray,
    weighted: bool,
    sums: I64Array,
) -> bool:
    """Add to the sum of each sorted, distinct key the diffs of its packed rows; whether all fit.

    With `weighted` each diff is multiplied by the val, in two's complement.
    Cost: a search for each key, and its rows.
    """
    each = 1 if diffs.size > 1 else 0
    j, size = 0, rows.shape[0]
    for i in range(keys.size):
        key = keys[i]
        j = seek_key(rows, table, j, key)
        while j < size and key_of(rows, j, table) == key:
            term = np.int64(diffs[j * each])
            if weighted:
                val = np.int64(field_of(rows, j, table, 1))
                if term != 1 and term != -1 and not product_fits(val, term):
                    return False
                term *= val
            summed = sums[i] + term
            if ((sums[i] ^ summed) & (term ^ summed)) < 0:
                return False
            sums[i] = summed
            j += 1
    return True


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
