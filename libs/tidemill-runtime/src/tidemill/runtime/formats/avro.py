"""Avro records in the wire format of Confluent: a zero byte, the number of a schema, the value.

A value is read by the schema it was written with. Columns take its fields by their names, so a
schema may gain and lose fields while the columns stay. A table of docs/reference/sources.md maps
types of Avro to columns.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro
import msgspec

from tidemill.runtime.formats.avro_skimming import Skimming, skimming_of
from tidemill.runtime.formats.columns import (
    NO_VALUE,
    BadRow,
    Column,
    cell_of,
    check_nesting,
)

if TYPE_CHECKING:
    from tidemill.runtime.formats.plain_wire import Field, PlainAvro

HEADER_BYTES = 5
DECIMAL_BYTES_MAX = 1_600
DECIMAL_SCALE_MAX = 4_000
EPOCH = datetime(1970, 1, 1)

Schema: TypeAlias = Any  # a part of an Avro schema: JSON
Take: TypeAlias = Callable[[Any], object]  # what fastavro read → a cell; raises BadRow

_BASES = {
    "decimal": ("bytes", "fixed"),
    "date": ("int",),
    **{
        f"{zoned}-{unit}": ("long",)
        for zoned in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    },
}
"""Base types of each logical type that has a meaning here; on any other base it has none."""
_PER_MS = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}
_WHOLE = {"array": "an array", "map": "a map", "record": "a record", "error": "a record"}


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema that records were written with: to read them by, and with the meaning of its types.

    Values are skimmed before they are read (`skimming`).
    """

    reading: Schema
    meaning: Schema
    named: Mapping[str, Schema]
    skimming: Skimming
    around: Schema | None
    """Of a union, a record of one field that has its values; its parts keep what names mean."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Fields of a record: a schema of them alone, and their runs among all fields."""

    reading: Schema
    spans: tuple[tuple[int, int], ...]


def kept_of(schema: WriterSchema, columns: Sequence[Column]) -> Kept | None:
    """The fields that columns take; None if these are all, or the schema is of no record."""
    top = schema.reading
    if not isinstance(top, dict) or top["type"] != "record":
        return None
    wanted = {column.name.split(".")[0] for column in columns}
    taken = [each["name"] in wanted for each in top["fields"]]
    if all(taken):
        return None
    fields = [each for each, take in zip(top["fields"], taken, strict=True) if take]
    spans: list[tuple[int, int]] = []
    for at in (at for at, take in enumerate(taken) if take):
        if spans and spans[-1][1] == at:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
    # NB: what the parser has noted of names stays, also of types that left-out fields define.
    return Kept({**top, "fields": fields}, tuple(spans))


def schema_number(value: bytes | None) -> int:
    """The number of the schema that a record names. Raises: BadRow if it names none."""
    if value is None:
        raise BadRow(NO_VALUE)
    if len(value) < HEADER_BYTES or value[0] != 0:
        raise BadRow("does not begin with a zero byte and the number of a schema")
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def parse_schema(text: str, references: Sequence[str] = ()) -> WriterSchema:
    """The schema of a text; `references` hold what it refers to, each after what that refers to.

    Raises: BadRow if it is none, so that the records written with it become letters.
    """
    try:
        for each in (*references, text):
            check_nesting(each.encode())
        documents = [json.loads(each) for each in (*references, text)]
        named: dict[str, Schema] = {}
        plain: dict[str, Schema] = {}
        for document in documents:
            meaning = fastavro.parse_schema(document, named)
            reading, around = _parsed_plain(_without_meaning(document), plain)
        skimming = skimming_of(reading, plain)
    except BadRow:
        raise
    except Exception as error:  # a schema of others, which the parser trusts
        raise BadRow(f"its schema cannot be read: {_said(error)}") from None
    return WriterSchema(reading, meaning, named, skimming, around)


