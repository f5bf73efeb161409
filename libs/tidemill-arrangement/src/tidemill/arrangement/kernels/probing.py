"""Look up keys in packed, sorted rows: what they hold, added up or row by row.

The columns of a layout are key, val, time lanes. Diffs are one for each row, or one for all.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import DiffArray, I64Array, U64Array, compiled, inlined
from tidemill.arrangement.kernels.packing import field_of
from tidemill.arrangement.kernels.products import product_fits

_MERGED_BELOW = 8
"""Up to so many rows for each key all rows are read: cheaper than looking for keys one by one."""


@inlined
def key_of(rows: U64Array, i: int, table: U64Array) -> np.uint64:
    """The key of packed row `i`."""
    key: np.uint64 = ((rows[i, 0] >> table[0, 3]) & table[0, 1]) + table[0, 0]
    return key


@compiled
def seek_key(rows: U64Array, table: U64Array, start: int, key: np.uint64) -> int:
    """The first row from `start` on whose key is not below `key`. Cost: O(log of the distance)."""
    end = rows.shape[0]
    if start >= end or key_of(rows, start, table) >= key:
        return int(start)
    low, step = start, 1
    while low + step < end and key_of(rows, low + step, table) < key:
        low += step
        step *= 2
    high = min(end, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        if key_of(rows, middle, table) < key:
            low = middle
        else:
            high = middle
    return int(high)


@compiled
def _seek_around(rows: U64Array, table: U64Array, guess: int, key: np.uint64) -> int:
    """The first of all rows whose key is not below `key`, looked for around `guess`."""
    if key_of(rows, guess, table) < key:
        return seek_key(rows, table, guess, key)
    high, step = guess, 1  # the key of this row is not below
    while high - step >= 0 and key_of(rows, high - step, table) >= key:
        high -= step
        step *= 2
    low = max(-1, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        if key_of(rows, middle, table) < key:
            low = middle
        else:
            high = middle
    return int(high)


@compiled
def locate(keys: U64Array, rows: U64Array, table: U64Array, positions: I64Array) -> None:
    """For each sorted key the first row whose key is not below it.

    Few keys among many rows are looked for where they would be if keys were spread evenly. Each
    guess is made for all keys before the next one, so that waiting for memory overlaps.
    Cost: O(rows) or O(keys · log of the distance from the guess), whichever promises less.
    """
    # NB: in locals, or the compiler reads the table again after each write to `positions`.
    low, mask, shift = table[0, 0], table[0, 1], table[0, 3]
    size = rows.shape[0]
    if size < _MERGED_BELOW * keys.size:
        at = 0
        for i in range(keys.size):
            key = keys[i]
            while at < size and ((rows[at, 0] >> shift) & mask) + low < key:
                at += 1
            positions[i] = at
        return
    least, greatest = key_of(rows, 0, table), key_of(rows, size - 1, table)
    rows_per_key = np.float64(size - 1) / max(np.float64(greatest - least), np.float64(1))
    found = np.empty(keys.size, np.uint64)
    for i in range(keys.size):
        key = min(max(keys[i], least), greatest)
        guess = min(int(np.float64(key - least) * rows_per_key), size - 1)
        positions[i] = guess
        found[i] = ((rows[guess, 0] >> shift) & mask) + low
    for i in range(keys.size):
        off = np.float64(min(max(keys[i], least), greatest)) - np.float64(found[i])
        guess = min(max(positions[i] + int(off * rows_per_key), 0), size - 1)
        positions[i] = guess
        found[i] = ((rows[guess, 0] >> shift) & mask) + low
    for i in range(keys.size):
        positions[i] = _seek_around(rows, table, positions[i], keys[i])


@compiled
def match_packed(
    keys: U64Array, rows: U64Array, table: U64Array, positions: I64Array,
    places: I64Array, lefts: I64Array, rights: I64Array,
) -> int:  # fmt: skip
    """The next pairs of positions of equal keys in a sorted column and in packed rows.

    As many as there is room for; fewer: there are no more. `places` holds where to go on, also
    inside a key: which key, how many of its rows were matched, and the end of the keys whose
    `positions` are known. There is room for some of these, so a call locates a bounded number.
    Cost: that of `locate`, and O(pairs).
    """
    i, done, known = places[0], places[1], places[2]
    n, size = 0, rows.shape[0]
    while i < keys.size:
        if i >= known:
            known = min(i + positions.size, keys.size)
            locate(keys[i:known], rows, table, positions[: known - i])
            places[3] = i
        at = positions[i - places[3]] + done
        key = keys[i]
        while at < size and key_of(rows, at, table) == key:
            if n == lefts.size:
                places[0], places[1], places[2] = i, done, known
                return n
            lefts[n], rights[n] = i, at
            n += 1
            at += 1
            done += 1
        i += 1
        done = 0
    places[0], places[1], places[2] = i, done, known
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
    size = rows.shape[0]
    positions = np.empty(keys.size, np.int64)
    locate(keys, rows, table, positions)
    low, mask, shift = table[0, 0], table[0, 1], table[0, 3]
    for i in range(keys.size):
        key, j = keys[i], positions[i]
        while j < size and ((rows[j, 0] >> shift) & mask) + low == key:
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
