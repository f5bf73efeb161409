"""Rows of unsigned columns laid into words: less than their lows, side by side, first column on
top.

Rows compare like their words. Loops write into an array they are given: fresh memory costs more
than the loop over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tidemill.arrangement.kernels.arrays import DiffArray, U64Array, compiled, inlined

WORD = 64

_FROM_ZERO = 2
"""Key and val; times keep their least: readers raise it, and rows are laid out anew with it."""

_SHORT = 4096
"""Up to this many rows a column of one value is cheaper to write than to describe."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each column lies in the words of a row, and what was taken off it.

    No column crosses from one word into the next. The first one always starts the first word.
    """

    lows: tuple[int, ...]
    bits: tuple[int, ...]
    table: U64Array = field(init=False, repr=False, compare=False)
    """For compiled loops, a row for each column: low, mask, word, shift."""
    words: int = field(init=False)
    """How many words a row takes, at least one."""
    widths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """How many low bits of each word columns use."""
    head: tuple[int, np.uint64] = field(init=False, repr=False, compare=False)
    """How many words hold the first two columns, and a mask of those bits in the last of them."""

    def __post_init__(self) -> None:
        places: list[tuple[int, int]] = []
        word, used = 0, 0
        for bits in self.bits:
            if used + bits > WORD:
                word, used = word + 1, 0
            used += bits
            places.append((word, used))
        ends = dict(places)  # the last end of each word
        table = [
            (low, 2**bits - 1, word, min(ends[word] - end, WORD - 1))
            for low, bits, (word, end) in zip(self.lows, self.bits, places, strict=True)
        ]
        object.__setattr__(self, "table", np.array(table, np.uint64))
        object.__setattr__(self, "words", word + 1)
        object.__setattr__(self, "widths", tuple(ends.get(at, 0) for at in range(word + 1)))
        at, end = places[min(1, len(places) - 1)]
        mask = 2**WORD - 2 ** (ends[at] - end)
        object.__setattr__(self, "head", (at + 1, np.uint64(mask)))

    @classmethod
    def of(cls, columns: Sequence[U64Array]) -> Layout:
        """The layout of columns with at least one row. Cost: O(n)."""
        return cls.spanning(*spans(columns))

    @classmethod
    def spanning(cls, lows: Sequence[int], highs: Sequence[int]) -> Layout:
        """A layout for values from `lows` to `highs`.

        The first two columns start at zero if that costs no further word: then most neighbours in
        a trace agree on their layout, and merging them moves words as they are.
        """
        bits = _widths(lows, highs)
        starts = [
            0 if at < _FROM_ZERO and low < high else low
            for at, (low, high) in enumerate(zip(lows, highs, strict=True))
        ]
        from_zero = _widths(starts, highs)
        if _words(from_zero) == _words(bits):
            return cls(tuple(starts), from_zero)
        return cls(tuple(lows), bits)

    @classmethod
    def plain(cls, columns: int) -> Layout:
        """A word for each column, whatever its values."""
        return _plain_layout(columns)

    @property
    def highs(self) -> tuple[int, ...]:
        """The greatest value that each column can hold."""
        return tuple(low + 2**bits - 1 for low, bits in zip(self.lows, self.bits, strict=True))

    def same_words(self, other: Layout) -> bool:
        """Whether rows are the same words in both; columns without bits may differ."""
        return self.bits == other.bits and all(
            low == lower or not bits
            for low, lower, bits in zip(self.lows, other.lows, self.bits, strict=True)
        )

    def pack(self, columns: Sequence[U64Array], spare: int = 0) -> U64Array:
        """The rows of `columns`, with `spare` low bits of the last word left zero.

        Shapes: columns (n,) in, (n, words) out.
        Cost: O(n · columns).
        """
        rows: U64Array = np.zeros((len(columns[0]), self.words), np.uint64)
        for at, (column, bits) in enumerate(zip(columns, self.bits, strict=True)):
            if bits:
                last = int(self.table[at, 2]) == self.words - 1
                pack_into(rows, column, self.table, at, spare if last else 0)
        return rows

    def unpack(self, rows: U64Array, at: int) -> U64Array:
        """Column number `at` of packed rows; a constant one takes no memory. Cost: O(n)."""
        if not self.bits[at]:
            return constant(self.lows[at], len(rows))
        column = np.empty(len(rows), np.uint64)
        unpack_into(rows, self.table, at, column)
        return column

    def unpack_all(self, rows: U64Array) -> list[U64Array]:
        """All columns of packed rows. Cost: O(n · columns)."""
        return [self.unpack(rows, at) for at in range(len(self.bits))]


@lru_cache
def _plain_layout(columns: int) -> Layout:
    return Layout((0,) * columns, (WORD,) * columns)


def _widths(lows: Sequence[int], highs: Sequence[int]) -> tuple[int, ...]:
    return tuple((high - low).bit_length() for low, high in zip(lows, highs, strict=True))


def _words(widths: Sequence[int]) -> int:
    words, used = 1, 0
    for bits in widths:
        if used + bits > WORD:
            words, used = words + 1, 0
        used += bits
    return words


def constant(value: int, rows: int) -> U64Array:
    """A column of one value that takes no memory if it is long; not to be written to."""
    if rows <= _SHORT:
        return np.full(rows, value, np.uint64)
    return np.broadcast_to(np.uint64(value), rows)


def spans(columns: Sequence[U64Array]) -> tuple[list[int], list[int]]:
    """The least and the greatest value of each column, at least one row. Cost: O(n)."""
    lows, highs = [], []
    for column in columns:
        if column.strides == (0,):
            low = high = column[0]
        else:
            low, high = span_of(column)
        lows.append(int(low))
        highs.append(int(high))
    return lows, highs


@compiled
def span_of(column: U64Array) -> tuple[np.uint64, np.uint64]:
    """The least and the greatest value of a column with at least one row. Cost: O(n)."""
    low = high = column[0]
    for value in column:
        low = min(low, value)
        high = max(high, value)
    return low, high


@inlined
def field_of(rows: U64Array, i: int | np.int64, table: U64Array, at: int) -> np.uint64:
    """Column `at` of packed row `i`."""
    value: np.uint64 = ((rows[i, table[at, 2]] >> table[at, 3]) & table[at, 1]) + table[at, 0]
    return value


@compiled
def pack_into(rows: U64Array, column: U64Array, table: U64Array, at: int, spare: int) -> None:
    """Add `column` to its place in each row, shifted left by `spare` bits more. Cost: O(n)."""
    least, word, shift = table[at, 0], table[at, 2], table[at, 3] + np.uint64(spare)
    for i in range(column.size):
        rows[i, word] |= (column[i] - least) << shift


@compiled
def unpack_into(rows: U64Array, table: U64Array, at: int, column: U64Array) -> None:
    """Column `at` of each row. Cost: O(n)."""
    least, mask, word, shift = table[at, 0], table[at, 1], table[at, 2], table[at, 3]
    for i in range(column.size):
        column[i] = ((rows[i, word] >> shift) & mask) + least


@compiled
def relay_rows(
    rows: U64Array, table: U64Array, since: U64Array, out: U64Array, out_table: U64Array
) -> None:
    """The same rows in another layout, times not below `since` lane by lane.

    The last `since.size` columns are the lanes of time.
    Shapes: rows (n, words), since (lanes,), out (n, words of the other layout).
    Cost: O(n · columns).
    """
    fields = table.shape[0]
    first_lane = fields - since.size
    for i in range(rows.shape[0]):
        for word in range(out.shape[1]):
            out[i, word] = np.uint64(0)
        for at in range(fields):
            value = field_of(rows, i, table, at)
            if at >= first_lane:
                value = max(value, since[at - first_lane])
            out[i, out_table[at, 2]] |= (value - out_table[at, 0]) << out_table[at, 3]


@compiled
def prefixes_of(rows: U64Array, first: int, second: int, index_bits: int, words: U64Array) -> None:
    """Words of the top bits of each row over its position.

    `first` and `second` are how many bits the first two words of a row use.
    Cost: O(n).
    """
    index_mask = (np.uint64(1) << np.uint64(index_bits)) - np.uint64(1)
    up, down, up_second = np.uint64(64 - first), np.uint64(first), np.uint64(64 - second)
    both = first < 64 and second > 0
    for i in range(words.size):
        prefix = rows[i, 0] << up
        if both:
            prefix |= (rows[i, 1] << up_second) >> down
        words[i] = (prefix & ~index_mask) | np.uint64(i)


@compiled
def place_digit(
    column: U64Array, least: np.uint64, start: int, bits: np.uint64, before: U64Array,
    index_bits: int, words: U64Array,
) -> None:  # fmt: skip
    """Words of a digit of each row, the `bits` from place `start`, and of the row's rank so far.

    Ranks so far are the order of the positions in `before`, or as rows stand if it is empty.
    Cost: O(n).
    """
    shift = np.uint64(start)
    left = np.uint64(index_bits)
    index_mask = (np.uint64(1) << left) - np.uint64(1)
    for i in range(words.size):
        row = before[i] & index_mask if before.size else np.uint64(i)
        words[i] = (((column[row] - least) >> shift) & bits) << left | np.uint64(i)


@compiled
def follow(words: U64Array, before: U64Array, index_bits: int) -> None:
    """Replace ranks in the lowest `index_bits` of the words by the positions of these ranks.

    Cost: O(n), at random places.
    """
    index_mask = (np.uint64(1) << np.uint64(index_bits)) - np.uint64(1)
    for i in range(words.size):
        words[i] = before[words[i] & index_mask] & index_mask


@compiled
def spread_rows(
    rows: U64Array, diffs: DiffArray, place: int, bucket_bits: int,
    out: U64Array, out_diffs: DiffArray,
) -> None:  # fmt: skip
    """Rows and diffs in buckets by the bits of the first word at `place`, in their order inside.

    One diff for all rows stays that. Cost: O(n).
    """
    down, width = np.uint64(place), rows.shape[1]
    each = diffs.size == rows.shape[0]
    ends = np.zeros((1 << bucket_bits) + 1, np.int64)
    for i in range(rows.shape[0]):
        ends[(rows[i, 0] >> down) + np.uint64(1)] += 1
    for bucket in range(1 << bucket_bits):
        ends[bucket + 1] += ends[bucket]
    for i in range(rows.shape[0]):
        bucket_of = rows[i, 0] >> down
        at = ends[bucket_of]
        ends[bucket_of] = at + 1
        if each:
            out_diffs[at] = diffs[i]
        for word in range(width):
            out[at, word] = rows[i, word]


@compiled
def gather_rows(
    rows: U64Array, diffs: DiffArray, words: U64Array, index_bits: int,
    out: U64Array, out_diffs: DiffArray,
) -> None:  # fmt: skip
    """The packed rows and diffs at the positions in the lowest `index_bits` of the words.

    Cost: O(n), at random places.
    """
    index_mask = (np.uint64(1) << np.uint64(index_bits)) - np.uint64(1)
    width = rows.shape[1]
    each = diffs.size == rows.shape[0]
    for i in range(words.size):
        at = words[i] & index_mask
        out_diffs[i] = diffs[at if each else np.uint64(0)]
        for word in range(width):
            out[i, word] = rows[at, word]
