"""Columns and cells: admissible values of a column, in whatever format they were written.

A record has the same fate in any company. Text is kept in normal form C, NaN is refused, and whole
numbers have 64 bits. A whole number in a float column is a float, and zero has no sign.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tidemill.arrangement.column_types import arrow_type
from tidemill.errors import UsageError
from tidemill.runtime.formats.typed_cells import REFUSALS, is_typed, typed_cell
from tidemill.time import MARKS_MAX, normal

ColumnKind: TypeAlias = str
"""The name of a type, as `column_types.type_named` gives it."""

SHOWN_CHARACTERS_MAX = 60
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
NESTING_MAX = 100
_SLICE_BYTES = 1 << 16
"""So much of a record is looked at at once, since that takes some thirty bytes for each."""
NO_VALUE = "the record has no value"
DIGITS_MAX = 4_000
"""Longer numbers are not looked at: Python refuses to convert them."""
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""Errors of the decoder for bytes that are no JSON or no UTF-8."""
csv.field_size_limit(1 << 30)  # the limit of the csv module would refuse what Arrow reads
INT_TEXT = re.compile(r"[+-]?[0-9]+")
FLOAT_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
TRUTHS: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a source; a missing or null value of one that is not nullable is a bad row."""

    name: str
    kind: ColumnKind
    nullable: bool = False

    def field(self) -> pa.Field[pa.DataType]:
        """The column in an Arrow schema."""
        return pa.field(self.name, arrow_type(self.kind), self.nullable)


class BadRow(Exception):
    """A record that is no row; the text is the reason, with halves of surrogate pairs escaped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason.encode(errors="backslashreplace").decode())


def cell_of(value: object, column: Column) -> object:
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
            return _normal(value, column)
        case "bool" if isinstance(value, bool):
            return value
        case kind if is_typed(kind):
            return _typed(value, column)
    raise BadRow(f"the column {column.name} is {_kind_of(value)}, not {column.kind}")


def _typed(value: object, column: Column) -> object:
    """The cell of a column of times, decimal numbers, bytes, UUIDs or JSON. Raises: BadRow."""
    null = isinstance(value, msgspec.Raw) and bytes(value) == b"null"
    if null and (column.nullable or column.kind != "json"):
        return cell_of(None, column)
    found = typed_cell(value, column.kind)
    if found is None:
        shown = bytes(value).decode(errors="replace") if isinstance(value, msgspec.Raw) else value
        raise BadRow(f"the column {column.name} is not {column.kind}: {_brief(str(shown))}")
    return found


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    names = {int: "int", float: "float", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def parsed_cell(written: str, column: Column) -> object:
    """A CSV field as a cell of the column; an empty one is null. Raises: BadRow."""
    if written == "":
        if column.nullable:
            return None
        if column.kind == "text":
            return ""
        raise BadRow(f"the column {column.name} is empty")
    if column.kind == "text":
        return _normal(written, column)
    word = written.strip(" \t")
    if column.kind == "json":
        return _typed(msgspec.Raw(written.encode()), column)
    if is_typed(column.kind):
        return _typed(word, column)
    if column.kind == "int" and INT_TEXT.fullmatch(word):
        return (
            cell_of(int(word), column) if len(word) <= DIGITS_MAX else cell_of(INT_MAX + 1, column)
        )
    if column.kind == "float" and (FLOAT_TEXT.fullmatch(word) or _NOT_FINITE.fullmatch(word)):
        return _finite(word, column)
    if column.kind == "bool" and word.lower() in TRUTHS:
        return TRUTHS[word.lower()]
    raise BadRow(f"the column {column.name} is not {column.kind}: {_brief(written)!r}")


def arrays_of(
    cells: Sequence[Sequence[object]], columns: Sequence[Column]
) -> tuple[list[Any], dict[int, str]]:
    """The columns as arrays without the rows of which Arrow refuses a cell; these, and why.

    Shapes: `cells[i]` is column i; all have one length. Cost: O(cells); where one is refused, about
    a microsecond for each of them.
    """
    kinds = [arrow_type(column.kind) for column in columns]
    refused: dict[int, str] = {}
    try:
        return [pa.array(held, kind) for held, kind in zip(cells, kinds, strict=True)], refused
    except REFUSALS:
        for held, kind, column in zip(cells, kinds, columns, strict=True):
            for at, cell in enumerate(held):
                try:
                    pa.array([cell], kind)
                except REFUSALS as error:
                    refused.setdefault(at, f"the column {column.name} cannot hold it: {error}")
        if not refused:
            raise
    kept = [at for at in range(len(cells[0])) if at not in refused]
    found = zip(cells, kinds, strict=True)
    return [pa.array([held[at] for at in kept], kind) for held, kind in found], refused


def _normal(written: str, column: Column) -> str:
    """The text in normal form C. Raises: BadRow."""
    try:
        return normal(written)
    except UsageError:
        raise BadRow(
            f"the column {column.name} has more than {MARKS_MAX} combining marks in a row"
        ) from None


def _finite(written: str, column: Column) -> float:
    """The number that `written` is, without a sign if it is zero. Raises: BadRow."""
    number = float(written)
    if not math.isfinite(number):
        raise BadRow(f"the column {column.name} is not a finite number: {_brief(written)}")
    return number + 0.0


def _brief(written: str) -> str:
    return written if len(written) <= SHOWN_CHARACTERS_MAX else f"{written[:SHOWN_CHARACTERS_MAX]}…"


def check_nesting(value: bytes | None) -> None:
    """Refuse a missing value, and one nested beyond a fixed depth. Raises: BadRow.

    Without the limit, the depth of the caller's own stack would decide whether it can be decoded.
    Cost: 5 ms for a megabyte with a hundred brackets, in which other threads run; at most two
    copies of the record.
    """
    if value is None:
        raise BadRow(NO_VALUE)
    if value.count(b"[") + value.count(b"{") <= NESTING_MAX:
        return
    plain = np.frombuffer(value.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    within, depth = 0, 0
    for first in range(0, len(plain), _SLICE_BYTES):
        part = plain[first : first + _SLICE_BYTES]
        texts = (within + np.cumsum(part == ord('"'), dtype=np.int32)) & 1
        opening = (part == ord("[")) | (part == ord("{"))
        closing = (part == ord("]")) | (part == ord("}"))
        steps = (opening.view(np.int8) - closing.view(np.int8)) * (1 - texts)
        depths = depth + np.cumsum(steps, dtype=np.int64)
        if depths.max() > NESTING_MAX:
            raise BadRow(f"nested more than {NESTING_MAX} levels deep")
        within, depth = int(texts[-1]), int(depths[-1])


def csv_lines(text: str, delimiter: str) -> Iterator[list[str]]:
    """The lines of a record; a line end inside quotes is part of a field. Raises: csv.Error."""
    return csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)


def utf8(value: bytes | None) -> str:
    """The text that `value` is. Raises: BadRow."""
    if value is None:
        raise BadRow(NO_VALUE)
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8: {error.reason} at byte {error.start}") from None
