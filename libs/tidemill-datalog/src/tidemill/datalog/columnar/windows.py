"""A program kept up to date window by window: columns in, columns out, no object for a row in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Groups, clipped, lone_rows, turns
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.columns import (
    END_WORD,
    Column,
    Columns,
    Texts,
    Unsuited,
    instant_word,
    words_of,
)
from tidemill.datalog.columnar.deriving import merged
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.evaluation.engine import Engine, Evaluation, presences_of
from tidemill.datalog.evaluation.failures import ErrorPresence
from tidemill.datalog.evaluation.fixpoint import Limits
from tidemill.datalog.evaluation.forms import Type
from tidemill.datalog.evaluation.state import EngineState
from tidemill.datalog.evaluation.tables import Table
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.lattices import LATTICES, Lattice
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.time import UsageError

_TEXTS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Facts of one predicate that begin (diff 1) or end (-1) at instants; of `facts` start and stop mean nothing."""

    facts: Columns
    times: I64Array
    diffs: I64Array

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """The same as records, for what columns do not hold: (record, instant, 1 or -1)."""

    changes: list[tuple[Record, int, int]]

    def __len__(self) -> int:
        return len(self.changes)


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """What a window has changed: facts by predicate, errors with when they hold, and the state at its end."""

    facts: Mapping[str, ColumnChanges | RecordChanges]
    errors: Sequence[ErrorPresence]
    state: EngineState


