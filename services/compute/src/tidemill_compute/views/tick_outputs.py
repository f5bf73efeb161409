"""Output of the ticks of all nodes, as changes of the collections of a view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape, endless, record_of, row_of
from tidemill.catalog.schemas import ERROR_SCHEMA
from tidemill.datalog.carried_lattices import matches_ends
from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record, format_value
from tidemill.datalog.state import StateRow
from tidemill.datalog.tick_state import ending_row, endings_of
from tidemill.datalog.ticks import Message, TickAnswer
from tidemill_compute.views.input_rows import Row
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import RowChange, Start, update_table

if TYPE_CHECKING:  # importing it loads loops
    from tidemill.datalog.dataflow import OutputChanges

WrittenRow = tuple[str, Row]
"""An output and a row of it."""


class TickOutputs:
    """Collects changes until they are taken. With several nodes each row begins with its node.

    After a restart the first tick of a node states everything anew. A row that was written before
    and is stated again is no change; a row that is not stated again ends.
    """

    def __init__(self, target: ViewTarget) -> None:
        assert target.ticks is not None
        self._target = target
        self._many = target.ticks.nodes > 1
        self._endless = matches_ends(target.program)
        self._writers = {name: row_of(shape) for name, (_, shape) in target.outputs.items()}
        self._facts: dict[str, list[RowChange]] = {name: [] for name in target.outputs}
        self._rows: dict[str, list[OutputChanges]] = {name: [] for name in target.outputs}
        self._failed: list[RowChange] = []
        self._written: dict[int, dict[WrittenRow, None]] = {}
        self._errors_written: dict[int, set[str]] = {}
        self._expiring: dict[WrittenRow, int] = {}
        self._untold: dict[WrittenRow, StateRow] = {}
        """Rows without a column for their expiry, each with that in a row of the state."""
        self._expiries: list[tuple[int, str, int, WrittenRow]] = []
        self._numbers = 0
        self._unknown: dict[int, set[str]] = {}
        self._misplaced: Counter[str] = Counter()

    def begin(self, start: Start) -> None:
        """Know what was written before, and nothing of a step that was given up."""
        nodes = range(self._target.ticks.nodes if self._target.ticks is not None else 1)
        self._facts = {name: [] for name in self._target.outputs}
        self._rows = {name: [] for name in self._target.outputs}
        self._failed = []
        self._expiring, self._untold, self._expiries = {}, {}, []
        self._unknown = {n: set() for n in nodes}
        self._misplaced = Counter()
        self._written = {n: {} for n in nodes}
        self._errors_written = {n: set() for n in (-1, *nodes)}
        if start.fresh:
            self._written, self._errors_written = {}, {}
        ending = {
            self._told(each): each
            for each in endings_of(start.state)
            if each.predicate in self._writers
        }
        for name, (collection, shape) in self._target.outputs.items():
            make: Callable[[Row], Record] = record_of(shape)
            for row in start.contents.get(collection, ()):
                number = row[0] if self._many else 0
                assert isinstance(number, int)
                self._written[number][name, row] = None
                self._expire(ending.get((name, row)) or make(row), (name, row))
        for (text,) in start.contents.get(self._target.errors, ()):
            self._errors_written[self._node_of(str(text))].add(str(text))

    def _node_of(self, text: str) -> int:
        """Which node an error is of; -1 if it is of none."""
        if text.startswith("no node: "):
            return -1
        return int(text.split(":")[0].split()[1]) if self._many else 0

    @property
    def compares(self) -> bool:
        """Whether the next tick of a node states what was written before."""
        return bool(self._written)

    # Outputs of ticks.

    def tell(self, number: int, at: int, answer: TickAnswer, unknown: Iterable[Message]) -> None:
        """A tick of a node at an instant; `unknown` are its messages to missing nodes."""
        written = self._written.pop(number, {})
        stale = self._errors_written.pop(number, set())
        for record, diff in answer.facts:
            if record.predicate not in self._writers:
                continue
            error = endless(record) if self._endless else None
            if error is None:
                self._change(number, record, at, diff, written)
            else:
                self._error(f"node {number}: {error}" if self._many else error, at, diff, stale)
        for name, row in written:
            self._expire(None, (name, row))
            self._facts[name].append((row, at, -1))
        lost = {
            f"a message to {format_value(m.node)}, which is no node: {m.record}" for m in unknown
        }
        before, self._unknown[number] = self._unknown[number], lost
        errors = [(text, -1) for text in sorted(before - lost)]
        errors += [(text, 1) for text in sorted(lost - before)]
        for text, diff in (*answer.errors, *errors):
            self._error(f"node {number}: {text}" if self._many else text, at, diff, stale)
        self._failed += [((text,), at, -1) for text in sorted(stale)]

    def tell_rows(self, name: str, told: OutputChanges, at: int) -> None:
        """A tick of the one node at an instant, as rows. Those that expire are told one by one."""
        from tidemill_compute.views.interval_rows import INSTANT_MAX, without_endless  # loads loops

        told.moves[:, -2] = at
        expires = told.moves[:, told.schema.expiry] != INSTANT_MAX
        if expires.any():
            ending, told = (
                replace(told, moves=told.moves[expires]),
                replace(told, moves=told.moves[~expires]),
            )
            for _, record, diff in ending.records():
                error = endless(record) if self._endless else None
                if error is None:
                    self._change(0, record, at, diff, {})
                else:
                    self._error(error, at, diff, set())
        if self._endless:
            told, failed = without_endless(told)
            for text, _, diff in failed:
                self._error(text, at, diff, set())
        if len(told):
            self._rows[name].append(told)

    def _change(
        self, number: int, record: Record, at: int, diff: int, written: dict[WrittenRow, None]
    ) -> None:
        name = record.predicate
        if self._many:
            arguments = (number, *record.arguments)
            record = Record(name, arguments, record.time, record.expires, record.parafacts)
        told = _, row = self._told(record)
        if diff < 0:
            if record.expires is None or told in self._expiring:
                self._expire(None, told)
                self._facts[name].append((row, at, -1))
        elif record.expires is None or record.expires > at:
            if told in written:
                del written[told]
            else:
                self._facts[name].append((row, at, 1))
            self._expire(record, told)

    def _error(self, text: str, at: int, diff: int, stale: set[str]) -> None:
        if diff > 0 and text in stale:
            stale.discard(text)
        else:
            self._failed.append(((text,), at, diff))

    def misplaced(self, record: Record, at: int, diff: int) -> None:
        """A row that names a node which there is not comes or goes."""
        text = f"no node: {record}"
        before = self._misplaced[text] > 0
        self._misplaced[text] += diff
        now = self._misplaced[text] > 0
        if before != now:
            self._error(text, at, 1 if now else -1, self._errors_written.get(-1, set()))

    # Outputs of time passing.

    @property
    def endings(self) -> set[StateRow]:
        """The expiries of rows that have no column for them, as rows to keep."""
        return set(self._untold.values())

    def _told(self, record: Record) -> WrittenRow:
        return record.predicate, self._writers[record.predicate](record)

    def _expire(self, record: Record | None, told: WrittenRow) -> None:
        """Set the expiry of a row to that of its record, in the place of any earlier one."""
        expires = None if record is None else record.expires
        if self._expiring.get(told) == expires:
            return
        self._expiring.pop(told, None)
        self._untold.pop(told, None)
        if record is not None and expires is not None:
            self._expiring[told] = expires
            if not self._target.outputs[told[0]][1].timed:
                self._untold[told] = ending_row(record)
            self._numbers += 1
            heappush(self._expiries, (expires, told[0], self._numbers, told))

    def expire(self, upper: Instant) -> None:
        """End every record whose own expiry is below `upper`, and that no tick ended."""
        while self._expiries and self._expiries[0][0] < upper:
            expires, name, _, told = heappop(self._expiries)
            if self._expiring.get(told) == expires:
                self._expire(None, told)
                self._facts[name].append((told[1], expires, -1))
                for written in self._written.values():
                    written.pop(told, None)

    def take(self) -> list[tuple[str, pa.Table]]:
        """All changes since the last call, as updates of the outputs, then of the errors."""
        updates = []
        for name, (collection, shape) in self._target.outputs.items():
            parts = [update_table(self._facts[name], shape.schema), *self._tables(name, shape)]
            updates.append((collection, pa.concat_tables(parts)))
            self._facts[name] = []
        updates.append((self._target.errors, update_table(self._failed, ERROR_SCHEMA)))
        self._failed = []
        return updates

    def _tables(self, name: str, shape: PredicateShape) -> Iterator[pa.Table]:
        """The changes of an output that were told as rows."""
        from tidemill_compute.views.interval_rows import updates_of  # loads loops

        told, self._rows[name] = self._rows[name], []
        if told:
            together = replace(told[0], moves=np.concatenate([each.moves for each in told]))
            yield updates_of(together, shape, 0)
