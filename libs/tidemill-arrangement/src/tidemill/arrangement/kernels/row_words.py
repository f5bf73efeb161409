"""Loops over words of 64 bits by which rows are put in order (`row_order`)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, U64Array, compiled

Bytes: TypeAlias = npt.NDArray[np.uint8]
I32Array: TypeAlias = npt.NDArray[np.int32]

RUN_ROWS_MAX = 16
"""Rows of a run that are put in order one by one; more of them are sorted by words again."""


@compiled
def narrowed(words: U64Array) -> tuple[U64Array, int]:
    """The words less their least and without the bits that all share at the end; bits left."""
    if words.size == 0:
        return words, 0
    least, greatest, first, differ = words[0], words[0], words[0], np.uint64(0)
    for word in words:
        least, greatest, differ = min(least, word), max(greatest, word), differ | (word ^ first)
    found = np.zeros(words.size, np.uint64)
    if differ == 0:
        return found, 0
    idle = 0
    while not (differ >> np.uint64(idle)) & np.uint64(1):
        idle += 1
    for at in range(words.size):
        found[at] = (words[at] - least) >> np.uint64(idle)
    span, bits = (greatest - least) >> np.uint64(idle), 0
    while bits < 64 and span >> np.uint64(bits):
        bits += 1
    return found, bits


@compiled
def text_words(data: Bytes, stops: I32Array, first: int) -> U64Array:
    """The bytes `first` to `first + 7` of each text as a word; those behind its end are zero."""
    words = np.zeros(stops.size - 1, np.uint64)
    for row in range(words.size):
        begin = stops[row] + first
        word = np.uint64(0)
        for at in range(begin, min(begin + 8, stops[row + 1])):
            word |= np.uint64(data[at]) << np.uint64(8 * (7 - (at - begin)))
        words[row] = word
    return words


@compiled
def _is_less(ranks: U64Array, row: int, other: int) -> bool:
    """Whether a row comes before another one by its ranks."""
    for at in range(ranks.shape[0]):
        if ranks[at, row] != ranks[at, other]:
            return bool(ranks[at, row] < ranks[at, other])
    return False


@compiled
def settle_ties(starts: I64Array, ranks: U64Array, order: I64Array) -> BoolArray:
    """Put each run of `order` in the order of its ranks; which places are of long runs.

    Rows that are equal stay in their order. Runs of more than `RUN_ROWS_MAX` rows stay as they are.
    Shapes: `starts` are the first places of runs; `ranks` has a line for each column of ranks, of
    which the first decide.
    """
    long = np.zeros(order.size, np.bool_)
    for run in range(starts.size):
        start = starts[run]
        stop = starts[run + 1] if run + 1 < starts.size else order.size
        if stop - start > RUN_ROWS_MAX:
            long[start:stop] = True
            continue
        for at in range(start + 1, stop):
            row, place = order[at], at
            while place > start and _is_less(ranks, row, order[place - 1]):
                order[place] = order[place - 1]
                place -= 1
            order[place] = row
    return long


@compiled
def still_equal(column: npt.NDArray[Any], equal: BoolArray) -> bool:
    """Whether no row that is equal so far is less than the row before it; which ones stay equal."""
    for row in range(1, column.size):
        if equal[row]:
            if column[row] < column[row - 1]:
                return False
            equal[row] = column[row] == column[row - 1]
    return True


@compiled
def texts_still_equal(data: Bytes, stops: I32Array, equal: BoolArray) -> bool:
    """The answer of `still_equal` for texts, by their bytes."""
    for row in range(1, stops.size - 1):
        if not equal[row]:
            continue
        before, begin = stops[row - 1], stops[row]
        shared = min(begin - before, stops[row + 1] - begin)
        order = (stops[row + 1] - begin) - (begin - before)
        for at in range(shared):
            if data[begin + at] != data[before + at]:
                order = np.int64(data[begin + at]) - np.int64(data[before + at])
                break
        if order < 0:
            return False
        equal[row] = order == 0
    return True
