"""The engines behind one face: rows in, what changed out, as words that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bench.dataflow.streams import Rows
from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columnar import Column, Columns, Texts
from tidemill.datalog.columnar.columns import absent_times
from tidemill.datalog.dataflow import DataflowEngine, Told
from tidemill.datalog.dataflow.schema import rows_of_presences
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.presence import Presence
from tidemill.datalog.scratch.changing import ColumnChanges
from tidemill.testkit.column_windows import ColumnWindows

Words = npt.NDArray[np.int64]


class Side(Protocol):
    """An engine that keeps a program up to date."""

    def prepared(self, name: str, rows: Rows | Sequence[Presence]) -> Any:
        """Input rows in the form that the engine takes; its time does not count."""

    def step(self, upper: int, given: Mapping[str, Any]) -> Any:
        """Changes below `upper`."""

    def words(self, changes: Any) -> dict[str, Words]:
        """Changes as rows of words by predicate: diff, instant, arguments, time, lattices."""


class Dataflow:
    """The engine `dataflow`."""

    def __init__(self, checked: CheckedProgram) -> None:
        self.engine = DataflowEngine(checked)

    def prepared(self, name: str, rows: Rows | Sequence[Presence]) -> Change:
        schema = self.engine.schemas[name]
        if not isinstance(rows, Rows):
            return rows_of_presences(schema, rows, self.engine.texts)
        found = np.zeros((len(rows.times), schema.columns + 3), np.int64)
        found[:, 0] = found[:, -3] = rows.times
        for at, column in enumerate(rows.arguments, 1):
            found[:, at] = column
        found[:, schema.expiry] = found[:, -2] = rows.ends
        found[:, -1] = 1
        return found

    def step(self, upper: int, given: Mapping[str, Any]) -> Any:
        for name, rows in given.items():
            self.engine.feed(name, rows)
        return self.engine.step(upper)

    def words(self, changes: Any) -> dict[str, Words]:
        return {name: _words(told) for name, told in changes.items()}


def stable(numbers: Words, texts: Texts) -> Words:
    """Words for texts that do not depend on the order in which an engine met them."""
    return np.array([crc32(text.encode()) for text in texts.texts(numbers)], np.int64)


def _words(told: Told) -> Words:
    schema, moves = told.schema, told.moves.copy()
    for column in range(1, schema.nulls):
        if column != schema.expiry and schema.kind(column) is Type.TEXT:
            known = (moves[:, schema.nulls] >> column & 1) == 0
            moves[known, column] = stable(moves[known, column], told.texts)
    lattices = sorted(range(len(schema.lattices)), key=lambda at: schema.lattices[at][0])
    places = [*range(1, schema.expiry), 0, *(schema.expiry + 1 + at for at in lattices)]
    return np.column_stack([moves[:, -1], moves[:, -2], moves[:, places]])


class Windows:
    """The engine on columns, window by window."""

    def __init__(self, checked: CheckedProgram) -> None:
        self._checked = checked
        self._windows = ColumnWindows(checked)

    def prepared(self, name: str, rows: Rows | Sequence[Presence]) -> Columns:
        texts = self._windows.texts
        if isinstance(rows, Rows):
            arguments = tuple(Column(Type.INT, np.ascontiguousarray(c)) for c in rows.arguments)
            times = Column(Type.INT, rows.times)
            return Columns(rows.times, rows.ends, rows.ends, times, arguments, texts)
        kinds = [Type(kind) for _, kind in self._checked.columns[name]]
        values = list(zip(*(each.record.arguments for each in rows), strict=True))
        arguments = tuple(
            Column.of_values(kind, column, texts)
            for kind, column in zip(kinds, values or [()] * len(kinds), strict=True)
        )
        ends = np.array([_word(each.record.expires) for each in rows], np.int64)
        stops = np.array([_word(each.end) for each in rows], np.int64)
        starts = np.array([int(each.start) for each in rows], np.int64)
        if rows and rows[0].record.time is None:
            return Columns(starts, stops, ends, absent_times(len(rows)), arguments, texts)
        return Columns(starts, stops, ends, Column(Type.INT, starts), arguments, texts)

    def step(self, upper: int, given: Mapping[str, Any]) -> Any:
        for name, rows in given.items():
            if len(rows):
                self._windows.feed(name, rows)
        facts = self._windows.step(upper).facts
        return {name: facts[name] for name in self._checked.derived}

    def words(self, changes: Any) -> dict[str, Words]:
        found = {}
        for name, change in changes.items():
            assert isinstance(change, ColumnChanges), "the columns do not take this program"
            facts = change.facts
            lattices = [facts.lattices[each] for each in sorted(facts.lattices)]
            columns = [*facts.arguments, facts.time, *lattices]
            words = []
            for column in columns:
                values = np.ascontiguousarray(column.values).view(np.int64).copy()
                if column.kind is Type.TEXT:
                    values[column.known] = stable(values[column.known], facts.texts)
                words.append(values)
            found[name] = np.column_stack([change.diffs, change.times, *words])
        return found


class Followed:
    """The engine `incremental`, change by change."""

    def __init__(self, checked: CheckedProgram) -> None:
        self._engine = IncrementalEngine(checked)

    def prepared(self, name: str, rows: Rows | Sequence[Presence]) -> Any:
        from bench.dataflow.streams import presences_of

        return presences_of(name, rows) if isinstance(rows, Rows) else rows

    def step(self, upper: int, given: Mapping[str, Any]) -> Any:
        for name, rows in given.items():
            self._engine.feed(name, rows)
        return self._engine.advance(upper).facts

    def words(self, changes: Any) -> dict[str, Words]:
        return {"all": np.zeros((len(changes), 1), np.int64)}


def _word(instant: float | None) -> int:
    return END_WORD if instant is None or instant == float("inf") else int(instant)


def digest(parts: Sequence[Mapping[str, Words]]) -> dict[str, str]:
    """A digest of the changes of each predicate, the same however steps are cut."""
    by_name: dict[str, list[Words]] = {}
    for part in parts:
        for name, words in part.items():
            by_name.setdefault(name, []).append(words)
    found = {}
    for name, words in by_name.items():
        rows = np.concatenate(words)
        different, places = np.unique(rows[:, 1:], axis=0, return_inverse=True)
        diffs = np.zeros(len(different), np.int64)
        np.add.at(diffs, places.reshape(-1), rows[:, 0])
        rows = np.column_stack([diffs, different])[diffs != 0]
        found[name] = f"{len(rows)}:{sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()[:12]}"
    return found
