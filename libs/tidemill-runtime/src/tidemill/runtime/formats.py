"""From bytes of a record to a row of typed columns, or to a letter that says why not.

Good batches are decoded as a whole; a batch with a bad row is decoded row by row, by rules that give the
same rows. Text is kept in normal form C, NaN is refused, whole numbers have 64 bits, and a whole number
in a float column is a float.
"""

from __future__ import annotations

import csv
import io
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tidemill.time import UsageError

ColumnKind: TypeAlias = Literal["int", "float", "text", "bool"]

ARROW_TYPES: Mapping[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
}
_LETTER_FIELDS: list[pa.Field[Any]] = [
    pa.field("partition", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("reason", pa.string()),
    pa.field("raw", pa.string()),
]
LETTER_SCHEMA = pa.schema(_LETTER_FIELDS)
"""Columns of a dead-letter collection: the FromTime of a bad record, why it is bad, and its text."""
RAW_CHARACTERS_MAX = 4096
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a source; a missing or null value of one that is not nullable is a bad row."""

    name: str
    kind: ColumnKind
    nullable: bool = False

    def field(self) -> pa.Field[pa.DataType]:
        """The column in an Arrow schema."""
        return pa.field(self.name, ARROW_TYPES[self.kind], self.nullable)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """One JSON object a record; members that no column names are ignored."""


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """One line of comma-separated values a record, in the order of the columns; empty is null."""

    delimiter: str = ","


RecordFormat: TypeAlias = "JsonFormat | CsvFormat"


class DecodedRows(NamedTuple):
    """`rows`: data columns, `_partition`, `_offset`. `letters`: LETTER_SCHEMA."""

    rows: pa.Table
    letters: pa.Table


class BadRow(Exception):
    """A record that is no row; the text is the reason."""


class RowDecoder:
    """Decodes records of one source. Pure; may be pickled to other processes."""

    def __init__(self, columns: Sequence[Column], record_format: RecordFormat) -> None:
        if not columns:
            raise UsageError("a source has at least one column", reason="NoColumns")
        self._columns = tuple(columns)
        self._format = record_format
        self.schema = pa.schema([column.field() for column in columns])
        self._placed = self.schema.append(pa.field("_partition", pa.int64())).append(
            pa.field("_offset", pa.uint64())
        )

    def decode(
        self, partitions: Sequence[int], offsets: Sequence[int], values: Sequence[bytes | None]
    ) -> DecodedRows:
        """Every record as a row or as a letter, in their order.

        Shapes: equal lengths in; rows + letters = records. Cost: O(bytes); about a microsecond a row
        where all rows of the batch are good.
        """
        places = (np.asarray(partitions, np.int64), np.asarray(offsets, np.uint64))
        if isinstance(self._format, JsonFormat):
            whole = self._whole_json(values)
            if whole is not None:
                return DecodedRows(self._placed_rows(whole, places), LETTER_SCHEMA.empty_table())
        return self._one_by_one(values, places)

    def _placed_rows(self, rows: pa.Table, places: tuple[np.ndarray, np.ndarray]) -> pa.Table:
        table = rows.append_column("_partition", pa.array(places[0], pa.int64()))
        return table.append_column("_offset", pa.array(places[1], pa.uint64()))

    def _whole_json(self, values: Sequence[bytes | None]) -> pa.Table | None:
        """All records at once; None if any of them might be bad."""
        decode = msgspec.json.Decoder(_row_type(self._columns)).decode
        try:
            rows = [decode(value or b"") for value in values]
        except msgspec.DecodeError:
            return None
        arrays = []
        for index, column in enumerate(self._columns):
            cells = list(map(attrgetter(f"c{index}"), rows))
            array = _whole_column(cells, column)
            if array is None:
                return None
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _one_by_one(
        self, values: Sequence[bytes | None], places: tuple[np.ndarray, np.ndarray]
    ) -> DecodedRows:
        cells: list[list[object]] = [[] for _ in self._columns]
        good: list[int] = []
        bad: list[tuple[int, str]] = []
        for index, value in enumerate(values):
            try:
                row = self._row(value)
            except BadRow as refused:
                bad.append((index, str(refused)))
                continue
            good.append(index)
            for held, cell in zip(cells, row, strict=True):
                held.append(cell)
        arrays = [
            pa.array(held, ARROW_TYPES[column.kind])
            for held, column in zip(cells, self._columns, strict=True)
        ]
        kept = (places[0][good], places[1][good])
        rows = self._placed_rows(pa.Table.from_arrays(arrays, schema=self.schema), kept)
        return DecodedRows(rows, self._letters(bad, values, places))

    def _letters(
        self,
        bad: Sequence[tuple[int, str]],
        values: Sequence[bytes | None],
        places: tuple[np.ndarray, np.ndarray],
    ) -> pa.Table:
        return pa.table(
            {
                "partition": pa.array([int(places[0][i]) for i, _ in bad], pa.int64()),
                "offset": pa.array([int(places[1][i]) for i, _ in bad], pa.int64()),
                "reason": pa.array([reason for _, reason in bad], pa.string()),
                "raw": pa.array([_shown(values[i]) for i, _ in bad], pa.string()),
            },
            schema=LETTER_SCHEMA,
        )

    def _row(self, value: bytes | None) -> list[object]:
        """The cells of one record in the order of the columns. Raises: BadRow."""
        if value is None:
            raise BadRow("the record has no value")
        if isinstance(self._format, CsvFormat):
            return self._csv_row(value, self._format.delimiter)
        try:
            document = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise BadRow(f"not JSON: {error}") from None
        if not isinstance(document, dict):
            raise BadRow("not a JSON object")
        return [
            _cell(document[column.name], column) if column.name in document else _missing(column)
            for column in self._columns
        ]

    def _csv_row(self, value: bytes, delimiter: str) -> list[object]:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRow(f"not UTF-8: {error.reason} at byte {error.start}") from None
        fields = next(iter(csv.reader(io.StringIO(text), delimiter=delimiter, strict=False)), [])
        if len(fields) != len(self._columns):
            raise BadRow(f"{len(fields)} fields, not {len(self._columns)}")
        return [
            _parsed(written, column) for written, column in zip(fields, self._columns, strict=True)
        ]


_PYTHON_TYPES: Mapping[str, type] = {"int": int, "float": float, "text": str, "bool": bool}


@cache
def _row_type(columns: tuple[Column, ...]) -> type[msgspec.Struct]:
    """A record type that takes exactly the good rows, but for the range of whole numbers."""
    fields: list[Any] = []
    renamed = {}
    for index, column in enumerate(columns):
        kind: Any = _PYTHON_TYPES[column.kind]
        renamed[f"c{index}"] = column.name
        fields.append((f"c{index}", kind | None, None) if column.nullable else (f"c{index}", kind))
    return msgspec.defstruct("Row", fields, rename=renamed, kw_only=True, gc=False)


def _whole_column(cells: list[Any], column: Column) -> Any:
    """The column as an array; None if a whole number is too big or a text not in normal form."""
    try:
        array = pa.array(cells, ARROW_TYPES[column.kind])
    except (pa.ArrowInvalid, OverflowError):
        return None
    if column.kind == "text" and not all(
        cell is None or cell.isascii() or unicodedata.is_normalized("NFC", cell) for cell in cells
    ):
        return None
    return array


def _missing(column: Column) -> object:
    if not column.nullable:
        raise BadRow(f"the column {column.name} is missing")
    return None


def _cell(value: object, column: Column) -> object:
    """A JSON value as a cell of the column. Raises: BadRow."""
    if value is None:
        if not column.nullable:
            raise BadRow(f"the column {column.name} is null")
        return None
    match column.kind:
        case "int" if type(value) is int:
            if not INT_MIN <= value <= INT_MAX:
                raise BadRow(f"the column {column.name} has more than 64 bits: {value}")
            return value
        case "float" if type(value) in (int, float):
            return float(value)  # type: ignore[arg-type]  # a number, as just tested
        case "text" if isinstance(value, str):
            return unicodedata.normalize("NFC", value)
        case "bool" if isinstance(value, bool):
            return value
    raise BadRow(f"the column {column.name} is {_kind_of(value)}, not {column.kind}")


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    names = {int: "int", float: "float", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _parsed(written: str, column: Column) -> object:
    """A CSV field as a cell of the column; an empty one is null. Raises: BadRow."""
    if written == "":
        if column.nullable:
            return None
        if column.kind == "text":
            return ""
        raise BadRow(f"the column {column.name} is empty")
    try:
        match column.kind:
            case "int":
                return _cell(int(written), column)
            case "float":
                number = float(written)
                if not math.isfinite(number):
                    raise BadRow(f"the column {column.name} is not a finite number: {written}")
                return number
            case "bool":
                return _TRUTHS[written.strip().lower()]
            case _:
                return unicodedata.normalize("NFC", written)
    except (ValueError, KeyError):
        raise BadRow(f"the column {column.name} is not {column.kind}: {written!r}") from None


_TRUTHS: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}


def _shown(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")[:RAW_CHARACTERS_MAX]


def infer_columns(
    values: Sequence[bytes], record_format: RecordFormat, header: Sequence[str] = ()
) -> tuple[Column, ...]:
    """The least columns that hold every row of a sample; all nullable, because a sample proves no absence.

    Members of JSON objects come in the order of their first appearance; CSV columns are named by
    `header`, else c0, c1, …. Raises: UsageError if the sample has no usable row.
    """
    seen: dict[str, ColumnKind | None] = {}
    for row in _sampled(values, record_format, header):
        for name, kind in row.items():
            seen[name] = _wider(seen.get(name), kind)
    if not seen:
        raise UsageError("no row of the sample can be read: state the columns", reason="NoSample")
    return tuple(Column(name, kind or "text", True) for name, kind in seen.items())


def _sampled(
    values: Sequence[bytes], record_format: RecordFormat, header: Sequence[str]
) -> Iterator[dict[str, ColumnKind | None]]:
    for value in values:
        if isinstance(record_format, JsonFormat):
            try:
                document = msgspec.json.decode(value)
            except msgspec.DecodeError:
                continue
            if isinstance(document, dict):
                yield {name: _json_kind(cell) for name, cell in document.items()}
        else:
            text = value.decode("utf-8", "replace")
            fields = next(
                iter(csv.reader(io.StringIO(text), delimiter=record_format.delimiter)), []
            )
            names = list(header) or [f"c{index}" for index in range(len(fields))]
            yield {name: _csv_kind(written) for name, written in zip(names, fields, strict=False)}


def _json_kind(cell: object) -> ColumnKind | None:
    match cell:
        case None:
            return None
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case _:
            return "text"


def _csv_kind(written: str) -> ColumnKind | None:
    if written == "":
        return None
    if written.lower() in ("true", "false"):
        return "bool"
    for kind, read in (("int", int), ("float", float)):
        try:
            read(written)
        except ValueError:
            continue
        return "int" if kind == "int" else "float"
    return "text"


def _wider(a: ColumnKind | None, b: ColumnKind | None) -> ColumnKind | None:
    if a is None or b is None or a == b:
        return a or b
    return "float" if {a, b} == {"int", "float"} else "text"
