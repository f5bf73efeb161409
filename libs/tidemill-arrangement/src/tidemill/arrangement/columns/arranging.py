"""A collection of numbers arranged by key: a shared trace and who writes it."""

from __future__ import annotations

from typing import Any, TypeAlias

from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.kernels import Columns
from tidemill.arrangement.trace import SharedTrace, Spine, TraceHandle, TraceStatus

ColumnTrace: TypeAlias = SharedTrace[Any, ColumnBatch]  # Any: whole numbers or tuples of them
ColumnHandle: TypeAlias = TraceHandle[Any, ColumnBatch]  # Any: as above


class ColumnArrangement:
    """The one writer of a shared trace of columns, with a hold of its own.

    The hold reads everything up to `upper`, and lets batches before it merge at once; times stay
    distinct until `compact` says otherwise.
    """

    def __init__(
        self,
        lattice: ColumnLattice,
        name: str = "arrange",
        storage: Storage = MEMORY,
        effort: int = 1,
    ) -> None:
        self.lattice = lattice
        spine: Spine[Any, ColumnBatch] = Spine(lattice, effort)
        self.trace: ColumnTrace = SharedTrace(spine)
        self._storage = storage
        self._hold = self.trace.hold(name)

    @property
    def upper(self) -> Times:
        return self.trace.upper

    def batch_of(self, updates: Columns, upper: Times) -> ColumnBatch:
        """The next batch, of the updates in any order; nothing is inserted yet.

        Raises: UsageError if `upper` is not beyond the last one, an update is not beyond the last
            one or is beyond this one, or a sum of diffs does not fit in 64 bits.
        """
        return ColumnBatch.of(self.lattice, self.upper, upper, updates, self._storage)

    def insert(self, batch: ColumnBatch) -> None:
        """Append the next batch, unless it is of no interval: then it is empty.

        Cost: amortised O(log n) rows read for each row, bounded for each insert; see `Spine`.
        """
        description = batch.description
        if description.lower == description.upper:
            return
        self.trace.insert(batch)
        self._hold.set_physical(description.upper)

    def push(self, updates: Columns, upper: Times) -> ColumnBatch:
        """Insert the batch of `updates` and return it.

        Raises: as `batch_of`; nothing changes then.
        """
        batch = self.batch_of(updates, upper)
        self.insert(batch)
        return batch

    def batches(self) -> list[ColumnBatch]:
        """The batches with rows, in order of time."""
        return [batch for batch in self._hold.history() if len(batch)]

    def compact(self, to: Times) -> None:
        """Let the trace forget differences between times that no time beyond `to` can tell."""
        self._hold.set_logical(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance; whether there was anything to do."""
        return self.trace.exert(effort)

    def status(self) -> TraceStatus[Any]:
        """What is held now, and by whom."""
        return self.trace.status()
