"""Arrangements of interval updates: rows in memory, found by the values of any of their columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tidemill.arrangement.interval_updates.rows import END_WORD, Change
from tidemill.arrangement.interval_updates.slots import (
    BITS,
    COUNTS,
    FULL,
    MASK,
    PAGE_BITS,
    PAGES,
    ROW_BITS,
    TAKEN,
    is_crowded,
    link,
    renumber,
    spread,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled
from tidemill.arrangement.kernels.capacity import grow, take_pages

AsOf = tuple[int, int]
"""The place of a reader, and the column that says until when a row lasts; see `end_as_of`."""
ALL_KNOWN: AsOf = (END_WORD, -1)
_ROWS_MIN = 16
_SLOTS_BITS_MIN = 5
_ROW_BITS = 18, 31
"""Bits of the number of a row: at first, and at most."""
_COMPACT_ROWS_MIN = 1 << 10
_LOOKS, _LOOKS_EACH = 1 << 12, 4
"""Rows that one call looks at for those of use, and for each row that has come since the last."""
_FEW = 1 << 6
"""Fewer rows than these take their pages as they are written."""


@compiled
def _useful(rows: I64Array, first: int, last: int, ends: int, since: int) -> int:
    """The number of rows[first:last] that are of use from an instant on."""
    width, found = rows.shape[1] - 2, 0
    for row in range(first, last):
        start, end = rows[row, width], rows[row, width + 1]
        if start < end and (end > since or rows[row, ends] > since):
            found += 1
    return found


@compiled
def _keep(rows: I64Array, count: int, ends: int, since: int, out: I64Array) -> None:
    """Copy the rows that are of use from an instant on; `out` may be `rows`."""
    width, found = rows.shape[1] - 2, 0
    for row in range(count):
        start, end = rows[row, width], rows[row, width + 1]
        if start < end and (end > since or rows[row, ends] > since):
            for column in range(width + 2):
                out[found, column] = rows[row, column]
            found += 1


class Index:
    """Rows of an arrangement by the values of `columns`, those of one value as a chain.

    `slots` lead to the first row of each key; `nexts` hold the next row of a row, -1 for none.
    `used` tells of the slots (see `slots`). The rows before `linked` are in it. An `ordered` chain
    goes from late to early, and no two rows of it overlap; else it goes from new to old.
    """

    __slots__ = ("columns", "linked", "nexts", "ordered", "slots", "used")

    def __init__(self, columns: Sequence[int], ordered: bool = False) -> None:
        self.ordered = ordered
        self.columns = np.array(columns, np.int64)
        self.slots = np.full(1 << _SLOTS_BITS_MIN, -1, np.int32)
        self.nexts = np.empty(0, np.int32)
        self.used = np.array([0, _SLOTS_BITS_MIN, _ROW_BITS[0], 1, 0, 0, 0], np.int64)
        self.linked = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the index."""
        return int(self.slots.nbytes + self.nexts.nbytes)

    def extend(self, rows: I64Array, last: int) -> None:
        """Take in the rows before `last`. Cost: O(rows), and now and then O(keys)."""
        if len(self.nexts) < len(rows):
            grow(self, "nexts", len(rows), self.linked)
            many = len(rows) if len(rows) > 2 * self.linked else self.linked
            take_pages(self.nexts, self.linked, many)
        if len(rows) > 1 << self.used[ROW_BITS]:
            bits = min(len(rows).bit_length() + 2, _ROW_BITS[1])
            renumber(self.slots, self.used, bits)
        while self.linked < last:
            self.linked = link(
                rows, self.columns, self.slots, self.nexts, self.used, self.linked, last,
                self.ordered,
            )  # fmt: skip
            if self.linked < last:
                self.grow(rows, last - self.linked)

    def clear(self, rows: int) -> None:
        """Forget all rows, with slots for as many keys as there are rows. Cost: O(slots)."""
        if 2 * rows < len(self.slots):
            self.nexts = np.empty(0, np.int32)
        self._begin(*_pages_for(rows))
        self.used[TAKEN] = self.linked = 0

    def grow_if_crowded(self, rows: I64Array, more: int) -> bool:
        """See `grow`; whether there was not enough room for one more key."""
        if not is_crowded(self.used):
            return False
        self.grow(rows, more)
        return True

    def grow(self, rows: I64Array, more: int) -> None:
        """Room for more slots. Cost: O(keys) for a small table, or where many more rows come."""
        used, taken = self.used, int(self.used[TAKEN])
        pages, bits = int(used[PAGES]), int(used[BITS])
        if bits == PAGE_BITS and more < taken and not used[FULL]:
            room = pages + (pages >> 3) + 1
            grow(self, "slots", room << bits, pages << bits)
            take_pages(self.slots, pages << bits, min(2 * more + (pages << bits), room << bits))
            self.used = np.concatenate([used, np.zeros(COUNTS + room - len(used), np.int64)])
            return
        old = self.slots[: pages << bits]
        if used[FULL] or bits > PAGE_BITS:
            self._begin(max(PAGE_BITS, (2 * taken).bit_length()) + 1, 1)
        else:
            self._begin(*_pages_for(max(2 * taken, min(taken + more, 4 * taken))))
        spread(rows, self.columns, old, self.slots, self.used)

    def _begin(self, bits: int, pages: int) -> None:
        """Empty pages in the place of all that there are."""
        self.slots = np.full(pages << bits, -1, np.int32)
        used = np.zeros(COUNTS + pages, np.int64)
        used[:COUNTS] = self.used[:COUNTS]
        used[BITS], used[PAGES] = bits, pages
        used[MASK], used[FULL] = (1 << (pages - 1).bit_length()) - 1, 0
        self.used = used


