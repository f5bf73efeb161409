"""Batches as sorted columns of Python values: any records with an order, any lattice of times."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from tidemill.arrangement.trace.description import Description
from tidemill.errors import UsageError
from tidemill.testkit.partial_orders.update_sets import Update, consolidate_updates
from tidemill.time import Antichain, Lattice, advance


class Record(Hashable, Protocol):
    """A value that has an order among the values of the same trace."""

    def __lt__(self, other: Any, /) -> bool: ...  # Any: the other is of the same trace


D = TypeVar("D", bound=Record)
K = TypeVar("K", bound=Record)
V = TypeVar("V", bound=Record)
T = TypeVar("T", bound=Hashable)


class RowBatch(Generic[D, T]):
    """Immutable columns `data`, `times`, `diffs`, sorted by record and then by time, consolidated.

    Records of one trace have an order among each other.
    """

    __slots__ = ("_description", "_lattice", "data", "diffs", "times")

    def __init__(
        self, lattice: Lattice[T], description: Description[T], rows: Iterable[Update[D, T]]
    ) -> None:
        """Trusts that `rows` are sorted, consolidated and within the interval; see `of`."""
        columns = tuple(zip(*rows, strict=True)) or ((), (), ())
        self._lattice = lattice
        self._description = description
        self.data: tuple[D, ...] = columns[0]
        self.times: tuple[T, ...] = columns[1]
        self.diffs: tuple[int, ...] = columns[2]

    @classmethod
    def of(
        cls,
        lattice: Lattice[T],
        lower: Antichain[T],
        upper: Antichain[T],
        updates: Iterable[Update[D, T]],
    ) -> RowBatch[D, T]:
        """The batch of `updates`, in any order, opposite and repeated ones included.

        Raises: UsageError if the interval is none, or an update is not beyond `lower` or is beyond
            `upper`. UsageError if a sum of diffs does not fit in 64 bits.
        Cost: O(n log n + n · width of the bounds).
        """
        description = Description(lower, upper, Antichain.minimum(lattice))
        listed = list(updates)
        for time in {time for _, time, _ in listed}:
            if not lower.less_equal(time):
                raise UsageError(
                    f"{time} is not beyond the lower {lower}", reason="UpdateNotBeyondLower"
                )
            if upper.less_equal(time):
                raise UsageError(f"{time} is beyond the upper {upper}", reason="UpdateBeyondUpper")
        return cls(lattice, description, sort_updates(consolidate_updates(listed), lattice))

    @property
    def description(self) -> Description[T]:
        return self._description

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """The bytes of its columns of references; the values are not counted."""
        return sum(map(sys.getsizeof, (self.data, self.times, self.diffs)))

    def __iter__(self) -> Iterator[Update[D, T]]:
        return zip(self.data, self.times, self.diffs, strict=True)

    def begin_merge(self, later: RowBatch[D, T], logical: Antichain[T]) -> RowMerger[D, T]:
        """A merge with the batch that follows, compacting to `logical`.

        Raises: UsageError if the intervals do not touch.
        """
        return RowMerger(self._lattice, self, later, logical)

    def merge_empty(self, later: RowBatch[D, T], logical: Antichain[T]) -> RowBatch[D, T]:
        """The one empty batch for the intervals of two that have no rows."""
        if len(self) or len(later):
            raise UsageError("only batches without rows are joined without a merge")
        description = self.description.followed_by(later.description, logical, self._lattice)
        return RowBatch(self._lattice, description, ())

    def seen(self, since: Antichain[T], until: Antichain[T]) -> RowBatch[D, T]:
        """The rows at times advanced by `since`, without those beyond `until`."""
        advanced = [(data, advance(time, since, self._lattice), diff) for data, time, diff in self]
        kept = consolidate_updates(row for row in advanced if not until.less_equal(row[1]))
        return RowBatch(self._lattice, self._description, sort_updates(kept, self._lattice))


class RowMerger(Generic[D, T]):
    """A merge that reads both batches in the order of records and stops after any row.

    Fuel is charged for rows read, also inside a record with a long history and where all cancels.
    """

    __slots__ = (
        "_a", "_advanced", "_b", "_complete", "_description", "_group", "_lattice", "_open",
        "_positions", "_rows",
    )  # fmt: skip

    def __init__(
        self, lattice: Lattice[T], a: RowBatch[D, T], b: RowBatch[D, T], logical: Antichain[T]
    ) -> None:
        self._lattice = lattice
        self._description = a.description.followed_by(b.description, logical, lattice)
        self._a, self._b = a, b
        self._positions = (0, 0)
        self._open: list[D] = []  # the record that is being read, if any
        self._group: dict[T, int] = {}
        self._rows: list[Update[D, T]] = []
        self._advanced: dict[T, T] = {}
        self._complete = False

    @property
    def complete(self) -> bool:
        return self._complete

    def work(self, fuel: int) -> int:
        """Read at most `fuel` more rows; how many were read.

        Cost: O(fuel), and a sort of the times of each record that ends.
        """
        i, j = self._positions
        of_a, of_b = self._a.data, self._b.data
        end_a, end_b = len(of_a), len(of_b)
        left = fuel
        while left > 0 and (i < end_a or j < end_b):
            left -= 1
            if j == end_b or (i < end_a and not of_b[j] < of_a[i]):
                self._read(of_a[i], self._a.times[i], self._a.diffs[i])
                i += 1
            else:
                self._read(of_b[j], self._b.times[j], self._b.diffs[j])
                j += 1
        self._positions = (i, j)
        if i == end_a and j == end_b and not self._complete:
            self._end_record()
            self._complete = True
        return fuel - left

    def outcome(self) -> RowBatch[D, T]:
        """The merged batch. Raises: UsageError if the merge is not complete."""
        if not self._complete:
            raise UsageError("the merge is not complete")
        return RowBatch(self._lattice, self._description, self._rows)

    def _read(self, data: D, time: T, diff: int) -> None:
        if not self._open or self._open[0] != data:
            self._end_record()
            self._open = [data]
        advanced = self._advanced.get(time)
        if advanced is None:
            advanced = advance(time, self._description.since, self._lattice)
            self._advanced[time] = advanced
        self._group[advanced] = self._group.get(advanced, 0) + diff

    def _end_record(self) -> None:
        for data in self._open:
            rows = consolidate_updates((data, time, diff) for time, diff in self._group.items())
            self._rows.extend(sorted(rows, key=lambda row: self._lattice.sort_key(row[1])))
        self._open = []
        self._group = {}


def sort_updates(updates: Iterable[Update[D, T]], lattice: Lattice[T]) -> list[Update[D, T]]:
    """`updates` by record, and for one record by time in the total order."""
    by_time = sorted(updates, key=lambda update: lattice.sort_key(update[1]))
    return sorted(by_time, key=_record)


def history_of_key(batch: RowBatch[tuple[K, V], T], key: K) -> list[tuple[V, T, int]]:
    """`(value, time, diff)` of the records `(key, value)` of a batch, in the order of values.

    Cost: O(log n + rows of the key).
    """
    position = bisect_left(batch.data, key, key=itemgetter(0))
    found: list[tuple[V, T, int]] = []
    while position < len(batch.data) and batch.data[position][0] == key:
        found.append((batch.data[position][1], batch.times[position], batch.diffs[position]))
        position += 1
    return found


def _record(update: Update[D, T]) -> D:
    return update[0]
