"""From bytes of a record to a row of typed columns, or to a letter that says why not.

Columns are made at once where that gives the same cells as making each by itself. A record has the same
fate in any company: what is decoded again after a crash, or by another engine, gives the same rows. Text
is kept in normal form C, NaN is refused, whole numbers have 64 bits, a whole number in a float column is
a float, and zero has no sign. Whatever the bytes are, decoding ends with a row or a letter.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

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
SHOWN_CHARACTERS_MAX = 60
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
NESTING_MAX = 100
DIGITS_MAX = 4_000
"""Longer numbers are not looked at: Python refuses to convert them."""


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


Places: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]
"""The partition and the offset of each record."""

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
            return self._decode_json(values, places)
        whole = self._whole_csv(values, self._format.delimiter)
        if whole is not None:
            return DecodedRows(self._placed_rows(whole, places), LETTER_SCHEMA.empty_table())
        return self._cell_by_cell(enumerate(values), self._csv_row, [], values, places)

    def _placed_rows(self, rows: pa.Table, places: Places) -> pa.Table:
        table = rows.append_column("_partition", pa.array(places[0], pa.int64()))
        return table.append_column("_offset", pa.array(places[1], pa.uint64()))

    def _decode_json(self, values: Sequence[bytes | None], places: Places) -> DecodedRows:
        """One decoder decides what is a row, so that a record has the same fate in any company."""
        decode = msgspec.json.Decoder(_row_type(self._columns)).decode
        rows: list[Any] = []  # of a type made for the columns
        good: list[int] = []
        bad: list[tuple[int, str]] = []
        for index, value in enumerate(values):
            try:
                if value is None or len(value) > NESTING_MAX:
                    _check_nesting(value)
                rows.append(decode(value or b""))
                good.append(index)
            except BadRow as refused:
                bad.append((index, str(refused)))
            except _NOT_JSON as error:
                bad.append((index, self._reason(value or b"", error)))
        arrays = [
            _whole_column(list(map(attrgetter(f"c{i}"), rows)), column)
            for i, column in enumerate(self._columns)
        ]
        if any(array is None for array in arrays):
            return self._cell_by_cell(
                zip(good, rows, strict=True), self._json_cells, bad, values, places
            )
        kept = places if not bad else (places[0][good], places[1][good])
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        return DecodedRows(self._placed_rows(table, kept), self._letters(bad, values, places))

    def _whole_csv(self, values: Sequence[bytes | None], delimiter: str) -> pa.Table | None:
        """All records at once, if they are plain lines without quotes; None if any might be bad.

        NB: Arrow reads hexadecimal numbers, line ends of old systems and a byte order mark, which
        the rules for one record refuse; records with traces of those go there.
        """
        if not values or any(value is None or b"\n" in value for value in values):
            return None
        lines = b"\n".join(value or b"" for value in values) + b"\n"
        if any(trace in lines for trace in _UNPLAIN) or not delimiter.isascii():
            return None
        names = [str(index) for index in range(len(self._columns))]
        types = {str(i): ARROW_TYPES[column.kind] for i, column in enumerate(self._columns)}
        try:
            table = arrow_csv.read_csv(
                io.BytesIO(lines),
                arrow_csv.ReadOptions(column_names=names, use_threads=False),
                arrow_csv.ParseOptions(delimiter=delimiter),
                arrow_csv.ConvertOptions(
                    column_types=types,
                    null_values=[""],
                    strings_can_be_null=True,
                    true_values=[written for written, truth in _TRUTHS.items() if truth],
                    false_values=[written for written, truth in _TRUTHS.items() if not truth],
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(values):
            return None  # empty lines are skipped
        arrays = []
        for index, column in enumerate(self._columns):
            array = _checked_csv_column(table.column(index).combine_chunks(), column)
            if array is None:
                return None
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _cell_by_cell(
        self,
        found: Iterable[tuple[int, Any]],  # index and whatever `cells_of` takes
        cells_of: Callable[[Any], list[object]],
        bad: list[tuple[int, str]],
        values: Sequence[bytes | None],
        places: Places,
    ) -> DecodedRows:
        cells: list[list[object]] = [[] for _ in self._columns]
        good: list[int] = []
        for index, each in found:
            try:
                row = cells_of(each)
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
        return DecodedRows(rows, self._letters(sorted(bad), values, places))

    def _letters(
        self,
        bad: Sequence[tuple[int, str]],
        values: Sequence[bytes | None],
        places: Places,
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

    def _json_cells(self, row: object) -> list[object]:
        """The cells of a decoded record, in their final form. Raises: BadRow."""
        return [_cell(getattr(row, f"c{i}"), column) for i, column in enumerate(self._columns)]

    def _reason(self, value: bytes, error: Exception) -> str:
        """Why `value`, which the decoder refused with `error`, is no row."""
        try:
            document = msgspec.json.decode(value)
        except _NOT_JSON as broken:
            return f"not JSON: {broken}"
        if not isinstance(document, dict):
            return "not a JSON object"
        for column in self._columns:
            if column.name not in document and not column.nullable:
                return f"the column {column.name} is missing"
            try:
                _cell(document.get(column.name), column)
            except BadRow as refused:
                return str(refused)
        return f"not JSON: {error}"

    def _csv_row(self, value: bytes | None) -> list[object]:
        """The cells of one record in the order of the columns. Raises: BadRow."""
        assert isinstance(self._format, CsvFormat)
        if value is None:
            raise BadRow("the record has no value")
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRow(f"not UTF-8: {error.reason} at byte {error.start}") from None
        try:
            lines = list(_csv_lines(text, self._format.delimiter))
        except csv.Error as error:
            raise BadRow(f"not CSV: {error}") from None
        if len(lines) > 1:
            raise BadRow(f"{len(lines)} lines, not one")
        fields = lines[0] if lines else []
        if len(fields) != len(self._columns):
            raise BadRow(f"{len(fields)} fields, not {len(self._columns)}")
        return [
            _parsed(written, column) for written, column in zip(fields, self._columns, strict=True)
        ]


_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""What the decoder raises for bytes that are no JSON or no UTF-8."""
csv.field_size_limit(1 << 30)  # the limit of the csv module would refuse what Arrow reads
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_UNPLAIN = (b'"', b"\r", b"0x", b"0X", b"\xef\xbb\xbf", b"\0")
_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)

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


