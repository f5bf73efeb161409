"""Filters that Spark pushes down, as conditions of Arrow.

A condition is true for a row exactly if Spark's filter is. A filter of which this is not certain is
left to Spark, such as one on floats: NaN has another order there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "EqualTo": lambda column, value: column == value,
    "GreaterThan": lambda column, value: column > value,
    "GreaterThanOrEqual": lambda column, value: column >= value,
    "LessThan": lambda column, value: column < value,
    "LessThanOrEqual": lambda column, value: column <= value,
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Condition that rows are to meet, and the columns that it names; None is all rows."""

    where: pc.Expression | None = None
    columns: frozenset[str] = frozenset()


def pushed(filters: Iterable[Any], schema: pa.Schema) -> tuple[Pushed, list[Any]]:
    """The filters that are met here, and those that are left to Spark."""
    conditions, columns, left = [], set(), []
    for each in filters:
        condition = _condition(each, schema)
        if condition is None:
            left.append(each)
        else:
            conditions.append(condition)
            columns.add(_attribute(each)[0])
    if not conditions:
        return Pushed(), left
    return Pushed(reduce(and_, conditions), frozenset(columns)), left


def _attribute(given: Any) -> tuple[str, ...]:
    return tuple(given.child.attribute if _kind(given) == "Not" else given.attribute)


def _kind(given: Any) -> str:
    return type(given).__name__


def _condition(given: Any, schema: pa.Schema) -> pc.Expression | None:
    kind = _kind(given)
    if kind == "Not":
        # Spark's filter is null for null, and so is not met.
        inner = given.child
        if _kind(inner) not in ("EqualTo", "In", "StringStartsWith"):
            return None
        found = _condition(inner, schema)
        return None if found is None else ~found & pc.field(inner.attribute[0]).is_valid()
    path = given.attribute
    at = schema.get_field_index(path[0]) if len(path) == 1 else -1
    if at < 0:
        return None
    column, of = pc.field(path[0]), schema.field(at).type
    if kind == "IsNull":
        return column.is_null()
    if kind == "IsNotNull":
        return column.is_valid()
    return _compared(kind, column, given.value, of) if _ordered_alike(of) else None


def _compared(
    kind: str, column: pc.Expression, value: Any, of: pa.DataType
) -> pc.Expression | None:
    if kind == "In":
        values = [_scalar(each, of) for each in value]
        return None if None in values else column.isin(pa.array(values, of))
    scalar = _scalar(value, of)
    if scalar is None:
        return None
    if kind == "EqualNullSafe":
        return (column == scalar) & column.is_valid()
    if kind == "StringStartsWith" and pa.types.is_string(of):
        return pc.starts_with(column, scalar.as_py())
    compare = _COMPARED.get(kind)
    return None if compare is None else compare(column, scalar)


def _ordered_alike(kind: pa.DataType) -> bool:
    """Whether Arrow and Spark order the values of a type alike."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
        or pa.types.is_boolean(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )  # fmt: skip


def _scalar(value: Any, kind: pa.DataType) -> Any:
    """The value as the column has it; None for null, and for what no column of the type holds."""
    if value is None:
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None
