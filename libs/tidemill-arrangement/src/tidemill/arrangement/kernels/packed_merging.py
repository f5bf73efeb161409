"""Merge two sorted runs of packed rows of one layout, a bounded number of rows at a time.

`places` holds how far the windows were read and the output was written, and where its open rows
start: those that may still be joined by equal ones. Diffs of open and new rows lie in `diffs`, the
first open row at its start. The loops stop early only where a run really ends.
Each returns how many rows were read, or −1 if a sum of diffs does not fit in 64 bits.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.packing import relay_rows

_FEW = 16


@compiled
def merge_words(
    a: U64Array, a_diffs: I64Array, b: U64Array, b_diffs: I64Array, fuel: int,
    out: U64Array, diffs: I64Array, places: I64Array,
) -> int:  # fmt: skip
    """For rows of one word. Cost: O(fuel)."""
    i, j, n, base = places[0], places[1], places[2], places[3]
    end_a, end_b = a_diffs.size, b_diffs.size
    read = 0
    while read < fuel and (i < end_a or j < end_b):
        if i < end_a and j < end_b:
            x, y = a[i, 0], b[j, 0]
            from_a = x <= y
            word = x if from_a else y
            diff = a_diffs[i] if from_a else b_diffs[j]
            i += from_a
            j += not from_a
        elif i < end_a:
            word, diff = a[i, 0], a_diffs[i]
            i += 1
        else:
            word, diff = b[j, 0], b_diffs[j]
            j += 1
        read += 1
        if n > base and out[n - 1, 0] == word:
            total = diffs[n - 1 - base]
            summed = total + diff
            if ((total ^ summed) & (diff ^ summed)) < 0:
                return -1
            diffs[n - 1 - base] = summed
        else:
            if n > base and diffs[n - 1 - base] == 0:
                n -= 1
            out[n, 0] = word
            diffs[n - base] = diff
            n += 1
    places[0], places[1], places[2] = i, j, n
    return read


@compiled
def merge_pairs(
    a: U64Array, a_diffs: I64Array, b: U64Array, b_diffs: I64Array, fuel: int,
    out: U64Array, diffs: I64Array, places: I64Array,
) -> int:  # fmt: skip
    """For rows of two words. Cost: O(fuel)."""
    i, j, n, base = places[0], places[1], places[2], places[3]
    end_a, end_b = a_diffs.size, b_diffs.size
    read = 0
    while read < fuel and (i < end_a or j < end_b):
        if i < end_a and j < end_b:
            # NB: which side is next is a coin toss: it is selected, never branched on.
            x, y = a[i, 0], b[j, 0]
            from_a = (x < y) | ((x == y) & (a[i, 1] <= b[j, 1]))
            first = x if from_a else y
            second = a[i, 1] if from_a else b[j, 1]
            diff = a_diffs[i] if from_a else b_diffs[j]
            i += from_a
            j += not from_a
        elif i < end_a:
            first, second, diff = a[i, 0], a[i, 1], a_diffs[i]
            i += 1
        else:
            first, second, diff = b[j, 0], b[j, 1], b_diffs[j]
            j += 1
        read += 1
        if n > base and out[n - 1, 0] == first and out[n - 1, 1] == second:
            total = diffs[n - 1 - base]
            summed = total + diff
            if ((total ^ summed) & (diff ^ summed)) < 0:
                return -1
            diffs[n - 1 - base] = summed
        else:
            if n > base and diffs[n - 1 - base] == 0:
                n -= 1
            out[n, 0], out[n, 1] = first, second
            diffs[n - base] = diff
            n += 1
    places[0], places[1], places[2] = i, j, n
    return read


@compiled
def _order(a: U64Array, i: int, b: U64Array, j: int, words: int, mask: np.uint64) -> int:
    """Row `i` of a against row `j` of b: their first `words` words, of the last what `mask` says."""
    for word in range(words):
        x, y = a[i, word], b[j, word]
        if word == words - 1:
            x, y = x & mask, y & mask
        if x != y:
            return -1 if x < y else 1
    return 0


@compiled
def _swap(rows: U64Array, diffs: I64Array, i: int, j: int, base: int) -> None:
    for word in range(rows.shape[1]):
        held = rows[i, word]
        rows[i, word] = rows[j, word]
        rows[j, word] = held
    diff = diffs[i - base]
    diffs[i - base] = diffs[j - base]
    diffs[j - base] = diff


@compiled
def _sift(rows: U64Array, diffs: I64Array, start: int, root: int, size: int, base: int) -> None:
    """Let the row at `root` of a heap sink to its place."""
    words = rows.shape[1]
    every = ~np.uint64(0)
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if (
            child + 1 < size
            and _order(rows, start + child, rows, start + child + 1, words, every) < 0
        ):
            child += 1
        if _order(rows, start + root, rows, start + child, words, every) >= 0:
            return
        _swap(rows, diffs, start + root, start + child, base)
        root = child


@compiled
def _close_group(rows: U64Array, diffs: I64Array, start: int, end: int, base: int) -> int:
    """Sort and sum rows from `start` to `end` in place; where they end now, or −1.

    Cost: O(g log g) for g rows.
    """
    words, size = rows.shape[1], end - start
    every = ~np.uint64(0)
    if size <= _FEW:
        for i in range(start + 1, end):
            j = i
            while j > start and _order(rows, j, rows, j - 1, words, every) < 0:
                _swap(rows, diffs, j, j - 1, base)
                j -= 1
    else:
        for root in range(size // 2 - 1, -1, -1):
            _sift(rows, diffs, start, root, size, base)
        for last in range(size - 1, 0, -1):
            _swap(rows, diffs, start, start + last, base)
            _sift(rows, diffs, start, 0, last, base)
    kept = start
    i = start
    while i < end:
        total, wraps = diffs[i - base], 0
        j = i + 1
        while j < end and _order(rows, i, rows, j, words, every) == 0:
            diff = diffs[j - base]
            summed = total + diff
            if ((total ^ summed) & (diff ^ summed)) < 0:
                wraps += 1 if diff > 0 else -1
            total = summed
            j += 1
        if wraps:
            return -1
        if total != 0:
            for word in range(words):
                rows[kept, word] = rows[i, word]
            diffs[kept - base] = total
            kept += 1
        i = j
    return kept


@compiled
def merge_groups(
    a: U64Array, a_diffs: I64Array, b: U64Array, b_diffs: I64Array, fuel: int,
    out: U64Array, diffs: I64Array, places: I64Array, head_words: int, head_mask: np.uint64,
) -> int:  # fmt: skip
    """For rows of any width whose times within one (key, val) may be in no order.

    The head of a row, its first words under the mask, is its key and val. Each group of one head is
    put in order and summed when it ends; the last one stays open.
    Cost: O(fuel), and the sort of the times of each group that ends.
    """
    i, j, n, base, group = places[0], places[1], places[2], places[3], places[4]
    end_a, end_b, words = a_diffs.size, b_diffs.size, out.shape[1]
    read = 0
    while read < fuel and (i < end_a or j < end_b):
        from_a = j == end_b
        if i < end_a and j < end_b:
            from_a = _order(a, i, b, j, head_words, head_mask) <= 0
        rows, at = (a, i) if from_a else (b, j)
        if n > group and _order(out, group, rows, at, head_words, head_mask) != 0:
            n = _close_group(out, diffs, group, n, base)
            if n < 0:
                return -1
            group = n
        for word in range(words):
            out[n, word] = rows[at, word]
        diffs[n - base] = a_diffs[i] if from_a else b_diffs[j]
        i += from_a
        j += not from_a
        n += 1
        read += 1
    places[0], places[1], places[2], places[4] = i, j, n, group
    return read


@compiled
def close_last_group(out: U64Array, diffs: I64Array, places: I64Array) -> bool:
    """Put the group that is still open in order and sum it; whether its sums fit in 64 bits."""
    end = _close_group(out, diffs, places[4], places[2], places[3])
    places[2] = max(end, places[4])
    return bool(end >= 0)


@compiled
def merge_few(
    a: U64Array, a_table: U64Array, a_diffs: I64Array,
    b: U64Array, b_table: U64Array, b_diffs: I64Array,
    since: U64Array, table: U64Array, out: U64Array, diffs: I64Array,
) -> int:  # fmt: skip
    """All rows of two small batches of any layouts in another one, times advanced by `since`.

    The new layout has a word for each column. Diffs in are one for each row or one for all.
    Returns how many rows are left, or −1 if a sum of diffs does not fit in 64 bits.
    """
    laid_a, laid_b = np.empty((a.shape[0], out.shape[1]), np.uint64), np.empty(
        (b.shape[0], out.shape[1]), np.uint64
    )  # fmt: skip
    relay_rows(a, a_table, since, laid_a, table)
    relay_rows(b, b_table, since, laid_b, table)
    each_a, each_b = np.empty(a.shape[0], np.int64), np.empty(b.shape[0], np.int64)
    for i in range(each_a.size):
        each_a[i] = a_diffs[i if a_diffs.size > 1 else 0]
    for j in range(each_b.size):
        each_b[j] = b_diffs[j if b_diffs.size > 1 else 0]
    places = np.zeros(5, np.int64)
    read = merge_groups(
        laid_a, each_a, laid_b, each_b, each_a.size + each_b.size, out, diffs, places,
        2, ~np.uint64(0),
    )  # fmt: skip
    if read < 0 or not close_last_group(out, diffs, places):
        return -1
    return int(places[2])
