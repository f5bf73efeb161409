"""Cells of times, decimal numbers, bytes, UUIDs and JSON, from the values of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from tidemill.time.typed import (
    Typed,
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

REFUSALS = (ValueError, TypeError, OverflowError)
"""Errors with which Arrow refuses a cell; those of memory are none, and say nothing of it."""
_UUID_BYTES, _UUID_CHARS = 16, 24
"""Bytes, and characters of them in base64, as columns of bytes come to be read."""


def _uuid(text: str) -> bytes | None:
    if len(text) == _UUID_CHARS and text.endswith("=="):
        data = read_base64(text)
        return data if data is not None and len(data) == _UUID_BYTES else None
    found = read_uuid(text)
    return None if found is None else found.bytes


_READ: Mapping[str, Callable[[str], Typed | None]] = {
    "timestamp": read_instant, "date": read_date, "duration": read_span, "decimal": read_decimal,
    "bytes": read_base64, "uuid": _uuid,
}  # fmt: skip


def is_typed(kind: str) -> bool:
    """Whether a column has one of these types."""
    return kind.startswith("decimal") or kind in _READ or kind == "json"


def typed_cell(value: object, kind: str) -> object:
    """The cell that a value of a record is, None for a value that is none of the type.

    Times, durations, UUIDs and bytes (in base64) are texts, decimal numbers are texts or numbers.
    JSON is any value: `value` is its text where it is Raw. A decimal number with too many digits is
    none.
    """
    if kind == "json":
        found = read_json(_text(value)) if isinstance(value, msgspec.Raw) else json_of(value)
        return None if found is None else found.text
    if isinstance(value, msgspec.Raw):
        value = _scalar(_text(value))
    if kind.startswith("decimal"):
        return _decimal(value, kind)
    return _READ[kind](value) if isinstance(value, str) else None


def with_texts_read(row: Any, members: Sequence[str]) -> Any:
    """The row, of which each of these members that is a text is the value that this text writes.

    Shapes: members are Raw, or None. A text that is no JSON makes its member none.
    """
    for name in members:
        value = getattr(row, name)
        if value is not None and bytes(value).startswith(b'"'):
            setattr(row, name, msgspec.Raw(msgspec.json.decode(value).encode()))
    return row


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode(errors="replace")


def _scalar(text: str) -> object:
    """The text, or the number, that a value of JSON is; numbers keep their digits."""
    if text.startswith('"'):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return None
    return read_decimal(text)


def _decimal(value: Any, kind: str) -> Decimal | None:
    if isinstance(value, bool):
        return None
    found = fitting(value) if isinstance(value, Decimal) else read_decimal(str(value))
    if found is None:
        return None
    digits, scale = map(int, kind[8:-1].split(","))
    exponent = found.as_tuple().exponent
    assert isinstance(exponent, int)
    fits = -exponent <= scale and found.adjusted() < digits - scale
    return found if fits or not found else None  # zero has a digit before the point in Python