def read_value(value: bytes, schema: WriterSchema, kept: Kept | None = None) -> Any:
    """The value behind the header; of a record, with the fields that are `kept`. Raises: BadRow.

    Objects are made of those fields alone: a million items that no column names are passed over.
    """
    places = schema.skimming.check(value, HEADER_BYTES)
    if kept is None:
        reading, body = schema.reading, value[HEADER_BYTES:]
    else:
        at = places.tolist()
        body = b"".join([value[at[first] : at[stop]] for first, stop in kept.spans])
        reading = kept.reading
    try:
        found: Any = fastavro.schemaless_reader(io.BytesIO(body), schema.around or reading, None)
        return found if schema.around is None else found["value"]
    except Exception as error:  # whatever fastavro makes of bytes that are no value
        raise BadRow(f"not a value of its schema: {_said(error)}") from None


class AvroReader:
    """Reads records into the cells of columns. Knows the schemas that it was told; pure otherwise.

    A column names a field, or a field of a record in it with dots between: `address.city`.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._schemas: dict[int, WriterSchema | BadRow] = {}
        self._takes: dict[tuple[int, str], list[Take]] = {}
        self._plain: dict[int, PlainAvro | None] = {}
        self._kept: dict[int, Kept | None] = {}

    def share(self, other: AvroReader) -> None:
        """Know from now on what `other` knows."""
        self._schemas = other._schemas

    def know(self, number: int, text: str, references: Sequence[str] = ()) -> None:
        """Remember a schema; one that cannot be read makes letters of its records."""
        try:
            self._schemas[number] = parse_schema(text, references)
        except BadRow as unreadable:
            self._schemas[number] = unreadable

    def refuse(self, number: int, reason: str) -> None:
        """Make letters of all records with this schema."""
        self._schemas[number] = BadRow(reason)

    def knows(self, number: int) -> bool:
        """Whether records with this schema can be decided."""
        return number in self._schemas

    def plain_reader(self, values: Sequence[bytes | None]) -> PlainAvro | None:
        """The reader of plain records with the schema that the first of these names."""
        first = next((v for v in values if v and len(v) >= HEADER_BYTES and v[0] == 0), None)
        schema = None if first is None else self._schemas.get(number := schema_number(first))
        if not isinstance(schema, WriterSchema):
            return None
        if number not in self._plain:
            from tidemill.runtime.formats.plain_wire import PlainAvro  # it loads loops

            fields = _plain_fields(schema, self._columns)
            made = None if fields is None else PlainAvro(self._columns, number, fields)
            self._plain[number] = made
        return self._plain[number]

    def __call__(self, value: bytes | None) -> list[object]:
        """The cells of a record in the order of the columns. Raises: BadRow."""
        number = schema_number(value)
        assert value is not None
        schema = self._schema(number)
        if number not in self._kept:
            self._kept[number] = kept_of(schema, self._columns)
        return self.cells(number, read_value(value, schema, self._kept[number]))

    def value(self, number: int, value: bytes) -> Any:  # any value of Avro
        """The value of a record, as it was written with the schema `number`. Raises: BadRow."""
        return read_value(value, self._schema(number))

    def cells(self, number: int, record: Any, field: str = "") -> list[object]:  # a value of Avro
        """The cells of a value of the schema `number`, or of one of its fields. Raises: BadRow."""
        try:
            takes = self._takes.get((number, field))
            if takes is None:
                schema = self._schema(number)
                top = _field(schema.meaning, field, schema.named) if field else schema.meaning
                takes = [_taking(top, column, schema.named) for column in self._columns]
                self._takes[number, field] = takes
            return [take(record) for take in takes]
        except BadRow:
            raise
        except Exception as error:  # a schema may say what no value keeps to
            raise BadRow(f"not a row of the columns: {_said(error)}") from None

    def _schema(self, number: int) -> WriterSchema:
        schema = self._schemas[number]
        if isinstance(schema, BadRow):
            raise schema
        return schema


def _parsed_plain(document: Schema, named: dict[str, Schema]) -> tuple[Schema, Schema | None]:
    """The parsed schema; of a union, a record around it too, which keeps what its names mean."""
    if not isinstance(document, list):
        return fastavro.parse_schema(document, named), None
    fields = [{"name": "value", "type": document}]
    around: Any = fastavro.parse_schema(
        {"type": "record", "name": "_Around", "fields": fields}, named
    )
    return around["fields"][0]["type"], around


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _without_meaning(schema: Schema) -> Schema:
    """The schema without logical types: what they mean is decided here, whatever is in range."""
    if isinstance(schema, list):
        return [_without_meaning(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: each for name, each in schema.items() if name != "logicalType"}
    for inner in ("type", "items", "values"):
        if isinstance(found.get(inner), dict | list):
            found[inner] = _without_meaning(found[inner])
    if isinstance(found.get("fields"), list):
        found["fields"] = [_without_meaning(each) for each in found["fields"]]
    return found


def _branches(schema: Schema, named: Mapping[str, Schema]) -> list[Schema]:
    """The types that a value may have, other than null; names are looked up."""
    if isinstance(schema, list):
        return [each for part in schema for each in _branches(part, named)]
    if isinstance(schema, str):
        return [] if schema == "null" else [named.get(schema, schema)]
    if isinstance(schema["type"], dict | list):
        return _branches(schema["type"], named)
    return [] if schema["type"] == "null" else [schema]


def _kind(schema: Schema) -> str:
    return str(schema if isinstance(schema, str) else schema["type"])


def _field(schema: Schema, name: str, named: Mapping[str, Schema]) -> Schema | None:
    """The schema of a field of a record; None if it has no such field, or is no record."""
    branches = _branches(schema, named)
    if len(branches) != 1 or _kind(branches[0]) not in ("record", "error"):
        return None
    return next(
        (each["type"] for each in branches[0].get("fields", ()) if each["name"] == name), None
    )


def _plain_fields(schema: WriterSchema, columns: Sequence[Column]) -> list[Field] | None:
    """The fields of a flat record whose columns they fit; None of any other schema."""
    from tidemill.runtime.formats import plain_wire as wire  # as above

    kinds = {
        "int": wire.INT32, "long": wire.INT, "float": wire.FLOAT32, "double": wire.FLOAT64,
        "string": wire.TEXT, "boolean": wire.BOOL,
    }  # fmt: skip
    top, places = schema.meaning, {column.name: at for at, column in enumerate(columns)}
    if not isinstance(top, dict) or _kind(top) != "record":
        return None
    fields = []
    for each in top["fields"]:
        written, null = each["type"], -1
        if isinstance(written, list) and len(written) == 2 and "null" in written:
            null = written.index("null")
            written = written[1 - null]
        kind = kinds.get(written) if isinstance(written, str) else None
        at = places.pop(each["name"], -1)
        if kind is None or (at >= 0 and wire.FITTING[kind] != columns[at].kind):
            return None
        fields.append(wire.Field(kind, at, null))
    missing = any("." in name or not columns[at].nullable for name, at in places.items())
    return None if missing else fields


def _taking(schema: Schema | None, column: Column, named: Mapping[str, Schema]) -> Take:
    """The function that takes a column out of a value of `schema`."""
    path = column.name.split(".")
    if schema is not None and len(_branches(schema, named)) > 1:
        return _refusing("the value is a union of several records")
    if schema is not None and _kind(next(iter(_branches(schema, named)), "null")) != "record":
        return _refusing("the value is not a record")
    for step in path:
        if schema is not None and len(_branches(schema, named)) > 1:
            return _refusing(f"the column {column.name} is within a union of several types")
        schema = None if schema is None else _field(schema, step, named)
    if schema is None:
        if column.nullable:
            return lambda record: None
        return _refusing(f"the column {column.name} is missing")
    convert = _converting(schema, column, named)
    if len(path) == 1:
        name = path[0]
        return lambda record: cell_of(convert(record[name]), column)

    def take(record: Any) -> object:  # a value of Avro
        for step in path:
            if record is None:
                break
            record = record[step]
        return cell_of(convert(record), column)

    return take


def _refusing(reason: str) -> Take:
    def take(record: object) -> object:
        raise BadRow(reason)

    return take


def _converting(schema: Schema, column: Column, named: Mapping[str, Schema]) -> Take:
    """From what fastavro read to what a cell may be."""
    branches = _branches(schema, named)
    takes = [_leaf(branch, column) for branch in branches]
    if not takes:
        return lambda value: None
    if len(takes) == 1:
        only = takes[0]
        return lambda value: None if value is None else only(value)
    if any(_logical(branch) for branch in branches):
        # Which branch a number was written with cannot be told from the number.
        return _refusing(f"the column {column.name} is a union with a logical type")

    def of_a_union(value: Any) -> object:  # a value of Avro
        if isinstance(value, dict | list):
            raise BadRow(f"the column {column.name} is not a single value")
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    return of_a_union


def _logical(schema: Schema) -> str:
    """The logical type of a schema if it means something on its base; else none."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if not isinstance(logical, str) or _kind(schema) not in _BASES.get(logical, ()):
        return ""
    return logical


