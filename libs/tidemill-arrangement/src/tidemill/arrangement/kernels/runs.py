"""Compiled loops over sorted rows: sums of equal rows, merges of two runs.

Each function returns −1 in place of a count if a sum of diffs does not fit in 64 bits; sums that
only pass through greater numbers are right, in any order.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled


@compiled
def diff_span(diffs: I64Array) -> tuple[np.int64, np.int64]:
    """The least and the greatest diff of at least one. Cost: O(n)."""
    low = high = diffs[0]
    for diff in diffs:
        low = min(low, diff)
        high = max(high, diff)
    return low, high


@compiled
def sum_words(words: U64Array, diff_bits: int, diff_low: int, diffs: I64Array) -> int:
    """Sum equal words in place; how many stay, at the front, with their sums in `diffs`.

    The lowest `diff_bits` of a word are its diff less `diff_low`; they are cut off. Zeros go.
    Cost: O(n).
    """
    shift = np.uint64(diff_bits)
    mask = (np.uint64(1) << shift) - np.uint64(1)
    kept = -1
    total = np.int64(0)
    wraps = 0
    for i in range(words.size):
        word = words[i] >> shift
        diff = np.int64(words[i] & mask) + diff_low
        if kept >= 0 and words[kept] == word:
            summed = total + diff
            if ((total ^ summed) & (diff ^ summed)) < 0:
                wraps += 1 if diff > 0 else -1
            total = summed
        else:
            if wraps:
                return -1
            if kept < 0 or total != 0:
                if kept >= 0:
                    diffs[kept] = total
                kept += 1
            words[kept] = word
            total = diff
    if wraps:
        return -1
    if kept >= 0 and total != 0:
        diffs[kept] = total
        kept += 1
    return max(kept, 0)


@compiled
def sum_rows(rows: U64Array, diffs: I64Array) -> int:
    """Sum equal columns of sorted `rows` (lanes × n) in place; how many stay, at the front.

    Cost: O(n · lanes).
    """
    lanes, n = rows.shape
    kept = 0
    i = 0
    while i < n:
        total = diffs[i]
        wraps = 0
        j = i + 1
        while j < n:
            same = True
            for lane in range(lanes):
                if rows[lane, j] != rows[lane, i]:
                    same = False
                    break
            if not same:
                break
            summed = total + diffs[j]
            if ((total ^ summed) & (diffs[j] ^ summed)) < 0:
                wraps += 1 if diffs[j] > 0 else -1
            total = summed
            j += 1
        if wraps:
            return -1
        if total != 0:
            for lane in range(lanes):
                rows[lane, kept] = rows[lane, i]
            diffs[kept] = total
            kept += 1
        i = j
    return kept


@compiled
def longest_tie(words: U64Array, index_bits: int) -> int:
    """The length of the longest run of words that differ in their lowest `index_bits` only."""
    shift = np.uint64(index_bits)
    longest, length = 0, 0
    for i in range(words.size):
        length = length + 1 if i and words[i] >> shift == words[i - 1] >> shift else 1
        longest = max(longest, length)
    return longest


@compiled
def sum_few(rows: U64Array, diffs: I64Array) -> int:
    """Sort the columns of `rows` (lanes × n) by insertion and sum equal ones, all in place.

    How many stay, at the front. Cost: O(n²).
    """
    order_ties(np.zeros(diffs.size, np.uint64), 0, rows, diffs)
    return sum_rows(rows, diffs)


@compiled
def order_ties(words: U64Array, index_bits: int, rows: U64Array, diffs: I64Array) -> None:
    """Put the columns of `rows` within each run of tied `words` in order, by insertion.

    Cost: O(n · length of the longest run).
    """
    shift = np.uint64(index_bits)
    lanes, n = rows.shape
    held = np.empty(lanes, np.uint64)
    start = 0
    for i in range(1, n):
        if words[i] >> shift != words[i - 1] >> shift:
            start = i
            continue
        for lane in range(lanes):
            held[lane] = rows[lane, i]
        diff = diffs[i]
        j = i
        while j > start:
            earlier = False
            for lane in range(lanes):
                if held[lane] != rows[lane, j - 1]:
                    earlier = held[lane] < rows[lane, j - 1]
                    break
            if not earlier:
                break
            for lane in range(lanes):
                rows[lane, j] = rows[lane, j - 1]
            diffs[j] = diffs[j - 1]
            j -= 1
        for lane in range(lanes):
            rows[lane, j] = held[lane]
        diffs[j] = diff
