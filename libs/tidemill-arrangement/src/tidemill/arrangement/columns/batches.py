"""Batches of packed rows: columns of numbers, as narrow at rest as their values allow."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tidemill.arrangement.columns.storage import (
    DiffColumn,
    InMemory,
    Storage,
    narrowed,
    new_rows,
)
from tidemill.arrangement.kernels import (
    Columns,
    DiffArray,
    I64Array,
    Layout,
    U64Array,
    consolidate_packed,
    frontier_rows,
)
from tidemill.arrangement.kernels.bounding import OVERFLOW, outside, pack_few
from tidemill.arrangement.kernels.consolidating import FEW, overflow, stack_lanes
from tidemill.arrangement.kernels.packed_merging import (
    close_last_group,
    merge_few,
    merge_groups,
    merge_pairs,
    merge_words,
)
from tidemill.arrangement.kernels.packing import relay_rows, spans
from tidemill.arrangement.trace import Description, Merger
from tidemill.errors import UsageError
from tidemill.time import Antichain, Lattice

Times: TypeAlias = Antichain[Any]  # Any: of whole numbers, or of tuples of them for several lanes
ColumnLattice: TypeAlias = Lattice[Any]  # Any: as above

MEMORY = InMemory()

PLAIN_ROWS = 256
"""Up to this many rows are merged in one call, into a word for each column: cheaper than finding
out what they need.
"""


class ColumnBatch:
    """Immutable rows (key, val, time lanes, diff), sorted and consolidated, for one interval.

    `rows` are words in `layout`; `diffs` has one for each row, or a single one for all.
    """

    __slots__ = ("description", "diffs", "lattice", "layout", "rows", "storage")

    def __init__(
        self,
        lattice: ColumnLattice,
        description: Description[Any],
        layout: Layout,
        rows: U64Array,
        diffs: DiffArray,
        storage: Storage = MEMORY,
    ) -> None:
        """Trusts that the rows are sorted, consolidated and within the interval; see `of`."""
        self.lattice = lattice
        self.description = description
        self.layout = layout
        self.rows = rows
        self.diffs = diffs
        self.storage = storage

    @staticmethod
    def lanes_of(lattice: ColumnLattice) -> int:
        """How many lanes the times of a lattice have: one for whole numbers."""
        return len(lattice.minimum()) if isinstance(lattice.minimum(), tuple) else 1

    @classmethod
    def of(
        cls,
        lattice: ColumnLattice,
        lower: Times,
        upper: Times,
        updates: Columns,
        storage: Storage = MEMORY,
    ) -> ColumnBatch:
        """The batch of `updates`, in any order, opposite and repeated ones included.

        Raises: UsageError if the interval is none, if an update is not beyond `lower` or is beyond
            `upper`, or if a sum of diffs does not fit in 64 bits.
        Cost: that of `consolidate`.
        """
        description = Description(lower, upper, Antichain.minimum(lattice))
        if len(updates) <= FEW:
            return _of_few(lattice, description, updates, storage)
        constant = updates.times.strides[-1] == 0
        times = np.ascontiguousarray(updates.times[:, :1] if constant else updates.times)
        at = outside(times, *(frontier_rows(bound, len(times)) for bound in (lower, upper)))
        if at >= 0:
            raise _misplaced(lattice, updates, at, lower, upper)
        packed = consolidate_packed(updates.columns, updates.diffs)
        return cls.packed(lattice, description, *packed, storage)

    @classmethod
    def packed(
        cls,
        lattice: ColumnLattice,
        description: Description[Any],
        layout: Layout,
        rows: U64Array,
        diffs: DiffArray,
        storage: Storage = MEMORY,
    ) -> ColumnBatch:
        """The batch of packed rows that are known to be sorted, consolidated and in the interval."""
        kept = _kept_rows(rows, storage), narrowed(diffs, storage)
        return cls(lattice, description, layout, *kept, storage)

    @classmethod
    def sorted(
        cls,
        lattice: ColumnLattice,
        description: Description[Any],
        updates: Columns,
        storage: Storage = MEMORY,
    ) -> ColumnBatch:
        """The batch of updates that are known to be sorted, consolidated and in the interval."""
        few = len(updates) <= FEW
        layout = Layout.plain(2 + updates.lanes) if few else Layout.of(updates.columns)
        rows = layout.pack(updates.columns)
        return cls.packed(lattice, description, layout, rows, updates.diffs, storage)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """The bytes of its columns at rest, in memory or in files."""
        return int(self.rows.nbytes + self.diffs.nbytes)

    @property
    def lanes(self) -> int:
        return len(self.layout.bits) - 2

    def updates(self) -> Columns:
        """The rows as plain columns. Cost: O(n)."""
        if self.layout is Layout.plain(len(self.layout.bits)):
            plain = np.ascontiguousarray(self.rows.T)
            return Columns(plain[0], plain[1], plain[2:], self.diffs_of(0, len(self)))
        columns = self.layout.unpack_all(self.rows)
        return Columns(
            columns[0], columns[1], stack_lanes(columns[2:], len(self)), self.diffs_of(0, len(self))
        )

    def diffs_of(self, start: int, end: int) -> I64Array:
        """The diffs of some rows, in an array of their own. Cost: O(rows)."""
        if len(self.diffs) == 1:
            return np.full(end - start, self.diffs[0], np.int64)
        return self.diffs[start:end].astype(np.int64)

    def bounds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers at or below, and at or above, all values of each column; close ones.

        Cost: O(columns); O(n) for the few rows of a plain layout.
        """
        if self.layout is not Layout.plain(len(self.layout.bits)):
            return self.layout.lows, self.layout.highs
        lows, highs = spans(self.layout.unpack_all(self.rows))
        return tuple(lows), tuple(highs)

    def begin_merge(self, later: ColumnBatch, logical: Times) -> Merger[ColumnBatch]:
        """A merge with the batch that follows, compacting to `logical`.

        Raises: UsageError if the intervals do not touch.
        """
        if len(self) + len(later) <= PLAIN_ROWS:
            return FewMerger(self, later, logical)
        return ColumnMerger(self, later, logical)

    def merge_empty(self, later: ColumnBatch, logical: Times) -> ColumnBatch:
        """The one empty batch for the intervals of two that have no rows."""
        if len(self) or len(later):
            raise UsageError("only batches without rows are joined without a merge")
        description = self.description.followed_by(later.description, logical, self.lattice)
        return ColumnBatch(
            self.lattice, description, self.layout, self.rows, self.diffs, self.storage
        )


