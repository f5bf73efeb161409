"""A view as the benchmark drives it: columns in, columns out. The only module here that names an engine of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.datalog.catalog import Catalog, InputKind, InputSchema
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation import Engine
from tidemill.datalog.incremental import FactChange, IncrementalEngine
from tidemill.datalog.incremental.ticks import IncrementalTicker
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record

I64Array = npt.NDArray[np.int64]
Columns = list[npt.NDArray[np.int64]]


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
class Events:
    """Events as columns, present from their times on, `life` long, or for ever."""

    columns: Sequence[I64Array]
    times: I64Array
    life: int | None = None


def program(text: str, inputs: Mapping[str, tuple[InputKind, int]]) -> CheckedProgram:
    """The checked program over inputs of whole numbers, each with its kind and its number of columns."""
    schemas = {
        name: InputSchema(name, kind, tuple((f"c{i}", "int") for i in range(arity)))
        for name, (kind, arity) in inputs.items()
    }
    return check(parse(text), Catalog(schemas))


class View:
    """A program kept up to date: each step takes changes of its inputs in, and tells what they changed."""

    def __init__(self, checked: CheckedProgram) -> None:
        self._engine = IncrementalEngine(checked)

    def step(self, upper: int, given: Mapping[str, Delta | Events]) -> list[FactChange]:
        """The changes at the instants below `upper`; rows change at `upper - 1`, events at their times."""
        for name, changes in given.items():
            if isinstance(changes, Events):
                self._engine.feed(name, presences(name, changes))
            else:
                rows = zip(*(column.tolist() for column in changes.columns), strict=True)
                for row, diff in zip(rows, changes.diffs.tolist(), strict=True):
                    self._engine.update(name, Record(name, row), upper - 1, diff)
        return self._engine.advance(upper).facts


class Ticks:
    """A program run tick by tick: each takes rows in that are present in it alone, beside those that stay."""

    def __init__(self, checked: CheckedProgram, kept: Mapping[str, Sequence[I64Array]]) -> None:
        self._ticker = IncrementalTicker(IncrementalEngine(checked))
        self._kept = {name: list(records(name, columns)) for name, columns in kept.items()}

    def tick(self, at: int, given: Mapping[str, Sequence[I64Array]]) -> list[FactChange]:
        """What differs from the tick before."""
        rows = {name: records(name, columns) for name, columns in given.items()}
        return self._ticker.tick(at, {**self._kept, **rows}).changes.facts


class Batch:
    """A program over inputs as a whole."""

    def __init__(self, checked: CheckedProgram) -> None:
        self._checked = checked

    def evaluate(self, upper: int, given: Mapping[str, Events], wanted: str) -> list[Presence]:
        """The presences of a predicate at the instants below `upper`."""
        inputs = {name: list(presences(name, events)) for name, events in given.items()}
        return Engine(self._checked).evaluate(inputs, upper=upper).presences[wanted]


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


def changed_rows(changes: Iterable[FactChange], name: str) -> tuple[Columns, I64Array]:
    """The changes of a predicate as columns: arguments, time if it has one, lattice values; and their diffs."""
    rows, diffs = [], []
    for change in changes:
        if change.record.predicate == name:
            rows.append(row_of(change.record))
            diffs.append(change.diff)
    return as_columns(rows), np.array(diffs, np.int64)


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
