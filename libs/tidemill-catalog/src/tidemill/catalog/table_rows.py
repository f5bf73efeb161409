"""Rows of users in the form of the language: typed, finite, in normal form."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidemill.arrangement.json_cells import is_documents
from tidemill.arrangement.updates import DIFF
from tidemill.catalog.names import meant
from tidemill.catalog.typed_rows import typed_column
from tidemill.errors import UsageError
from tidemill.rpc.messages import rows_of_insert
from tidemill.shard.conforming import DIFF_MAX
from tidemill.shard.incoming import normal_column, refused

_FITS: dict[pa.DataType, tuple[str, Callable[[pa.DataType], bool]]] = {
    pa.int64(): ("int", lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t)),
    pa.float64(): ("float", lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t)),
    pa.string(): ("text", lambda t: pt.is_string(t) or pt.is_large_string(t)),
    pa.bool_(): ("bool", pt.is_boolean),
}
"""Of each type of a column its name and what may come in for it; whole numbers may be written as
floats.
"""


def fitted(rows: pa.Table, schema: pa.Schema, table: str) -> tuple[pa.Table, pa.Array]:
    """(rows as the columns of a table, multiplicity of each).

    A column that may be null may be left out. `_diff` is 1 where it is left out. Other columns with
    `_` before their names, as answers have them, are left unread. Text is put into normal form C, a
    zero loses its sign. Raises: UsageError with the name of a wrong column. It is missing or
    unknown, has another type or a forbidden null, an infinite float, a text with too many marks, or
    a large `_diff`. The rows may also be too many.
    """
    refuse_many_values(rows.num_rows, len(schema), table)
    missing = [f.name for f in schema if f.name not in rows.column_names and not f.nullable]
    if missing:
        raise UsageError(f"rows for {table} lack the columns {', '.join(missing)}")
    known = set(schema.names)
    unknown = [name for name in rows.column_names if name not in known and name[:1] != "_"]
    if unknown:
        near = meant(unknown[0], schema.names)
        raise UsageError(f"rows refused: {table} has no column {unknown[0]}{near}", reason="rows")
    columns = [_column(rows, field, table) for field in schema]
    data = pa.Table.from_arrays(columns, schema=schema) if columns else rows.select([])
    return data, _diffs(rows, table)


def refuse_many_values(rows: int, columns: int, table: str) -> None:
    """Raise UsageError where so many rows of so many columns are too much memory."""
    most = rows_of_insert(columns)
    if rows > most:
        raise UsageError(
            f"{rows} rows for {table} are too many with {columns} columns: insert at most {most} at "
            "once",
            reason="rows",
        )


def _diffs(rows: pa.Table, table: str) -> pa.Array:
    if DIFF not in rows.column_names:
        return pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
    given = rows[DIFF].combine_chunks()
    diffs = _typed(given, pa.field(DIFF, pa.int64()), table).fill_null(1)
    beyond = pc.any(pc.or_(pc.greater(diffs, DIFF_MAX), pc.less(diffs, -DIFF_MAX))).as_py()
    if beyond:
        raise UsageError(f"rows for {table}: a {DIFF} is beyond ±{DIFF_MAX}", reason="Diff")
    return diffs


def _column(rows: pa.Table, field: pa.Field, table: str) -> pa.Array:
    if field.name not in rows.column_names:
        return pa.nulls(rows.num_rows, field.type)
    if field.type == pa.string() and is_documents(rows.schema.field(field.name)):
        raise refused(table, field.name, "is an object or a list in some row, not text")
    array = _typed(rows[field.name].combine_chunks(), field, table)
    if array.null_count and not field.nullable:
        at = pc.index(array.is_null(), True).as_py()
        says = f"is null in row {at + 1}; write nullable: true to allow it"
        raise refused(table, field.name, says)
    return normal_column(array, field.name, table)


def _typed(array: pa.Array, field: pa.Field, table: str) -> pa.Array:
    """The values as the type of the column, where that changes none. Raises: UsageError."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if field.type not in _FITS:
        return typed_column(array, field, table)
    word, fits = _FITS[field.type]
    if not (fits(array.type) or pt.is_null(array.type)):
        raise refused(table, field.name, f"is {array.type}, not {word}")
    try:
        if pt.is_decimal(array.type) and field.type == pa.float64():
            array = array.cast(pa.string())  # NB: Arrow rounds decimals twice on the way to a float
        # A whole number beyond 2^53 becomes the nearest float, as in every column of floats.
        return array.cast(field.type, safe=field.type != pa.float64())
    except pa.ArrowInvalid as error:
        raise refused(table, field.name, f"is not {word}: {error}") from error
