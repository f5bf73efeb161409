"""Batches of updates as Arrow tables, at times that are whole numbers."""

from __future__ import annotations

import pyarrow as pa

from tidemill.arrangement.trace.description import Description
from tidemill.arrangement.updates import advance, between, concatenate
from tidemill.errors import UsageError
from tidemill.time import U64_TIME, Antichain, sole_time


class TableBatch:
    """The updates of an interval, in any order, as they came; merged ones are consolidated."""

    __slots__ = ("description", "updates")

    def __init__(self, description: Description[int], updates: pa.Table) -> None:
        """Trusts that the updates are within the interval. `updates` have a time and a diff."""
        self.description = description
        self.updates = updates

    @classmethod
    def of(cls, lower: Antichain[int], upper: Antichain[int], updates: pa.Table) -> TableBatch:
        """The batch of an interval.

        Raises: UsageError if the interval is none, or an update is not within it. Cost: O(n).
        """
        description = Description(lower, upper, Antichain.minimum(U64_TIME))
        until = None if upper.empty else sole_time(upper)
        if between(updates, sole_time(lower), until) is not updates:
            raise UsageError(f"an update is not within [{lower}, {upper})", reason="InvalidBounds")
        return cls(description, updates)

    def __len__(self) -> int:
        return int(self.updates.num_rows)

    @property
    def nbytes(self) -> int:
        """The bytes of its columns."""
        return int(self.updates.nbytes)

    def begin_merge(self, later: TableBatch, logical: Antichain[int]) -> TableMerger:
        """A merge with the batch that follows, compacting to `logical`.

        Raises: UsageError if the intervals do not touch.
        """
        return TableMerger(self, later, logical)

    def merge_empty(self, later: TableBatch, logical: Antichain[int]) -> TableBatch:
        """The one empty batch for the intervals of two that have no rows."""
        if len(self) or len(later):
            raise UsageError("only batches without rows are joined without a merge")
        description = self.description.followed_by(later.description, logical, U64_TIME)
        return TableBatch(description, later.updates)

    def seen(self, since: Antichain[int], until: Antichain[int]) -> TableBatch:
        """The rows at times advanced by `since`, without those beyond `until`."""
        advanced = self.updates if since.empty else advance(self.updates, since)
        shown = advanced if until.empty else between(advanced, 0, sole_time(until))
        return TableBatch(self.description, shown)


class TableMerger:
    """A merge that counts the rows it may read, and makes them one table once it may read all."""

    __slots__ = ("_a", "_b", "_description", "_left")

    def __init__(self, a: TableBatch, b: TableBatch, logical: Antichain[int]) -> None:
        self._description = a.description.followed_by(b.description, logical, U64_TIME)
        self._a, self._b = a, b
        self._left = len(a) + len(b)

    @property
    def complete(self) -> bool:
        """Whether all rows of both batches may be read."""
        return self._left == 0

    def work(self, fuel: int) -> int:
        """Read at most `fuel` more rows; how many were read."""
        read = min(max(fuel, 0), self._left)
        self._left -= read
        return read

    def outcome(self) -> TableBatch:
        """The merged batch. Raises: UsageError if the merge is not complete. Cost: a sort."""
        if self._left:
            raise UsageError("the merge is not complete")
        both = concatenate([self._a.updates, self._b.updates])
        return TableBatch(self._description, advance(both, self._description.since))