class FewMerger:
    """A merge of a handful of rows: charged for row by row, done in one call when all is paid.

    One call reads no more than `PLAIN_ROWS` rows beyond its fuel.
    """

    __slots__ = ("_a", "_b", "_description", "_merged", "_read", "_rows")

    def __init__(self, a: ColumnBatch, b: ColumnBatch, logical: Times) -> None:
        self._description = a.description.followed_by(b.description, logical, a.lattice)
        self._a, self._b = a, b
        self._rows, self._read = len(a) + len(b), 0
        self._merged: ColumnBatch | None = None

    @property
    def complete(self) -> bool:
        return self._read == self._rows

    def work(self, fuel: int) -> int:
        """Pay for at most `fuel` more rows; how many were paid for.

        Raises: UsageError if a sum of diffs does not fit in 64 bits.
        """
        paid = min(fuel, self._rows - self._read)
        self._read += paid
        if self.complete and self._merged is None:
            self._merged = self._merge()
        return paid

    def outcome(self) -> ColumnBatch:
        """The merged batch. Raises: UsageError if the merge is not complete."""
        if not self.complete:
            raise UsageError("the merge is not complete")
        return self._merged if self._merged is not None else self._merge()

    def _merge(self) -> ColumnBatch:
        a, b = self._a, self._b
        layout = Layout.plain(len(a.layout.bits))
        rows, diffs = (
            np.empty((self._rows, layout.words), np.uint64),
            np.empty(self._rows, np.int64),
        )
        kept = merge_few(
            a.rows, a.layout.table, a.diffs.astype(np.int64, copy=False),
            b.rows, b.layout.table, b.diffs.astype(np.int64, copy=False),
            _least_of(self._description.since, a.lanes), layout.table, rows, diffs,
        )  # fmt: skip
        if kept < 0:
            raise overflow()
        rows = _kept_rows(rows[:kept], a.storage)
        return ColumnBatch(a.lattice, self._description, layout, rows, diffs[:kept], a.storage)


