"""Skimming of Avro values whose reading could take more memory than their bytes.

A value of a schema that refers to itself may be as deep as it is long. Items of an array that take
no bytes may be as many as a number says. A value of any other schema is bounded by its own length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.runtime.formats.columns import NESTING_MAX, BadRow

Schema: TypeAlias = Any  # a part of an Avro schema: JSON

ITEMS_MAX = 10_000
"""So many items and fields of one value are read beyond one for each of its bytes."""
FIELDS_MAX = 100_000
"""So many fields a value may have outside of arrays and maps, with those of records in records."""

_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_TEXTS = ("bytes", "string")
_RECORDS = ("record", "error")


@dataclass(frozen=True, slots=True)
class Skimming:
    """Passes over values of one schema. Cost: some microseconds for each field and item."""

    schema: Schema
    named: Mapping[str, Schema]

    def check(self, value: bytes, start: int) -> None:
        """Raises: BadRow for a value that ends too early, is nested too deeply, or has too many
        items.
        """
        _Pass(value, start, self.named).over(self.schema, 0)


def skimming_of(schema: Schema, named: Mapping[str, Schema]) -> Skimming | None:
    """The skimming that values of a schema need before they are read; None if they need none.

    Raises: BadRow for a schema of which one value has more than FIELDS_MAX fields.
    """
    found = _Shape(named)
    found.look(schema, ())
    return Skimming(schema, named) if found.unbounded else None


class _Shape:
    """Whether a schema refers to itself, or has arrays of items that may take no bytes."""

    def __init__(self, named: Mapping[str, Schema]) -> None:
        self._named = named
        self._known: dict[str, tuple[int, int]] = {}
        self.unbounded = False

    def look(self, schema: Schema, within: tuple[str, ...]) -> tuple[int, int]:
        """(the fewest bytes, the most fields outside arrays) of a value.

        Cost: O(size of the schema).
        """
        if isinstance(schema, list):
            return 1, 1 + max((self.look(each, within)[1] for each in schema), default=0)
        kind = _kind(schema)
        if isinstance(kind, dict | list):
            return self.look(kind, within)
        if kind in self._named:
            return self.look(self._named[kind], within)
        if kind in _RECORDS:
            return self._of_record(str(schema["name"]), schema["fields"], within)
        if kind in ("array", "map"):
            least, _ = self.look(schema["items" if kind == "array" else "values"], within)
            # NB: each item of a map has a key, which takes a byte.
            self.unbounded |= kind == "array" and least == 0
            return 1, 1
        return int(schema["size"]) if kind == "fixed" else _BYTES.get(str(kind), 1), 1

    def _of_record(self, name: str, fields: Schema, within: tuple[str, ...]) -> tuple[int, int]:
        if name in within:
            self.unbounded = True
            return 0, 0
        if name not in self._known:
            found = [self.look(each["type"], (*within, name)) for each in fields]
            counted = sum(least for least, _ in found), 1 + sum(count for _, count in found)
            if counted[1] > FIELDS_MAX:
                raise BadRow(f"its schema has values of more than {FIELDS_MAX} fields")
            self._known[name] = counted
        return self._known[name]


class _Pass:
    """One way through one value."""

    def __init__(self, value: bytes, at: int, named: Mapping[str, Schema]) -> None:
        self._value = value
        self._at = at
        self._named = named
        self._items = 0

    def over(self, schema: Schema, depth: int) -> None:
        """Pass over a value of a schema. Raises: BadRow."""
        if depth > NESTING_MAX:
            raise BadRow(f"nested more than {NESTING_MAX} levels deep")
        kind = schema if isinstance(schema, list) else _kind(schema)
        while True:  # through unions and names to what is written
            if isinstance(kind, list):
                branch = self._number()
                if not 0 <= branch < len(kind):
                    raise BadRow(f"not a value of its schema: a union has no branch {branch}")
                schema = kind[branch]
            elif isinstance(kind, str) and kind in self._named:
                schema = self._named[kind]
            elif isinstance(kind, dict):
                schema = kind
            else:
                break
            kind = schema if isinstance(schema, list) else _kind(schema)
        if kind in _RECORDS:
            self._count(len(schema["fields"]))
            for each in schema["fields"]:
                self.over(each["type"], depth + 1)
        elif kind == "array":
            self._blocks(schema["items"], depth, keyed=False)
        elif kind == "map":
            self._blocks(schema["values"], depth, keyed=True)
        elif kind in _NUMBERS:
            self._number()
        elif kind in _TEXTS:
            self._skip(self._number())
        else:
            self._skip(int(schema["size"]) if kind == "fixed" else _BYTES[str(kind)])

    def _blocks(self, items: Schema, depth: int, *, keyed: bool) -> None:
        while (count := self._number()) != 0:
            if count < 0:
                count = -count
                self._number()
            self._count(count)
            for _ in range(count):
                if keyed:
                    self._skip(self._number())
                self.over(items, depth + 1)

    def _count(self, more: int) -> None:
        self._items += more
        if self._items > ITEMS_MAX + len(self._value):
            raise BadRow(f"more than {ITEMS_MAX} items that take no bytes in one record")

    def _number(self) -> int:
        number = shift = 0
        while True:
            if self._at >= len(self._value) or shift > 63:
                raise BadRow("not a value of its schema: a number does not end")
            byte = self._value[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self._value) - self._at:
            raise BadRow(f"not a value of its schema: {count} bytes are not there")
        self._at += count


def _kind(schema: Schema) -> Schema:
    return schema if isinstance(schema, str) else schema["type"]
