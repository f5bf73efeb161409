"""Which rows are equal: a number for each different row, and rows put together by that number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined
from tidemill.arrangement.relational.selecting import extent

_FACTOR = 0x9E37_79B9_7F4A_7C15
_SLOTS_MIN = 1 << 10
_SLOTS_FIRST_BITS = 14
_BITS_MAX = 62
_DIRECT_FACTOR = 4
_RUN_MAX = 8
_BLOCK_ROWS = 1 << 16
_BITS_MIN = 6
FEW_ROWS = 1 << 12
"""So few rows are numbered in one call: the passes over them cost less than a call for each of
their columns.
"""
_RANGE_ROWS = 1 << 14
_SHARING_MAX = 4
"""How many later blocks one may share a stretch with, in the mean."""


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
def _number(words: I64Array) -> tuple[I64Array, I64Array, I64Array, int]:
    """The number of each row, the first row of each number, and the table of numbers by hash."""
    n = words.shape[0]
    ids = np.empty(n, np.int64)
    firsts = np.empty(max(n, 1), np.int64)
    bits = 10
    while bits < _SLOTS_FIRST_BITS and 1 << bits <= 2 * n:
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
    return ids, firsts[:groups].copy(), slots, bits


@compiled
def _find(
    words: I64Array, firsts: I64Array, slots: I64Array, bits: int, wanted: I64Array
) -> I64Array:
    """The number of the row equal to each wanted one, -1 for none."""
    found = np.full(wanted.shape[0], -1, np.int64)
    for row in range(wanted.shape[0]):
        at = np.int64(_hash(wanted, row) >> np.uint64(64 - bits))
        while slots[at] >= 0:
            known = slots[at]
            if _same(wanted, row, words, firsts[known]):
                found[row] = known
                break
            at = (at + 1) & (slots.size - 1)
    return found


@compiled
def _number_directly(words: I64Array, ids: I64Array, slots: I64Array, firsts: I64Array) -> int:
    """As `_number` for words below the number of slots, which is the table itself."""
    groups = 0
    for row in range(words.size):
        known = slots[words[row]]
        if known < 0:
            known = groups
            slots[words[row]] = known
            firsts[known] = row
            groups += 1
        ids[row] = known
    return groups


@compiled
def _pack(column: I64Array, least: int, greatest: int, shift: int, packed: I64Array) -> None:
    """One more column into packed words; -1 for a row with a value that has no place."""
    for row in range(column.size):
        value = column[row]
        if value < least or value > greatest:
            packed[row] = -1
        elif packed[row] >= 0:
            packed[row] |= (value - least) << shift


@compiled
def _place(column: I64Array, least: int, shift: int, first: bool, packed: I64Array) -> None:
    """One more column into packed words, all of its values at least `least`."""
    for row in range(column.size):
        word = (column[row] - least) << shift
        packed[row] = word if first else packed[row] | word


@inlined
def _word(words: I64Array, row: int, places: I64Array) -> int:
    """A row in one word, -1 where a value has no place."""
    word = 0
    for at in range(words.shape[1]):
        value = words[row, at]
        if value < places[0, at] or value > places[1, at]:
            word = -1
        elif word >= 0:
            word |= (value - places[0, at]) << places[2, at]
    return word


@compiled
def number_few(
    words: I64Array, ids: I64Array, firsts: I64Array, slots: I64Array, places: I64Array
) -> tuple[int, int]:
    """Number few rows; how many numbers there are, and by how many bits of their hash rows are
    found.

    Bits are -1 where a row fits a word below the number of slots, which is then its slot: `places`
    are the least and the greatest value of each column, and its shift. Fills `ids`, `firsts` and
    `slots`, of which there are more than four for each row.
    """
    n = words.shape[0]
    width = np.int64(0)
    for at in range(words.shape[1]):
        least, greatest = np.int64(0), np.int64(0)
        if n:
            least, greatest = words[0, at], words[0, at]
        for row in range(1, n):
            least = min(least, words[row, at])
            greatest = max(greatest, words[row, at])
        places[0, at], places[1, at], places[2, at] = least, greatest, width
        span = np.uint64(greatest) - np.uint64(least)
        while span and width < 64:
            span >>= np.uint64(1)
            width += 1
    groups = 0
    if width < _BITS_MAX and np.int64(1) << width <= slots.size:
        slots[: np.int64(1) << width] = -1
        for row in range(n):
            place = _word(words, row, places)
            if slots[place] < 0:
                slots[place] = groups
                firsts[groups] = row
                groups += 1
            ids[row] = slots[place]
        return groups, -1
    bits = 4
    while 1 << bits <= 2 * n:
        bits += 1
    size = 1 << bits
    slots[:size] = -1
    for row in range(n):
        slot = np.int64(_hash(words, row) >> np.uint64(64 - bits))
        while slots[slot] >= 0 and not _same(words, row, words, firsts[slots[slot]]):
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = groups
            firsts[groups] = row
            groups += 1
        ids[row] = slots[slot]
    return groups, bits


@compiled
def _find_few(
    words: I64Array,
    firsts: I64Array,
    slots: I64Array,
    places: I64Array,
    bits: int,
    wanted: I64Array,
    found: I64Array,
) -> None:
    """As `_find`, for rows numbered by `number_few`."""
    for row in range(wanted.shape[0]):
        found[row] = -1
        if bits < 0:
            place = _word(wanted, row, places)
            if place >= 0:
                found[row] = slots[place]
            continue
        at = np.int64(_hash(wanted, row) >> np.uint64(64 - bits))
        while slots[at] >= 0:
            if _same(wanted, row, words, firsts[slots[at]]):
                found[row] = slots[at]
                break
            at = (at + 1) & ((1 << bits) - 1)


@dataclass(frozen=True, slots=True)
class _Packing:
    """Columns with narrow ranges side by side in one word below 2**bits: (least, greatest, shift)
    of each.
    """

    places: tuple[tuple[int, int, int], ...]
    bits: int

    @classmethod
    def of(cls, columns: Sequence[I64Array]) -> _Packing | None:
        """How the columns fit into one word, None if they do not."""
        places = []
        bits = 0
        for column in columns:
            least, greatest = extent(column)
            places.append((least, greatest, bits))
            bits += (greatest - least).bit_length()
            if bits > _BITS_MAX:
                return None
        return cls(tuple(places), bits)

    def place(self, columns: Sequence[I64Array], rows: int) -> I64Array:
        """The packed words of the columns that this was made of."""
        packed, first = np.empty(rows, np.int64), True
        for column, (least, greatest, shift) in zip(columns, self.places, strict=True):
            if least < greatest:
                _place(np.ascontiguousarray(column), least, shift, first, packed)
                first = False
        if first:
            packed[:] = 0
        return packed

    def pack(self, columns: Sequence[I64Array], rows: int) -> I64Array:
        """The packed words, -1 where a value has no place."""
        packed = np.zeros(rows, np.int64)
        for column, (least, greatest, shift) in zip(columns, self.places, strict=True):
            _pack(np.ascontiguousarray(column), least, greatest, shift, packed)
        return packed


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows numbered so that equal ones have one number, in the order of their first rows.

    Shapes: `ids` n, `firsts` one row number for each group.
    """

    ids: I64Array
    firsts: I64Array
    _words: I64Array
    _slots: I64Array
    _bits: int
    _packing: _Packing | None
    _places: I64Array | None = None

    @classmethod
    def of(cls, columns: Sequence[I64Array], rows: int) -> Groups:
        """Number the rows.

        Shapes: k columns of n words. Cost: O(n · k); for few rows two calls and one for each
        column.
        """
        if rows <= FEW_ROWS:
            words = stacked_words(columns, rows)
            ids, firsts = np.empty(rows, np.int64), np.empty(rows, np.int64)
            slots = np.empty(4 * rows + _SLOTS_MIN, np.int64)
            places = np.empty((3, words.shape[1]), np.int64)
            groups, bits = number_few(words, ids, firsts, slots, places)
            return cls(ids, firsts[:groups], words, slots, bits, None, places)
        packing = _Packing.of(columns) if rows else None
        if packing is None:
            words = stacked_words(columns, rows)
            return cls(*_rearranged(words, _number(words)), None)
        packed = packing.place(columns, rows)
        if 1 << packing.bits <= _DIRECT_FACTOR * rows + _SLOTS_MIN:
            ids, firsts = np.empty(rows, np.int64), np.empty(rows, np.int64)
            slots = np.full(1 << packing.bits, -1, np.int64)
            groups = _number_directly(packed, ids, slots, firsts)
            return cls(ids, firsts[:groups].copy(), packed[:, None], slots, -1, packing)
        words = packed[:, None]
        return cls(*_rearranged(words, _number(words)), packing)

    def __len__(self) -> int:
        return len(self.firsts)

    def find(self, columns: Sequence[I64Array], rows: int) -> I64Array:
        """The number of the group equal to each row, -1 for none. Cost: O(rows · k)."""
        if self._places is not None:
            ids = np.empty(rows, np.int64)
            wanted = stacked_words(columns, rows)
            _find_few(self._words, self.firsts, self._slots, self._places, self._bits, wanted, ids)
            return ids
        if self._packing is None:
            wanted = stacked_words(columns, rows)
            return _find(self._words, self.firsts, self._slots, self._bits, wanted)
        packed = self._packing.pack(columns, rows)
        if self._bits < 0:
            found: I64Array = np.where(packed >= 0, self._slots[np.maximum(packed, 0)], -1)
            return found
        return _find(self._words, self.firsts, self._slots, self._bits, packed[:, None])


