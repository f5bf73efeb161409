"""The order of rows by several Arrow columns, found by sorting words of 64 bits.

A word holds the ranks of leading columns and the number of its row. Rows that agree there are
sorted by the columns that are left, and they alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.machine_code import has_loops

Words: TypeAlias = npt.NDArray[np.uint64]
Ranks: TypeAlias = tuple[Words, int]
"""Numbers in the order of the values of a column, equal for equal ones, and their bits."""

WORD_BITS = 64
TEXT_BYTES_MAX = 32
"""Longer texts take more words than it takes to put the different ones in order."""
ROWS_MIN = 512
"""Fewer rows are in order sooner by one call of Arrow."""


def order_of(columns: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    """The numbers of the rows, ordered by the columns from left to right.

    Rows that are equal in all columns stay in their order. Nulls come last, NaN just before them,
    text by code point. None for columns of other types than numbers, truths, texts and instants,
    and where no loops are: neither ready ones nor their compiler.

    Shapes: columns of one length. Cost: O(n log n), some 100 ns a row of a text and six numbers;
    other threads may compute meanwhile. Columns behind those that decide are not looked at.
    Source: twin in the law in tests/test_arrangement_row_order.py, by `pyarrow.compute`.
    """
    if not has_loops() or not all(_has_ranks(column.type) for column in columns):
        return None
    return _sorted_rows(chain.from_iterable(map(_ranks, columns)), len(columns[0]))


def ascends(columns: Sequence[Any]) -> bool:
    """Whether each row is greater than the one before it, by the columns from left to right.

    False also of columns that are not of 64-bit numbers or texts, have nulls, or lie in pieces,
    and where no loops are.

    Cost: some nanoseconds a row that has to be looked at; rows in no order end it early.
    Source: twin in the law in tests/test_arrangement_row_order.py, by tuples.
    """
    known = (pa.string(), pa.int64(), pa.uint64())
    if not has_loops() or not columns:
        return False
    if any(c.type not in known or c.null_count or c.num_chunks != 1 for c in columns):
        return False
    from tidemill.arrangement.kernels.row_words import still_equal, texts_still_equal  # as below

    equal = np.ones(len(columns[0]), np.bool_)
    equal[:1] = False
    for column in columns:
        whole = column.chunk(0)
        if pa.types.is_string(whole.type):
            _, offsets, data = whole.buffers()
            stops = np.frombuffer(offsets, np.int32)[whole.offset : whole.offset + len(whole) + 1]
            ascending = texts_still_equal(np.frombuffer(data or b"\0", np.uint8), stops, equal)
        else:
            ascending = still_equal(whole.to_numpy(), equal)
        if not ascending:
            return False
    return not bool(equal.any())


def _sorted_rows(ranked: Iterator[Ranks], rows: int) -> npt.NDArray[np.int64]:
    """The numbers of the rows in the order of their ranks."""
    # Processes that sort a few rows start without loops.
    from tidemill.arrangement.kernels.row_words import settle_ties

    row_bits = max(1, (rows - 1).bit_length())
    words, cut = _packed(ranked, WORD_BITS - row_bits, rows)
    words <<= np.uint64(row_bits)
    words |= np.arange(rows, dtype=np.uint64)
    words.sort()
    order = (words & np.uint64((1 << row_bits) - 1)).astype(np.int64)
    if cut is None:
        return order
    words >>= np.uint64(row_bits)
    same = words[1:] == words[:-1]
    if not same.any():
        return order
    tied = np.zeros(rows, np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    among, packed = order[tied], words[tied]
    begins = np.ones(len(among), np.bool_)
    begins[1:] = packed[1:] != packed[:-1]
    rest = [cut, *ranked]
    long = settle_ties(np.flatnonzero(begins), np.stack([ranks for ranks, _ in rest]), among)
    if long.any():
        runs, left = np.cumsum(begins, dtype=np.uint64), among[long]
        again = [(runs[long], int(runs[-1]).bit_length())]
        again += [(ranks[left], bits) for ranks, bits in rest]
        among[long] = left[_sorted_rows(iter(again), len(left))]
    order[tied] = among
    return order


def _packed(ranked: Iterator[Ranks], room: int, rows: int) -> tuple[Words, Ranks | None]:
    """Words of so many bits at most, and the part of a column that did not fit."""
    words = np.zeros(rows, np.uint64)
    for ranks, bits in ranked:
        kept = min(bits, room)
        room -= kept
        if kept:
            words <<= np.uint64(kept)
            words |= ranks >> np.uint64(bits - kept)
        if kept < bits:
            return words, (ranks & np.uint64((1 << (bits - kept)) - 1), bits - kept)
    return words, None


def _has_ranks(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind)
        or pa.types.is_integer(kind) or pa.types.is_float64(kind)
    )  # fmt: skip


def _ranks(column: Any) -> Iterator[Ranks]:
    """The ranks of a column of a type that has some, the first of which decide."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind):
        yield from _text_ranks(column, valid)
        return
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    numbers = (column.fill_null(0) if valid is not None else column).to_numpy()
    yield _narrowed(_ordered_words(numbers), valid)


def _text_ranks(column: Any, valid: npt.NDArray[np.bool_] | None) -> Iterator[Ranks]:
    """The ranks of texts: short ones are words of eight bytes, and the length decides at the end.

    Of long texts the different ones are put in order, and each has its place there.
    """
    from tidemill.arrangement.kernels.row_words import text_words  # as above

    _, offsets, data = column.buffers()
    stops = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(stops)
    longest = int(lengths.max(initial=0))
    if longest > TEXT_BYTES_MAX:
        encoded = column.dictionary_encode()
        places = np.empty(len(encoded.dictionary), np.int64)
        places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places))
        numbers = pa.array(places).take(encoded.indices).fill_null(0).to_numpy()
        yield _narrowed(numbers.view(np.uint64), valid)
        return
    found = np.frombuffer(data if longest else b"\0", np.uint8)
    for first in range(0, max(longest, 1), 8):
        yield _narrowed(text_words(found, stops, first), valid)
    yield _narrowed(lengths.astype(np.uint64), valid)


def _ordered_words(numbers: npt.NDArray[Any]) -> Words:
    """Words in the order of the numbers; all NaN are one word, the greatest."""
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64, copy=False)
    sign = np.uint64(1 << 63)
    if numbers.dtype.kind == "i":
        return numbers.astype(np.int64, copy=False).view(np.uint64) ^ sign
    words = (numbers + 0.0).view(np.uint64)
    ordered = np.where(words & sign, ~words, words | sign)
    return np.where(np.isnan(numbers), np.uint64(2**64 - 2), ordered)


def _narrowed(words: Words, valid: npt.NDArray[np.bool_] | None) -> Ranks:
    """The words less their least, with nulls behind all of them."""
    if valid is None:
        from tidemill.arrangement.kernels.row_words import narrowed  # as above

        return narrowed(words)
    present = words[valid]
    if not present.size:
        return np.zeros(len(words), np.uint64), 0
    least, span = present.min(), int(present.max()) - int(present.min())
    words = words - least
    if span == 2**64 - 1:  # no word is left for null: not of numbers that are not floats
        return _by_value(words, valid)
    return np.where(valid, words, np.uint64(span + 1)), (span + 1).bit_length()


def _by_value(words: Words, valid: npt.NDArray[np.bool_]) -> Ranks:
    """Ranks of words that take the whole range, and of nulls behind them."""
    values, ranks = np.unique(words[valid], return_inverse=True)
    found = np.full(len(words), len(values), np.uint64)
    found[valid] = ranks
    return found, len(values).bit_length()
