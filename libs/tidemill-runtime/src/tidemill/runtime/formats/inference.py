"""The columns of a source from a sample of its records."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import msgspec

from tidemill.errors import UsageError
from tidemill.runtime.formats.columns import (
    DIGITS_MAX,
    FLOAT_TEXT,
    INT_MAX,
    INT_MIN,
    INT_TEXT,
    NOT_JSON,
    BadRow,
    Column,
    ColumnKind,
    check_nesting,
    csv_lines,
)
from tidemill.runtime.formats.kinds import CsvFormat, JsonFormat


def infer_columns(
    values: Sequence[bytes], record_format: JsonFormat | CsvFormat, header: Sequence[str] = ()
) -> tuple[Column, ...]:
    """The least columns that hold the rows of a sample, all nullable: a sample proves no absence.

    Values of several kinds make a text column, whose other values will be dead letters. Members
    that are lists or objects fit no column and are left out. Members of JSON objects come in the
    order of their first appearance; CSV columns are named by `header`, else c0, c1, …. Raises:
    UsageError if the sample has no usable row.
    """
    seen: dict[str, ColumnKind | None] = {}
    for row in _sampled(values, record_format, header):
        for name, kind in row.items():
            seen[name] = _wider(seen.get(name), kind)
    if not seen:
        raise UsageError("no row of the sample can be read: state the columns", reason="NoSample")
    return tuple(Column(name, kind or "text", True) for name, kind in seen.items())


def _sampled(
    values: Sequence[bytes], record_format: JsonFormat | CsvFormat, header: Sequence[str]
) -> Iterator[dict[str, ColumnKind | None]]:
    for value in values:
        if isinstance(record_format, JsonFormat):
            try:
                check_nesting(value)
                document = msgspec.json.decode(value)
            except (BadRow, *NOT_JSON):
                continue
            if isinstance(document, dict):
                flat = {
                    n: cell for n, cell in document.items() if not isinstance(cell, list | dict)
                }
                yield {name: _json_kind(cell) for name, cell in flat.items()}
        else:
            try:
                lines = list(csv_lines(value.decode("utf-8"), record_format.delimiter))
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
    if INT_TEXT.fullmatch(word) and len(word) <= DIGITS_MAX:
        return "int" if INT_MIN <= int(word) <= INT_MAX else "float"
    return "float" if FLOAT_TEXT.fullmatch(word) else "text"


def _wider(a: ColumnKind | None, b: ColumnKind | None) -> ColumnKind | None:
    if a is None or b is None or a == b:
        return a or b
    return "float" if {a, b} == {"int", "float"} else "text"