def _rearranged(
    words: I64Array, found: tuple[I64Array, I64Array, I64Array, int]
) -> tuple[I64Array, I64Array, I64Array, I64Array, int]:
    ids, firsts, slots, bits = found
    return ids, firsts, words, slots, bits


def stacked_words(columns: Sequence[npt.NDArray[Any]], rows: int) -> I64Array:
    """Columns of words or flags side by side.

    Shapes: (rows, k), at least one column. Cost: O(rows · k).
    """
    if not columns:
        return np.zeros((rows, 1), np.int64)
    words = np.empty((rows, len(columns)), np.int64)
    for at, column in enumerate(columns):
        words[:, at] = column
    return words


@compiled
def _ascends(first: I64Array) -> bool:
    """Whether a column ascends and hardly repeats."""
    begin = 0
    for row in range(1, first.size):
        if first[row] < first[row - 1]:
            return False
        if first[row] != first[row - 1]:
            begin = row
        if row - begin > _RUN_MAX:
            return False
    return True


@compiled
def _apart(first: I64Array, columns: I64Array) -> bool:
    begin = 0
    for row in range(1, first.size):
        if first[row] != first[row - 1]:
            begin = row
        for other in range(begin, row):
            same = True
            for at in range(columns.shape[0]):
                same &= columns[at, row] == columns[at, other]
            if same:
                return False
    return True


