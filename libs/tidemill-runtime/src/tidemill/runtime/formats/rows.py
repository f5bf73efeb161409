"""From bytes of records to rows of typed columns, or to letters that say why not.

Columns are made at once where that gives the same cells as making each by itself. A record has the
same fate in any company: decoding it again after a crash, or by another engine, gives the same row.
For any bytes, decoding ends with a row or a letter.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from tidemill.arrangement.column_types import arrow_type
from tidemill.arrangement.machine_code import has_loops
from tidemill.errors import UsageError
from tidemill.runtime.formats.columns import (
    NESTING_MAX,
    NO_VALUE,
    NOT_JSON,
    TRUTHS,
    BadRow,
    Column,
    arrays_of,
    cell_of,
    check_nesting,
    csv_lines,
    parsed_cell,
    utf8,
)
from tidemill.runtime.formats.kinds import (
    AvroFormat,
    BytesFormat,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
    TextFormat,
)
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX, long_records, long_rows
from tidemill.runtime.formats.typed_cells import is_typed, with_texts_read
from tidemill.runtime.formats.typed_columns import typed_array
from tidemill.time import heartbeat_until, is_heartbeat, is_normal
from tidemill.time.typed import EPOCH

if TYPE_CHECKING:
    from tidemill.runtime.formats.plain_json import PlainJson, PlainRows

_LETTER_FIELDS: list[pa.Field[Any]] = [
    pa.field("partition", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("reason", pa.string()),
    pa.field("raw", pa.string()),
]
LETTER_SCHEMA = pa.schema(_LETTER_FIELDS)
"""Columns of a dead-letter collection: the FromTime of a bad record, why it is bad, and its text.
"""
RAW_CHARACTERS_MAX = 4096
PLAIN_RECORDS_MIN = 64
"""Fewer records are not worth a look at their bytes, nor the compilation of what looks at them."""

Numbers: TypeAlias = "Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.uint64]"
Places: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]
"""The partition and the offset of each record."""


class PlainReader(Protocol):
    """Reads those records of a format that compiled loops understand."""

    def read(self, values: Sequence[bytes | None]) -> PlainRows:
        """The cells of the plain ones of some records, and which are plain."""


@runtime_checkable
class PlainReaders(Protocol):
    """Knows which records of a format may be plain."""

    def plain_reader(self, values: Sequence[bytes | None]) -> PlainReader | None:
        """The reader of the plain ones of these records; None if none of them is."""


CellReader: TypeAlias = Callable[[bytes | None], list[object]]
"""The cells of one record in the order of the columns; raises BadRow."""
PLACE = ("_partition", "_offset")
HEARTBEAT = "_heartbeat"
"""The column of the instants that heartbeats name; null in rows."""
_NOTHING: Mapping[str, object] = {"int": 0, "float": 0.0, "text": "", "bool": False}
"""Values of a heartbeat's columns that may not be null, by type."""
_NO_TIME = {"timestamp": EPOCH, "date": EPOCH.date(), "duration": timedelta()}
_UNPLAIN = (b'"', b"\r", b"0x", b"0X", b"\xef\xbb\xbf", b"\0")
NOT_A_HEARTBEAT = "a heartbeat names one instant, in whole milliseconds: tidemill-heartbeat: 1000"
_PYTHON_TYPES: Mapping[str, type] = {"int": int, "float": float, "text": str, "bool": bool}


def _nothing(kind: str) -> object:
    """A value of a type in the place of one that is not there."""
    empty = {"bytes": b"", "uuid": bytes(16), "json": "null"}
    return {**_NOTHING, **_NO_TIME, **empty}.get(kind, Decimal(0))


class DecodedRows(NamedTuple):
    """`rows`: data columns, `_partition`, `_offset`, `_heartbeat` if asked for.

    `letters`: LETTER_SCHEMA.
    """

    rows: pa.Table
    letters: pa.Table


