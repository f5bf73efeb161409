"""Consolidate rows of unsigned columns: packed into one word where they fit, by prefix else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from tidemill.arrangement.kernels.arrays import DiffArray, I64Array, U64Array
from tidemill.arrangement.kernels.packing import (
    WORD,
    Layout,
    follow,
    gather_rows,
    place_digit,
    prefixes_of,
    spread_rows,
)
from tidemill.arrangement.kernels.runs import (
    diff_span,
    longest_tie,
    order_ties,
    sum_rows,
    sum_words,
)
from tidemill.errors import UsageError

Array = TypeVar("Array", U64Array, DiffArray)

_MANY = 1 << 17
"""From so many rows on their places are too far apart for the caches."""

_BUCKET_BITS = 9
"""As many buckets as can be written to at once."""

_SHORT_TIE = 32
"""Runs of equal prefixes up to this length are ordered by insertion."""


def consolidate_columns(
    columns: Sequence[U64Array], diffs: I64Array
) -> tuple[list[U64Array], I64Array]:
    """The same collection, sorted from the first column to the last, with no two rows equal.

    Shapes: n rows in; m <= n rows out, none of diff zero.
    Raises: UsageError if the diffs of one row add up to more than 64 bits hold.
    Cost: O(n) memory; a sort of n words if rows fit in 64 bits, of n words and a gather else.
    Source: twin in tidemill.testkit.twins.columns, law in tests/test_arrangement_kernels.py.
    """
    if not len(diffs):
        return [column.copy() for column in columns], diffs.copy()
    layout, rows, sums = consolidate_packed(columns, diffs)
    return layout.unpack_all(rows), sums.astype(np.int64, copy=False)


def consolidate_packed(
    columns: Sequence[U64Array], diffs: I64Array
) -> tuple[Layout, U64Array, DiffArray]:
    """As `consolidate_columns`, at least one row in; rows out are packed, diffs one byte if they
    fit.

    Shapes: columns (n,) in; rows (m, words) and diffs (m,) out.
    """
    layout = Layout.of(columns)
    low, high = (int(diff) for diff in diff_span(diffs))
    diff_bits = (high - low).bit_length()
    if layout.words == 1 and layout.widths[0] + diff_bits <= WORD and diff_bits < WORD:
        words = layout.pack(columns, diff_bits).reshape(-1)
        if diff_bits:
            words |= (diffs - low).view(np.uint64)
        words.sort()
        sums = _room_for_sums(low, high, longest_tie(words, diff_bits), len(words))
        kept = _checked(sum_words(words, diff_bits, low, sums))
        return layout, _trimmed(words, kept).reshape(-1, 1), _trimmed(sums, kept)
    own = diffs[:1] if low == high else diffs
    if _fits_in_a_byte(low, high, 1):
        own = own.astype(np.int8)
    return _consolidate_wide(layout, layout.pack(columns), own, low, high)


def _consolidate_wide(
    layout: Layout, packed: U64Array, diffs: DiffArray, low: int, high: int
) -> tuple[Layout, U64Array, DiffArray]:
    """As `consolidate_packed`, for rows that do not fit in a word with their diffs.

    Words of a prefix of the row and its position are sorted; short ties are put right after it,
    long ones make further passes over the rest of the row. `packed` is written over; `diffs` has
    one for each row, or one for all.
    """
    n = len(packed)
    index_bits, width = (n - 1).bit_length(), layout.widths[0]
    out: U64Array = np.empty_like(packed)
    if n >= _MANY and width >= _BUCKET_BITS:
        # In buckets by their top bits first: sorted rows then come from places near by.
        spread = np.empty_like(diffs)
        spread_rows(packed, diffs, width - _BUCKET_BITS, _BUCKET_BITS, out, spread)
        packed, out = out, packed
        diffs = diffs if len(diffs) == 1 else spread
    words = np.empty(n, np.uint64)
    prefixes_of(packed, width, (*layout.widths, 0)[1], index_bits, words)
    words.sort()
    tie = longest_tie(words, index_bits)
    in_order = tie <= _SHORT_TIE or sum(layout.bits) <= WORD - index_bits
    if not in_order:
        words = _sorted_positions(layout.unpack_all(packed), layout, index_bits, words)
    sums = _room_for_sums(low, high, tie, n)
    gather_rows(packed, diffs, words, index_bits, out, sums)
    if in_order and tie > 1:
        order_ties(words, index_bits, out, sums)
    kept = _checked(sum_rows(words, index_bits, out, sums))
    return layout, _trimmed(out, kept), _trimmed(sums, kept)


def _room_for_sums(low: int, high: int, equal: int, rows: int) -> DiffArray:
    """Room for diffs, as narrow as the sums of up to `equal` of them between `low` and `high`."""
    if _fits_in_a_byte(low, high, equal):
        return np.empty(rows, np.int8)
    return np.empty(rows, np.int64)


def _fits_in_a_byte(low: int, high: int, times: int) -> bool:
    return low * times >= -128 and high * times < 128


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
    """A stable pass: the lowest bits of `words` become the positions of rows, in order of the
    digit.
    """
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