def surely_apart(columns: Sequence[I64Array], rows: int) -> bool:
    """Whether rows are surely all different; false if that is hard to say.

    Rows in the order of their first column, which hardly repeats, are compared with those beside
    them; others are put into small tables, block by block: where they are many, blocks are those of
    rows that stand together if some column is roughly in order, else of rows whose values in a
    column lie together. Cost: O(n · k); memory for a block, and else for a word of each row.
    """
    if not columns or not rows:
        return rows < 2
    first = np.ascontiguousarray(columns[0])
    if not _ascends(first):
        return _blocks_apart(columns, rows)
    rest = np.stack(columns[1:]) if len(columns) > 1 else np.empty((0, rows), np.int64)
    return bool(_apart(first, rest))


@compiled
def _extents(first: I64Array, block: int, out: I64Array) -> None:
    """The least and the greatest of each block of a column."""
    for at in range(out.shape[1]):
        least, greatest = first[at * block], first[at * block]
        for row in range(at * block, min(first.size, (at + 1) * block)):
            least = min(least, first[row])
            greatest = max(greatest, first[row])
        out[0, at], out[1, at] = least, greatest


@compiled
def _entered(words: I64Array, slots: I64Array, bits: int) -> bool:
    """Put rows into an empty table by their hash; false if two are equal."""
    slots[:] = -1
    for row in range(words.shape[0]):
        at = np.int64(_hash(words, row) >> np.uint64(64 - bits))
        while slots[at] >= 0:
            if _same(words, row, words, slots[at]):
                return False
            at = (at + 1) & (slots.size - 1)
        slots[at] = row
    return True


@compiled
def _met(
    words: I64Array, slots: I64Array, bits: int, others: I64Array, least: int, greatest: int
) -> bool:
    """Whether another row, whose first word lies in a range, is one of the rows of a table."""
    for row in range(others.shape[0]):
        if least <= others[row, 0] <= greatest:
            at = np.int64(_hash(others, row) >> np.uint64(64 - bits))
            while slots[at] >= 0:
                if _same(others, row, words, slots[at]):
                    return True
                at = (at + 1) & (slots.size - 1)
    return False


