"""What a window changes: facts that begin and end in it, worked out for the predicates that are
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Groups, lone_rows, turns
from tidemill.datalog.columnar.columns import END_WORD, Columns, Unsuited, surely_endless, words_of
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columnar.tables import ColumnTable
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch.engine import Engine, Evaluation, presences_of


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Facts of one predicate that begin (diff 1) or end (-1) at instants; of `facts` start and stop
    mean nothing.
    """

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


class ChangedFacts(Mapping[str, "ColumnChanges | RecordChanges"]):
    """What a window has changed of each derived predicate; worked out when it is asked for, and
    kept.

    `before` is the evaluation of the window before if both are to be compared where they meet; else
    `now` looks back one instant. Until all is asked for it holds the facts of both. Not for use by
    several threads at once.
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


def column_changes(columns: Columns, seen: int, lower: int, upper: int) -> ColumnChanges:
    """What begins or ends at instants in [lower, upper), for rows of a window from `seen` on.

    What is present at an instant before `lower` that was seen does not begin again.
    """
    rows, times, diffs = turns(columns.start, columns.stop, seen, lower, upper)
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


def ending(evaluation: Evaluation, name: str) -> Columns | frozenset[Record]:
    """What holds of a predicate at the end of a window."""
    table = evaluation.tables.get(name)
    if isinstance(table, ColumnTable):
        return table.columns.kept((table.columns.stop == END_WORD).nonzero()[0])
    return frozenset(p.record for p in evaluation.presences[name] if p.end == END)


def compared_columns(before: Columns, now: Columns, lower: int, upper: int) -> ColumnChanges:
    """What begins or ends at instants in [lower, upper): `before` held until `lower`, `now` holds
    from there on.

    What both say of `lower` neither ends nor begins. Cost: O(before + now).
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


__all__ = [
    "ChangedFacts", "ColumnChanges", "RecordChanges", "column_changes", "compared_columns",
    "compared_records", "record_changes",
]  # fmt: skip
