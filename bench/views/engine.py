"""A view as the benchmark drives it: columns in, columns out, by the engine of the service.

No other module here names an engine of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.interval_updates import END_WORD, Change, rows_of
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges, Schema
from tidemill.datalog.dataflow.schema import TIME, rows_of_presences
from tidemill.datalog.dataflow.ticker import DataflowTicker
from tidemill.datalog.inputs import ColumnType, InputKind, InputSchema, InputSchemas
from tidemill.datalog.limits import Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record

I64Array = npt.NDArray[np.int64]
Words = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
Columns = list[npt.NDArray[np.int64]]
Found = Mapping[str, OutputChanges]
"""The changes of a step by predicate."""

LIMITS = Limits(rows=1 << 40)


@dataclass(frozen=True)
class Delta:
    """Rows of a relation that come (diff 1) or go (-1) at one instant, as columns."""

    columns: Sequence[I64Array]
    diffs: I64Array | int = 1


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


Given = Delta | Passing | Events | Change


def program(
    text: str, inputs: Mapping[str, tuple[InputKind, int]], kind: ColumnType = "int"
) -> CheckedProgram:
    """The checked program over inputs, each with its kind and its number of columns; columns are
    all of one type.
    """
    schemas = {
        name: InputSchema(name, input_kind, tuple((f"c{i}", kind) for i in range(arity)))
        for name, (input_kind, arity) in inputs.items()
    }
    return check(parse(text), InputSchemas(schemas))


class View:
    """A program kept up to date: each step takes changes of its inputs in, and tells what they
    changed. With `told` it tells of these predicates alone.
    """

    def __init__(self, checked: CheckedProgram, told: Sequence[str] | None = None) -> None:
        self.engine = DataflowEngine(checked, limits=LIMITS, told=told)

    def step(self, upper: int, given: Mapping[str, Given]) -> Found:
        """The changes at the instants below `upper`; rows change at `upper - 1`, events at their
        times.
        """
        for name, changes in given.items():
            schema = self.engine.schema_of(name)
            if schema is not None:
                self.engine.feed(name, change_of(schema, changes, upper))
        return self.engine.step(upper)

    def rows_of(self, name: str, presences: Sequence[Presence]) -> Change:
        """Facts of an input in the form that a step takes them."""
        schema = self.engine.schema_of(name)
        assert schema is not None
        return rows_of_presences(schema, presences, self.engine.texts)


class Ticks:
    """A program run tick by tick over rows that stay."""

    def __init__(self, checked: CheckedProgram, kept: Mapping[str, Sequence[I64Array]]) -> None:
        self._ticker = DataflowTicker(checked)
        self._come = {name: list(records(name, columns)) for name, columns in kept.items()}

    def tick(self, at: int) -> int:
        """The number of changes from the tick before."""
        come, self._come = self._come, {}
        return len(self._ticker.tick(at, come, {}).facts)


def change_of(schema: Schema, given: Given, upper: int) -> Change:
    """Changes of an input as interval updates."""
    if isinstance(given, Delta):
        return interval_rows(schema, given.columns, upper - 1, diffs=given.diffs)
    if isinstance(given, Passing):
        return interval_rows(schema, given.columns, given.instants, given.instants + 1)
    if isinstance(given, Events):
        ends = END_WORD if given.life is None else given.times + given.life
        rows = interval_rows(schema, given.columns, given.times, ends)
        rows[:, TIME], rows[:, schema.expiry], rows[:, schema.nulls] = given.times, ends, 0
        return rows
    return given


def interval_rows(
    schema: Schema,
    columns: Sequence[Words],
    starts: I64Array | int,
    ends: I64Array | int = END_WORD,
    diffs: I64Array | int = 1,
) -> Change:
    """Rows without a time, present on their intervals."""
    found: list[I64Array | int] = [0] * (schema.columns + 3)
    found[1 : 1 + len(columns)] = [column.view(np.int64) for column in columns]
    found[schema.expiry], found[schema.nulls] = END_WORD, 1 << TIME
    found[-3:] = starts, ends, diffs
    return rows_of(found, len(columns[0]))


def words_of(told: OutputChanges) -> tuple[Columns, I64Array]:
    """Changes as columns: arguments, time if facts have one, values of lattices by name; and their
    diffs.
    """
    schema, moves = told.schema, told.moves
    timed = not moves[0, schema.nulls] >> TIME & 1
    lattices = sorted(range(len(schema.lattices)), key=lambda at: schema.lattices[at][0])
    places = [*range(1, schema.expiry), *[TIME] * timed]
    places += [schema.expiry + 1 + at for at in lattices]
    return [moves[:, place] for place in places], moves[:, -1]


def changed_rows(found: Found, name: str) -> tuple[Columns, I64Array]:
    """The changes of a predicate; see `words_of`."""
    return words_of(found[name]) if name in found else ([], np.empty(0, np.int64))


def begun(found: Found, name: str) -> Columns:
    """The facts of a predicate that begin, as columns of words."""
    columns, diffs = changed_rows(found, name)
    return [column[diffs > 0] for column in columns]


def stretches(found: Found, name: str) -> Columns:
    """Facts that begin and end, as columns of words: diff, instant, then the facts."""
    if name not in found:
        return []
    columns, diffs = words_of(found[name])
    return [diffs, found[name].moves[:, -2], *columns]


def stacked(parts: Iterable[Columns]) -> Columns:
    """The rows of all parts that have any."""
    return [np.concatenate(columns) for columns in zip(*filter(len, parts), strict=True)]


def records(name: str, columns: Sequence[I64Array]) -> Iterable[Record]:
    """Rows as records without a time."""
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield Record(name, row)
