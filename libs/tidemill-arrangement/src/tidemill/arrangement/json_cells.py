"""Values of JSON as columns in which each written digit counts."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidemill.errors import UsageError
from tidemill.time.typed import fitting, json_of

_CHARS_OF_FLOAT = 16
"""A number of 15 digits and a point is a float that writes the same digits; a longer one may not
be.
"""


def numeral(text: str) -> float | Decimal:
    """A number of JSON that is not written as a whole one: a float if that has all its digits."""
    short = len(text) <= _CHARS_OF_FLOAT and "e" not in text and "E" not in text
    return float(text) if short else Decimal(text)


DOCUMENTS = {"tidemill": "json"}
"""Metadata of a field whose texts stand for objects and lists: a column of text takes none."""


def json_field(name: str, values: Sequence[object], column: pa.Array) -> pa.Field[Any]:
    """The field of a column that `json_column` made of the values."""
    documents = any(isinstance(each, dict | list) for each in values)
    return pa.field(name, column.type, metadata=DOCUMENTS if documents else None)


def is_documents(field: pa.Field[Any]) -> bool:
    """Whether a field is one of objects and lists."""
    return bool(field.metadata) and field.metadata.get(b"tidemill") == b"json"


def json_column(values: Sequence[object]) -> pa.Array:
    """The values of rows as a column: objects and lists as their text, numbers with all digits.

    Numbers are floats or whole numbers where these are exact, else decimal numbers. They are the
    nearest floats where one has more than 76 digits. Raises: UsageError for a value that is none of
    JSON, and what Arrow raises for values of several types. Cost: O(values).
    """
    flat = [_text(each) if isinstance(each, dict | list) else each for each in values]
    if not any(isinstance(each, Decimal) or _is_long(each) for each in flat):
        return pa.array(flat)
    try:
        return pa.array([_exact(each) for each in flat])
    except pa.ArrowInvalid:  # more digits than Arrow has for decimal numbers, which no column has
        return pa.array([_nearest(each) for each in flat])


def _text(value: object) -> str:
    try:
        found = json_of(value)
    except TypeError:
        found = None
    if found is None:
        raise UsageError(
            "rows refused: a value is none of JSON, or has too many characters or levels",
            reason="rows",
        )
    return found.text


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


def _exact(value: object) -> object:
    """A number as a decimal number, without idle zeros; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    fits = fitting(number)
    return number if fits is None else fits


def _nearest(value: object) -> object:
    return float(value) if isinstance(value, int | Decimal) else value
