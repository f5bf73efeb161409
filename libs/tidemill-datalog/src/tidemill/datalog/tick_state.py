"""State between ticks, as rows that can be kept: an engine goes on from them with equal answers.

Four kinds: facts that rules with `@next` carry, solutions that live until their own expiry,
messages on their way, and expiries of told facts. Rows of equal states are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record
from tidemill.datalog.state import NO_RULE, StateRow, decode_fields, encode_fields
from tidemill.datalog.tables import Fact
from tidemill.datalog.ticks import Message, Support

CARRIED = "carried"
ENTERED = "entered"
LEFT = "left"
"""The kinds of rows of facts by which a tick hands on something else than it was handed."""
MESSAGE = "message"
ENDING = "ending"
"""The kind of a row of a timeless fact that was told, with its expiry, which no column has."""


@dataclass(frozen=True, slots=True)
class Handed:
    """State after the last tick of a node, as rows: carried facts, and living solutions.

    `entered` and `left` are the rows of facts by which that differs from what the tick itself was
    handed, where it may go on.
    """

    carried: frozenset[StateRow] = frozenset()
    solutions: tuple[StateRow, ...] = ()
    entered: frozenset[StateRow] = frozenset()
    left: frozenset[StateRow] = frozenset()

    def begun(self) -> Handed:
        """The facts that the tick itself was handed, and the solutions."""
        return replace(self, carried=self.carried - self.entered | self.left)

    @property
    def rows(self) -> set[StateRow]:
        """Facts and solutions that are handed on."""
        return {*self.carried, *self.solutions}


def carried_row(fact: Fact, support: Support) -> StateRow:
    """A carried fact as a row."""
    return NO_RULE, CARRIED, encode_fields((*fact, support))


def message_row(sent: Instant, message: Message) -> StateRow:
    """A message on its way, sent at an instant."""
    record = message.record
    fields = (
        sent, message.node, record.predicate, record.arguments, record.time, record.expires,
        record.parafacts,
    )  # fmt: skip
    return NO_RULE, MESSAGE, encode_fields(fields)


def message_of(row: StateRow) -> tuple[int, Message]:
    """The instant at which it was sent, and the message."""
    sent, node, *fields = decode_fields(row[2])
    return int(sent), Message(node, Record(*fields))


def ending_row(record: Record) -> StateRow:
    """A timeless fact that was told, with its expiry, as a row."""
    fields = record.predicate, record.arguments, record.expires, record.parafacts
    return NO_RULE, ENDING, encode_fields(fields)


def endings_of(rows: Iterable[StateRow]) -> list[Record]:
    """The timeless facts that were told and have an expiry."""
    found = []
    for row in rows:
        if row[1] == ENDING:
            predicate, arguments, expires, parafacts = decode_fields(row[2])
            found.append(Record(predicate, arguments, None, expires, parafacts))
    return found


def fact_of(row: StateRow) -> tuple[Fact, Sequence[Support]]:
    """The carried fact of a row, and what each reason says of it."""
    name, key, *values = decode_fields(row[2])
    return (name, key), values


def as_carried(row: StateRow) -> StateRow:
    """The row of a carried fact that a row of another kind is about."""
    return row[0], CARRIED, row[2]


def handed_of(rows: Iterable[StateRow]) -> Handed:
    """The content of the rows of one node."""
    by_kind: dict[str, list[StateRow]] = {CARRIED: [], ENTERED: [], LEFT: []}
    solutions: list[StateRow] = []
    for row in rows:
        by_kind.get(row[1], solutions).append(row)
    carried, entered, left = (frozenset(map(as_carried, each)) for each in by_kind.values())
    return Handed(carried, tuple(sorted(solutions)), entered, left)
