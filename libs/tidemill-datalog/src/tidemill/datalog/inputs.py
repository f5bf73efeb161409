"""The inputs that a program may read, with their columns, kinds and timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemill.time.typed import SCALE_MAX, WHOLE_DIGITS_MAX

InputKind: TypeAlias = Literal["relation", "events"]
ColumnType: TypeAlias = str
"""One of `TYPES`; a decimal number says its digits, and those behind the point."""

TYPES: Mapping[ColumnType, str] = {
    "int": "Whole numbers of 64 bits.",
    "float": "Finite numbers of IEEE 754 with 64 bits.",
    "text": "Characters of Unicode in normal form C.",
    "bool": "`true` and `false`.",
    "timestamp": "Instants in UTC, to the microsecond, of the years 1 to 9999.",
    "date": "Days of the calendar, of the years 1 to 9999.",
    "duration": "Spans of time in microseconds, up to that between the first and the last instant.",
    "decimal(p, s)": "Exact numbers of p digits, s of them behind the point; see below.",
    "bytes": "Up to 524,288 bytes.",
    "uuid": "Identifiers of 128 bits.",
    "json": "Values of JSON; those that differ in blanks, order of names or idle zeros are one.",
    "set": "Sets of values of the other types; only lattices make them.",
    "any": "A column of which only nulls are known; it fits every other type.",
}
"""Type → its values; every type has null as well."""


def decimal(digits: int, scale: int) -> ColumnType:
    """The type of decimal numbers of so many digits, `scale` of them behind the point."""
    return f"decimal({digits},{scale})"


def exact(scale: int) -> ColumnType:
    """The type of all decimal numbers with so many digits behind the point."""
    return decimal(WHOLE_DIGITS_MAX + scale, scale)


def scale_of(kind: ColumnType) -> int | None:
    """The digits behind the point of a type of decimal numbers, None for every other type."""
    if not kind.startswith("decimal"):
        return None
    return int(kind[8:-1].partition(",")[2]) if "," in kind else SCALE_MAX


@dataclass(frozen=True, slots=True)
class InputSchema:
    """One input collection.

    `columns` are (name, type) in order; a name is empty where the columns of an input have none.
    `rows_expire` is False for a stream whose events never end (for the lint on unbounded joins).
    `lattices` that its records carry beside time and expiry, as outputs of other programs do, have
    the types of their values. Every record carries those that are `sure`. No event has two records
    at an instant then: the output of a program has each fact once.
    """

    name: str
    kind: InputKind
    columns: tuple[tuple[str, ColumnType], ...]
    timeline: str = "default"
    rows_expire: bool = True
    lattices: tuple[tuple[str, tuple[ColumnType, ...]], ...] = ()
    sure: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class InputSchemas:
    """The inputs of a program, with their schemas by predicate.

    Closed inputs refuse a predicate that they do not name (S124). Open ones take every predicate
    that a rule reads and none derives as an input of kind `default_kind` whose columns have no
    names. `readable` are names that could be inputs: a mistake proposes them.
    """

    schemas: Mapping[str, InputSchema] = field(default_factory=dict)
    closed: bool = True
    default_kind: InputKind = "relation"
    readable: Sequence[str] = ()
