"""Which changes of an input the ticks see, and from when on: a fold over instants (language.md
7.5).

A gate decides by the changes and their instants alone, however the work was cut into steps. Changes
that it holds are a part of the state of the view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tidemill.datalog.records import Record
from tidemill.datalog.state import NO_RULE, StateRow, decode_fields, encode_fields
from tidemill.datalog.tick_plan import Admission, Batch, Skew

HELD = "held"

Moved: TypeAlias = "tuple[Record, int]"
"""A record and by how much its multiplicity changes."""


class Gate(Protocol):
    """Lets changes of one input through, at once or later."""

    @property
    def deadline(self) -> int | None:
        """The instant at which time alone lets something through."""

    def pass_at(self, at: int, changes: Sequence[Moved]) -> list[Moved]:
        """Changes that pass at an instant at which these come. Instants ascend."""

    def held(self) -> list[tuple[Record, int, int]]:
        """Changes that wait: record, the instant at which it came, difference."""

    def hold(self, held: Iterable[tuple[Record, int, int]]) -> None:
        """Take up what another gate held."""


class Open:
    """Every change is seen by the next tick."""

    deadline: int | None = None

    def pass_at(self, at: int, changes: Sequence[Moved]) -> list[Moved]:
        return list(changes)

    def held(self) -> list[tuple[Record, int, int]]:
        return []

    def hold(self, held: Iterable[tuple[Record, int, int]]) -> None:
        """There is nothing to take up."""


@dataclass(slots=True)
class Batching:
    """Holds changes until there are `rows`, or the first has waited `wait_ms`."""

    batch: Batch
    waiting: list[tuple[Record, int, int]] = field(default_factory=list)

    @property
    def deadline(self) -> int | None:
        patience = self.batch.wait_ms
        return None if patience is None or not self.waiting else self.waiting[0][1] + patience

    def pass_at(self, at: int, changes: Sequence[Moved]) -> list[Moved]:
        self.waiting += [(record, at, diff) for record, diff in changes]
        deadline = self.deadline
        if len(self.waiting) < self.batch.rows and (deadline is None or at < deadline):
            return []
        net: Counter[Record] = Counter()
        for record, _, diff in self.waiting:
            net[record] += diff
        self.waiting = []
        return [(record, diff) for record, diff in net.items() if diff]

    def held(self) -> list[tuple[Record, int, int]]:
        return list(self.waiting)

    def hold(self, held: Iterable[tuple[Record, int, int]]) -> None:
        self.waiting = list(held)


@dataclass(slots=True)
class Skewed:
    """Holds an event until one more than `ms` later has come; deletions pass at once."""

    skew: Skew
    waiting: dict[Record, int] = field(default_factory=dict)
    latest: int = 0
    deadline: int | None = None

    def pass_at(self, at: int, changes: Sequence[Moved]) -> list[Moved]:
        passed: list[Moved] = []
        for record, diff in changes:
            if diff > 0 and record.time is not None:
                self.waiting[record] = at
                self.latest = max(self.latest, record.time)
            elif self.waiting.pop(record, None) is None:
                passed.append((record, diff))
        border = self.latest - self.skew.ms
        due = [each for each in self.waiting if each.time is not None and each.time < border]
        for record in due:
            del self.waiting[record]
            passed.append((record, 1))
        return passed

    def held(self) -> list[tuple[Record, int, int]]:
        """Changes that wait, and the latest time as a change of nothing."""
        latest = (Record("", (), self.latest), 0, 0)
        return [latest, *((record, at, 1) for record, at in self.waiting.items())]

    def hold(self, held: Iterable[tuple[Record, int, int]]) -> None:
        for record, at, diff in held:
            if diff:
                self.waiting[record] = at
            else:
                self.latest = record.time or 0


def gate_of(admission: Admission) -> Gate:
    """The gate of an input."""
    if isinstance(admission, Batch):
        return Batching(admission)
    return Skewed(admission) if isinstance(admission, Skew) else Open()


def held_row(predicate: str, number: int, held: tuple[Record, int, int]) -> StateRow:
    """A change that is held, as a row of the state; `number` tells equal ones apart."""
    record, at, diff = held
    fields = (
        predicate, number, at, diff,
        record.arguments, record.time, record.expires, record.parafacts,
    )  # fmt: skip
    return NO_RULE, HELD, encode_fields(fields)


def held_of(rows: Iterable[StateRow]) -> dict[str, list[tuple[Record, int, int]]]:
    """Changes that the gate of each input holds by these rows, in its order."""
    found: dict[str, list[tuple[Record, int, int]]] = {}
    for fields in sorted((decode_fields(row[2]) for row in rows), key=lambda each: each[:2]):
        predicate, _, at, diff, *rest = fields
        found.setdefault(predicate, []).append((Record(predicate, *rest), int(at), int(diff)))
    return found
