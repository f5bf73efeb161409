"""Consolidate rows of unsigned columns: packed into one word where they fit, by prefix else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array
from tidemill.arrangement.kernels.columns import Columns
from tidemill.arrangement.kernels.packing import (
    WORD,
    Layout,
    constant,
    follow,
    gather,
    place_digit,
    place_prefix,
    spans,
)
from tidemill.arrangement.kernels.runs import (
    diff_span,
    longest_tie,
    order_ties,
    sum_few,
    sum_rows,
    sum_words,
)
from tidemill.time import UsageError

Array = TypeVar("Array", U64Array, I64Array)

FEW = 24
"""Up to this many rows insertion beats the set-up of a sort."""

_SHORT_TIE = 32
"""Runs of equal prefixes up to this length are ordered by insertion."""


def consolidate(updates: Columns) -> Columns:
    """The same collection, sorted by (key, val, time lanes), with no two rows equal in these.

    Shapes: n rows in; m <= n rows out, none of diff zero.
    Raises: UsageError if the diffs of one row add up to more than 64 bits hold.
    Cost: O(n) memory; a sort of n words if rows fit in 64 bits, of n words and a gather else.
    Source: twin in tidemill.testkit.twins.columns, law in tests/test_arrangement_kernels.py.
    """
    if len(updates) <= FEW:
        return consolidate_few(updates)
    columns, diffs = consolidate_columns(updates.columns, updates.diffs)
    return Columns(columns[0], columns[1], stack_lanes(columns[2:], len(diffs)), diffs)


def consolidate_columns(
    columns: Sequence[U64Array], diffs: I64Array
) -> tuple[list[U64Array], I64Array]:
    """As `consolidate`, for rows of any unsigned columns, sorted from the first to the last."""
    if not len(diffs):
        return [column.copy() for column in columns], diffs.copy()
    layout, rows, sums = consolidate_packed(columns, diffs)
    return layout.unpack_all(rows), sums


def consolidate_packed(
    columns: Sequence[U64Array], diffs: I64Array
) -> tuple[Layout, U64Array, I64Array]:
    """As `consolidate_columns`, at least one row in; rows out are packed.

    Shapes: columns (n,) in; rows (m, words) and diffs (m,) out.
    """
    lows, highs = spans(columns)
    layout = Layout.spanning(lows, highs)
    diff_low, diff_high = (int(diff) for diff in diff_span(diffs))
    diff_bits = (diff_high - diff_low).bit_length()
    if layout.words == 1 and diff_bits <= layout.free and diff_bits < WORD:
        words = layout.pack(columns, diff_bits).reshape(-1)
        if diff_bits:
            words |= (diffs - diff_low).view(np.uint64)
        words.sort()
        sums = np.empty(len(words), np.int64)
        kept = _checked(sum_words(words, diff_bits, diff_low, sums))
        return layout, _trimmed(words, kept).reshape(-1, 1), _trimmed(sums, kept)
    varying = [at for at, low in enumerate(lows) if low < highs[at]] or [0]
    close = Layout(
        tuple(lows[at] for at in varying),
        tuple((highs[at] - lows[at]).bit_length() for at in varying),
    )
    rows, sorted_diffs = _sorted_rows([columns[at] for at in varying], diffs, close)
    kept = _checked(sum_rows(rows, sorted_diffs))
    found = {at: row[:kept] for at, row in zip(varying, rows, strict=True)}
    kept_columns = [
        found[at] if at in found else constant(low, kept) for at, low in enumerate(lows)
    ]
    return layout, layout.pack(kept_columns), _trimmed(sorted_diffs, kept)


def consolidate_few(updates: Columns) -> Columns:
    """As `consolidate`, in one compiled call: for a handful of rows.

    Cost: O(n²).
    """
    rows = np.empty((2 + updates.lanes, len(updates)), np.uint64)
    rows[0], rows[1], rows[2:] = updates.keys, updates.vals, updates.times
    diffs = updates.diffs.copy()
    kept = _checked(sum_few(rows, diffs))
    return Columns(rows[0, :kept], rows[1, :kept], rows[2:, :kept], diffs[:kept])


def stack_lanes(lanes: Sequence[U64Array], rows: int) -> U64Array:
    """The lanes of time as one matrix; constant ones take no memory. Cost: O(n · lanes)."""
    if all(lane.strides == (0,) for lane in lanes) and rows:
        return np.broadcast_to(
            np.array([[lane[0]] for lane in lanes], np.uint64), (len(lanes), rows)
        )
    return lanes[0].reshape(1, -1) if len(lanes) == 1 else np.array(lanes, np.uint64)


def _sorted_rows(
    columns: Sequence[U64Array], diffs: I64Array, layout: Layout
) -> tuple[U64Array, I64Array]:
    """Copies of the rows in order, as columns × n.

    Words of a prefix of the row and its position are sorted; short ties are put right after it,
    long ones make further passes over the rest of the row.
    """
    n = len(diffs)
    index_bits = (n - 1).bit_length()
    words = _sorted_prefixes(columns, layout, index_bits, n)
    tied = sum(layout.bits) > WORD - index_bits
    if tied and longest_tie(words, index_bits) > _SHORT_TIE:
        tied = False
        words = _sorted_positions(columns, layout, index_bits, words)
    rows, sorted_diffs = np.empty((len(columns), n), np.uint64), np.empty(n, np.int64)
    for row, column in zip(rows, columns, strict=True):
        gather(column, words, index_bits, row)
    gather(diffs.view(np.uint64), words, index_bits, sorted_diffs.view(np.uint64))
    if tied:
        order_ties(words, index_bits, rows, sorted_diffs)
    return rows, sorted_diffs


def _sorted_prefixes(
    columns: Sequence[U64Array], layout: Layout, index_bits: int, n: int
) -> U64Array:
    """Words in order: the top bits of each row over its position."""
    words: U64Array = np.arange(n, dtype=np.uint64)
    place = WORD
    for column, low, bits in zip(columns, layout.lows, layout.bits, strict=True):
        taken = min(bits, place - index_bits)
        place -= taken
        if taken:
            place_prefix(words, column, np.uint64(low), bits - taken, place)
    words.sort()
    return words


def _sorted_positions(
    columns: Sequence[U64Array], layout: Layout, index_bits: int, before: U64Array
) -> U64Array:
    """Words whose lowest `index_bits` are the positions in order of the whole rows.

    One stable pass for each digit, the least significant first. `before` is written over.
    """
    digits = _digits(layout, WORD - index_bits)
    nothing, words = np.empty(0, np.uint64), np.empty_like(before)
    _sort_by_digit(columns, layout, digits[0], nothing, index_bits, words)
    for digit in digits[1:]:
        before, words = words, before
        _sort_by_digit(columns, layout, digit, before, index_bits, words)
    return words


def _digits(layout: Layout, width: int) -> list[tuple[int, int, int]]:
    """The rows as digits of at most `width` bits, least significant first: column, place, mask."""
    return [
        (at, start, 2 ** min(width, bits - start) - 1)
        for at, bits in reversed(list(enumerate(layout.bits)))
        for start in range(0, bits, width)
    ]


def _sort_by_digit(
    columns: Sequence[U64Array],
    layout: Layout,
    digit: tuple[int, int, int],
    before: U64Array,
    index_bits: int,
    words: U64Array,
) -> None:
    """A stable pass: the lowest bits of `words` become the positions of rows, in order of the digit."""
    at, start, mask = digit
    least = np.uint64(layout.lows[at])
    place_digit(columns[at], least, start, np.uint64(mask), before, index_bits, words)
    words.sort()
    if len(before):
        follow(words, before, index_bits)


def _trimmed(array: Array, kept: int) -> Array:
    """The first `kept` rows; a copy where a view would keep much more memory alive."""
    return array[:kept] if 4 * kept >= 3 * len(array) else array[:kept].copy()


def _checked(kept: int) -> int:
    if kept < 0:
        raise overflow()
    return kept


def overflow() -> UsageError:
    """The error of a sum of diffs that is too great, to be raised."""
    return UsageError("the diffs of one record add up to more than 64 bits hold", reason="Overflow")
