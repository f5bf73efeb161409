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

_DENSE = 6
"""Up to so many rows for each key no row is stepped over."""


@inlined
def key_of(rows: U64Array, i: int | np.int64, table: U64Array) -> np.uint64:
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
def count_rows(keys: U64Array, rows: U64Array, table: U64Array, counts: I64Array) -> None:
    """Add to the count of each sorted, distinct key how many packed rows it has.

    Cost: that of `locate`, and a search for the end of each key.
    """
    if not rows.shape[0]:
        return
    positions = np.empty(keys.size, np.int64)
    locate(keys, rows, table, positions)
    for i in range(keys.size):
        end = rows.shape[0]
        if keys[i] != ~np.uint64(0):
            end = seek_key(rows, table, positions[i], keys[i] + np.uint64(1))
        counts[i] += end - positions[i]


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


@inlined
def _next_in_step(
    keys: U64Array, i: np.int64, rows: U64Array, at: np.int64, stride: int, table: U64Array,
    diffs: DiffArray, each: np.int64, total: np.int64,
) -> tuple[np.int64, np.int64, np.int64, np.int64]:  # fmt: skip
    """One key or some rows further: key, row, the sum of the key looked at, and of the next one.

    Nothing is branched on: whether a row is of the key at hand is as good as random.
    """
    row_key, key = key_of(rows, at, table), keys[i]
    term = np.int64(diffs[at * each]) * np.int64(field_of(rows, at, table, 1))
    summed = total + term * np.int64(row_key == key)
    passed = np.int64(row_key > key)
    step = np.int64(1) - passed
    if stride > 1:
        far = min(at + stride, rows.shape[0]) - 1
        step = np.int64(stride) if key_of(rows, far, table) < key else step
    return i + passed, at + step, summed, summed * (np.int64(1) - passed)


@inlined
def _sum_in_two_places(
    keys: U64Array, rows: U64Array, table: U64Array, diffs: DiffArray, stride: int, found: I64Array
) -> None:
    """The sums of `add_small_sums`, read in two places by turns: each step waits for its last."""
    each = np.int64(1 if diffs.size > 1 else 0)
    end, size = np.int64(keys.size), np.int64(rows.shape[0])
    i, j, at, first, second = np.int64(0), end // 2, np.int64(0), np.int64(0), np.int64(0)
    half, middle = j, np.int64(seek_key(rows, table, 0, keys[j]))
    place = middle
    while i < half and at < middle and j < end and place < size:
        was = i
        i, at, found[was], first = _next_in_step(
            keys, i, rows, at, stride, table, diffs, each, first
        )
        was = j
        j, place, found[was], second = _next_in_step(
            keys, j, rows, place, stride, table, diffs, each, second
        )
    while i < half and at < middle:
        was = i
        i, at, found[was], first = _next_in_step(
            keys, i, rows, at, stride, table, diffs, each, first
        )
    while j < end and place < size:
        was = j
        j, place, found[was], second = _next_in_step(
            keys, j, rows, place, stride, table, diffs, each, second
        )


@compiled
def add_small_sums(
    keys: U64Array, rows: U64Array, table: U64Array, diffs: DiffArray, sums: I64Array
) -> bool:
    """As `add_sums` with weights, where no sum of products can need more than 63 bits.

    At least one key. Cost: O(rows + keys).
    """
    found = np.zeros(keys.size, np.int64)
    if rows.shape[0] < _DENSE * keys.size:
        _sum_in_two_places(keys, rows, table, diffs, 1, found)
    else:
        _sum_in_two_places(keys, rows, table, diffs, 4, found)
    for k in range(keys.size):
        summed = sums[k] + found[k]
        if ((sums[k] ^ summed) & (found[k] ^ summed)) < 0:
            return False
        sums[k] = summed
    return True
