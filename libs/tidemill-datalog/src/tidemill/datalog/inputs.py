"""The inputs that a program may read, with their columns, kinds and timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

InputKind: TypeAlias = Literal["relation", "events"]
ColumnType: TypeAlias = Literal["int", "float", "text", "bool", "set", "any"]

TYPES: Mapping[ColumnType, str] = {
    "int": "Whole numbers of 64 bits.",
    "float": "Finite numbers of IEEE 754 with 64 bits.",
    "text": "Characters of Unicode in normal form C.",
    "bool": "`true` and `false`.",
    "set": "Sets of values of the other types; only lattices make them.",
    "any": "A column of which only nulls are known; it fits every other type.",
}
"""Type → its values; every type has null as well."""


@dataclass(frozen=True, slots=True)
class InputSchema:
    """One input collection.

    `columns` are (name, type) in order; a name is empty where the columns of an input have none.
    `rows_expire` is False for a stream whose events never end (for the lint on unbounded joins).
    `lattices` that its records carry beside time and expiry, as outputs of other programs do, have
    the types of their values.
    """

    name: str
    kind: InputKind
    columns: tuple[tuple[str, ColumnType], ...]
    timeline: str = "default"
    rows_expire: bool = True
    lattices: tuple[tuple[str, tuple[ColumnType, ...]], ...] = ()


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
