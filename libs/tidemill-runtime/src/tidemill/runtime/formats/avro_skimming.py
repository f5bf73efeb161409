"""Skimming of Avro values before they are read, by the schema they were written with.

The reader takes a branch of −1 for the last one, and any byte for a truth. A number of 70 bits is
one of 64 to it. Its time and memory may be far more than the bytes of a value. A value of a schema
that refers to itself may be as deep as it is long. Items of an array that take no bytes may be as
many as a number says. A value of any other schema is bounded by its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.runtime.formats.columns import NESTING_MAX, BadRow

Schema: TypeAlias = Any  # a part of an Avro schema: JSON

ITEMS_MAX = 10_000
"""So many items and fields of one value are read beyond one for each of its bytes."""
FIELDS_MAX = 100_000
"""So many fields a value may have outside of arrays and maps, with those of records in records."""

_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_RECORDS = ("record", "error")
_KINDS = (*_RECORDS, "enum", "fixed", "array", "map", "union", "error_union", "request")


@dataclass(frozen=True)
class Skimming:
    """Passes over values of one schema. Cost: about 3 µs, and some nanoseconds for each item."""

    schema: Schema
    named: Mapping[str, Schema]
    unbounded: bool
    """Whether values may be deeper, or have more items, than their bytes."""

    def check(self, value: bytes, start: int) -> npt.NDArray[np.int64]:
        """The place of each field of a record, and the end; the value is one of the schema.

        Raises: BadRow for a value that ends too early, is nested too deeply, or has too many items.
        Also for a branch, symbol, truth or number that its type does not have.
        """
        items_max = ITEMS_MAX + len(value) if self.unbounded else 1 << 62
        data = np.frombuffer(value, np.uint8)
        places = np.empty(self._types[1, 0] + 1, np.int64)
        result, number = self._skim(data, start, self._types, items_max, NESTING_MAX, places)
        if result:
            raise BadRow(_said(result, int(number)))
        if left := len(value) - int(number):
            raise BadRow(f"not a value of its schema: {left} bytes are left over")
        return places

    @cached_property
    def _skim(self) -> Callable[..., tuple[int, np.int64]]:
        from tidemill.runtime.formats.avro_skimming_loops import skim  # it loads loops

        return skim

    @cached_property
    def _types(self) -> npt.NDArray[np.int64]:
        table = _Types(self.named)
        table.add(self.schema)
        rows = (table.kinds, table.counts, table.firsts, table.inner)
        made = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for row, values in zip(made, rows, strict=True):
            row[: len(values)] = values
        return made


def skimming_of(schema: Schema, named: Mapping[str, Schema]) -> Skimming:
    """The skimming of values of a schema.

    Raises: BadRow for a schema of which one value has more than FIELDS_MAX fields. Also for one
    that Avro does not allow though its parser does.
    """
    found = _Shape(named)
    found.look(schema, ())
    return Skimming(schema, named, found.unbounded)


def _said(result: int, number: int) -> str:
    from tidemill.runtime.formats import avro_skimming_loops as loops  # as above

    if result == loops.DEEP:
        return f"nested more than {NESTING_MAX} levels deep"
    if result == loops.MANY:
        return f"more than {ITEMS_MAX} items that take no bytes in one record"
    says = {
        loops.TORN: "it ends too early, or a length or number in it is none",
        loops.BRANCH: f"a union has no branch {number}",
        loops.SYMBOL: f"an enum has no symbol {number}",
        loops.NO_TRUTH: f"{number} is no boolean",
        loops.TOO_LONG: f"{number} is no int of 32 bits",
    }
    return f"not a value of its schema: {says[result]}"


class _Types:
    """A schema as a table of types, of which the first is the schema's own."""

    def __init__(self, named: Mapping[str, Schema]) -> None:
        self._named = named
        self._places: dict[str, int] = {}
        self.kinds: list[int] = []
        self.counts: list[int] = []
        self.firsts: list[int] = []
        self.inner: list[int] = []

    def add(self, schema: Schema) -> int:
        """The place of a type in the table. Cost: O(size of the schema)."""
        from tidemill.runtime.formats import avro_skimming_loops as loops  # as above

        kind = schema if isinstance(schema, list) else _kind(schema)
        if isinstance(kind, dict):
            return self.add(kind)
        if isinstance(kind, list):
            return self._around(loops.UNION, kind, self._new())
        if isinstance(schema, str) and schema in self._named:
            if schema not in self._places:
                self.add(self._named[schema])
            return self._places[schema]
        at = self._new()
        if kind in (*_RECORDS, "enum", "fixed"):
            self._places[schema["name"]] = at
        if kind in _RECORDS:
            return self._around(loops.RECORD, [each["type"] for each in schema["fields"]], at)
        if kind in ("array", "map"):
            of = loops.ARRAY if kind == "array" else loops.MAP
            return self._around(of, [schema["items" if kind == "array" else "values"]], at)
        simple = {"boolean": loops.TRUTH, "int": loops.SHORT, "long": loops.LONG,
                  "bytes": loops.TEXT, "string": loops.TEXT, "enum": loops.ENUM}  # fmt: skip
        self.kinds[at] = simple.get(str(kind), loops.PLACED)
        if kind == "enum":
            self.counts[at] = len(schema["symbols"])
        elif self.kinds[at] == loops.PLACED:
            self.counts[at] = schema["size"] if kind == "fixed" else _BYTES[str(kind)]
        return at

    def _new(self) -> int:
        self.kinds.append(0)
        self.counts.append(0)
        self.firsts.append(0)
        return len(self.kinds) - 1

    def _around(self, kind: int, schemas: list[Schema], at: int) -> int:
        self.kinds[at], self.counts[at] = kind, len(schemas)
        places = [self.add(each) for each in schemas]
        self.firsts[at] = len(self.inner)
        self.inner += places
        return at


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
        if isinstance(schema, str) and schema in self._named:
            if schema in _KINDS:  # the reader would take the kind, and not the type so called
                raise BadRow(f"its schema cannot be read: give {schema} a namespace to refer to it")
            return self.look(self._named[schema], within)
        if kind in _RECORDS:
            return self._of_record(str(schema["name"]), schema["fields"], within)
        if kind in ("array", "map"):
            least, _ = self.look(schema["items" if kind == "array" else "values"], within)
            # NB: each item of a map has a key, which takes a byte.
            self.unbounded |= kind == "array" and least == 0
            return 1, 1
        _check_sizes(schema, kind)
        return schema["size"] if kind == "fixed" else _BYTES.get(str(kind), 1), 1

    def _of_record(self, name: str, fields: Schema, within: tuple[str, ...]) -> tuple[int, int]:
        if name in within:
            self.unbounded = True
            return 0, 0
        if name not in self._known:
            _check_names(name, [each["name"] for each in fields])
            found = [self.look(each["type"], (*within, name)) for each in fields]
            counted = sum(least for least, _ in found), 1 + sum(count for _, count in found)
            if counted[1] > FIELDS_MAX:
                raise BadRow(f"its schema has values of more than {FIELDS_MAX} fields")
            self._known[name] = counted
        return self._known[name]


def _check_sizes(schema: Schema, kind: Schema) -> None:
    """Raises: BadRow for a type that the parser takes, and that has no values."""
    if kind in ("fixed", "enum"):
        _check_names(schema["name"], ())
    if kind == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
        raise BadRow(f"its schema cannot be read: a fixed type has no size {schema['size']!r}")
    if kind == "enum" and not isinstance(schema["symbols"], list):
        raise BadRow("its schema cannot be read: the symbols of an enum are no list")


def _check_names(name: str, fields: Sequence[str]) -> None:
    if name in _PRIMITIVE:
        raise BadRow(f"its schema cannot be read: {name} is no name for a type")
    if len(set(fields)) != len(fields):
        raise BadRow(f"its schema cannot be read: two fields of {name} have one name")


def _kind(schema: Schema) -> Schema:
    return schema if isinstance(schema, str) else schema["type"]
