"""Conditions on rows as callers send them, as a filter of rows (SU6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.column_types import column_type
from tidemill.catalog.typed_rows import read_cell
from tidemill.errors import UsageError
from tidemill.rpc.messages import Comparison, Condition
from tidemill.time import normal

CONDITIONS_MAX = 1_000
"""Conditions of a filter: Arrow evaluates it on its stack, in quadratic time.

Ten thousand end the process.
"""

_COMPARED = {
    Comparison.EQUAL: eq,
    Comparison.NOT_EQUAL: ne,
    Comparison.LESS: lt,
    Comparison.LESS_OR_EQUAL: le,
    Comparison.GREATER: gt,
    Comparison.GREATER_OR_EQUAL: ge,
}
_BY_EQUALITY = (Comparison.EQUAL, Comparison.NOT_EQUAL)


def filter_of(conditions: Sequence[Condition], schema: pa.Schema) -> pc.Expression | None:
    """Filter of rows of the schema; None if there is no condition.

    Raises: UsageError for too many of them, a column that is not there, or a value that is not of
    its type.
    """
    _refuse_many(conditions)
    return reduce(and_, (_met(each, schema) for each in conditions)) if conditions else None


def fixed_by(conditions: Sequence[Condition], schema: pa.Schema) -> dict[str, object]:
    """The columns that the conditions fix, with their values. Raises: as `filter_of`, of those."""
    _refuse_many(conditions)
    return {
        each.column: None if each.value is None else _scalar(each, _kind_of(each, schema)).as_py()
        for each in conditions
        if each.comparison is Comparison.EQUAL
    }


def refuse_unknown(columns: Sequence[str], schema: pa.Schema) -> None:
    """Raises: UsageError for columns of an answer that are not there, or are named twice."""
    for column in columns:
        _index(column, schema, "answer")
    if len(set(columns)) < len(columns):
        raise UsageError("answer refused: name each of its columns once", reason="Twice")


def _index(column: str, schema: pa.Schema, asked: str) -> int:
    """The place of a column. Raises: UsageError."""
    at: int = schema.get_field_index(column)
    if at < 0:
        raise UsageError(
            f"{asked} refused: there is no column {column}; there are {', '.join(schema.names)}",
            reason="UnknownColumn",
        )
    return at


def _refuse_many(conditions: Sequence[Condition]) -> None:
    if len(conditions) > CONDITIONS_MAX:
        raise UsageError(
            f"filter refused: it has {len(conditions):,} conditions, more than {CONDITIONS_MAX:,}",
            reason="TooMany",
        )


def _kind_of(condition: Condition, schema: pa.Schema) -> pa.DataType:
    return schema.field(_index(condition.column, schema, "filter")).type


def _met(condition: Condition, schema: pa.Schema) -> pc.Expression:
    kind = _kind_of(condition, schema)
    column = pc.field(condition.column)
    if condition.value is None:
        if condition.comparison is Comparison.EQUAL:
            return column.is_null()
        if condition.comparison is Comparison.NOT_EQUAL:
            return column.is_valid()
        return pc.scalar(value=False)
    value = pc.scalar(_scalar(condition, kind))
    met = _COMPARED[condition.comparison](column, value)
    # A null is unequal to every value; Arrow would not say.
    unequal = condition.comparison is Comparison.NOT_EQUAL
    return met | column.is_null() if unequal else met & column.is_valid()


def _scalar(condition: Condition, kind: pa.DataType) -> pa.Scalar[pa.DataType]:
    """The value as one of the column's type, exactly.

    It is written as in rows: times, durations, UUIDs, bytes in base64 and JSON as text.
    """
    value, name = condition.value, column_type(kind)
    if name == "json" and condition.comparison not in _BY_EQUALITY:
        raise UsageError(
            f"filter refused: {condition.column} is json, which has no order: write == or !=",
            reason="Value",
        )
    truth = isinstance(value, bool) == pa.types.is_boolean(kind)
    fits = (truth or name == "json") and isinstance(value, bool | int | float | str)
    try:
        if not fits:
            raise pa.ArrowInvalid("it is of another type")
        if name is None or name in ("int", "float", "text", "bool"):
            text = normal(value) if name == "text" and isinstance(value, str) else value
            return pa.scalar(text).cast(kind)
        cell = read_cell(name, value)
        if cell is None:
            raise pa.ArrowInvalid("it is not written as one")
        return pa.scalar(cell, kind)
    except (ValueError, TypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise UsageError(
            f"filter refused: {value!r} is no value of {condition.column}, which is "
            f"{name or kind}: {error}",
            reason="Value",
        ) from error
