"""Compiled loops over sorted rows: sums of equal rows, merges of two runs.

Diffs are as wide as their sums need: who calls knows how many rows can be equal.
Each function returns −1 in place of a count if a sum of diffs does not fit in 64 bits; sums that
only pass through greater numbers are right, in any order.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import DiffArray, I64Array, U64Array, compiled


@compiled
def diff_span(diffs: I64Array) -> tuple[np.int64, np.int64]:
    """The least and the greatest diff of at least one. Cost: O(n)."""
    low = high = diffs[0]
    for diff in diffs:
        low = min(low, diff)
        high = max(high, diff)
    return low, high


@compiled
def sum_words(words: U64Array, diff_bits: int, diff_low: int, diffs: DiffArray) -> int:
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
def sum_rows(words: U64Array, index_bits: int, rows: U64Array, diffs: DiffArray) -> int:
    """Sum equal sorted `rows` (n × words) in place; how many stay, at the front.

    Rows whose `words` differ above `index_bits` are different. Cost: O(n · words).
    """
    shift = np.uint64(index_bits)
    n, width = rows.shape
    kept = 0
    i = 0
    while i < n:
        total = np.int64(diffs[i])
        wraps = 0
        j = i + 1
        while j < n and words[j] >> shift == words[i] >> shift:
            word = 0
            while word < width and rows[j, word] == rows[i, word]:
                word += 1
            if word < width:
                break
            diff = np.int64(diffs[j])
            summed = total + diff
            if ((total ^ summed) & (diff ^ summed)) < 0:
                wraps += 1 if diff > 0 else -1
            total = summed
            j += 1
        if wraps:
            return -1
        if total != 0:
            if kept < i:
                for word in range(width):
                    rows[kept, word] = rows[i, word]
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
    """Sort `rows` (n × words) by insertion and sum equal ones, all in place.

    How many stay, at the front. Cost: O(n²).
    """
    same = np.zeros(diffs.size, np.uint64)
    order_ties(same, 0, rows, diffs)
    return sum_rows(same, 0, rows, diffs)


@compiled
def order_ties(words: U64Array, index_bits: int, rows: U64Array, diffs: DiffArray) -> None:
    """Put the rows within each run of tied `words` in order, by insertion.

    Cost: O(n · length of the longest run).
    """
    shift = np.uint64(index_bits)
    n, width = rows.shape
    held = np.empty(width, np.uint64)
    start = 0
    for i in range(1, n):
        if words[i] >> shift != words[i - 1] >> shift:
            start = i
            continue
        for word in range(width):
            held[word] = rows[i, word]
        diff = diffs[i]
        j = i
        while j > start:
            earlier = False
            for word in range(width):
                if held[word] != rows[j - 1, word]:
                    earlier = held[word] < rows[j - 1, word]
                    break
            if not earlier:
                break
            for word in range(width):
                rows[j, word] = rows[j - 1, word]
            diffs[j] = diffs[j - 1]
            j -= 1
        for word in range(width):
            rows[j, word] = held[word]
        diffs[j] = diff