def _check_nesting(value: bytes | None) -> None:
    """Raise BadRow where there is no value, or one that is nested so deeply that the depth of the
    caller's own stack would decide whether it can be decoded."""
    if value is None:
        raise BadRow("the record has no value")
    if value.count(b"[") + value.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", value)):
        depth += 1 if bracket in b"[{" else -1
        if depth > NESTING_MAX:
            raise BadRow(f"nested more than {NESTING_MAX} levels deep")


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
    return pc.add(array, 0.0) if column.kind == "float" else array  # no negative zero


def _checked_csv_column(array: Any, column: Column) -> Any:
    """The column as Arrow read it; None if a field may not be what the column takes."""
    if column.kind == "text":
        if not column.nullable:
            array = array.fill_null("")
        plain = pc.all(pc.string_is_ascii(array)).as_py() in (True, None)
        return array if plain or pc.all(pc.equal(array, _normal(array))).as_py() else None
    if array.null_count and not column.nullable:
        return None
    if column.kind == "float":
        if pc.all(pc.is_finite(array)).as_py() is False:
            return None
        return pc.add(array, 0.0)  # no negative zero
    return array


def _normal(array: Any) -> Any:
    """The text in normal form C."""
    return pc.utf8_normalize(array, form="NFC")


def _csv_lines(text: str, delimiter: str) -> Iterator[list[str]]:
    """The lines of a record; a line end inside quotes is part of a field. Raises: csv.Error."""
    return csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)


def _cell(value: object, column: Column) -> object:
    """A JSON value as a cell of the column. Raises: BadRow."""
    if value is None:
        if not column.nullable:
            raise BadRow(f"the column {column.name} is null")
        return None
    match column.kind:
        case "int" if type(value) is int:
            if not INT_MIN <= value <= INT_MAX:
                raise BadRow(
                    f"the column {column.name} has more than 64 bits: {_brief(str(value))}"
                )
            return value
        case "float" if type(value) in (int, float):
            return _finite(str(value), column)
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
    if column.kind == "text":
        return unicodedata.normalize("NFC", written)
    word = written.strip(" \t")
    if column.kind == "int" and _INT.fullmatch(word):
        return _cell(int(word), column) if len(word) <= DIGITS_MAX else _cell(INT_MAX + 1, column)
    if column.kind == "float" and (_FLOAT.fullmatch(word) or _NOT_FINITE.fullmatch(word)):
        return _finite(word, column)
    if column.kind == "bool" and word.lower() in _TRUTHS:
        return _TRUTHS[word.lower()]
    raise BadRow(f"the column {column.name} is not {column.kind}: {_brief(written)!r}")


def _finite(written: str, column: Column) -> float:
    """The number that `written` is, without a sign if it is zero. Raises: BadRow."""
    number = float(written)
    if not math.isfinite(number):
        raise BadRow(f"the column {column.name} is not a finite number: {_brief(written)}")
    return number + 0.0


def _brief(written: str) -> str:
    return written if len(written) <= SHOWN_CHARACTERS_MAX else f"{written[:SHOWN_CHARACTERS_MAX]}…"


_TRUTHS: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}


def _shown(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")[:RAW_CHARACTERS_MAX]


def infer_columns(
    values: Sequence[bytes], record_format: RecordFormat, header: Sequence[str] = ()
) -> tuple[Column, ...]:
    """The least columns that hold the rows of a sample; all nullable, because a sample proves no absence.

    Values of several kinds make a text column, whose other values will be dead letters; members that
    are lists or objects fit no column and are left out. Members of JSON objects come in the order of their first appearance; CSV columns are named by
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
                _check_nesting(value)
                document = msgspec.json.decode(value)
            except (BadRow, *_NOT_JSON):
                continue
            if isinstance(document, dict):
                flat = {
                    n: cell for n, cell in document.items() if not isinstance(cell, list | dict)
                }
                yield {name: _json_kind(cell) for name, cell in flat.items()}
        else:
            try:
                lines = list(_csv_lines(value.decode("utf-8"), record_format.delimiter))
            except (UnicodeDecodeError, csv.Error):
                continue
            fields = lines[0] if len(lines) == 1 else []
            names = list(header) or [f"c{index}" for index in range(len(fields))]
            yield {name: _csv_kind(written) for name, written in zip(names, fields, strict=False)}


def _json_kind(cell: object) -> ColumnKind | None:
    match cell:
        case None:
            return None
        case bool():
            return "bool"
        case int():
            return "int" if INT_MIN <= cell <= INT_MAX else "float"
        case float():
            return "float"
        case _:
            return "text"


def _csv_kind(written: str) -> ColumnKind | None:
    word = written.strip(" \t")
    if written == "":
        return None
    if word.lower() in ("true", "false"):
        return "bool"
    if _INT.fullmatch(word) and len(word) <= DIGITS_MAX:
        return "int" if INT_MIN <= int(word) <= INT_MAX else "float"
    return "float" if _FLOAT.fullmatch(word) else "text"


def _wider(a: ColumnKind | None, b: ColumnKind | None) -> ColumnKind | None:
    if a is None or b is None or a == b:
        return a or b
    return "float" if {a, b} == {"int", "float"} else "text"