_WINDOW = 1 << 16
"""Rows that are laid out anew, or whose diffs are widened, at a time."""


class ColumnMerger:
    """A merge that stops after any number of rows read, also inside a key and where all cancels.

    What it has read is written in its final layout: nothing is left to be done at the end but to
    put the last (key, val) in order.
    """

    __slots__ = (
        "_a", "_as_is", "_b", "_by_group", "_description", "_diffs", "_layout", "_open", "_places",
        "_read", "_rows", "_since",
    )  # fmt: skip

    def __init__(self, a: ColumnBatch, b: ColumnBatch, logical: Times) -> None:
        self._description = a.description.followed_by(b.description, logical, a.lattice)
        self._a, self._b = a, b
        self._since = _least_of(self._description.since, a.lanes)
        least = self._since.tolist()
        self._layout = _merged_layout(a, b, least)
        self._as_is = tuple(_stays(batch, self._layout, least) for batch in (a, b))
        advances = not all(self._as_is) and any(least)
        self._by_group = self._layout.words > 2 or (advances and a.lanes > 1)
        rows = len(a) + len(b)
        self._rows = new_rows(a.storage, rows, self._layout.words)
        self._diffs = DiffColumn(a.storage, rows)
        self._open = np.empty(0, np.int64)
        self._places = np.zeros(5, np.int64)
        self._read = [0, 0]

    @property
    def complete(self) -> bool:
        return sum(self._read) == len(self._a) + len(self._b)

    def work(self, fuel: int) -> int:
        """Read at most `fuel` more rows; how many were read.

        Raises: UsageError if a sum of diffs does not fit in 64 bits.
        Cost: O(fuel), and a sort of the times of each (key, val) that ends if they may be in no
            order.
        """
        left = fuel
        while left > 0 and not self.complete:
            left -= self._merge_piece(min(left, _WINDOW))
        return fuel - left

    def outcome(self) -> ColumnBatch:
        """The merged batch. Raises: UsageError if the merge is not complete."""
        if not self.complete:
            raise UsageError("the merge is not complete")
        kept = int(self._places[2])
        rows = self._rows[:kept]
        if 2 * kept < len(self._rows):
            smaller = new_rows(self._a.storage, kept, self._layout.words)
            smaller[:] = rows
            rows = smaller
        return ColumnBatch(
            self._a.lattice, self._description, self._layout, rows, self._diffs.array(),
            self._a.storage,
        )  # fmt: skip

    def _merge_piece(self, fuel: int) -> int:
        """Read `fuel` rows, or what is left: windows of that many rows from both sides suffice."""
        a, a_diffs = self._window(0, fuel)
        b, b_diffs = self._window(1, fuel)
        places = self._places
        places[0] = places[1] = 0
        base = places[3] = int(places[2]) - len(self._open)
        diffs = np.empty(len(self._open) + fuel, np.int64)
        diffs[: len(self._open)] = self._open
        if self._by_group:
            head_words, head_mask = self._layout.head
            read: int = merge_groups(
                a, a_diffs, b, b_diffs, fuel, self._rows, diffs, places, head_words, head_mask
            )
        else:
            merge = merge_words if self._layout.words == 1 else merge_pairs
            read = merge(a, a_diffs, b, b_diffs, fuel, self._rows, diffs, places)
            places[4] = max(places[2] - 1, base)
        if read < 0:
            raise overflow()
        self._read[0] += int(places[0])
        self._read[1] += int(places[1])
        if self.complete:
            if not close_last_group(self._rows, diffs, places):
                raise overflow()
            places[4] = places[2]
        closed = int(places[4]) - base
        self._diffs.append(diffs[:closed])
        self._open = diffs[closed : int(places[2]) - base].copy()
        return read

    def _window(self, side: int, rows: int) -> tuple[U64Array, I64Array]:
        batch = (self._a, self._b)[side]
        start = self._read[side]
        end = min(start + rows, len(batch))
        window = batch.rows[start:end]
        if not self._as_is[side]:
            laid = np.empty((end - start, self._layout.words), np.uint64)
            relay_rows(window, batch.layout.table, self._since, laid, self._layout.table)
            window = laid
        return window, batch.diffs_of(start, end)


