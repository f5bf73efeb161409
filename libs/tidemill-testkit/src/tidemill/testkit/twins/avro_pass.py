"""The twin of the skimming of Avro: one function for each type, on Python's own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = Any  # a part of an Avro schema: JSON

_BYTES = {"null": 0, "float": 4, "double": 8}
_RANGES = {"int": 1 << 31, "long": 1 << 63}


class NoValue(Exception):
    """The bytes are no value of the schema, or one that is too deep or has too many items."""


class AvroPass:
    """One way through one value, which begins at `at`."""

    def __init__(
        self, value: bytes, at: int, named: Mapping[str, Schema], levels_max: int, items_max: int
    ) -> None:
        self._value = value
        self._named = named
        self._levels_max = levels_max
        self._items_left = items_max
        self.at = at

    def over(self, schema: Schema, depth: int = 0) -> None:
        """Pass over a value of a schema. Raises: NoValue."""
        if depth > self._levels_max:
            raise NoValue("too deep")
        if isinstance(schema, list):
            self.over(schema[self._below(len(schema))], depth)
        elif isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            self.over(schema["type"], depth)
        else:
            kind = schema if isinstance(schema, str) else schema["type"]
            if kind in self._named:
                self.over(self._named[kind], depth)
            else:
                self._over(kind, schema, depth)

    def _over(self, kind: str, schema: Schema, depth: int) -> None:
        match kind:
            case "record" | "error":
                self._count(len(schema["fields"]))
                for each in schema["fields"]:
                    self.over(each["type"], depth + 1)
            case "array" | "map":
                self._blocks(kind, schema["items" if kind == "array" else "values"], depth)
            case "int" | "long":
                if not -_RANGES[kind] <= self._number() < _RANGES[kind]:
                    raise NoValue(kind)
            case "enum":
                self._below(len(schema["symbols"]))
            case "boolean":
                if self._taken(1)[0] > 1:
                    raise NoValue("boolean")
            case "bytes" | "string":
                self._taken(self._number())
            case _:
                self._taken(schema["size"] if kind == "fixed" else _BYTES[kind])

    def _blocks(self, kind: str, items: Schema, depth: int) -> None:
        while (count := self._number()) != 0:
            if count < 0:
                count = -count
                self._number()
            if count >= 1 << 63:
                raise NoValue("block")
            self._count(count)
            for _ in range(count):
                if kind == "map":
                    self._taken(self._number())
                self.over(items, depth + 1)

    def _count(self, more: int) -> None:
        self._items_left -= more
        if self._items_left < 0:
            raise NoValue("too many items")

    def _below(self, count: int) -> int:
        number = self._number()
        if not 0 <= number < count:
            raise NoValue(f"{number} of {count}")
        return number

    def _number(self) -> int:
        number = shift = 0
        while (byte := self._taken(1)[0]) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise NoValue("number")
        number |= byte << shift
        if number >= 1 << 64:
            raise NoValue("number")
        return number >> 1 if number % 2 == 0 else -(number >> 1) - 1

    def _taken(self, count: int) -> bytes:
        found = self._value[self.at : self.at + max(count, 0)]
        if count < 0 or len(found) < count:
            raise NoValue("bytes")
        self.at += count
        return found
