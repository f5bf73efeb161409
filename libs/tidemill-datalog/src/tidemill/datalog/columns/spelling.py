"""Words of the types beside numbers, texts and truths.

Times are words by themselves: microseconds or days, in the order of the values. Values of the other
types have the number of a text that is equal where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidemill.arrangement.column_types import arrow_type
from tidemill.datalog.logical.forms import Type
from tidemill.time.typed import (
    DAY_MAX,
    DAY_MIN,
    DIGITS_MAX,
    INSTANT_MAX,
    INSTANT_MIN,
    SPAN_MAX,
    Json,
    date_of_days,
    days_of_date,
    fitting,
    instant_of_micros,
    micros_of_instant,
    micros_of_span,
    read_json,
    write_decimal,
)

MOMENTS = frozenset({Type.TIMESTAMP, Type.DATE, Type.DURATION})
"""Types whose words are in the order of their values."""
SPELLED = frozenset({Type.DECIMAL, Type.BYTES, Type.UUID, Type.JSON})
"""Types whose words are numbers of texts, as are those of texts themselves."""
TEXTS = SPELLED | {Type.TEXT}
LIMITS: Mapping[Type, tuple[int, int]] = {
    Type.TIMESTAMP: (INSTANT_MIN, INSTANT_MAX), Type.DATE: (DAY_MIN, DAY_MAX),
    Type.DURATION: (-SPAN_MAX, SPAN_MAX),
}  # fmt: skip
"""The least and the greatest word of each of the `MOMENTS`."""
ARROW: Mapping[Type, pa.DataType] = {
    kind: arrow_type(kind.value) for kind in MOMENTS | SPELLED if kind is not Type.DECIMAL
}
"""Types in Arrow; that of decimal numbers says their digits."""

_WORD: Mapping[Type, Callable[[Any], int]] = {
    Type.TIMESTAMP: micros_of_instant, Type.DATE: days_of_date, Type.DURATION: micros_of_span,
}  # fmt: skip
_MOMENT: Mapping[Type, Callable[[int], Any]] = {
    Type.TIMESTAMP: instant_of_micros, Type.DATE: date_of_days,
    Type.DURATION: lambda micros: timedelta(microseconds=micros),
}  # fmt: skip
_SPELL: Mapping[Type, Callable[[Any], str]] = {
    Type.DECIMAL: write_decimal, Type.BYTES: lambda value: value.decode("latin-1"),
    Type.UUID: lambda value: value.hex, Type.JSON: lambda value: value.text,
}  # fmt: skip
_READ: Mapping[Type, Callable[[str], Any]] = {
    Type.DECIMAL: Decimal, Type.BYTES: lambda text: text.encode("latin-1"),
    Type.UUID: lambda text: UUID(hex=text), Type.JSON: Json,
}  # fmt: skip


def word_of_moment(value: Any, kind: Type) -> int:
    """The word of a time."""
    return _WORD[kind](value)


def moment_of(word: int, kind: Type) -> Any:
    """The time of a word."""
    return _MOMENT[kind](word)


def spelled(value: Any, kind: Type) -> str:
    """The text of a value of one of the types that are spelled."""
    return _SPELL[kind](value)


def read(text: str, kind: Type) -> Any:
    """The value that `spelled` wrote."""
    return _READ[kind](text)


def words_of_arrow(array: pa.Array, kind: Type) -> pa.Array | None:
    """The words of times, or the texts of other values, of an array without nulls in its values.

    None for an array of another type, or with a value that the language has not. Cost: O(n), and
    work in Python for each different value that is spelled.
    """
    if kind in MOMENTS:
        if array.type != ARROW[kind]:
            return None
        words = (
            array.view(pa.int32()).cast(pa.int64()) if kind is Type.DATE else array.view(pa.int64())
        )
        least, most = LIMITS[kind]
        known = words.drop_null().to_numpy()
        return words if not len(known) or (least <= known.min() and known.max() <= most) else None
    if not (pa.types.is_decimal(array.type) if kind is Type.DECIMAL else array.type == ARROW[kind]):
        return None
    coded = array.dictionary_encode()
    texts = [_spelled_as_kept(value, kind) for value in coded.dictionary.to_pylist()]
    if None in texts:
        return None
    return pa.array(texts, pa.string()).take(coded.indices)


def _spelled_as_kept(value: Any, kind: Type) -> str | None:
    """The text of a value as a column of Arrow has it; None for one that the language has not."""
    if kind is Type.DECIMAL:
        number = fitting(value)
        return None if number is None else f"{number:f}"
    if kind is Type.JSON:
        found = read_json(value)
        return None if found is None else found.text
    return value.hex() if kind is Type.UUID else spelled(value, kind)


def arrow_of(values: Any, kind: Type, nulls: Any) -> pa.Array:
    """Words of times, or an array of texts that are spelled, in the type that a column has."""
    if kind in MOMENTS:
        words = pa.array(values, mask=nulls)
        return (
            words.cast(pa.int32()).view(pa.date32())
            if kind is Type.DATE
            else words.view(ARROW[kind])
        )
    if kind is Type.DECIMAL:
        return values.cast(pa.decimal128(DIGITS_MAX, 18))
    found = [None if text is None else _kept(text, kind) for text in values.to_pylist()]
    return pa.array(found, ARROW[kind])


def _kept(text: str, kind: Type) -> Any:
    if kind is Type.UUID:
        return bytes.fromhex(text)
    return text if kind is Type.JSON else text.encode("latin-1")


def words_of_values(values: Sequence[Any], kind: Type) -> Any:
    """Words of times, 0 for null, or the texts of values that are spelled."""
    if kind in MOMENTS:
        of = _WORD[kind]
        return np.array([0 if value is None else of(value) for value in values], np.int64)
    spell = _SPELL[kind]
    return [None if value is None else spell(value) for value in values]
