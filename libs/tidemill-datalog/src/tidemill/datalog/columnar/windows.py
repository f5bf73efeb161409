"""A program kept up to date window by window: columns in, columns out, no object for a row in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.columns import END_WORD, Columns, Texts, instant_word
from tidemill.datalog.columnar.deriving import merged
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.evaluation.engine import Engine, Evaluation
from tidemill.datalog.evaluation.failures import ErrorPresence
from tidemill.datalog.evaluation.fixpoint import Limits
from tidemill.datalog.evaluation.forms import Type
from tidemill.datalog.evaluation.state import EngineState
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.lattices import LATTICES, Lattice
from tidemill.datalog.presence import Instant, Presence
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
        lower, first = self._upper, self._upper == self._begin
        seen = lower if first else lower - 1
        given = {}
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
        self._alive = {
            name: columns.take(np.flatnonzero(columns.stop >= upper))
            for name, columns in given.items()
        }
        self._state, self._upper = evaluation.state, upper
        facts = {
            name: self._changes(evaluation, name, seen, lower, upper)
            for name in self._checked.derived
        }
        self._renumber()
        return WindowChanges(facts, evaluation.errors, evaluation.state)

    def _changes(
        self, evaluation: Evaluation, name: str, seen: int, lower: int, upper: int
    ) -> ColumnChanges | RecordChanges:
        table = evaluation.tables.get(name)
        if isinstance(table, ColumnTable):
            return column_changes(table.columns, seen, lower, upper)
        return RecordChanges(record_changes(evaluation.presences[name], seen, lower, upper))

    def _renumber(self) -> None:
        """Forget texts that nobody uses any more, once they are many."""
        texts = self.texts
        rows = sum(map(len, self._alive.values()))
        if len(texts) < max(_TEXTS_MAX, 4 * rows):
            return
        self._state = EngineState.from_rows(self._state.to_rows()) if self._state else None
        fresh = self._engine.column_bulk().forget_texts()
        self._alive = {name: columns.renumbered(fresh) for name, columns in self._alive.items()}


def column_changes(columns: Columns, seen: int, lower: int, upper: int) -> ColumnChanges:
    """What begins or ends at instants in [lower, upper), for rows of a window from `seen` on.

    What is present at an instant before `lower` that was seen does not begin again.
    """
    begins = np.arange(len(columns)) if seen == lower else np.flatnonzero(columns.start >= lower)
    ends = np.flatnonzero((columns.stop < upper) & (columns.stop != END_WORD))
    rows = np.concatenate([begins, ends])
    times = np.concatenate([np.maximum(columns.start[begins], lower), columns.stop[ends]])
    diffs = np.repeat(np.array([1, -1]), [len(begins), len(ends)])
    return ColumnChanges(columns.take(rows), times, diffs)


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


def table_within(
    checked: CheckedProgram, name: str, columns: Columns, lower: Instant, upper: int
) -> ColumnTable:
    """Rows as a table of the window [lower, upper): cut to it, and those of one fact drawn together.

    Raises: UsageError where the columns are not those of the predicate.
    """
    kinds = [Type(kind) for _, kind in checked.columns[name]]
    found = [column.kind for column in columns.arguments]
    if found != kinds or columns.lattices:
        raise UsageError(
            f"columns of {name} refused: they are {found}, not {kinds}", reason="InvalidColumns"
        )
    low = instant_word(lower)
    kept = (columns.start < upper) & (columns.stop > low) & (columns.start < columns.stop)
    if not kept.all():
        columns = columns.take(np.flatnonzero(kept))
    start = np.maximum(columns.start, low)
    stop = np.where(columns.stop >= upper, END_WORD, columns.stop)
    cut = Columns(start, stop, columns.expires, columns.time, columns.arguments, columns.texts)
    return ColumnTable(merged(cut))


__all__ = [
    "ColumnChanges", "ColumnWindows", "RecordChanges", "WindowChanges", "column_changes",
    "record_changes", "table_within",
]  # fmt: skip
