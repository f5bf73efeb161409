"""A computation between shared traces: what it takes in and what it makes are traces of columns."""

from __future__ import annotations

from functools import reduce as fold

import numpy as np

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, Times
from tidemill.arrangement.columns.imports import ImportedColumns
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.columns.views import ReadableTrace
from tidemill.arrangement.kernels import Columns, frontier_rows
from tidemill.arrangement.kernels.times import split
from tidemill.arrangement.loops.computation import (
    Changes,
    Collection,
    Computation,
    Input,
    Output,
)
from tidemill.errors import UsageError
from tidemill.time import U64_TIME, Antichain


class TracedComputation:
    """A computation that follows shared traces from a time on and writes its outputs to traces.

    At every time at or after `since` and before an output's upper the output trace holds what the
    operators make of what the followed traces hold then: their history included, compacted or not.
    Times are whole numbers, one epoch each; those at which nothing changes cost nothing.

    Operators and loops are built on `computation` before the first `advance`.
    """

    def __init__(self, since: int, name: str = "loops") -> None:
        self.computation = Computation()
        self._since, self._name = since, name
        self._followed: list[_Followed] = []
        self._outputs: list[tuple[Output, ColumnArrangement]] = []
        self._upper: Times = Antichain.minimum(U64_TIME)
        self._broken = False

    @property
    def upper(self) -> Times:
        """Up to where all outputs are final."""
        return self._upper

    def follow(self, trace: ReadableTrace) -> Input:
        """The collection of a trace, through a hold of its own that moves on with `advance`.

        Raises: UsageError if times of the trace are not whole numbers, or after the first
            `advance`; BeforeSince if the trace no longer distinguishes all times from `since` on.
        """
        self._require_building()
        if trace.lattice is not U64_TIME:
            raise UsageError(f"only traces in whole numbers are followed, not in {trace.lattice}")
        imported = ImportedColumns(trace, self._name, Antichain.of(U64_TIME, [self._since]))
        followed = _Followed(self.computation.input(), imported)
        self._followed.append(followed)
        return followed.source

    def arrange(
        self, collection: Collection, name: str = "loops", storage: Storage = MEMORY
    ) -> ColumnArrangement:
        """A trace of the collection, to be shared, held and compacted like any other.

        It distinguishes times from `since` on.
        Raises: UsageError if the collection is inside a loop, or after the first `advance`.
        """
        self._require_building()
        arrangement = ColumnArrangement(U64_TIME, name, storage)
        self._outputs.append((self.computation.output(collection), arrangement))
        return arrangement

    def advance(self) -> Times:
        """Bring the outputs up to where all followed traces are known; that frontier.

        Raises: UsageError as `Computation.step`; no output is written then, nor any later.
        Cost: that of `Computation.step` for each time with changes.
        """
        for followed in self._followed:
            followed.take()
        known = (followed.imported.frontier for followed in self._followed)
        nothing: Times = Antichain(U64_TIME)
        upper: Times = fold(lambda a, b: a.meet(b), known, nothing)
        if upper.less_equal(self._since) or upper == self._upper:
            return self._upper
        if self._broken:
            raise UsageError("an earlier step failed: build the computation again")
        self._broken = True
        found = self._step_through(upper)
        self._broken = False
        for (_, arrangement), parts in zip(self._outputs, found, strict=True):
            updates = Columns.concatenate(parts) if parts else Columns.empty(1)
            arrangement.push(updates, upper)
            arrangement.compact(Antichain.of(U64_TIME, [self._since]))
        self._upper = upper
        return upper

    def close(self) -> None:
        """Follow the traces no further, and drop the holds on them."""
        for followed in self._followed:
            followed.imported.close()

    def _step_through(self, upper: Times) -> list[list[Columns]]:
        """The changes of each output, epoch by epoch, before `upper`."""
        due = [followed.before(upper) for followed in self._followed]
        times = {time for changes in due for time in np.unique(changes.times[0]).tolist()}
        if not self.computation.upper:  # Constants are there even if nothing else is.
            times.add(self._since)
        found: list[list[Columns]] = [[] for _ in self._outputs]
        for time in sorted(times):
            fresh = {
                followed.source: _changes_at(changes, time)
                for followed, changes in zip(self._followed, due, strict=True)
            }
            self.computation.step(time, fresh)
            for (output, _), parts in zip(self._outputs, found, strict=True):
                made = output.take()
                if len(made):
                    parts.append(Columns.at((time,), made.keys, made.vals, made.diffs))
        return found

    def _require_building(self) -> None:
        if self.computation.upper:
            raise UsageError("traces are followed and arranged before the first step")


class _Followed:
    """An input, and the updates of its trace that were not stepped through yet."""

    def __init__(self, source: Input, imported: ImportedColumns) -> None:
        self.source, self.imported = source, imported
        self._waiting = Columns.empty(1)

    def take(self) -> None:
        """Fetch what was appended to the trace."""
        fresh = self.imported.step()
        if len(fresh):
            self._waiting = Columns.concatenate([self._waiting, fresh])

    def before(self, upper: Times) -> Columns:
        """The updates before `upper`, sorted by time; they are waited for no more."""
        due, self._waiting = split(self._waiting, frontier_rows(upper, 1))
        order = np.argsort(due.times[0], kind="stable")
        return Columns(due.keys[order], due.vals[order], due.times[:, order], due.diffs[order])


def _changes_at(changes: Columns, time: int) -> Changes:
    """The rows at a time of columns sorted by it."""
    first, end = np.searchsorted(changes.times[0], [time, time + 1])
    rows = changes.slice(int(first), int(end)).contiguous()
    return Changes(rows.keys, rows.vals, rows.diffs)
