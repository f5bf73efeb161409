"""Hold updates until a frontier passes them, then give them out as one batch."""

from __future__ import annotations

from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.kernels import Columns, consolidate, frontier_rows, split
from tidemill.errors import UsageError
from tidemill.time import Antichain


class ColumnBatcher:
    """Holds updates until a frontier passes them, then gives them out as one batch.

    Batches touch: the lower of each is the upper of the one before, the first starts at the
    minimum. What is pushed must be beyond the last upper.
    """

    def __init__(self, lattice: ColumnLattice, storage: Storage = MEMORY) -> None:
        self._lattice = lattice
        self._storage = storage
        self._lower: Times = Antichain.minimum(lattice)
        self._held: list[Columns] = []

    @property
    def lower(self) -> Times:
        return self._lower

    def frontier(self) -> Times:
        """The minimal times of what is held, after cancelling opposite updates."""
        held = self._consolidated()
        times = set(zip(*held.times.tolist(), strict=True))
        plain = times if isinstance(self._lattice.minimum(), tuple) else {time[0] for time in times}
        return Antichain.of(self._lattice, plain)

    def push(self, updates: Columns) -> None:
        """Hold `updates`, in any order, opposite and repeated ones included."""
        if len(updates):
            self._held.append(updates)

    def seal(self, upper: Times) -> ColumnBatch:
        """Everything held that is not beyond `upper`, consolidated, as the next batch.

        Raises: UsageError if `upper` is not beyond the last one, or if an update is not beyond the
            last one; nothing changes then.
        Cost: that of `consolidate` on what is held.
        """
        if self._lower == upper or not self._lower.precedes(upper):
            raise UsageError(
                f"seal refused: {upper} is not beyond {self._lower}",
                reason="InvalidBounds",
                lower=self._lower,
                upper=upper,
            )
        held = self._gathered()
        before, beyond = split(held, frontier_rows(upper, held.lanes))
        batch = ColumnBatch.of(self._lattice, self._lower, upper, before, self._storage)
        self._held = [beyond] if len(beyond) else []
        self._lower = upper
        return batch

    def _gathered(self) -> Columns:
        if not self._held:
            return Columns.empty(ColumnBatch.lanes_of(self._lattice))
        return Columns.concatenate(self._held)

    def _consolidated(self) -> Columns:
        held = consolidate(self._gathered())
        self._held = [held] if len(held) else []
        return held