def _merged_layout(a: ColumnBatch, b: ColumnBatch, since: list[int]) -> Layout:
    """A layout for the rows of both, times advanced by `since`."""
    fields = len(a.layout.bits)
    floors = [0] * (fields - len(since)) + since
    lows, highs = [2**64 - 1] * fields, [0] * fields
    for batch in (a, b):
        if len(batch):
            least, greatest = batch.bounds()
            lows = [min(x, y) for x, y in zip(lows, least, strict=True)]
            highs = [max(x, y) for x, y in zip(highs, greatest, strict=True)]
    return Layout.spanning(
        [max(x, y) for x, y in zip(lows, floors, strict=True)],
        [max(x, y) for x, y in zip(highs, floors, strict=True)],
    )


def _least_of(since: Times, lanes: int) -> U64Array:
    """What advancing to `since` raises each lane to: one maximum a lane, the meet of its elements."""
    if len(since) == 1 and lanes == 1:
        return np.array(since.elements, np.uint64)
    elements = frontier_rows(since, lanes)
    least: U64Array = elements.min(axis=0) if len(elements) else np.zeros(lanes, np.uint64)
    return least


def _stays(batch: ColumnBatch, layout: Layout, since: list[int]) -> bool:
    """Whether the rows of a batch are the same words in `layout` with times advanced."""
    lanes = zip(batch.layout.lows[2:], batch.layout.bits[2:], since, strict=True)
    return not len(batch) or (
        batch.layout.same_words(layout) and all(not bits or low >= s for low, bits, s in lanes)
    )


def _kept_rows(rows: U64Array, storage: Storage) -> U64Array:
    if isinstance(storage, InMemory):
        return rows
    kept = new_rows(storage, *rows.shape)
    kept[:] = rows
    return kept


def _of_few(
    lattice: ColumnLattice, description: Description[Any], updates: Columns, storage: Storage
) -> ColumnBatch:
    """The batch of a handful of updates: one compiled call, and a word for each column."""
    lanes = updates.lanes
    layout = Layout.plain(2 + lanes)
    rows, sums = np.empty((len(updates), 2 + lanes), np.uint64), np.empty(len(updates), np.int64)
    if not len(updates):
        return ColumnBatch(lattice, description, layout, rows, sums, storage)
    plain = updates.contiguous()
    lower, upper = (
        frontier_rows(bound, lanes) for bound in (description.lower, description.upper)
    )  # fmt: skip
    kept = pack_few(plain.keys, plain.vals, plain.times, plain.diffs, lower, upper, rows, sums)
    if kept == OVERFLOW:
        raise overflow()
    if kept < 0:
        raise _misplaced(lattice, updates, -2 - kept, description.lower, description.upper)
    rows = _kept_rows(rows[:kept], storage)
    return ColumnBatch(lattice, description, layout, rows, sums[:kept], storage)


def _misplaced(
    lattice: ColumnLattice, updates: Columns, at: int, lower: Times, upper: Times
) -> UsageError:
    """The error of an update that is not in the interval of its batch, to be raised."""
    row = updates.times[:, at].tolist()
    time = tuple(row) if isinstance(lattice.minimum(), tuple) else row[0]
    if not lower.less_equal(time):
        return UsageError(f"{time} is not beyond the lower {lower}", reason="UpdateNotBeyondLower")
    return UsageError(f"{time} is beyond the upper {upper}", reason="UpdateBeyondUpper")
