"""What one tick hands to the next, as rows that can be kept: whoever reads them goes on with the
same answers.

Three kinds: facts that rules with `@next` carry, solutions that live until their own expiry, and
messages that no tick has taken in yet. Rows of equal states are equal, whichever engine ran the
tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record
from tidemill.datalog.state import EngineState, StateRow, decode_fields, encode_fields
from tidemill.datalog.ticks import Fact, Message, Told

CARRIED = "carried"
MESSAGE = "message"
_NO_RULE = -1


@dataclass(frozen=True, slots=True)
class Handed:
    """What one node's last tick hands on: by fact what each reason says of it, and the living
    solutions.
    """

    carried: Mapping[Fact, Sequence[Told]] = field(default_factory=dict)
    solutions: EngineState = field(default_factory=EngineState)


def carried_row(fact: Fact, values: Iterable[Told]) -> StateRow | None:
    """A carried fact as a row; None where nothing of it is carried."""
    said = [(value[0], value[1]) for value in values]
    if not said:
        return None
    said.sort(key=lambda value: encode_fields(value))
    return _NO_RULE, CARRIED, encode_fields((*fact, *said))


def message_row(sent: Instant, message: Message) -> StateRow:
    """A message on its way, sent at an instant."""
    record = message.record
    fields = (
        sent, message.node, record.predicate, record.arguments, record.time, record.expires,
        record.parafacts,
    )  # fmt: skip
    return _NO_RULE, MESSAGE, encode_fields(fields)


def message_of(row: StateRow) -> tuple[int, Message]:
    """The instant at which it was sent, and the message."""
    sent, node, *fields = decode_fields(row[2])
    return int(sent), Message(node, Record(*fields))


def handed_of(rows: Iterable[StateRow]) -> Handed:
    """What rows of carried facts and of solutions say. Raises: UsageError for an unknown kind."""
    carried: dict[Fact, list[Told]] = {}
    solutions: list[StateRow] = []
    for row in rows:
        if row[1] == CARRIED:
            name, key, *values = decode_fields(row[2])
            carried[name, key] = values
        else:
            solutions.append(row)
    return Handed(carried, EngineState.from_rows(solutions))


def rows_of(handed: Handed) -> set[StateRow]:
    """What is handed on, as rows."""
    rows = set(handed.solutions.to_rows())
    for fact, values in handed.carried.items():
        row = carried_row(fact, values)
        if row is not None:
            rows.add(row)
    return rows
