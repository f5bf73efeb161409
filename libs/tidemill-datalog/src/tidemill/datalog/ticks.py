"""Vocabulary of ticked programs: nodes and their answers, carried facts, and messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tidemill.datalog.lattices import Parafacts
from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record, Value
from tidemill.datalog.state import StateRow

Given = Mapping[str, Iterable[Record]]


@dataclass(frozen=True, slots=True)
class TickAnswer:
    """Changes since the tick before, of records and errors, with ±1; and messages to send."""

    facts: list[tuple[Record, int]]
    errors: list[tuple[str, int]]
    messages: tuple[Message, ...]


class TickNode(Protocol):
    """The ticks of a program at one node, from what a tick before has handed on."""

    def tick(self, at: int, come: Given, gone: Given) -> TickAnswer:
        """The tick at an instant, at which inputs come and go; a record may come several times."""

    def go_on(self, at: int, come: Given) -> TickAnswer:
        """The last tick goes on at an instant, where these inputs join it; its messages so far."""

    @property
    def unsettled(self) -> bool:
        """Whether a tick without a change of inputs may answer differently or send something."""

    @property
    def hands_on_anew(self) -> bool:
        """Whether the next tick is handed something else than the last one was."""

    @property
    def soonest(self) -> Instant:
        """The instant from which on time alone may change an answer."""

    def take_state(self) -> tuple[set[StateRow], set[StateRow]]:
        """Rows that have left the state, and rows that have come to it, since the last call."""


Support: TypeAlias = "tuple[Instant, Parafacts]"
"""Expiry and parafacts that one reason gives a fact."""


@dataclass(frozen=True, slots=True)
class Message:
    """A fact on its way to a node, where it holds in one later tick."""

    node: Value
    record: Record
