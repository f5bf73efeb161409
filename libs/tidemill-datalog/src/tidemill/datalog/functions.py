"""The scalar functions of the language (language.md 2, FORMAT-language.md 7).

Every function of null is null, except `is_null` and `coalesce`. A function fails with one of the reasons
of FORMAT-language.md 1.4 or returns a value of the language; text comes back in normal form C. Values that
mix whole numbers and floats come back as floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from tidemill.datalog.catalog import ColumnType
from tidemill.datalog.elements import holds
from tidemill.datalog.records import format_float
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
    normal,
    whole,
)


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A pure function of values: how many arguments it takes and what it computes.

    One of a host says the types of its arguments, and of what it gives.
    """

    name: str
    arity_min: int
    arity_max: int | None
    evaluate: Callable[..., Value]
    takes: tuple[ColumnType, ...] | None = None
    gives: ColumnType = "any"


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise Failed(WRONG_TYPE)


def _number(value: Value) -> int | float:
    if type(value) is int or type(value) is float:
        return value
    raise Failed(WRONG_TYPE)


def _whole(value: Value) -> int:
    if type(value) is int:
        return value
    raise Failed(WRONG_TYPE)


def _to_whole(round_down: Callable[[float], int]) -> Callable[[Value], Value]:
    def function(x: Value) -> Value:
        number = _number(x)
        if type(number) is int:
            return number
        if not math.isfinite(number):
            raise Failed(OVERFLOW)
        return whole(round_down(number))

    return function


def _half_away_from_zero(x: float) -> int:
    lower = math.floor(abs(x))
    away = lower + 1 if Fraction(abs(x)) - lower >= Fraction(1, 2) else lower
    return -away if x < 0 else away


def _absolute(x: Value) -> Value:
    number = abs(_number(x))
    return whole(number) if type(number) is int else number


def _extreme(sign: int) -> Callable[..., Value]:
    def function(*arguments: Value) -> Value:
        best = arguments[0]
        for other in arguments[1:]:
            if compare(other, best) == sign:
                best = other
        return _among(best, arguments)

    return function


def _among(value: Value, arguments: tuple[Value, ...]) -> Value:
    """One of the arguments, as a float if there are floats; infinity is a whole number too."""
    if type(value) is int and any(type(x) is float and math.isfinite(x) for x in arguments):
        return float(value)
    return value


def _length(x: Value) -> Value:
    if isinstance(x, (str, frozenset)):
        return len(x)
    raise Failed(WRONG_TYPE)


def _concat(*arguments: Value) -> Value:
    texts = [_text(x) for x in arguments]
    if sum(map(len, texts)) > TEXT_MAX:
        raise Failed(OVERFLOW)
    return normal("".join(texts))


def _substring(text: Value, index: Value, size: Value) -> Value:
    letters, start, count = _text(text), _whole(index), _whole(size)
    if start < 0 or count < 0:
        raise Failed(NEGATIVE_INDEX)
    return normal(letters[start : start + count])


def _contains(whole_of: Value, part: Value) -> Value:
    if isinstance(whole_of, frozenset):
        return holds(whole_of, part)
    return _text(part) in _text(whole_of)


_DIGITS = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _int(x: Value) -> Value:
    if isinstance(x, str):
        if not _DIGITS.fullmatch(x):
            raise Failed(NOT_A_NUMBER)
        digits = x.lstrip("+-0")
        return whole(int(x)) if len(digits) <= 19 else whole(INT_MAX + 1)
    if isinstance(x, bool):
        return int(x)
    return _to_whole(math.trunc)(x)


def _float(x: Value) -> Value:
    if isinstance(x, str):
        if not _DECIMAL.fullmatch(x):
            raise Failed(NOT_A_NUMBER)
        return finite(float(x))
    return float(_number(x))


def _as_text(x: Value) -> Value:
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, str):
        return x
    if type(x) is int:
        return str(x)
    if type(x) is float:
        return format_float(x)
    raise Failed(WRONG_TYPE)


def _bucket(t: Value, size: Value) -> Value:
    number, step = _number(t), _number(size)
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


def _is_null(x: Value) -> Value:
    return x is None


def _coalesce(*arguments: Value) -> Value:
    first = next((x for x in arguments if x is not None), None)
    return _among(first, arguments)


def _strict(function: Callable[..., Value]) -> Callable[..., Value]:
    def of_null_is_null(*arguments: Value) -> Value:
        if None in arguments:
            return None
        return function(*arguments)

    return of_null_is_null


def _table() -> Mapping[str, ScalarFunction]:
    strict: list[tuple[str, int, int | None, Callable[..., Value]]] = [
        ("abs", 1, 1, _absolute),
        ("floor", 1, 1, _to_whole(math.floor)),
        ("ceil", 1, 1, _to_whole(math.ceil)),
        ("round", 1, 1, _to_whole(_half_away_from_zero)),
        ("least", 1, None, _extreme(-1)),
        ("greatest", 1, None, _extreme(1)),
        ("length", 1, 1, _length),
        ("lower", 1, 1, lambda x: normal(_text(x).lower())),
        ("upper", 1, 1, lambda x: normal(_text(x).upper())),
        ("concat", 1, None, _concat),
        ("substring", 3, 3, _substring),
        ("starts_with", 2, 2, lambda x, y: _text(x).startswith(_text(y))),
        ("ends_with", 2, 2, lambda x, y: _text(x).endswith(_text(y))),
        ("contains", 2, 2, _contains),
        ("int", 1, 1, _int),
        ("float", 1, 1, _float),
        ("text", 1, 1, _as_text),
        ("bucket", 2, 2, _bucket),
    ]
    table = {
        name: ScalarFunction(name, least, most, _strict(function))
        for name, least, most, function in strict
    }
    table["is_null"] = ScalarFunction("is_null", 1, 1, _is_null)
    table["coalesce"] = ScalarFunction("coalesce", 1, None, _coalesce)
    return table


FUNCTIONS: Mapping[str, ScalarFunction] = _table()
"""The functions every program may use, by name; a host program adds its own beside them."""