def _blocks_apart(columns: Sequence[I64Array], rows: int) -> bool:
    """Whether rows are all different, looked at block by block; false if no column makes blocks
    that are small and apart.
    """
    if rows <= _BLOCK_ROWS:
        bits = max(rows.bit_length() + 1, _BITS_MIN)
        return bool(_entered(stacked_words(columns, rows), np.empty(1 << bits, np.int64), bits))
    for at, column in enumerate(columns):
        extents = np.empty((2, -(-rows // _BLOCK_ROWS)), np.int64)
        _extents(np.ascontiguousarray(column), _BLOCK_ROWS, extents)
        near = _near(extents)
        if near is not None:
            ordered = [column, *columns[:at], *columns[at + 1 :]]
            return _never_met(ordered, rows, extents, near)
    for column in columns:
        buckets = range_buckets(column, rows // _RANGE_ROWS)
        if int(np.diff(buckets.starts).max()) <= _BLOCK_ROWS:
            return _ranges_apart(columns, buckets)
    return False


def _ranges_apart(columns: Sequence[I64Array], buckets: Buckets) -> bool:
    """Whether the rows of each of some small buckets are all different."""
    slots = np.empty(4 * _BLOCK_ROWS, np.int64)
    for begin, end in pairwise(buckets.starts.tolist()):
        mine = buckets.order[begin:end]
        bits = max((end - begin).bit_length() + 1, _BITS_MIN)
        words = stacked_words([each[mine] for each in columns], end - begin)
        if not _entered(words, slots[: 1 << bits], bits):
            return False
    return True


def _near(extents: I64Array) -> list[I64Array] | None:
    """For each block the later ones that share a stretch of the column with it; None if they are
    many.
    """
    near: list[I64Array] = []
    room = _SHARING_MAX * extents.shape[1]
    for at, (least, greatest) in enumerate(extents.T.tolist()):
        later = extents[:, at + 1 :]
        others = np.flatnonzero((least <= later[1]) & (later[0] <= greatest)) + at + 1
        room -= len(others)
        if room < 0:
            return None
        near.append(others)
    return near


def _never_met(
    columns: Sequence[I64Array], rows: int, extents: I64Array, near: Sequence[I64Array]
) -> bool:
    bits = _BLOCK_ROWS.bit_length() + 1
    slots = np.empty(1 << bits, np.int64)
    for at, others in enumerate(near):
        words = _block(columns, at, rows)
        if not _entered(words, slots, bits):
            return False
        least, greatest = extents[:, at].tolist()
        for other in others.tolist():
            if _met(words, slots, bits, _block(columns, other, rows), least, greatest):
                return False
    return True


def _block(columns: Sequence[I64Array], at: int, rows: int) -> I64Array:
    begin, end = at * _BLOCK_ROWS, min(rows, (at + 1) * _BLOCK_ROWS)
    return stacked_words([column[begin:end] for column in columns], end - begin)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rows put together by number: those of number i are order[starts[i]:starts[i + 1]]."""

    starts: I64Array
    order: I64Array


@compiled
def deal(ids: I64Array, starts: I64Array, order: I64Array) -> None:
    """Fill `starts`, zero before, and `order` with the rows of each number."""
    for row in range(ids.size):
        starts[ids[row] + 1] += 1
    for group in range(1, starts.size):
        starts[group] += starts[group - 1]
    at = starts[:-1].copy()
    for row in range(ids.size):
        group = ids[row]
        order[at[group]] = row
        at[group] += 1


def buckets_of(ids: I64Array, groups: int) -> Buckets:
    """Put rows together by number; those of one number stay in their order. Cost: O(n + groups)."""
    starts = np.zeros(groups + 1, np.int64)
    order = np.empty(len(ids), np.int64)
    deal(ids, starts, order)
    return Buckets(starts, order)


@compiled
def _deal_ranges(
    values: I64Array, least: int, shift: int, starts: I64Array, order: I64Array
) -> None:
    bits, low = np.uint64(shift), np.uint64(least)
    for row in range(values.size):
        starts[np.int64((np.uint64(values[row]) - low) >> bits) + 1] += 1
    for above in range(1, starts.size):
        starts[above] += starts[above - 1]
    at = starts[:-1].copy()
    for row in range(values.size):
        part = np.int64((np.uint64(values[row]) - low) >> bits)
        order[at[part]] = row
        at[part] += 1


def range_buckets(values: I64Array, parts: int) -> Buckets:
    """Put rows together by ranges of a column, ascending, all of one width: at most so many, or
    two.

    They are more than half as many, but fewer if the column has fewer values. Rows of one range
    stay in their order; there is one row at least. Cost: O(n + parts), memory of a word for each
    row.
    """
    least, greatest = extent(values)
    shift = 0
    while (greatest - least) >> shift >= max(parts, 2):  # two leave at most 63 bits to shift by
        shift += 1
    starts = np.zeros(((greatest - least) >> shift) + 2, np.int64)
    order = np.empty(len(values), np.int64)
    _deal_ranges(np.ascontiguousarray(values), least, shift, starts, order)
    return Buckets(starts, order)
