"""Current contents of a view's input: the rows present at one instant, and the changes after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, between
from tidemill.catalog.record_rows import PredicateShape, record_of
from tidemill.datalog.allowance import column_bytes, match_bytes
from tidemill.datalog.incremental import FactVersion, Given, Later, Pause, paused
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.errors import Corrupt
from tidemill_compute.views.input_rows import CountedRow, InputRows, Row
from tidemill_compute.views.shared_inputs import SharedInput

if TYPE_CHECKING:  # importing it imports numba
    from tidemill.datalog.columnar import Columns, Texts, WindowColumns
    from tidemill.datalog.columnar.living import LivingColumns

Times: TypeAlias = npt.NDArray[np.uint64]
NO_TIMES: Times = np.empty(0, dtype=np.uint64)
_FEW = 64
"""Columns shorter than this are taken as they are."""
_TOGETHER = 4_096
"""So many rows are made of columns at a time."""


class InputState:
    """The rows of one input just before `lower`, and all known changes from there on.

    Between two windows nothing is read again: a window costs its changes and the rows alive. The
    rows are on columns after a window on columns, facts for a followed view, and single objects
    after everything else. Columns and facts are shared with other views at the same instant.
    """

    def __init__(self, shape: PredicateShape, shared: SharedInput | None = None) -> None:
        self.shape = shape
        self.shared = shared or SharedInput()
        self.lower = 0
        self.upper = 0
        self.on_columns = False
        """Whether the rows are held on columns now, or were when they were let go."""
        self.stored = False
        """Whether changes come as they are stored, in no order of time; see `take_updates`."""
        self.kept: int | None = None
        """Number of rows that the view keeps itself, None if they are held here."""
        self._names = tuple(shape.schema.names)
        self._snapshot: pa.Table | None = None
        self._rows: InputRows | None = InputRows(record_of(shape))
        self.columns: LivingColumns | None = None
        self.facts: FactVersion | None = None
        self._suited = not shape.lattices and not shape.written
        self._changes: list[pa.Table] = []
        self._times: Times = NO_TIMES
        self.shared.join(self)

    @property
    def predicate(self) -> str:
        """Name of the input in the program."""
        return self.shape.predicate

    def share(self, shared: SharedInput) -> None:
        """Hold it together with other views from now on."""
        if shared is not self.shared:
            self.shared.leave(self)
            self.shared = shared
            shared.join(self)

    def restart(self, present: pa.Table, lower: int) -> None:
        """Begin at `lower` with the rows that are present just before it; earlier starts are
        unknown.
        """
        self._clear()
        self.kept, self._snapshot = None, present
        self._changes, self._times = [], NO_TIMES
        self.lower = self.upper = lower

    def let_go(self) -> None:
        """Hold nothing any more, so that nothing is kept for it, until it is shared and restarted
        again.
        """
        self.shared.leave(self)
        self.shared = SharedInput()
        on_columns = self.on_columns
        self.restart(
            self.shape.schema.empty_table().append_column(DIFF, pa.nulls(0, pa.int64())), 0
        )
        self.on_columns = on_columns

    def _clear(self) -> None:
        """Hold no rows; comes before the place changes, since other views look at both."""
        self.columns = self.facts = self._rows = self._snapshot = None
        self.on_columns = False

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
        if self.kept is not None:
            return self.kept
        if self._snapshot is not None:
            return int(self._snapshot.num_rows)
        if self.facts is not None:
            return len(self.facts)
        return len(self.columns if self.columns is not None else self._living())

    @property
    def bytes_held(self) -> int:
        """About what rows and changes take here; rows that are held as facts count where they are
        followed.
        """
        waiting = sum(int(changes.nbytes) for changes in self._changes)
        if self._snapshot is not None:
            return waiting + int(self._snapshot.nbytes)
        values = len(self._names)
        if self.columns is not None:
            return waiting + len(self.columns) * column_bytes(values)
        return waiting + (0 if self._rows is None else len(self._rows) * match_bytes(values))

    def waiting(self, upper: int) -> int:
        """Number of changes before `upper` that are not yet evaluated."""
        return int(np.searchsorted(self._times, np.uint64(upper)))

    def present(self) -> list[Presence]:
        """The rows that are present just before `lower`, as stretches that do not end."""
        return self._living().present()

    def advance(self, upper: int) -> list[Presence]:
        """The presences of the window [lower − 1, upper); the input then begins at `upper`.

        Raises: Corrupt if a row is taken away more often than it was put in.
        """
        stretches = [
            Presence(held.presence.record, held.presence.start, time)
            for held, time, diff in self._moved(upper)
            if diff < 0
        ]
        stretches.extend(self.present())
        return stretches

    def advance_columns(self, upper: int, texts: Texts) -> WindowColumns | None:
        """Advance as `advance` does, on columns with these numbers of texts.

        None, and nothing done, where columns cannot hold it.
        """
        if not self._suited:
            return None
        from tidemill.datalog.columnar import Unsuited  # imports numba

        due = self._due(upper)

        def changes() -> tuple[Columns, npt.NDArray[np.int64]]:
            times = np.asarray(due.column(TIME).to_numpy())
            return self._columns_of(due, times, texts), due.column(DIFF).to_numpy()

        try:
            window = self.shared.window(
                self, upper, texts, lambda: self._living_columns(texts), changes
            )
        except Unsuited:
            self._suited = False
            return None
        except Corrupt as error:
            raise Corrupt(f"input {self.predicate}: {error}", **error.details) from None
        self._snapshot = self._rows = None
        self.on_columns = True
        self._drop(due.num_rows)
        return window

    def aside(self) -> InputState:
        """A copy of the rows just before `lower`, for work beside this input while it stands still.

        Changes of the copy touch nothing here. It is of no use any more once this input has gone
        on.
        """
        other = InputState(self.shape)
        other.lower = other.upper = self.lower
        other._suited, other._rows = self._suited, None
        other.facts = self.facts or self.shared.facts_of(self)
        if other.facts is None:
            other._snapshot, other.columns = self._snapshot, self.columns
            other._rows = None if self._rows is None else self._rows.copy()
        return other

    def become(self, other: InputState) -> None:
        """Hold the rows as they are held aside by now."""
        self._snapshot, self._rows, self._suited = other._snapshot, other._rows, other._suited
        self.shared.hold(self, other.columns, other.facts)
        self.on_columns = other.columns is not None

    def hold_facts(self, pause: Pause | None = None) -> FactVersion | None:
        """The rows as shared facts, for a view that follows them by `walk`.

        None where they carry more than a time and an expiry.
        """
        if self.shape.lattices or self.shape.written:
            return None
        if self.facts is None:
            self.shared.begin(self, lambda: paused(self._given_present(), pause))
            self._snapshot = self._rows = None
            self.on_columns = False
        return self.facts

    def walk(self, upper: int) -> list[Later]:
        """The next changes of the facts, before `upper`; the input then begins there.

        Raises: Corrupt as `advance`. Cost: O(changes), for the first view that comes there.
        """
        due = self._due(upper)
        times = self._times[: due.num_rows].tolist()
        try:
            found = self.shared.walk(
                self, upper, times, lambda: list(self._given(due, _ints(due, DIFF)))
            )
        except Corrupt as error:
            raise Corrupt(f"input {self.predicate}: {error}", **error.details) from None
        self._drop(due.num_rows)
        return found

    def take_present(self) -> pa.Table | None:
        """The rows with which the input began at `lower`, once; None if they were taken."""
        present, self._snapshot = self._snapshot, None
        return present

    def take_updates(self, upper: int) -> pa.Table:
        """The changes before `upper` as they are stored; the input then begins there.

        For a reader that keeps the rows itself. Cost: O(changes that were read).
        """
        count, waiting = self.waiting(upper), self._changes
        self._times, self.lower = self._times[count:], upper
        known = pa.concat_tables(waiting) if waiting else self._no_changes()
        self._changes = [between(known, upper, None)] if len(self._times) else []
        return between(known, 0, upper) if len(self._times) else known

    def take(self, upper: int) -> list[tuple[Record, int, int]]:
        """The records that begin (1) or end (-1) before `upper`; the input then begins there.

        Raises: Corrupt as `advance`. Cost: O(changes).
        """
        return [(held.presence.record, time, diff) for held, time, diff in self._moved(upper)]

    def _moved(self, upper: int) -> list[tuple[CountedRow, int, int]]:
        """Apply the changes before `upper`: which rows begin and which end, and when."""
        living, due = self._living(), self._due(upper)
        self._drop(due.num_rows)
        self.lower = upper
        if not due.num_rows:
            return []
        changes = zip(_rows(due, self._names), _ints(due, TIME), _ints(due, DIFF), strict=True)
        try:
            return living.apply(list(changes))
        except Corrupt as error:
            raise Corrupt(f"input {self.predicate}: {error}", **error.details) from None

    def _due(self, upper: int) -> pa.Table:
        """The changes before `upper`, by time."""
        if len(self._changes) != 1:
            empty = [] if self._changes else [self._no_changes()]
            self._changes = [pa.concat_tables([*self._changes, *empty])]
        return self._changes[0].slice(0, self.waiting(upper))

    def _no_changes(self) -> pa.Table:
        fields = [*self.shape.schema, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
        return pa.schema(fields).empty_table()

    def _drop(self, count: int) -> None:
        """Forget the first changes, which are evaluated."""
        left = self._changes[0].slice(count)
        self._changes, self._times = ([left] if left.num_rows else []), self._times[count:]

    # The two ways in which rows are held.

    def _living(self) -> InputRows:
        """The rows one by one."""
        if self._rows is not None:
            return self._rows
        rows = InputRows(record_of(self.shape))
        if self._snapshot is not None:
            held = _rows(self._snapshot, self._names)
            for row, copies in zip(held, _ints(self._snapshot, DIFF), strict=True):
                rows.hold(row, self.lower - 1, copies)
        else:
            for row, since, copies in self._held():
                rows.hold(row, since, copies)
        self._clear()
        self._rows = rows
        return rows

    def _held(self) -> Iterable[tuple[Row, int, int]]:
        """Row, start and copies of what is held on columns or as facts."""
        if self.facts is not None:
            for key, expires, copies in self.facts.records():
                times = (key[0], None if expires == END else expires) if self.shape.timed else ()
                yield (*key[1:], *times), self.lower - 1, copies
        elif self.columns is not None:
            from tidemill_compute.views.column_rows import rows_of_columns  # columns import numba

            living = self.columns
            for at in range(0, len(living), _TOGETHER):
                part = living.rows.part(at, min(len(living), at + _TOGETHER))
                copies = living.copies[at : at + _TOGETHER].tolist()
                rows = rows_of_columns(part, self.shape)
                yield from zip(rows, part.start.tolist(), copies, strict=True)

    def _given_present(self) -> Iterable[Given]:
        """The rows that are held, as records of facts."""
        if self._snapshot is not None:
            return self._given(self._snapshot, _ints(self._snapshot, DIFF))
        held: Iterable[tuple[Row, int, int]] = self._held()
        if self._rows is not None:
            held = ((row, 0, each.copies) for row, each in self._rows.items())
        n = self.shape.arguments
        if not self.shape.timed:
            return (((None, *row), END, copies) for row, _, copies in held)
        return (
            ((row[n], *row[:n]), END if row[n + 1] is None else row[n + 1], copies)  # type: ignore[misc]  # a time is a number
            for row, _, copies in held
        )

    def _given(self, rows: pa.Table, diffs: list[int]) -> Iterable[Given]:
        """Rows as records of facts."""
        n, lists = self.shape.arguments, [_values(rows.column(name)) for name in self._names]
        if not self.shape.timed:
            times: Iterable[int | None] = repeat(None, rows.num_rows)
            return zip(
                zip(times, *lists, strict=True), repeat(END, rows.num_rows), diffs, strict=True
            )
        ends: list[float] = [END if end is None else end for end in lists[n + 1]]  # type: ignore[misc]  # a time is a number
        return zip(zip(lists[n], *lists[:n], strict=True), ends, diffs, strict=True)

    def _living_columns(self, texts: Texts) -> LivingColumns:
        """The rows on columns. Raises: Unsuited."""
        from tidemill.catalog.record_rows import table_of
        from tidemill.datalog.columnar.living import LivingColumns

        if self.columns is not None:
            if self.columns.rows.texts is texts:
                return self.columns
            return self.columns.renumbered(texts)
        if self._snapshot is not None:
            rows = self._snapshot
            copies = rows.column(DIFF).to_numpy()
            starts = np.full(rows.num_rows, self.lower - 1, np.int64)
        else:
            alive = list(self._held())
            if self._rows is not None:
                alive = [(row, e.presence.start, e.copies) for row, e in self._rows.items()]  # type: ignore[misc]  # instants of rows alive are whole
            rows = table_of([row for row, _, _ in alive], self.shape.schema)
            copies = np.array([each for _, _, each in alive], np.int64)
            starts = np.array([since for _, since, _ in alive], np.int64)
        return LivingColumns(self._columns_of(rows, starts, texts), copies)

    def _columns_of(self, rows: pa.Table, times: npt.NDArray[np.generic], texts: Texts) -> Columns:
        """Rows of this input as columns, present from `times` on. Raises: Unsuited."""
        from tidemill_compute.views.column_rows import columns_of

        return columns_of(rows, self.shape, times, texts)


def cut_window(inputs: Sequence[InputState], lower: int, upper: int, changes_max: int) -> int:
    """End of a window from `lower`: `upper`, or before it if the window would see too many changes.

    All changes at one instant belong to one window, however many they are. Cost: O(inputs ·
    changes_max).
    """
    if sum(living.waiting(upper) for living in inputs) <= changes_max:
        return upper
    every = [living.change_times() for living in inputs]
    times = np.sort(np.concatenate([times[: changes_max + 1] for times in every]))
    first, cut = int(times[0]), int(times[changes_max])
    if cut > lower and first < cut:
        return cut
    later = [times[np.searchsorted(times, np.uint64(first), side="right") :] for times in every]
    return min([upper, *(int(times[0]) for times in later if len(times))])


def _rows(table: pa.Table, columns: Sequence[str]) -> list[Row]:
    if not columns:
        return [()] * table.num_rows
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def _ints(table: pa.Table, name: str) -> list[int]:
    return list(table.column(name).to_pylist())


def _values(column: pa.ChunkedArray) -> list[object]:
    """The values of a column; where most texts come again, one object for each that differs."""
    if column.type != pa.string() or len(column) < _FEW:
        return list(column.to_pylist())
    encoded = column.combine_chunks().dictionary_encode()
    if 2 * len(encoded.dictionary) > len(column):
        return list(column.to_pylist())
    texts = [*encoded.dictionary.to_pylist(), None]
    return [texts[-1 if at is None else at] for at in encoded.indices.to_pylist()]
