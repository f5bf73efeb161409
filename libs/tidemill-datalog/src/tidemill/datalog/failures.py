"""The error collection: solutions that failed, and when (language.md 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record, format_record

ErrorMove: TypeAlias = tuple[str, int, int]
"""The text of an error, an instant, and 1 if it begins there or -1 if it ends."""


@dataclass(frozen=True, slots=True)
class ErrorPresence:
    """One stretch of an error: `text` is `REASON: FACTS`, `rule` the first rule with that text."""

    text: str
    rule: int
    start: Instant
    end: Instant


def fact_text(predicate: str, key: tuple[Any, ...]) -> str:
    """A fact with its time only, as error texts and proofs write it."""
    return format_record(Record(predicate, tuple(key[1:]), key[0]))
