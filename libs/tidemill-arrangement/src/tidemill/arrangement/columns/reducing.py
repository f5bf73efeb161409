"""Reductions of groups by key over columns, kept up to date under partially ordered times."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.reductions import GroupReduction
from tidemill.arrangement.columns.retiring import Retirement, Waiting
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.columns.views import ReadableTrace
from tidemill.arrangement.kernels import Columns
from tidemill.arrangement.trace import Description
from tidemill.errors import UsageError
from tidemill.time import Antichain

_WHATEVER_IT_TAKES = 2**62


class _Output:
    """The output of a reduction and the times that wait: what both kinds of it keep."""

    def __init__(
        self, lattice: ColumnLattice, reduction: GroupReduction, storage: Storage, effort: int
    ) -> None:
        self._lattice = lattice
        self._reduction = reduction
        self._storage = storage
        self.trace = ColumnArrangement(lattice, "reduce", storage, effort)
        self.waiting = Waiting.none(ColumnBatch.lanes_of(lattice))
        self._open: Retirement | None = None
        self._to: Times = self.trace.upper
        self._rows_read = 0

    @property
    def done(self) -> bool:
        return self._open is None

    @property
    def rows_read(self) -> int:
        return self._rows_read + (self._open.rows_read if self._open is not None else 0)

    def retire(
        self, fresh: Sequence[ColumnBatch], stored: Sequence[ColumnBatch], upper: Times
    ) -> None:
        """Begin with the interval up to `upper`."""
        lanes = ColumnBatch.lanes_of(self._lattice)
        parts = fresh, stored, self.trace.batches(), self.waiting
        self._open = Retirement(self._reduction, *parts, upper, lanes)
        self._to = upper

    def work(self, limit: int) -> ColumnBatch | None:
        """Go on with the interval; its batch once it is done.

        On an error the interval is dropped.
        """
        retirement = self._open
        if retirement is None:
            return None
        try:
            retirement.work(limit)
        except UsageError:
            self._open = None
            raise
        if not retirement.done:
            return None
        owed, self.waiting = retirement.outcome()
        description = Description(self.trace.upper, self._to, Antichain.minimum(self._lattice))
        batch = ColumnBatch.sorted(self._lattice, description, owed.contiguous(), self._storage)
        self.trace.insert(batch)
        self._rows_read += retirement.rows_read
        self._open = None
        return batch


class ColumnReduce:
    """At every finalised time the accumulated output is the reduction of the accumulated input.

    Also at joins of input times at which no input changes. Keys go through their moments together:
    round r evaluates the r-th moment of every key that has one, with one call of the reduction.
    Besides both traces it keeps the times at which output may change later; along a chain of times
    there are none.
    """

    def __init__(
        self,
        lattice: ColumnLattice,
        reduction: GroupReduction,
        storage: Storage = MEMORY,
        effort: int = 1,
    ) -> None:
        self.source = ColumnArrangement(lattice, "reduce", storage, effort)
        self._output = _Output(lattice, reduction, storage, effort)
        self._fresh: ColumnBatch | None = None

    @property
    def output(self) -> ColumnArrangement:
        return self._output.trace

    @property
    def upper(self) -> Times:
        """Up to where the output is final."""
        return self.output.upper

    @property
    def pending(self) -> int:
        """The number of times at which output may change later, over all keys."""
        return len(self._output.waiting)

    @property
    def done(self) -> bool:
        """Whether the output for what was pushed is final."""
        return self._output.done

    @property
    def rows_read(self) -> int:
        """How many rows `work` has read."""
        return self._output.rows_read

    def push(self, updates: Columns, upper: Times) -> None:
        """Take the updates at times not beyond `upper`; `work` finds what changes.

        Raises: UsageError if the last push is not done, `upper` is not beyond the last one, an
        update
            is not beyond the last one or is beyond this one, or a sum of diffs does not fit in 64
            bits; nothing changes then.
        Cost: that of a batch.
        """
        if not self.done:
            raise UsageError(f"push refused: the output up to {self._fresh_upper()} is not done")
        self._fresh = self.source.batch_of(updates, upper)
        self._output.retire([self._fresh], self.source.batches(), upper)

    def work(self, limit: int) -> ColumnBatch | None:
        """Go on: the output changes once they are complete, None before and if nothing was pushed.

        A call reads fewer than twice `limit` rows, or `limit` and those of one key: history when a
        key's turn comes, and once more for each of its moments. The last one packs and inserts what
        changed.

        Raises: UsageError if a sum does not fit in 64 bits; what was pushed is dropped then, as if
            it had never been.
        """
        batch = self._output.work(limit)
        if batch is not None and self._fresh is not None:
            self.source.insert(self._fresh)
        return batch

    def step(self, updates: Columns, upper: Times) -> ColumnBatch:
        """The output changes at times beyond the last upper and not beyond `upper`, all at once.

        Raises: as `push` and `work`; nothing changes then.
        Cost: for each round a sort of the rows of its keys; along a chain there are as many rounds
            as a key has different times in `updates`.
        """
        self.push(updates, upper)
        batch = self.work(_WHATEVER_IT_TAKES)
        assert batch is not None
        return batch

    def compact(self, to: Times) -> None:
        """Let both traces forget differences between times that no time beyond `to` can tell.

        `to` is at or before upper.
        """
        self.source.compact(to)
        self.output.compact(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        source, output = self.source.exert(effort), self.output.exert(effort)
        return source or output

    def _fresh_upper(self) -> Times:
        return self.upper if self._fresh is None else self._fresh.description.upper


class TraceReduce:
    """The reduction of a trace that another writes and shares: history first, then what comes.

    No row of the input is copied: the trace is read, held back no further than is needed. The
    output accumulates like the reduction at every time beyond the trace's hold at the start.
    """

    def __init__(
        self,
        source: ReadableTrace,
        reduction: GroupReduction,
        name: str,
        storage: Storage = MEMORY,
        effort: int = 1,
    ) -> None:
        """Raises: UsageError if the trace may already merge past its upper: it has no cut there."""
        if not source.physical.precedes(source.upper):
            raise UsageError(f"{source.name} holds no cut at the upper {source.upper} of its trace")
        self._source = source.clone(name)
        self._output = _Output(source.lattice, reduction, storage, effort)
        self._started = False

    @property
    def output(self) -> ColumnArrangement:
        return self._output.trace

    @property
    def upper(self) -> Times:
        """Up to where the output is final."""
        return self.output.upper

    @property
    def pending(self) -> int:
        """The number of times at which output may change later, over all keys."""
        return len(self._output.waiting)

    @property
    def done(self) -> bool:
        """Whether the output for what was followed is final."""
        return self._output.done

    def follow(self) -> None:
        """Take what was appended to the trace since the last call, all history at the first.

        Nothing while what was taken is not done.
        Cost: O(log n), and a copy of what was appended; the reduction is left to `work`.
        """
        upper = self._source.upper
        if not self.done or upper == self.upper:
            return
        fresh = self._source.following(self.upper) if self._started else self._source.history()
        stored = self._source.through(self.upper) if self._started else []
        self._started = True
        self._output.retire(fresh, stored, upper)

    def work(self, limit: int) -> ColumnBatch | None:
        """As `ColumnReduce.work`; what an error drops is taken again by the next `follow`."""
        batch = self._output.work(limit)
        if batch is not None:
            if self.upper.empty:
                self._source.drop()
            else:
                self._source.set_physical(self.upper)
                self._source.set_logical(self.upper)
        return batch

    def compact(self, to: Times) -> None:
        """Let the output forget differences between times that no time beyond `to` can tell.

        `to` is at or before upper.
        """
        self.output.compact(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on the output; whether there was anything to do."""
        return self.output.exert(effort)

    def close(self) -> None:
        """Drop the hold on the trace; again is fine. What was followed is still worked off."""
        self._source.drop()
