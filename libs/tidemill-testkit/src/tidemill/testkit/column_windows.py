"""A program kept up to date window by window: columns in, columns out, no object for a row in
between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.relational import Groups, lasting, lone_rows, turns
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar.columns import END_WORD, Columns, surely_endless
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.columnar.window_columns import WindowColumns
from tidemill.datalog.columns.column import Unsuited, words_of
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.evaluation.sharing import Sharing
from tidemill.datalog.failures import ErrorPresence
from tidemill.datalog.limits import Limits
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch.changing import ColumnChanges, column_changes
from tidemill.datalog.scratch.engine import Engine, Evaluation, presences_of
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Table

_TEXTS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """The same as records, for what columns do not hold: (record, instant, 1 or -1)."""

    changes: list[tuple[Record, int, int]]

    def __len__(self) -> int:
        return len(self.changes)


class ChangedFacts(Mapping[str, "ColumnChanges | RecordChanges"]):
    """Changes of each derived predicate in a window, computed at the first request and kept.

    `before` is the evaluation of the window before, if both are to be compared where they meet;
    else `now` looks back one instant. It holds the facts of both until all are computed. Not for
    use by several threads at once.
    """

    def __init__(
        self,
        engine: Engine,
        before: Evaluation | None,
        now: Evaluation,
        window: tuple[int, int, int],
    ) -> None:
        self._engine = engine
        self._before = before
        self._now = now
        self._window = window
        self._made: dict[str, ColumnChanges | RecordChanges] = {}

    def __getitem__(self, name: str) -> ColumnChanges | RecordChanges:
        known = self._made.get(name)
        if known is None:
            if name not in self._engine.derived:
                raise KeyError(name)
            known = self._made[name] = self._changes(name)
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self._engine.derived)

    def __len__(self) -> int:
        return len(self._engine.derived)

    def _changes(self, name: str) -> ColumnChanges | RecordChanges:
        seen, lower, upper = self._window
        before = None if self._before is None else ending(self._before, name)
        table = self._now.tables.get(name)
        columns = table.columns if isinstance(table, ColumnTable) else None
        if before is None and columns is not None:
            return column_changes(columns, seen, lower, upper)
        if columns is not None and isinstance(before, Columns):
            with suppress(Unsuited):  # then they differ in their types
                return compared_columns(before, columns, lower, upper)
        now = self._now.presences[name]
        if before is None:
            return RecordChanges(record_changes(now, seen, lower, upper))
        if isinstance(before, Columns):
            rows = before.to_rows()
            before = frozenset(p.record for p in presences_of(name, rows, self._engine.lattices))
        return RecordChanges(compared_records(before, now, lower, upper))


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """Changes in a window: facts by predicate, errors with their intervals, and the state at its
    end.
    """

    facts: ChangedFacts
    errors: Sequence[ErrorPresence]
    state: EngineState


class ColumnWindows:
    """At every instant from `begin` below `upper`, output = program(inputs), given as changes.

    Inputs are columns made with `texts`, their rows present on [start, stop). Each step evaluates
    all that is alive in its window. So it pays where a window brings about as much as is alive, and
    costs about a millisecond for each rule where it brings nothing. The row engine evaluates rules
    that columns do not take, with the same answers. Not for use by several threads at once.
    """

    def __init__(
        self,
        checked: CheckedProgram,
        *,
        limits: Limits | None = None,
        begin: int = 0,
        state: EngineState | None = None,
        sharing: Sharing = "auto",
    ) -> None:
        self._checked = checked
        self._engine = Engine(
            checked,
            limits=limits,
            columns_from=0,
            sharing=sharing,
        )
        self._begin = begin
        self._upper = begin
        self._state = state
        self._alive: dict[str, Columns] = {}
        self._standing: dict[str, ColumnTable] = {}
        self._compared = False
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
        """Add rows that are present as given; those that begin below `upper` begin there."""
        self._waiting.setdefault(predicate, []).append(rows)

    def step(self, upper: int) -> WindowChanges:
        """Go on to an instant above `upper`; what changed below it. Raises: LimitPassed."""
        lower = self._upper
        seen = lower if self._compared or lower == self._begin else lower - 1
        given: dict[str, Columns | WindowColumns] = {}
        for name in self._checked.inputs:
            rows = self._given(name)
            if rows is not None:
                given[name] = rows
        evaluation = self._engine.evaluate_columns(
            given, lower=seen, upper=upper, state=self._state
        )
        before = self._evaluation if self._compared else None
        facts = ChangedFacts(self._engine, before, evaluation, (seen, lower, upper))
        self._state, self._upper, self._evaluation = evaluation.state, upper, evaluation
        self._go_on(given)
        return WindowChanges(facts, evaluation.errors, evaluation.state)

    def _given(self, name: str) -> Columns | WindowColumns | None:
        """The rows of an input that may be present in the next window."""
        waiting = self._waiting.pop(name, None)
        held = self._alive.get(name)
        if waiting is None:
            standing = self._standing.get(name)
            return held if held is None or standing is None else WindowColumns(held, standing)
        parts = waiting if held is None else [held, *waiting]
        return stacked(parts) if len(parts) > 1 else parts[0]

    def _go_on(self, given: Mapping[str, Columns | WindowColumns]) -> None:
        """Keep the inputs that the next window needs.

        If more rows end where it begins than live on, the contents of both sides will be compared
        there. Else it looks back one instant, and so sees the rows that end at its first one.
        """
        upper, evaluation = self._upper, self._evaluation
        assert evaluation is not None
        held = {n: c.columns if isinstance(c, WindowColumns) else c for n, c in given.items()}
        counts = {name: lasting(columns.stop, upper) for name, columns in held.items()}
        ending = sum([ends for ends, _ in counts.values()])
        living = sum([lives for _, lives in counts.values()])
        crowded = len(self.texts) >= max(_TEXTS_MAX, 4 * (ending + living))
        self._compared = ending > living and not crowded
        self._alive, self._standing = {}, {}
        for name, columns in held.items():
            ends, lives = counts[name]
            kept = lives if self._compared else ends + lives
            if not kept:
                continue
            table = None if name in self._engine.derived else evaluation.tables[name]
            alive = alive_after(upper - (not self._compared), columns, table, kept)
            self._alive[name] = alive
            if isinstance(table, ColumnTable) and table.columns.arguments is alive.arguments:
                self._standing[name] = table
        if crowded:
            self._renumber()

    def _renumber(self) -> None:
        """Forget texts that nobody uses any more, now that they are many."""
        self._state = EngineState.from_rows(self._state.to_rows()) if self._state else None
        fresh = self._engine.column_bulk().forget_texts()
        self._alive = {name: columns.renumbered(fresh) for name, columns in self._alive.items()}
        self._standing = {}
        self._evaluation = None  # it has the old numbers


def alive_after(instant: int, columns: Columns, table: Table | None, alive: int) -> Columns:
    """The rows of an input that stop after an instant, of which there are `alive`.

    `table` is what a window made of the input and nothing else.
    """
    if isinstance(table, ColumnTable) and table.columns.apart:
        apart = len(table.columns) == len(columns)
        if columns.apart is not apart:
            columns = columns.placed(columns.start, columns.stop, apart)
    return columns if alive == len(columns) else columns.kept((columns.stop > instant).nonzero()[0])


def record_changes(
    presences: Sequence[Presence], seen: int, lower: int, upper: int
) -> list[tuple[Record, int, int]]:
    """The changes of presences, as `column_changes` gives those of columns."""
    changes = []
    for presence in presences:
        if presence.start >= lower or seen == lower:
            changes.append((presence.record, max(lower, int(max(presence.start, 0))), 1))
        if presence.end < upper:
            changes.append((presence.record, int(presence.end), -1))
    return changes


def ending(evaluation: Evaluation, name: str) -> Columns | frozenset[Record]:
    """The contents of a predicate at the end of a window."""
    table = evaluation.tables.get(name)
    if isinstance(table, ColumnTable):
        return table.columns.kept((table.columns.stop == END_WORD).nonzero()[0])
    return frozenset(p.record for p in evaluation.presences[name] if p.end == END)


def compared_columns(before: Columns, now: Columns, lower: int, upper: int) -> ColumnChanges:
    """Begins and ends at instants in [lower, upper): `before` held until `lower`, `now` holds from
    it on.

    Rows that both have at `lower` neither end nor begin. Cost: O(before + now).
    """
    opening = (now.start <= lower).nonzero()[0]
    near = stacked([before, now.kept(opening)])
    words = words_of((*near.telling, *near.lattices.values()))
    if not surely_endless(near.expires):
        words.append(near.expires)
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
    """The changes that `compared_columns` gives, for records and presences."""
    opening = {presence.record for presence in now if presence.start <= lower}
    changes = [(record, lower, -1) for record in before - opening]
    changes += [(record, lower, 1) for record in opening - before]
    for presence in now:
        if presence.start > lower:
            changes.append((presence.record, int(presence.start), 1))
        if presence.end < upper:
            changes.append((presence.record, int(presence.end), -1))
    return changes