class ColumnWindows:
    """At every instant from `begin` below `upper`, output = program(inputs), given as changes.

    Inputs are columns made with `texts`, their rows present on [start, stop). Each step evaluates all that is alive
    in its window, so it pays where a window brings about as much as is alive, and costs about a millisecond for
    each rule where it brings nothing. What columns do not take is done by the row engine; the answers are the
    same. Not for use by several threads at once.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        functions: Mapping[str, ScalarFunction] = FUNCTIONS,
        lattices: Mapping[str, Lattice] = LATTICES,
        limits: Limits | None = None,
        begin: int = 0,
        state: EngineState | None = None,
    ) -> None:
        self._checked = checked
        self._engine = Engine(
            checked, functions=functions, lattices=lattices, limits=limits, columns_from=0
        )
        self._begin = begin
        self._upper = begin
        self._state = state
        self._alive: dict[str, Columns] = {}
        self._evaluation: Evaluation | None = None
        self._waiting: dict[str, list[Columns]] = {}

    @property
    def texts(self) -> Texts:
        """The numbers of texts; may be others after a step."""
        return self._engine.column_bulk().texts

    @property
    def upper(self) -> int:
        """Everything below this instant is done."""
        return self._upper

    def feed(self, predicate: str, rows: Columns) -> None:
        """Let rows be present as given; what begins below `upper` begins there."""
        times = rows.time.values
        if len(rows) > 1 and bool((times[1:] < times[:-1]).any()):
            rows = rows.take(np.argsort(times, kind="stable"))  # told apart faster that way
        self._waiting.setdefault(predicate, []).append(rows)

    def step(self, upper: int) -> WindowChanges:
        """Go on to an instant above `upper`; what changed below it. Raises: LimitPassed."""
        lower = self._upper
        first = lower == self._begin
        given, compared = {}, not first and self._turned_over()
        seen = lower if first or compared else lower - 1
        for name in self._checked.inputs:
            parts = self._waiting.pop(name, [])
            held = self._alive.get(name)
            if held is not None:
                parts.insert(0, held)
            if parts:
                given[name] = stacked(parts) if len(parts) > 1 else parts[0]
        evaluation = self._engine.evaluate_columns(
            given, lower=seen, upper=upper, state=self._state
        )
        derived = self._checked.derived
        self._alive = {
            name: alive_at(upper, columns, None if name in derived else evaluation.tables[name])
            for name, columns in given.items()
        }
        before = self._ends(compared)
        self._state, self._upper, self._evaluation = evaluation.state, upper, evaluation
        facts = {
            name: self._changes(name, before.get(name), (seen, lower, upper)) for name in derived
        }
        self._renumber()
        return WindowChanges(facts, evaluation.errors, evaluation.state)

    def _turned_over(self) -> bool:
        """Whether more of what was alive at the end of the last window ends there than lives on.

        Then the facts of both are compared where they meet; else the next window looks back one instant, so that it
        sees what ends at its first one.
        """
        if self._evaluation is None:
            return False
        ends = sum(int((held.stop == self._upper).sum()) for held in self._alive.values())
        return 2 * ends > sum(map(len, self._alive.values()))

    def _ends(self, compared: bool) -> dict[str, Columns | frozenset[Record]]:
        """What held at the end of the last window, if it is to be compared."""
        if not compared or self._evaluation is None:
            return {}
        return {name: ending(self._evaluation, name) for name in self._checked.derived}

    def _changes(
        self, name: str, before: Columns | frozenset[Record] | None, window: tuple[int, int, int]
    ) -> ColumnChanges | RecordChanges:
        evaluation, (seen, lower, upper) = self._evaluation, window
        assert evaluation is not None
        table = evaluation.tables.get(name)
        columns = table.columns if isinstance(table, ColumnTable) else None
        if before is None and columns is not None:
            return column_changes(columns, seen, lower, upper)
        if columns is not None and isinstance(before, Columns):
            with suppress(Unsuited):  # then they differ in their types
                return compared_columns(before, columns, lower, upper)
        now = evaluation.presences[name]
        if before is None:
            return RecordChanges(record_changes(now, seen, lower, upper))
        if isinstance(before, Columns):
            rows = before.to_rows()
            before = frozenset(p.record for p in presences_of(name, rows, self._engine.lattices))
        return RecordChanges(compared_records(before, now, lower, upper))

    def _renumber(self) -> None:
        """Forget texts that nobody uses any more, once they are many."""
        texts = self.texts
        rows = sum(map(len, self._alive.values()))
        if len(texts) < max(_TEXTS_MAX, 4 * rows):
            return
        self._state = EngineState.from_rows(self._state.to_rows()) if self._state else None
        fresh = self._engine.column_bulk().forget_texts()
        self._alive = {name: columns.renumbered(fresh) for name, columns in self._alive.items()}
        self._evaluation = None  # it has the old numbers; the next window looks back instead


def column_changes(columns: Columns, seen: int, lower: int, upper: int) -> ColumnChanges:
    """What begins or ends at instants in [lower, upper), for rows of a window from `seen` on.

    What is present at an instant before `lower` that was seen does not begin again.
    """
    rows, times, diffs = turns(columns.start, columns.stop, seen, lower, upper)
    return ColumnChanges(columns.take(rows), times, diffs)


def alive_at(upper: int, columns: Columns, table: Table | None) -> Columns:
    """The rows of an input that are still present at `upper`; `table` is what a window made of them and nothing else."""
    if isinstance(table, ColumnTable) and table.columns.apart:
        columns = replace(columns, apart=len(table.columns) == len(columns))
    return columns.kept((columns.stop >= upper).nonzero()[0])


def record_changes(
    presences: Sequence[Presence], seen: int, lower: int, upper: int
) -> list[tuple[Record, int, int]]:
    """As `column_changes`, for presences."""
    changes = []
    for presence in presences:
        if presence.start >= lower or seen == lower:
            changes.append((presence.record, max(lower, int(max(presence.start, 0))), 1))
        if presence.end < upper:
            changes.append((presence.record, int(presence.end), -1))
    return changes


def ending(evaluation: Evaluation, name: str) -> Columns | frozenset[Record]:
    """What holds of a predicate at the end of a window."""
    table = evaluation.tables.get(name)
    if isinstance(table, ColumnTable):
        return table.columns.kept((table.columns.stop == END_WORD).nonzero()[0])
    return frozenset(p.record for p in evaluation.presences[name] if p.end == END)


def compared_columns(before: Columns, now: Columns, lower: int, upper: int) -> ColumnChanges:
    """What begins or ends at instants in [lower, upper): `before` held until `lower`, `now` holds from there on.

    What both say of `lower` neither ends nor begins. Cost: O(before + now).
    """
    opening = (now.start <= lower).nonzero()[0]
    near = stacked([before, now.kept(opening)])
    lattices = [near.lattices[name] for name in sorted(near.lattices)]
    words = words_of((*near.keys, Column(Type.INT, near.expires), *lattices))
    groups = Groups.of(words, len(near))
    lone = lone_rows(groups.ids, len(groups))
    facts, times = near.kept(lone), np.full(len(lone), lower)
    diffs = np.where(lone < len(before), -1, 1)
    rows, later, ways = turns(now.start, now.stop, lower, lower + 1, upper)
    if not len(rows):
        return ColumnChanges(facts, times, diffs)
    return ColumnChanges(
        stacked([facts, now.take(rows)]), np.concatenate([times, later]),
        np.concatenate([diffs, ways]),
    )  # fmt: skip


def compared_records(
    before: frozenset[Record], now: Sequence[Presence], lower: int, upper: int
) -> list[tuple[Record, int, int]]:
    """As `compared_columns`, for records and presences."""
    opening = {presence.record for presence in now if presence.start <= lower}
    changes = [(record, lower, -1) for record in before - opening]
    changes += [(record, lower, 1) for record in opening - before]
    for presence in now:
        if presence.start > lower:
            changes.append((presence.record, int(presence.start), 1))
        if presence.end < upper:
            changes.append((presence.record, int(presence.end), -1))
    return changes


class WindowColumns:
    """The rows of an input that are present in a window: what one evaluation has made of them, another takes.

    For any number of threads: the first who asks works it out, the others wait for it.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.made = 0
        """How many tables were made, however often one was asked for."""
        self._making = Lock()
        self._tables: dict[tuple[Instant, int], ColumnTable] = {}

    def within(self, lower: Instant, upper: int) -> ColumnTable:
        """The table of the window [lower, upper): rows cut to it, and those of one fact drawn together."""
        with self._making:
            table = self._tables.get((lower, upper))
            if table is None:
                table = self._tables[lower, upper] = _cut(self.columns, lower, upper)
                self.made += 1
            return table


def table_within(
    checked: CheckedProgram, name: str, given: Columns | WindowColumns, lower: Instant, upper: int
) -> ColumnTable:
    """Rows as a table of the window [lower, upper): cut to it, and those of one fact drawn together.

    Raises: UsageError where the columns are not those of the predicate.
    """
    columns = given.columns if isinstance(given, WindowColumns) else given
    kinds = [Type(kind) for _, kind in checked.columns[name]]
    found = [column.kind for column in columns.arguments]
    if found != kinds or columns.lattices:
        raise UsageError(
            f"columns of {name} refused: they are {found}, not {kinds}", reason="InvalidColumns"
        )
    if isinstance(given, WindowColumns):
        return given.within(lower, upper)
    return _cut(columns, lower, upper)


def _cut(columns: Columns, lower: Instant, upper: int) -> ColumnTable:
    rows, start, stop = clipped(columns.start, columns.stop, instant_word(lower), upper)
    return ColumnTable(merged(replace(columns.kept(rows), start=start, stop=stop)))


__all__ = [
    "ColumnChanges", "ColumnWindows", "RecordChanges", "WindowChanges", "WindowColumns",
    "column_changes", "compared_columns", "compared_records", "record_changes", "table_within",
]  # fmt: skip
