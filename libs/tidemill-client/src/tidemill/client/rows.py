"""Rows that users hand in, as Arrow tables."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from tidemill.arrangement.json_cells import json_column, json_field, numeral
from tidemill.errors import UsageError
from tidemill.rpc.messages import ColumnInfo, rows_of_insert

_PLAIN = (pa.int64(), pa.float64(), pa.string(), pa.bool_())
"""Types that readers of Arrow make by themselves; the server makes the others of texts."""
SHOWN_CHARS_MAX = 200
"""Characters of a row that a message repeats."""
INSERT_ROWS = 200_000
"""Rows of one insert of a file, if a table has few columns."""
INSERT_BYTES = 48 << 20
"""Their bytes in Arrow, below the limit of a message."""
FORMATS = ("csv", "jsonl", "parquet", "arrow")


def table_of(rows: pa.Table | Sequence[Mapping[str, object]]) -> pa.Table:
    """A table of rows given as one, or as mappings, of which each may leave out what another one
    has.

    Dictionaries, as pandas has them, become their values. Raises UsageError if the values of a
    column are of several types, and for rows without any column.
    """
    if not isinstance(rows, pa.Table):
        names = dict.fromkeys(name for row in rows for name in row)
        if rows and not names:
            says = "the rows name no column: write each as its columns and their values"
            raise UsageError(says, reason="rows")
        told = {name: [row.get(name) for row in rows] for name in names}
        columns = {name: _column(name, values) for name, values in told.items()}
        fields = [json_field(name, told[name], column) for name, column in columns.items()]
        return pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields))
    table = rows
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(at, field.name, table[at].cast(field.type.value_type))
    return table


def steps(rows: pa.Table, columns: int) -> list[tuple[int, int]]:
    """(first row, number) of inserts which together are these rows of a table of `columns` columns.

    The same rows have the same steps. A row that is too long is a step of its own. Cost:
    O(columns) for each step.
    """
    most = min(INSERT_ROWS, rows_of_insert(max(columns, rows.num_columns)))
    whole = rows.num_rows
    waiting = [(first, min(most, whole - first)) for first in reversed(range(0, whole, most))]
    found = []
    while waiting:
        first, count = waiting.pop()
        if count > 1 and rows.slice(first, count).nbytes > INSERT_BYTES:
            half = count // 2
            waiting += [(first + half, count - half), (first, half)]
        else:
            found.append((first, count))
    return found


def _column(name: str, values: Sequence[object]) -> pa.Array:
    try:
        # An object or a list is a value of JSON: rows need not have the same members.
        return json_column(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise UsageError(f"the column {name} fits no type: {error}", reason="rows") from error


def format_of(path: Path) -> str:
    """The format that the ending of a file says. Raises UsageError if it says none."""
    ending = path.suffix.removeprefix(".").lower()
    found = {"json": "jsonl", "ndjson": "jsonl"}.get(ending, ending)
    if found not in FORMATS:
        raise UsageError(
            f"the ending of {path} names no format: say which of {', '.join(FORMATS)}",
            reason="format",
        )
    return found


@contextmanager
def open_input(file: str) -> Iterator[BinaryIO]:
    """The bytes of a file, or of standard input for `-`. Raises UsageError if it is not there."""
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115 - closed below; errors of the body are not ours
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", reason="file") from error
    with opened:
        yield opened


def read_file(file: str, format_name: str | None, columns: Sequence[ColumnInfo]) -> pa.Table:
    """All rows of a file; its ending says the format where `format_name` does not.

    Raises UsageError if the file cannot be read as that.
    """
    found = format_name or ("jsonl" if file == "-" else format_of(Path(file)))
    with open_input(file) as source:
        return read_rows(source, found, columns)


def read_rows(source: BinaryIO, format_name: str, columns: Sequence[ColumnInfo]) -> pa.Table:
    """All rows of a file; a column that the table has is read as the table's type.

    Raises UsageError if the file is not of the format.
    """
    types = _types(columns)
    try:
        match format_name:
            case "csv":
                # Only what is left empty is null, as in a source; `nan` is no number of the
                # language.
                options = pa.csv.ConvertOptions(
                    column_types={n: t if t in _PLAIN else pa.string() for n, t in types.items()},
                    strings_can_be_null=False,
                    null_values=[""],
                )
                return pa.csv.read_csv(source, convert_options=options)
            case "jsonl":
                if any(kind not in _PLAIN for kind in types.values()):
                    return table_of(list(_objects(source)))
                fields = [pa.field(name, kind) for name, kind in types.items()]
                parse = pa.json.ParseOptions(explicit_schema=pa.schema(fields) if fields else None)
                return pa.json.read_json(io.BytesIO(source.read()), parse_options=parse)
            case "parquet":
                return pa.parquet.read_table(io.BytesIO(source.read()))
            case "arrow":
                with pa.ipc.open_stream(source.read()) as reader:
                    return reader.read_all()
            case _:
                raise UsageError(f"no format {format_name!r}: write one of {', '.join(FORMATS)}")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UsageError(f"not {format_name}: {error}", reason="format") from error


def _objects(source: BinaryIO) -> Iterator[dict[str, object]]:
    """The rows of lines of JSON. Raises UsageError with the number of the line that is none."""
    for number, line in enumerate(source, 1):
        if line.strip():
            try:
                yield parse_row(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip())
            except UnicodeDecodeError as error:
                says = f"line {number} is not UTF-8 text: {error.reason}"
                raise UsageError(says, reason="row") from error
            except UsageError as error:
                raise UsageError(f"line {number}: {error.message}", reason="row") from error


def _types(columns: Sequence[ColumnInfo]) -> dict[str, pa.DataType]:
    """The types of the columns; what has no short name is read as it is written."""
    types: dict[str, pa.DataType] = {}
    for column in columns:
        types[column.name] = pa.null()
        with suppress(ValueError):
            types[column.name] = pa.type_for_alias(column.type)
    return types


def parse_row(text: str) -> dict[str, object]:
    """A row written as a JSON object. Raises UsageError if it is not one."""
    try:
        row = json.loads(text, parse_float=numeral)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise UsageError(f"the row {_brief(text)} is not JSON: {error}", reason="row") from error
    if not isinstance(row, dict):
        raise UsageError(
            f'the row {_brief(text)} is no object: write {{"column": value}}', reason="row"
        )
    return row


def _brief(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…")
