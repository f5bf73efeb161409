"""A view as the benchmark drives it: columns in, columns out. The only module here that names an
engine of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.datalog import columnar
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar import Column, ColumnTable, Texts
from tidemill.datalog.columnar.columns import END_WORD, absent_times, no_ends
from tidemill.datalog.dataflow.ticking import DataflowTicker
from tidemill.datalog.evaluation.sharing import Sharing
from tidemill.datalog.incremental import FactChanges, IncrementalEngine
from tidemill.datalog.inputs import InputKind, InputSchema, InputSchemas
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine, Evaluation
from tidemill.datalog.scratch.changing import ColumnChanges
from tidemill.testkit.column_windows import ColumnWindows, RecordChanges

I64Array = npt.NDArray[np.int64]
Columns = list[npt.NDArray[np.int64]]
Changed = ColumnChanges | RecordChanges


@dataclass(frozen=True)
class Delta:
    """Rows of a relation that come (diff 1) or go (-1) at one instant, as columns."""

    columns: Sequence[I64Array]
    diffs: I64Array

    @classmethod
    def of(cls, columns: Sequence[I64Array], diff: int = 1) -> Delta:
        """All rows come, or all go."""
        return cls(columns, np.full(len(columns[0]), diff, np.int64))


@dataclass(frozen=True)
class Passing:
    """Timeless rows as columns, each present at one instant alone."""

    columns: Sequence[I64Array]
    instants: I64Array


@dataclass(frozen=True)
class Events:
    """Events as columns, present from their times on, `life` long, or for ever."""

    columns: Sequence[I64Array]
    times: I64Array
    life: int | None = None


def program(text: str, inputs: Mapping[str, tuple[InputKind, int]]) -> CheckedProgram:
    """The checked program over inputs of whole numbers, each with its kind and its number of
    columns.
    """
    schemas = {
        name: InputSchema(name, kind, tuple((f"c{i}", "int") for i in range(arity)))
        for name, (kind, arity) in inputs.items()
    }
    return check(parse(text), InputSchemas(schemas))


class View:
    """A program kept up to date: each step takes changes of its inputs in, and tells what they
    changed.
    """

    def __init__(self, checked: CheckedProgram, sharing: Sharing = "auto") -> None:
        self._engine = IncrementalEngine(checked, sharing=sharing)

    def step(self, upper: int, given: Mapping[str, Delta | Events]) -> FactChanges:
        """The changes at the instants below `upper`; rows change at `upper - 1`, events at their
        times.
        """
        for name, changes in given.items():
            if isinstance(changes, Events):
                self._engine.feed(name, presences(name, changes))
            else:
                rows = zip(*(column.tolist() for column in changes.columns), strict=True)
                for row, diff in zip(rows, changes.diffs.tolist(), strict=True):
                    self._engine.update(name, Record(name, row), upper - 1, diff)
        return self._engine.advance(upper).facts


class Windows:
    """A program kept up to date by windows of columns; rows are present from their times on, `life`
    long.
    """

    def __init__(self, checked: CheckedProgram, sharing: Sharing = "auto") -> None:
        self._windows = ColumnWindows(checked, sharing=sharing)

    def keep(self, name: str, columns: Sequence[I64Array]) -> None:
        """Make timeless rows present from now on."""
        self._windows.feed(name, row_columns(columns, self._windows.texts))

    def step(self, upper: int, given: Mapping[str, Events | Passing]) -> Mapping[str, Changed]:
        """Changes at the instants below `upper`."""
        texts = self._windows.texts
        for name, rows in given.items():
            if isinstance(rows, Passing):
                self._windows.feed(name, passing_columns(rows, texts))
            else:
                self._windows.feed(name, event_columns(rows, texts))
        return self._windows.step(upper).facts


class Ticks:
    """A program run tick by tick over rows that stay."""

    def __init__(self, checked: CheckedProgram, kept: Mapping[str, Sequence[I64Array]]) -> None:
        self._ticker = DataflowTicker(checked)
        self._come = {name: list(records(name, columns)) for name, columns in kept.items()}

    def tick(self, at: int) -> int:
        """The number of changes from the tick before."""
        come, self._come = self._come, {}
        return len(self._ticker.tick(at, come, {}).facts)


class Batch:
    """A program over inputs as a whole."""

    def __init__(self, checked: CheckedProgram) -> None:
        self._checked = checked

    def evaluate(self, upper: int, given: Mapping[str, Events], wanted: str) -> Columns:
        """The facts of a predicate at the instants below `upper`: arguments, time, lattice
        values.
        """
        engine = Engine(self._checked, columns_from=0)
        texts = engine.column_bulk().texts
        inputs = {name: event_columns(events, texts) for name, events in given.items()}
        return words_of_table(engine.evaluate_columns(inputs, upper=upper), wanted)


def row_columns(columns: Sequence[I64Array], texts: Texts) -> columnar.Columns:
    """Timeless rows, present always."""
    n = len(columns[0])
    return timeless(columns, np.zeros(n, np.int64), np.full(n, END_WORD), texts)


def passing_columns(rows: Passing, texts: Texts) -> columnar.Columns:
    """Timeless rows, each present at its instant."""
    return timeless(rows.columns, rows.instants, rows.instants + 1, texts)


def timeless(
    columns: Sequence[I64Array], start: I64Array, stop: I64Array, texts: Texts
) -> columnar.Columns:
    """Rows without a time or an expiry, present as given."""
    n = len(start)
    arguments = tuple([Column(Type.INT, column) for column in columns])
    return columnar.Columns(start, stop, no_ends(n), absent_times(n), arguments, texts)


def event_columns(events: Events, texts: Texts) -> columnar.Columns:
    """Events, present from their times on."""
    times, life = events.times, events.life
    ends = np.full(len(times), END_WORD) if life is None else times + life
    arguments = tuple(Column(Type.INT, column) for column in events.columns)
    return columnar.Columns(times, ends, ends, Column(Type.INT, times), arguments, texts)


def words_of_table(evaluation: Evaluation, name: str) -> Columns:
    """A derived predicate as columns of words."""
    table = evaluation.tables[name]
    assert isinstance(table, ColumnTable)
    return words_of_facts(table.columns)


def words_of_facts(facts: columnar.Columns) -> Columns:
    """Facts as columns of words; numbers with a point by their bits."""
    time = () if facts.time.nulls is not None else (facts.time,)
    lattices = (facts.lattices[name] for name in sorted(facts.lattices))
    return [column.values.view(np.int64) for column in (*facts.arguments, *time, *lattices)]


def begun(changes: Changed) -> Columns:
    """The facts that begin, as columns of words."""
    assert isinstance(changes, ColumnChanges)
    return words_of_facts(changes.facts.take(np.flatnonzero(changes.diffs > 0)))


def stretches(changes: Changed) -> Columns:
    """Facts that begin and end, as columns of words: diff, instant, then the facts."""
    assert isinstance(changes, ColumnChanges)
    return [changes.diffs, changes.times, *words_of_facts(changes.facts)]


def stacked(parts: Iterable[Columns]) -> Columns:
    """The rows of all parts."""
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def records(name: str, columns: Sequence[I64Array]) -> Iterable[Record]:
    """Rows as records without a time."""
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield Record(name, row)


def presences(name: str, events: Events) -> Iterable[Presence]:
    """Events as the engine takes them."""
    rows = zip(*(column.tolist() for column in events.columns), strict=True)
    life = events.life
    for row, time in zip(rows, events.times.tolist(), strict=True):
        if life is None:
            yield Presence(Record(name, row, time), time)
        else:
            yield Presence(Record(name, row, time, time + life), time, time + life)


def changed_rows(changes: FactChanges, name: str) -> tuple[Columns, I64Array]:
    """The changes of a predicate as columns: arguments, time if it has one, lattice values; and
    their diffs.
    """
    blocks, others = changes.of(name)
    columns = as_columns([row_of(change.record) for change in others])
    diffs = np.array([change.diff for change in others], np.int64)
    if not blocks:
        return columns, diffs
    parts = [[values for values, _ in block.arrays()] for block in blocks]
    all_diffs = np.concatenate([block.diffs for block in blocks] + [diffs])
    return stacked([*parts, columns] if columns else parts), all_diffs


def row_of(record: Record) -> tuple[int | float, ...]:
    """A record as a row of numbers."""
    time = () if record.time is None else (record.time,)
    return (*record.arguments, *time, *(value for _, value in record.parafacts))  # type: ignore[return-value, arg-type]


def as_columns(rows: Sequence[tuple[int | float, ...]]) -> Columns:
    """Rows of numbers as columns; those with a point by their bits."""
    return [
        np.array(column, np.float64).view(np.int64)
        if isinstance(column[0], float)
        else np.array(column, np.int64)
        for column in zip(*rows, strict=True)
    ]
