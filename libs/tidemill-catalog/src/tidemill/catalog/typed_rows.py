"""Rows of users with times, decimal numbers, bytes, UUIDs and JSON, as their columns have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt

from tidemill.arrangement.column_types import arrow_type, column_type
from tidemill.shard.incoming import refused
from tidemill.time.typed import (
    BYTES_MAX,
    fitting,
    json_of,
    read_base64,
    read_date,
    read_decimal,
    read_instant,
    read_json,
    read_span,
    read_uuid,
)


def typed_column(array: pa.Array, field: pa.Field, table: str) -> pa.Array:
    """The values as the type of the column: of that type, or of texts that write them.

    An instant without a zone is one of UTC. Numbers and texts become decimal numbers if no digit is
    lost; texts become bytes by base64, and JSON as it is written. Raises: UsageError with the row.
    """
    kind = column_type(field.type)
    assert kind is not None
    wanted = arrow_type(kind)
    if array.type == wanted and kind not in ("json", "bytes", "timestamp", "duration"):
        return array
    if pt.is_timestamp(array.type) and array.type.unit == "ns":
        array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
    if pt.is_duration(array.type) and array.type.unit == "ns":
        array = array.cast(pa.duration("us"), safe=False)
    found = []
    for at, value in enumerate(_values(array, field, table), 1):
        cell = None if value is None else read_cell(kind, value)
        if cell is None and value is not None:
            raise refused(table, field.name, f"is not {kind} in row {at}: {_brief(value)}")
        found.append(cell)
    try:
        return pa.array(found, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise refused(table, field.name, f"is not {kind}: {error}") from error


def read_cell(kind: str, value: Any) -> Any:
    """A value of the type, or a text that writes one, as Arrow takes it; None for all else."""
    return _READ[kind.partition("(")[0]](value)


def _values(array: pa.Array, field: pa.Field, table: str) -> list[Any]:
    try:
        found: list[Any] = array.to_pylist()
        return found
    except Exception as error:  # of one value, that Python cannot name
        raise refused(table, field.name, f"has a value that cannot be read: {error}") from error


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _instant(value: Any) -> Any:
    if isinstance(value, str):
        return read_instant(value)
    if isinstance(value, datetime):
        return read_instant(value.isoformat())
    return None


def _date(value: Any) -> Any:
    if isinstance(value, str):
        return read_date(value)
    return value if type(value) is date else None


def _span(value: Any) -> Any:
    if isinstance(value, timedelta):
        value = f"{'-' if value < timedelta() else ''}{abs(value) // timedelta(microseconds=1)}us"
    return read_span(value) if isinstance(value, str) else None


def _decimal(value: Any) -> Any:
    if isinstance(value, bool):
        return None
    if isinstance(value, str | int | float):
        return read_decimal(str(value))
    return fitting(value) if isinstance(value, Decimal) else None


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        return read_base64(value)
    return value if isinstance(value, bytes) and len(value) <= BYTES_MAX else None


def _uuid(value: Any) -> Any:
    found = read_uuid(value) if isinstance(value, str) else value
    if isinstance(found, UUID):
        return found.bytes
    return found if isinstance(found, bytes) and len(found) == 16 else None


def _json(value: Any) -> Any:
    found = read_json(value) if isinstance(value, str) else json_of(value)
    return None if found is None else found.text


_READ: Mapping[str, Callable[[Any], Any]] = {
    "timestamp": _instant, "date": _date, "duration": _span, "decimal": _decimal, "bytes": _bytes,
    "uuid": _uuid, "json": _json,
}  # fmt: skip
