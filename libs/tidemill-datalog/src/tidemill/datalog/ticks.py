"""Vocabulary of ticked programs: carried facts, and messages between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.datalog.lattices import Parafacts
from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record, Value

Support: TypeAlias = "tuple[Instant, Parafacts]"
"""Expiry and parafacts that one reason gives a fact."""


@dataclass(frozen=True, slots=True)
class Message:
    """A fact on its way to a node, where it holds in one later tick."""

    node: Value
    record: Record
