"""From what a source or table says of its rows to the decoder of those rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.runtime.formats import Column, CsvFormat, JsonFormat, RecordFormat
from tidemill.runtime.resources.specs import ColumnSpec, SourceSpec


def columns_of(stated: Sequence[ColumnSpec]) -> tuple[Column, ...]:
    """The columns that a decoder takes."""
    return tuple(Column(column.name, column.type, column.nullable) for column in stated)


def schema_of(stated: Sequence[ColumnSpec]) -> pa.Schema:
    """The Arrow schema of the rows."""
    return pa.schema([column.field() for column in columns_of(stated)])


def record_format_of(spec: SourceSpec) -> RecordFormat:
    """How one record of the source is written; rows of Parquet files are given as JSON objects."""
    if spec.format.csv is not None:
        return CsvFormat(spec.format.csv.delimiter)
    if spec.file is not None and spec.file.format == "csv":
        return CsvFormat()
    return JsonFormat()


def has_header(spec: SourceSpec) -> bool:
    """Whether the first line of the file names the columns; records of a log have no such line."""
    if spec.file is None or spec.file.format != "csv":
        return False
    stated = None if spec.format.csv is None else spec.format.csv.header
    return True if stated is None else stated
