"""A number for each different row of words."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

_FACTOR = 0x9E37_79B9_7F4A_7C15
_FIRST_BITS = 14


@inlined
def _hash(words: I64Array, row: int) -> np.uint64:
    """A hash whose upper bits depend on every word."""
    state = np.uint64(_FACTOR)
    for at in range(words.shape[1]):
        state = (state ^ np.uint64(words[row, at])) * np.uint64(_FACTOR)
        state = state ^ (state >> np.uint64(29))
    return state * np.uint64(_FACTOR)


@inlined
def _same(left: I64Array, row: int, right: I64Array, other: int) -> bool:
    same = True
    for at in range(left.shape[1]):
        same &= left[row, at] == right[other, at]
    return same


@compiled
def number(words: I64Array) -> tuple[I64Array, I64Array]:
    """The number of each row, equal for equal rows, and the first row of each number.

    Numbers ascend in the order of first rows. Shapes: `words` (n, k). Cost: O(n · k).
    Source: twin `tidemill.testkit.twins.numbering.numbers`.
    """
    n = words.shape[0]
    ids = np.empty(n, np.int64)
    firsts = np.empty(max(n, 1), np.int64)
    bits = 10
    while bits < _FIRST_BITS and 1 << bits <= 2 * n:
        bits += 1
    slots = np.full(1 << bits, -1, np.int64)
    groups = 0
    for row in range(n):
        if groups * 2 >= slots.size:
            bits += 2
            slots = np.full(1 << bits, -1, np.int64)
            for group in range(groups):
                at = np.int64(_hash(words, firsts[group]) >> np.uint64(64 - bits))
                while slots[at] >= 0:
                    at = (at + 1) & (slots.size - 1)
                slots[at] = group
        at = np.int64(_hash(words, row) >> np.uint64(64 - bits))
        while True:
            known = slots[at]
            if known < 0:
                slots[at] = groups
                firsts[groups] = row
                ids[row] = groups
                groups += 1
                break
            if _same(words, row, words, firsts[known]):
                ids[row] = known
                break
            at = (at + 1) & (slots.size - 1)
    return ids, firsts[:groups].copy()