def _leaf(schema: Schema, column: Column) -> Take:
    kind = _kind(schema)
    if kind in _WHOLE:
        hint = " (name a field of it)" if kind == "record" else ""
        return _refusing(f"the column {column.name} is {_WHOLE[kind]}{hint}")
    logical = _logical(schema)
    if logical == "decimal":
        scale = schema.get("scale", 0)
        if type(scale) is not int or not 0 <= scale <= DECIMAL_SCALE_MAX:
            return _refusing(f"the column {column.name} is a decimal of a scale that is none")
        return lambda value: _decimal(value, scale, column)
    if kind in ("bytes", "fixed"):
        return lambda value: base64.b64encode(value).decode()
    zoned, _, unit = logical.rpartition("-")
    if zoned in ("timestamp", "local-timestamp") and unit in _PER_MS:
        mark = "Z" if zoned == "timestamp" else ""
        return lambda value: _instant(value, _PER_MS[unit], mark, column)
    if kind == "string" and column.kind == "json":
        return lambda value: msgspec.Raw(value.encode())
    if logical == "date" and column.kind in ("text", "date"):
        return lambda value: _iso(column, days=value)[:10]
    return lambda value: value


def _instant(value: int, per_ms: int, mark: str, column: Column) -> object:
    """Milliseconds in a column of whole numbers, ISO 8601 in one of text."""
    if column.kind not in ("text", "timestamp"):
        return value // per_ms
    return _iso(column, microseconds=value * 1_000 // per_ms) + mark


def _iso(column: Column, *, days: int = 0, microseconds: int = 0) -> str:
    """So long after the epoch, as text. Raises: BadRow."""
    try:
        return (EPOCH + timedelta(days=days, microseconds=microseconds)).isoformat()
    except OverflowError:
        raise BadRow(
            f"the column {column.name} is a time before the year 1 or after the year 9999"
        ) from None


def _decimal(value: bytes, scale: int, column: Column) -> object:
    """A decimal number: exact in text, in a column of whole numbers only if it is one."""
    if len(value) > DECIMAL_BYTES_MAX:
        raise BadRow(f"the column {column.name} has too many digits")
    unscaled = int.from_bytes(value, "big", signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    number = Decimal((int(unscaled < 0), digits, -scale))
    match column.kind:
        case "float":
            return float(number)
        case "int" if number == number.to_integral_value():
            return int(number)
        case "int":
            raise BadRow(f"the column {column.name} is {number:f}, not a whole number")
    return f"{number:f}"
