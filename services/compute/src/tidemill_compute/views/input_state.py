"""An input of a view: the rows with which it begins, and its changes until a step takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, between
from tidemill.catalog.record_rows import PredicateShape, record_of
from tidemill.datalog.allowance import match_bytes
from tidemill.datalog.records import Record
from tidemill.errors import Corrupt
from tidemill_compute.views.input_rows import CountedRow, InputRows, rows_of
from tidemill_compute.views.shared_inputs import SharedInput

if TYPE_CHECKING:  # importing it loads loops
    from tidemill.arrangement.interval_updates import RowsAsOf

Times: TypeAlias = npt.NDArray[np.uint64]
NO_TIMES: Times = np.empty(0, dtype=np.uint64)
REST_PART = 8
"""A step takes this part of its changes more where nothing is left then."""


class InputState:
    """The rows of one input just before `lower`, and all known changes from there on.

    The engine of a view without ticks keeps the rows itself: it takes the first ones and the
    changes as tables. A view with ticks takes records, and its rows are kept here one by one.
    Nothing is read again between two steps.
    """

    def __init__(self, shape: PredicateShape) -> None:
        self.shape = shape
        self.shared = SharedInput()
        self.lower = 0
        self.upper = 0
        self.stored = False
        """Whether changes come as they are stored, in no order of time; see `take_updates`."""
        self.kept = 0
        """Number of rows that the engine keeps."""
        self._rows_kept: RowsAsOf | None = None
        self._names = tuple(shape.schema.names)
        self._snapshot: pa.Table | None = None
        self._rows: InputRows | None = None
        self._changes: list[pa.Table] = []
        self._times: Times = NO_TIMES
        self.shared.join(self)

    @property
    def predicate(self) -> str:
        """Name of the input in the program."""
        return self.shape.predicate

    def share(self, shared: SharedInput) -> None:
        """Read it together with other views from now on."""
        if shared is not self.shared:
            self.shared.leave(self)
            self.shared = shared
            shared.join(self)

    def restart(self, present: pa.Table, lower: int) -> None:
        """Begin at `lower` with the rows present just before it; earlier starts are unknown."""
        self.kept, self._snapshot, self._rows = 0, present, None
        self._changes, self._times = [], NO_TIMES
        self.lower = self.upper = lower

    def keep_in(self, rows: RowsAsOf | None) -> None:
        """An engine keeps the rows here from now on, and elsewhere no more."""
        if self._rows_kept is not None:
            self._rows_kept.leave()
        self._rows_kept = rows

    def let_go(self) -> None:
        """Hold nothing until it is shared and restarted: nothing is kept for it."""
        self.keep_in(None)
        self.shared.leave(self)
        self.shared = SharedInput()
        self.restart(no_rows(self.shape), 0)

    def extend(self, changes: pa.Table, upper: int) -> None:
        """Add the changes of [upper so far, `upper`)."""
        times = np.asarray(changes.column(TIME).to_numpy(), dtype=np.uint64)
        if self.stored:
            times = np.sort(np.concatenate([self._times, times]))
        else:
            if bool((times[1:] < times[:-1]).any()):
                order = np.argsort(times, kind="stable")
                changes, times = changes.take(pa.array(order)), times[order]
            times = np.concatenate([self._times, times])
        self._changes.append(changes)
        self._times = times
        self.upper = upper

    def change_times(self) -> Times:
        """The times of the changes not yet evaluated, ascending."""
        return self._times

    @property
    def alive(self) -> int:
        """Number of rows that are present just before `lower`."""
        if self._snapshot is not None:
            return int(self._snapshot.num_rows)
        return self.kept if self._rows is None else len(self._rows)

    @property
    def bytes_held(self) -> int:
        """About what rows and changes take here; the rows of an engine count there."""
        waiting = sum(int(changes.nbytes) for changes in self._changes)
        if self._snapshot is not None:
            waiting += int(self._snapshot.nbytes)
        rows = 0 if self._rows is None else len(self._rows)
        return waiting + rows * match_bytes(len(self._names))

    def waiting(self, upper: int) -> int:
        """Number of changes before `upper` that are not yet evaluated."""
        return int(np.searchsorted(self._times, np.uint64(upper)))

    # The port of an engine that keeps the rows: tables.

    def take_present(self) -> pa.Table:
        """The rows with which the input began at `lower`, once."""
        present, self._snapshot = self._snapshot, None
        return no_rows(self.shape) if present is None else present

    def take_updates(self, upper: int) -> pa.Table:
        """The changes before `upper` as they are stored; the input then begins there.

        Cost: O(changes that were read).
        """
        count, waiting = self.waiting(upper), self._changes
        self._times, self.lower = self._times[count:], upper
        known = pa.concat_tables(waiting) if waiting else self._no_changes()
        self._changes = [between(known, upper, None)] if len(self._times) else []
        return between(known, 0, upper) if len(self._times) else known

    # The port of ticks: records.

    def present(self) -> list[Record]:
        """The rows that are present just before `lower`."""
        return [held.record for _, held in self._living().items()]

    def take(self, upper: int) -> list[tuple[Record, int, int]]:
        """The records that begin (1) or end (-1) before `upper`; the input then begins there.

        Raises: Corrupt if a row is taken away more often than it was put in. Cost: O(changes).
        """
        return [(held.record, time, diff) for held, time, diff in self._moved(upper)]

    def _moved(self, upper: int) -> list[tuple[CountedRow, int, int]]:
        """Apply the changes before `upper`: which rows begin and which end, and when."""
        living, due = self._living(), self._due(upper)
        self.lower = upper
        if not due.num_rows:
            return []
        changes = zip(rows_of(due, self._names), _ints(due, TIME), _ints(due, DIFF), strict=True)
        try:
            return living.apply(list(changes))
        except Corrupt as error:
            raise Corrupt(f"input {self.predicate}: {error}", **error.details) from None

    def _due(self, upper: int) -> pa.Table:
        """The changes before `upper`, by time, which are forgotten here."""
        known = pa.concat_tables(self._changes) if self._changes else self._no_changes()
        count = self.waiting(upper)
        left = known.slice(count)
        self._changes, self._times = ([left] if left.num_rows else []), self._times[count:]
        return known.slice(0, count)

    def _no_changes(self) -> pa.Table:
        fields = [*self.shape.schema, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
        return pa.schema(fields).empty_table()

    def _living(self) -> InputRows:
        """The rows one by one."""
        if self._rows is None:
            self._rows, present = InputRows(record_of(self.shape)), self.take_present()
            copies = _ints(present, DIFF)
            for row, held in zip(rows_of(present, self._names), copies, strict=True):
                self._rows.hold(row, held)
        return self._rows


def no_rows(shape: PredicateShape) -> pa.Table:
    """The rows of an input that holds none, with their multiplicities."""
    return shape.schema.empty_table().append_column(DIFF, pa.nulls(0, pa.int64()))


def cut_step(inputs: Sequence[InputState], lower: int, upper: int, changes_max: int) -> int:
    """End of a step from `lower`: `upper`, or before it if the step would see too many changes.

    All changes at one instant belong to one step, however many they are. So does a small rest,
    which would be a step of its own: up to an eighth of `changes_max`. Cost: O(inputs ·
    changes_max).
    """
    if sum(living.waiting(upper) for living in inputs) <= changes_max + changes_max // REST_PART:
        return upper
    every = [living.change_times() for living in inputs]
    times = np.sort(np.concatenate([times[: changes_max + 1] for times in every]))
    first, cut = int(times[0]), int(times[changes_max])
    if cut > lower and first < cut:
        return cut
    later = [times[np.searchsorted(times, np.uint64(first), side="right") :] for times in every]
    return min([upper, *(int(times[0]) for times in later if len(times))])


def _ints(table: pa.Table, name: str) -> list[int]:
    return list(table.column(name).to_pylist())