class RowDecoder:
    """Decodes records of one source. Pure; may be pickled to other processes."""

    def __init__(
        self,
        columns: Sequence[Column],
        record_format: RecordFormat,
        reader: CellReader | None = None,
        heartbeats: bool = False,
        row_bytes: int = ROW_BYTES_MAX,
    ) -> None:
        """`reader` is for records whose schemas come from elsewhere; the other formats have theirs.

        With `heartbeats` a record that is one becomes a row of `_heartbeat` alone, whatever the
        format. A record whose row has more than `row_bytes` becomes a letter. Raises: UsageError if
        the columns cannot be those of the format.
        """
        if not columns:
            raise UsageError("a source has at least one column", reason="NoColumns")
        self._columns = tuple(columns)
        self._format = record_format
        self._heartbeats = heartbeats
        self._row_bytes = row_bytes
        self._reader = reader or _reader_of(self._columns, record_format)
        self._in_batches = reader is None
        texts = isinstance(record_format, JsonFormat) and record_format.texts
        self._texts = [f"c{i}" for i, c in enumerate(columns) if texts and c.kind == "json"]
        self.schema = pa.schema([column.field() for column in columns])
        self._placed = self.schema.append(pa.field("_partition", pa.int64())).append(
            pa.field("_offset", pa.uint64())
        )

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self._columns]

    def decode(
        self, partitions: Numbers, offsets: Numbers, values: Sequence[bytes | None]
    ) -> DecodedRows:
        """Every record as a row or as a letter.

        Rows are in the order of their records, first the plain ones, then others, then heartbeats.
        Letters of what is too long come behind the others.

        Shapes: equal lengths in; rows + letters = records. Cost: O(bytes); about a microsecond a
        row where all rows of the batch are good.
        """
        places = (np.asarray(partitions, np.int64), np.asarray(offsets, np.uint64))
        refused = long_records(values)
        if not refused:
            return self._measured(self._with_beats(values, places), values, places)
        kept = [at for at in range(len(values)) if at not in refused]
        left, theirs = [values[at] for at in kept], (places[0][kept], places[1][kept])
        rows, letters = self._measured(self._with_beats(left, theirs), left, theirs)
        told = self._letters(sorted(refused.items()), values, places)
        return DecodedRows(rows, pa.concat_tables([letters, told]))

    def _measured(
        self, decoded: DecodedRows, values: Sequence[bytes | None], places: Places
    ) -> DecodedRows:
        """Decoded rows, with dead letters in place of rows that are too long."""
        rows, letters = decoded
        refused = long_rows(rows.select(self.schema.names), self._row_bytes)
        if not refused:
            return decoded
        numbers = {place: at for at, place in enumerate(zip(*map(list, places), strict=True))}
        of_rows = list(zip(*(rows[name].to_pylist() for name in PLACE), strict=True))
        bad = [(numbers[of_rows[at]], reason) for at, reason in refused.items()]
        kept = np.setdiff1d(np.arange(rows.num_rows), list(refused))
        told = self._letters(bad, values, places)
        return DecodedRows(rows.take(kept), pa.concat_tables([letters, told]))

    def _with_beats(self, values: Sequence[bytes | None], places: Places) -> DecodedRows:
        """Decoded rows of any length and heartbeats, of records that are not too long."""
        reader = self._plain_reader(values) if len(values) >= PLAIN_RECORDS_MIN else None
        if reader is None:
            return self._read_alone(values, places)
        found, plain = reader.read(values)
        rows = self._placed_rows(
            pa.Table.from_arrays(found, schema=self.schema), (places[0][plain], places[1][plain])
        )
        if self._heartbeats:
            rows = _with_heartbeats(rows, pa.nulls(rows.num_rows, pa.int64()))
        others = np.flatnonzero(~plain).tolist()
        if not others:
            return DecodedRows(rows, LETTER_SCHEMA.empty_table())
        left = [values[at] for at in others]
        rest = self._read_alone(left, (places[0][others], places[1][others]))
        return DecodedRows(pa.concat_tables([rows, rest.rows]), rest.letters)

    def _plain_reader(self, values: Sequence[bytes | None]) -> PlainReader | None:
        """The reader of the plain ones of some records, if they may be plain.

        None where no loops are: neither ready ones nor their compiler.
        """
        if not has_loops() or any(is_typed(column.kind) for column in self._columns):
            return None
        if isinstance(self._format, JsonFormat):
            return plain_reader(self._columns)
        if isinstance(self._reader, PlainReaders):
            return self._reader.plain_reader(values)
        return None

    def _read_alone(self, values: Sequence[bytes | None], places: Places) -> DecodedRows:
        """The same, by decoders that make Python objects of a record."""
        if not self._heartbeats:
            return self._decode(values, places)
        beats = [at for at, value in enumerate(values) if is_heartbeat(value)]
        if not beats:
            rows, letters = self._decode(values, places)
            return DecodedRows(_with_heartbeats(rows, pa.nulls(rows.num_rows, pa.int64())), letters)
        others = sorted(set(range(len(values))).difference(beats))
        kept = (places[0][others], places[1][others])
        rows, letters = self._decode([values[at] for at in others], kept)
        rows = _with_heartbeats(rows, pa.nulls(rows.num_rows, pa.int64()))
        found, refused = self._decode_heartbeats(beats, values, places)
        return DecodedRows(pa.concat_tables([rows, found]), pa.concat_tables([letters, refused]))

    def _decode_heartbeats(
        self, beats: Sequence[int], values: Sequence[bytes | None], places: Places
    ) -> DecodedRows:
        """Records that say that they are heartbeats, by index."""
        named = {at: heartbeat_until(values[at] or b"") for at in beats}
        good = [at for at in beats if named[at] is not None]
        arrays = [
            pa.array([None if c.nullable else _nothing(c.kind)] * len(good), arrow_type(c.kind))
            for c in self._columns
        ]
        bare = pa.Table.from_arrays(arrays, schema=self.schema)
        rows = self._placed_rows(bare, (places[0][good], places[1][good]))
        rows = _with_heartbeats(rows, pa.array([named[at] for at in good], pa.int64()))
        bad = [(at, NOT_A_HEARTBEAT) for at in beats if named[at] is None]
        return DecodedRows(rows, self._letters(bad, values, places))

    def _decode(self, values: Sequence[bytes | None], places: Places) -> DecodedRows:
        if isinstance(self._format, JsonFormat):
            return self._decode_json(values, places)
        if self._in_batches and isinstance(self._format, CsvFormat | TextFormat):
            if isinstance(self._format, TextFormat):
                whole = _whole_text(self.schema, list(values))
            else:
                whole = _whole_csv(self._columns, self.schema, values, self._format.delimiter)
            if whole is not None:
                return DecodedRows(self._placed_rows(whole, places), LETTER_SCHEMA.empty_table())
        assert self._reader is not None
        return self._cell_by_cell(enumerate(values), self._reader, [], values, places)

    def letters(
        self,
        partitions: Numbers,
        offsets: Numbers,
        values: Sequence[bytes | None],
        refused: Mapping[int, str],
    ) -> pa.Table:
        """The letters of records that somebody else has refused, by index, with why."""
        places = (np.asarray(partitions, np.int64), np.asarray(offsets, np.uint64))
        return self._letters(sorted(refused.items()), values, places)

    def cells(self, value: bytes | None) -> list[object]:
        """The cells of one record in the order of the columns, as `decode` makes them.

        Raises: BadRow.
        """
        if self._reader is not None:
            try:
                return self._reader(value)
            except BadRow:
                raise
            except Exception as error:  # as in `_cell_by_cell`
                raise BadRow(f"cannot be read: {type(error).__name__}: {error}") from None
        check_nesting(value)
        try:
            row = _json_decoder(self._columns).decode(value or b"")
            return self._json_cells(with_texts_read(row, self._texts))
        except NOT_JSON as error:
            raise BadRow(self._reason(value or b"", error)) from None

    def _placed_rows(self, rows: pa.Table, places: Places) -> pa.Table:
        table = rows.append_column("_partition", pa.array(places[0], pa.int64()))
        return table.append_column("_offset", pa.array(places[1], pa.uint64()))

    def _decode_json(self, values: Sequence[bytes | None], places: Places) -> DecodedRows:
        """One decoder decides what is a row, so that a record has the same fate in any company."""
        decode = _json_decoder(self._columns).decode
        rows: list[Any] = []  # of a type made for the columns
        good: list[int] = []
        bad: list[tuple[int, str]] = []
        for index, value in enumerate(values):
            try:
                if value is None or len(value) > NESTING_MAX:
                    check_nesting(value)
                rows.append(with_texts_read(decode(value or b""), self._texts))
                good.append(index)
            except BadRow as refused:
                bad.append((index, str(refused)))
            except NOT_JSON as error:
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
            except Exception as error:  # a record is a row or a letter, whatever reading it raises
                bad.append((index, f"cannot be read: {type(error).__name__}: {error}"))
                continue
            good.append(index)
            for held, cell in zip(cells, row, strict=True):
                held.append(cell)
        arrays, why = arrays_of(cells, self._columns)
        if why:
            bad += [(good[at], reason) for at, reason in why.items()]
            good = [index for at, index in enumerate(good) if at not in why]
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
                "raw": pa.array([shown(values[i], self._format) for i, _ in bad], pa.string()),
            },
            schema=LETTER_SCHEMA,
        )

    def _json_cells(self, row: object) -> list[object]:
        """The cells of a decoded record, in their final form. Raises: BadRow."""
        return [cell_of(getattr(row, f"c{i}"), column) for i, column in enumerate(self._columns)]

    def _reason(self, value: bytes, error: Exception) -> str:
        """Why `value`, which the decoder refused with `error`, is no row."""
        try:
            fields = _FIELDS.decode(value)
        except msgspec.ValidationError:
            return "not a JSON object"
        except NOT_JSON as broken:
            return f"not JSON: {broken}"
        for column in self._columns:
            if column.name not in fields and not column.nullable:
                return f"the column {column.name} is missing"
            try:
                cell_of(_shallow(fields.get(column.name), column), column)
            except BadRow as refused:
                return str(refused)
            except NOT_JSON as broken:
                return f"not JSON: {broken}"
        return f"not JSON: {error}"


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""No objects are made of the fields: they may be twenty times as long as the record."""


def _shallow(field: msgspec.Raw | None, column: Column) -> object:
    """The value of a field, of which a list or an object is empty. Raises: as the decoder."""
    if field is None or is_typed(column.kind):
        return field
    opening = bytes(field)[:1]
    return {b"[": [], b"{": {}}[opening] if opening in b"[{" else msgspec.json.decode(field)


def _with_heartbeats(rows: pa.Table, named: Any) -> pa.Table:
    """The rows with the instants that they name as heartbeats."""
    return rows.append_column(HEARTBEAT, named)


@cache
def plain_reader(columns: tuple[Column, ...]) -> PlainJson:
    """The reader of plain records of these columns."""
    from tidemill.runtime.formats.plain_json import PlainJson  # it loads loops

    return PlainJson(columns)


@cache
def _row_type(columns: tuple[Column, ...]) -> type[msgspec.Struct]:
    """A record type that takes exactly the good rows, but for the range of whole numbers."""
    fields: list[Any] = []
    renamed = {}
    for index, column in enumerate(columns):
        # NB: the digits of decimal numbers and the text of JSON are only in what is not decoded.
        kind: Any = _PYTHON_TYPES.get(column.kind, msgspec.Raw)
        renamed[f"c{index}"] = column.name
        if column.nullable and kind is msgspec.Raw:
            fields.append((f"c{index}", kind, None))  # a null is Raw, too
        elif column.nullable:
            fields.append((f"c{index}", kind | None, None))
        else:
            fields.append((f"c{index}", kind))
    return msgspec.defstruct("Row", fields, rename=renamed, kw_only=True, gc=False)


@cache
def _json_decoder(columns: tuple[Column, ...]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_row_type(columns))


def _whole_column(cells: list[Any], column: Column) -> Any:
    """The column as an array; None if a value is none of the type.

    None, too, if a whole number is too big or a text not in normal form.
    """
    if is_typed(column.kind):
        return typed_array(cells, column.kind, column.nullable)
    try:
        array = pa.array(cells, arrow_type(column.kind))
    except (pa.ArrowInvalid, OverflowError):
        return None
    if column.kind == "text" and not all(cell is None or is_normal(cell) for cell in cells):
        return None
    return pc.add(array, 0.0) if column.kind == "float" else array  # no negative zero


def _whole_csv(
    columns: tuple[Column, ...],
    schema: pa.Schema,
    values: Sequence[bytes | None],
    delimiter: str,
) -> pa.Table | None:
    """All records at once, if they are plain lines without quotes; None if any might be bad.

    NB: Arrow accepts hexadecimal numbers, line ends of old systems and a byte order mark. The rules
    for one record refuse them, so records with traces of them are read one by one.
    """
    if not values or any(value is None or b"\n" in value for value in values):
        return None
    if any(is_typed(column.kind) for column in columns):
        return None
    lines = b"\n".join(value or b"" for value in values) + b"\n"
    if any(trace in lines for trace in _UNPLAIN) or not delimiter.isascii():
        return None
    names = [str(index) for index in range(len(columns))]
    types = {str(i): arrow_type(column.kind) for i, column in enumerate(columns)}
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(lines),
            arrow_csv.ReadOptions(column_names=names, use_threads=False),
            arrow_csv.ParseOptions(delimiter=delimiter),
            arrow_csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                true_values=[written for written, truth in TRUTHS.items() if truth],
                false_values=[written for written, truth in TRUTHS.items() if not truth],
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(values):
        return None  # empty lines are skipped
    arrays = []
    for index, column in enumerate(columns):
        array = _checked_csv_column(table.column(index).combine_chunks(), column)
        if array is None:
            return None
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def _checked_csv_column(array: Any, column: Column) -> Any:
    """The column as Arrow read it; None if a field may not be what the column takes."""
    if column.kind == "text":
        if not column.nullable:
            array = array.fill_null("")
        plain = pc.all(pc.string_is_ascii(array)).as_py() in (True, None)
        return array if plain or all(map(is_normal, array.drop_null().to_pylist())) else None
    if array.null_count and not column.nullable:
        return None
    if column.kind == "float":
        if pc.all(pc.is_finite(array)).as_py() is False:
            return None
        return pc.add(array, 0.0)  # no negative zero
    return array


def _reader_of(columns: tuple[Column, ...], record_format: RecordFormat) -> CellReader | None:
    """The reader of one record; None for formats that are decoded in batches."""
    match record_format:
        case CsvFormat(delimiter):
            return partial(_csv_row, columns, delimiter)
        case TextFormat():
            _check_lone_text(columns, "text")
            return partial(_text_row, columns[0])
        case BytesFormat(encoding):
            _check_lone_text(columns, "bytes")
            return partial(_bytes_row, encoding)
        case ProtobufFormat():
            from tidemill.runtime.formats.protobuf import MessageReader

            return MessageReader(columns, record_format)
        case AvroFormat() | JsonFormat():
            return None


def _check_lone_text(columns: tuple[Column, ...], written: str) -> None:
    if len(columns) != 1 or columns[0].kind != "text":
        raise UsageError(f"records of {written} have one column, of type text", reason="Columns")


def _text_row(column: Column, value: bytes | None) -> list[object]:
    """A record as text. Raises: BadRow."""
    return [cell_of(utf8(value), column)]


def _whole_text(schema: pa.Schema, values: list[bytes | None]) -> pa.Table | None:
    """Records of ASCII as their only column; None if a record is anything else."""
    if any(value is None or not value.isascii() for value in values):
        return None
    texts = pa.array(values, pa.binary()).cast(pa.string())
    return pa.Table.from_arrays([texts], schema=schema)


def _bytes_row(encoding: str, value: bytes | None) -> list[object]:
    """A record as the text that stands for its bytes. Raises: BadRow."""
    if value is None:
        raise BadRow(NO_VALUE)
    return [value.hex() if encoding == "hex" else base64.b64encode(value).decode()]


def _csv_row(columns: tuple[Column, ...], delimiter: str, value: bytes | None) -> list[object]:
    """The cells of one record in the order of the columns. Raises: BadRow."""
    try:
        lines = list(csv_lines(utf8(value), delimiter))
    except csv.Error as error:
        raise BadRow(f"not CSV: {error}") from None
    if len(lines) > 1:
        raise BadRow(f"{len(lines)} lines, not one")
    fields = lines[0] if lines else []
    if len(fields) != len(columns):
        raise BadRow(f"{len(fields)} fields, not {len(columns)}")
    return [parsed_cell(written, column) for written, column in zip(fields, columns, strict=True)]


def shown(value: bytes | None, record_format: RecordFormat) -> str:
    """The record as a letter holds it: its text, or the digits of its bytes if it is no text."""
    if value is None:
        return ""
    if isinstance(record_format, BytesFormat | AvroFormat | ProtobufFormat):
        return value[: RAW_CHARACTERS_MAX // 2].hex()
    return value.decode("utf-8", "replace")[:RAW_CHARACTERS_MAX]
