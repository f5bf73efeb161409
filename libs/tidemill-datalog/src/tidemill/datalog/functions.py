"""The scalar functions of the language.

Every function of null is null, except `is_null` and `coalesce`. Arguments in brackets may be left
out. A function fails with one of the
reasons of `values.py` or returns a value of the language; text comes back in normal form C. Values
that mix whole numbers and floats come back as floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tidemill.datalog.elements import holds
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.math_functions import MATH_FUNCTIONS
from tidemill.datalog.scalar import ScalarFunction as ScalarFunction
from tidemill.datalog.scalar import Signature, made, number_of, strict, text_of, whole_of
from tidemill.datalog.text_functions import TEXT_FUNCTIONS, shown
from tidemill.datalog.time_functions import TIME_FUNCTIONS
from tidemill.datalog.typed_functions import TYPED_FUNCTIONS
from tidemill.datalog.values import (
    INT_MAX,
    NEGATIVE_INDEX,
    NOT_A_NUMBER,
    OVERFLOW,
    SIZE_NOT_POSITIVE,
    TEXT_MAX,
    WRONG_TYPE,
    Failed,
    Value,
    compare,
    finite,
    instant,
    normal,
    span,
    whole,
)
from tidemill.time.typed import EPOCH, TYPE_NAMES


def _to_whole(x: Value, rounded: Callable[[Any], int]) -> Value:
    number = x if isinstance(x, Decimal) else number_of(x)
    if type(number) is int:
        return number
    if not math.isfinite(number):
        raise Failed(OVERFLOW)
    return whole(rounded(number))


def _floor(x: Value) -> Value:
    """The greatest whole number that is at most `x`."""
    return _to_whole(x, math.floor)


def _ceil(x: Value) -> Value:
    """The least whole number that is at least `x`."""
    return _to_whole(x, math.ceil)


def _round(x: Value) -> Value:
    """The nearest whole number; a half moves away from zero."""
    return _to_whole(x, _half_away_from_zero)


def _half_away_from_zero(x: float | Decimal) -> int:
    exact = abs(Fraction(x))
    lower = math.floor(exact)
    away = lower + 1 if exact - lower >= Fraction(1, 2) else lower
    return -away if x < 0 else away


def _absolute(x: Value) -> Value:
    """The number or the duration without its sign."""
    if isinstance(x, timedelta | Decimal):
        return abs(x) if isinstance(x, timedelta) else x.copy_abs()
    number = abs(number_of(x))
    return whole(number) if type(number) is int else number


def _extreme(sign: int, values: tuple[Value, ...]) -> Value:
    best = values[0]
    for other in values[1:]:
        if compare(other, best) == sign:
            best = other
    return _among(best, values)


def _least(*values: Value) -> Value:
    """The smallest of the values."""
    return _extreme(-1, values)


def _greatest(*values: Value) -> Value:
    """The largest of the values."""
    return _extreme(1, values)


def _among(value: Value, arguments: tuple[Value, ...]) -> Value:
    """One of the arguments, as a float if there are floats; infinity is a whole number too."""
    if type(value) is int and any(type(x) is float and math.isfinite(x) for x in arguments):
        return float(value)
    return value


def _length(x: Value) -> Value:
    """The number of characters of a text, of members of a set, or of bytes."""
    if isinstance(x, (str, frozenset, bytes)):
        return len(x)
    raise Failed(WRONG_TYPE)


def _lower(text: Value) -> Value:
    """The text in lower case."""
    return made(text_of(text).lower())


def _upper(text: Value) -> Value:
    """The text in upper case."""
    return made(text_of(text).upper())


def _concat(*texts: Value) -> Value:
    """The texts one after the other."""
    parts = [text_of(x) for x in texts]
    if sum(map(len, parts)) > TEXT_MAX:
        raise Failed(OVERFLOW)
    return normal("".join(parts))


def _substring(text: Value, index: Value, size: Value) -> Value:
    """At most `size` characters of the text from `index` on; the first character has index 0."""
    letters, start, count = text_of(text), whole_of(index), whole_of(size)
    if start < 0 or count < 0:
        raise Failed(NEGATIVE_INDEX)
    return normal(letters[start : start + count])


def _starts_with(text: Value, part: Value) -> Value:
    """Whether the text begins with the part."""
    return text_of(text).startswith(text_of(part))


def _ends_with(text: Value, part: Value) -> Value:
    """Whether the text ends with the part."""
    return text_of(text).endswith(text_of(part))


def _contains(within: Value, part: Value) -> Value:
    """Whether a text has the part, or a set the member."""
    if isinstance(within, frozenset):
        return holds(within, part)
    return text_of(part) in text_of(within)


_DIGITS = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _int(x: Value) -> Value:
    """A whole number from decimal digits, a boolean, or a number whose fraction is cut off."""
    if isinstance(x, str):
        if not _DIGITS.fullmatch(x):
            raise Failed(NOT_A_NUMBER)
        digits = x.lstrip("+-0")
        return whole(int(x)) if len(digits) <= 19 else whole(INT_MAX + 1)
    if isinstance(x, bool):
        return int(x)
    return _to_whole(x, math.trunc)


def _float(x: Value) -> Value:
    """A float from a number, or from a text in decimal notation."""
    if isinstance(x, str):
        if not _DECIMAL.fullmatch(x):
            raise Failed(NOT_A_NUMBER)
        return finite(float(x))
    return float(x if isinstance(x, Decimal) else number_of(x))


def _as_text(x: Value) -> Value:
    """The value as a program writes it, a text without its quotes; a set has no text."""
    return shown(x)


def _bucket(t: Value, size: Value) -> Value:
    """The greatest multiple of `size` that is at most `t`: the start of its window.

    Of a timestamp or a duration the size is a duration; the windows of timestamps begin with 1970.
    """
    if isinstance(size, timedelta):
        return _bucket_of_time(t, size)
    number, step = number_of(t), number_of(size)
    if step <= 0:
        raise Failed(SIZE_NOT_POSITIVE)
    if type(number) is int and type(step) is int:
        return whole(number // step * step)
    if not (math.isfinite(number) and math.isfinite(step)):
        raise Failed(OVERFLOW)
    exact = Fraction(number) // Fraction(step) * Fraction(step)
    try:
        return finite(float(exact))
    except OverflowError:
        raise Failed(OVERFLOW) from None


def _bucket_of_time(t: Value, size: timedelta) -> Value:
    if size <= timedelta():
        raise Failed(SIZE_NOT_POSITIVE)
    if isinstance(t, timedelta):
        return span(t // size * size)
    if isinstance(t, datetime):
        return instant(lambda: EPOCH + (t - EPOCH) // size * size)
    raise Failed(WRONG_TYPE)


def _is_null(x: Value) -> Value:
    """Whether the value is null."""
    return x is None


def _coalesce(*values: Value) -> Value:
    """The first value that is not null; null if all are."""
    first = next((x for x in values if x is not None), None)
    return _among(first, values)


_OF_DECIMALS: tuple[Signature, ...] = ((("decimal",), "int"),)
_ALSO: Mapping[str, tuple[Signature, ...]] = {
    "abs": ((("duration",), "same"), (("decimal",), "same")),
    **dict.fromkeys(("floor", "ceil", "round", "int"), _OF_DECIMALS),
    "float": ((("decimal",), "float"),),
    "text": tuple(((kind,), "text") for kind in TYPE_NAMES.values()),
    "bucket": ((("timestamp", "duration"), "same"), (("duration", "duration"), "same")),
    "length": ((("bytes",), "int"),),
}
"""Types that functions of numbers and texts take besides."""
_FURTHER = (*TEXT_FUNCTIONS, *MATH_FUNCTIONS, *TIME_FUNCTIONS, *TYPED_FUNCTIONS)


def _table() -> Mapping[str, ScalarFunction]:
    of_null_null: list[tuple[str, int, int | None, Callable[..., Value], ColumnType]] = [
        ("abs", 1, 1, _absolute, "any"),
        ("floor", 1, 1, _floor, "int"),
        ("ceil", 1, 1, _ceil, "int"),
        ("round", 1, 1, _round, "int"),
        ("least", 1, None, _least, "any"),
        ("greatest", 1, None, _greatest, "any"),
        ("length", 1, 1, _length, "int"),
        ("lower", 1, 1, _lower, "text"),
        ("upper", 1, 1, _upper, "text"),
        ("concat", 1, None, _concat, "text"),
        ("substring", 3, 3, _substring, "text"),
        ("starts_with", 2, 2, _starts_with, "bool"),
        ("ends_with", 2, 2, _ends_with, "bool"),
        ("contains", 2, 2, _contains, "bool"),
        ("int", 1, 1, _int, "int"),
        ("float", 1, 1, _float, "float"),
        ("text", 1, 1, _as_text, "text"),
        ("bucket", 2, 2, _bucket, "any"),
    ]
    table = {
        name: ScalarFunction(name, least, most, strict(function), gives=gives)
        for name, least, most, function, gives in of_null_null
    }
    for name, also in _ALSO.items():
        table[name] = replace(table[name], also=also)
    table["is_null"] = ScalarFunction("is_null", 1, 1, _is_null, gives="bool")
    table["coalesce"] = ScalarFunction("coalesce", 1, None, _coalesce)
    return table | {each.name: each for each in _FURTHER}


FUNCTIONS: Mapping[str, ScalarFunction] = _table()
"""The functions every program may use, by name; a host program adds its own beside them."""