def _pages_for(keys: int) -> tuple[int, int]:
    """The slots of a page as a power of two, and how many pages there are for some keys."""
    bits = max(_SLOTS_BITS_MIN, (2 * keys).bit_length())
    return (bits, 1) if bits < PAGE_BITS else (PAGE_BITS, (8 * keys // 3 >> PAGE_BITS) + 1)


class Arrangement:
    """Updates of one collection with their intervals, all of them with diff 1.

    `rows[:count]` are columns, start and end; rows whose start is not before their end are dead.
    A row is of use until its end, and until the word in the column `ends` where that is told.
    Rows are taken away by `merge` and its like, in place. Rows that agree in the columns `apart`
    never overlap. Not for use by several threads at once.
    """

    __slots__ = (
        "_apart", "_ends", "_found", "_indexes", "_live", "_looked", "_seen", "columns", "counts",
        "rows",
    )  # fmt: skip

    def __init__(
        self, columns: int, ends: int | None = None, apart: Sequence[int] | None = None
    ) -> None:
        self._apart = None if apart is None else tuple(apart)
        self.columns = columns
        self.rows = np.empty((_ROWS_MIN, columns + 2), np.int64)
        self.counts = np.zeros(2, np.int64)
        """Rows, and rows before the first negative one: all, but where a change is arranged."""
        self._indexes: dict[tuple[int, ...], Index] = {}
        self._ends = columns + 1 if ends is None else ends
        self._live = 0
        """Rows of use when all of them were looked at last."""
        self._looked = self._found = self._seen = 0
        """Rows looked at since, those of use among them, and all rows at the last look."""

    def __len__(self) -> int:
        return int(self.counts[0])

    @property
    def as_of(self) -> AsOf:
        """All is known to those who read it."""
        return ALL_KNOWN

    def hold(self, columns: Sequence[int]) -> Index:
        """The index by some columns; nobody else changes an arrangement."""
        return self.index(columns)

    def release(self) -> None:
        """The rows are not read any more."""

    @property
    def nbytes(self) -> int:
        """The bytes of rows and indexes, with room for more."""
        return int(self.rows.nbytes) + sum(index.nbytes for index in self._indexes.values())

    @classmethod
    def of_change(cls, change: Change) -> Arrangement:
        """A change as an arrangement: its negative rows, each of diff -1, follow the others."""
        found = cls(change.shape[1] - 3)
        diffs = change[:, -1]
        ordered = np.concatenate([change[diffs > 0], change[diffs < 0]])
        found.rows = np.ascontiguousarray(ordered[:, :-1])
        found.counts[0] = len(ordered)
        found.counts[1] = int((diffs > 0).sum())
        return found

    def index(self, columns: Sequence[int]) -> Index:
        """The index by some columns, with all rows; kept once it is made.

        Cost: O(rows that have come since it was asked for).
        """
        key = tuple(columns)
        known = self._indexes.get(key)
        if known is None:
            known = self._indexes[key] = self._index(key)
        count = int(self.counts[0])
        if known.linked < count or len(known.nexts) < len(self.rows):
            known.extend(self.rows, count)
        return known

    def _index(self, columns: tuple[int, ...]) -> Index:
        return Index(columns, columns == self._apart)

    def complete(self, columns: Sequence[int]) -> Index | None:
        """The index by some columns if nothing has to be done for it."""
        known = self._indexes.get(tuple(columns))
        if known is None or known.linked < len(self) or len(known.nexts) < len(self.rows):
            return None
        return known

    def is_indexed_within(self, columns: Collection[int]) -> bool:
        """Whether no index has other columns, so that words of these may change where they are."""
        return all(set(columns).issuperset(key) for key in self._indexes)

    def useful(self, since: int) -> int:
        """The number of rows that are of use from an instant on. Cost: O(rows)."""
        return _useful(self.rows, 0, len(self), self._ends, since)

    def reserve(self, more: int, coming: int = 0) -> None:
        """Have room for more rows, and memory for those `coming` if these are even more.

        Cost: amortised O(1) for each row that comes.
        """
        count = int(self.counts[0])
        if count + more > len(self.rows):
            capacity = max(count + more, len(self.rows) + (len(self.rows) >> 1), _ROWS_MIN)
            grow(self, "rows", capacity, count)
        if more > _FEW:
            take_pages(self.rows, count, count + max(more, coming))

    def append(self, rows: I64Array) -> None:
        """Take in rows with their intervals. Shapes: (n, columns + 2)."""
        first = len(self)
        self.reserve(len(rows))
        self.rows[first : first + len(rows)] = rows
        self.counts[:] = first + len(rows)

    def clear(self) -> None:
        """Forget all rows."""
        self.counts[:] = self._live = self._looked = self._found = self._seen = 0
        self._indexes = {columns: self._index(columns) for columns in self._indexes}

    def compact(self, since: int) -> None:
        """Forget what is of no use from `since` on, where that may be half of the rows.

        Many rows are looked at in several calls, while others come. Cost: O(rows come since the
        last call), and O(rows) where many are forgotten: amortised O(1) for each that has come.
        """
        count = len(self)
        come, self._seen = count - self._seen, count
        if count < max(_COMPACT_ROWS_MIN, 2 * self._live):
            return
        first = self._looked
        self._looked = min(first + max(_LOOKS, _LOOKS_EACH * come), count)
        self._found += _useful(self.rows, first, self._looked, self._ends, since)
        if self._looked < count:
            return
        self._live, self._looked, self._found = self._found, 0, 0
        if 4 * self._live > 3 * count:
            return
        kept = self._live = _useful(self.rows, 0, count, self._ends, since)
        out = self.rows
        if 4 * kept < len(out):
            out = np.empty((2 * kept + _ROWS_MIN, out.shape[1]), np.int64)
        _keep(self.rows, count, self._ends, since, out)
        self.rows = out
        self.counts[:] = self._seen = kept
        for index in self._indexes.values():
            index.clear(kept)

    def living(self) -> I64Array:
        """The rows whose interval is not empty. Cost: O(rows)."""
        rows = self.rows[: len(self)]
        return rows[rows[:, -2] < rows[:, -1]]


__all__ = ["END_WORD", "Arrangement", "AsOf", "Index"]
