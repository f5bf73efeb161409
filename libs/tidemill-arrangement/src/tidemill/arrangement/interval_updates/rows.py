"""Interval updates as rows of words.

An update is one row of a matrix of 64-bit words: columns, start, end, and in a change its diff. The
last column before the start holds a bit for each column whose value is null. The word of a null is
0, so equal rows are equal words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

BEGIN_WORD, END_WORD = -(1 << 63), (1 << 63) - 1
"""The beginning and the end of all instants as words."""

Change: TypeAlias = I64Array
"""Updates with diffs. Shapes: (n, columns + 3): columns, start, end, diff."""

Word: TypeAlias = "int | np.int64"
"""A word, a place or a number of a row in a compiled loop."""
_PIECE = 1 << 13
_FACTOR = 0x9E37_79B9_7F4A_7C15


def rows_of(columns: Sequence[I64Array | int], many: int) -> I64Array:
    """Rows of words from their columns, of which some are the same word in all of `many` rows.

    Pieces stay in the processor's cache while one column after the other is written.
    Cost: O(rows).
    """
    rows = np.empty((many, len(columns)), np.int64)
    for first in range(0, many, _PIECE):
        piece = rows[first : first + _PIECE]
        for at, words in enumerate(columns):
            piece[:, at] = words if isinstance(words, int) else words[first : first + _PIECE]
    return rows


def no_change(columns: int) -> Change:
    """A change without updates."""
    return np.empty((0, columns + 3), np.int64)


@inlined
def hash_of(rows: I64Array, row: Word, columns: I64Array) -> np.uint64:
    """A hash of some columns of a row, whose upper bits depend on every word."""
    state = np.uint64(_FACTOR)
    for at in range(columns.size):
        state = (state ^ np.uint64(rows[row, columns[at]])) * np.uint64(_FACTOR)
        state = state ^ (state >> np.uint64(29))
    return state * np.uint64(_FACTOR)


@inlined
def end_as_of(rows: I64Array, row: Word, place: Word, lasts: Word) -> Word:
    """The end of a row for a reader that knows nothing of what comes from `place` on.

    A row that comes later ends before all starts. A row that is cut later goes on to the word in
    the column `lasts`. With -1 for `lasts` all is known.
    """
    start, end = rows.shape[1] - 2, np.int64(rows[row, rows.shape[1] - 1])
    if lasts >= 0:
        if rows[row, start] >= place:
            end = np.int64(BEGIN_WORD)
        elif end >= place:
            end = np.int64(rows[row, lasts])
    return end


@inlined
def same_columns(
    left: I64Array, i: Word, left_columns: I64Array, left_nulls: Word,
    right: I64Array, j: Word, right_columns: I64Array, right_nulls: Word,
) -> bool:  # fmt: skip
    """Whether two rows have equal values in the given columns; null equals null alone."""
    same = True
    mine, theirs = left[i, left_nulls], right[j, right_nulls]
    for at in range(left_columns.size):
        a, b = left_columns[at], right_columns[at]
        null_apart = (mine | theirs) != 0 and ((mine >> a) ^ (theirs >> b)) & 1 != 0
        if left[i, a] != right[j, b] or null_apart:
            same = False
    return same


@inlined
def same_values(change: I64Array, i: Word, first: Word, rows: I64Array, row: Word) -> bool:
    """Whether two rows say the same from the column `first` on, nulls too.

    From the expiry on, these are the values of two derivations of a fact.
    """
    same = True
    for column in range(first, rows.shape[1] - 2):
        same = same and change[i, column] == rows[row, column]
    return same


@compiled
def part(
    change: I64Array, added: int, cut: int, aside: I64Array, out: I64Array, rest: I64Array
) -> int:
    """Write the rows that are taken in already to `out`, how many there are, and others to `rest`.

    These are rows that are added before `added`, but for those set aside, and rows taken away
    before `cut`. Of the others those that are added are the first.
    """
    wide, many, left, at = change.shape[1], 0, 0, 0
    for i in range(change.shape[0]):
        if change[i, wide - 1] < 0:
            taken_in = i < cut
        else:
            met = at < aside.size and aside[at] == i
            taken_in = i < added and not met
            at += 1 if met else 0
        if taken_in:
            for column in range(wide):
                out[many, column] = change[i, column]
            many += 1
        elif change[i, wide - 1] >= 0:
            for column in range(wide):
                rest[left, column] = change[i, column]
            left += 1
    for i in range(cut, change.shape[0]):
        if change[i, wide - 1] < 0:
            for column in range(wide):
                rest[left, column] = change[i, column]
            left += 1
    return many
