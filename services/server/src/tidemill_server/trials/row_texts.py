"""Rows of cases as JSON in which each written digit counts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from tidemill.datalog.records import typed_of
from tidemill.time.typed import Json, write_typed


class Digits(float):
    """A number of a case that is no float with all its digits; `text` has them, as JSON has."""

    text: str


def number_of(text: str) -> float:
    """The number that a case writes with a point or an exponent. Raises: ValueError for none."""
    number = float(text)
    if not text.lower().lstrip("+-")[:1].isalpha():
        exact = Decimal(text)
        if not isfinite(number) or Decimal(repr(number)) != exact:
            number = Digits(number)
            number.text = str(exact)
    return number


def row_text(value: Any) -> str:
    """A row, or a cell of one, as JSON. Values of the language are what a source reads as them."""
    if isinstance(value, Mapping):
        cells = (f"{json.dumps(k, ensure_ascii=False)}: {row_text(v)}" for k, v in value.items())
        return "{" + ", ".join(cells) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(row_text, value)) + "]"
    if isinstance(value, Digits | Json):
        return value.text
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode()
    elif not isinstance(value, str) and (typed := typed_of(value)) is not None:
        value = write_typed(typed)
    return json.dumps(value, ensure_ascii=False)
