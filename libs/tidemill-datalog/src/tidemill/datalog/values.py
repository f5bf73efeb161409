"""Values of the language and the operators on them.

Whole numbers have 64 bits: a result beyond them, or beyond the finite floats, fails with
`overflow`. The quotient of two whole numbers truncates toward zero, and `%` matches it. Arithmetic
with null gives null, a comparison by order with null is false, and `&&`, `||` take null for false.
The instant `inf`, which `@expires(u)` binds where nothing ends, is compared and stored; arithmetic
on it overflows.

Times have an arithmetic of their own. A timestamp and a duration make a timestamp, and two
timestamps a duration. A date and a whole number of days make a date, and two dates their days.
Durations are added, multiplied and divided by whole numbers, and divided by durations. Decimal
numbers are added and multiplied exactly. Nothing else is converted by itself.

Literals are `1h30m`, and a type before a text: `timestamp("2026-03-01T12:00:00Z")`,
`date("2026-03-01")`, `decimal("12.50")`, `uuid("6f9619ff-8b86-d011-b42d-00c04fc964ff")`,
`bytes("00ff")`, `json("{}")`. Such a text that cannot be read is a mistake of the program. A
decimal number has at most 20 digits before the point and 18 behind it. The type of a sum has the
digits of its finer part, that of a product those of both. Numbers with other digits meet in the
finer type without loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tidemill.datalog.elements import element
from tidemill.datalog.records import Value as Value
from tidemill.errors import UsageError
from tidemill.time import normal as normal_form
from tidemill.time.typed import EXACT, SPAN_MAX, Json, fitting, micros_of_span

INT_MIN = -(1 << 63)
INT_MAX = (1 << 63) - 1
TEXT_MAX = 1 << 20
"""Characters of a text that an expression may make; a longer one fails with `overflow`."""
FLOAT_EXACT_MAX = 1 << 53
"""Whole numbers up to this far from zero are each a float of their own."""

DIVISION_BY_ZERO = "division by zero"
"""The right operand of `/` or `%` is 0."""
OVERFLOW = "overflow"
"""A result leaves 64 bits or the finite floats, or a text has more than 1,048,576 characters."""
NOT_A_NUMBER = "not a number"
"""A text given to `int` or `float` is not written as a number."""
WRONG_TYPE = "wrong type"
"""An operand or an argument has a type that its operator or function does not take."""
PERIOD_NOT_POSITIVE = "period not positive"
"""A clock has a period of 0 or less."""
SIZE_NOT_POSITIVE = "size not positive"
"""A `bucket` has a size of 0 or less."""
NEGATIVE_INDEX = "negative index"
"""A `substring` has an index or a size below 0."""
NOT_A_PATTERN = "not a pattern"
"""A regular expression is none of RE2, has over 1,000 characters, or lacks the group named."""
NOT_A_FORM = "not a form"
"""A form has more or fewer `{}` than values, a lone brace, or a letter that it does not know."""
NOT_DEFINED = "not defined"
"""A function has no value there, such as a root or a logarithm of a number below 0."""
NOT_OF_TYPE = "not of the type"
"""A text is no text form of the type that it is converted to."""
NOT_A_ZONE = "not a zone"
"""A zone is none of the database of time zones, such as `Europe/Berlin`."""
NOT_A_UNIT = "not a unit"
"""A unit of time is none that `part` or `truncate` knows."""
TOO_MANY_MARKS = "too many marks"
"""A text has more combining marks in a row than a text may have."""


class Failed(Exception):
    """An expression has no value; `reason` is one of the texts above.

    Never leaves the library: the solution is dropped and the reason recorded in the error
    collection.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def tried(work: Callable[..., Any], *given: Any) -> Any:
    """The result of some work, or its failure as a value."""
    try:
        return work(*given)
    except Failed as failed:
        return failed


def whole(number: int) -> int:
    """The number itself if it fits 64 bit. Raises: Failed(overflow)."""
    if INT_MIN <= number <= INT_MAX:
        return number
    raise Failed(OVERFLOW)


def finite(number: float) -> float:
    """The number itself if it is finite. Raises: Failed(overflow)."""
    if math.isfinite(number):
        return number
    raise Failed(OVERFLOW)


def normal(text: str) -> str:
    """The text in normal form C, in which all text of the language is kept.

    Raises: Failed(too many marks).
    """
    try:
        return normal_form(text)
    except UsageError:
        raise Failed(TOO_MANY_MARKS) from None


def is_number(value: object) -> bool:
    """Whether the value is a whole number or a float; booleans are neither."""
    kind = type(value)
    return kind is int or kind is float


def instant(compute: Callable[[], datetime]) -> datetime:
    """An instant that is computed. Raises: Failed(overflow) outside of the years 1 to 9999."""
    try:
        return compute()
    except (OverflowError, ValueError):
        raise Failed(OVERFLOW) from None


def span(found: timedelta) -> timedelta:
    """The duration itself if it is not too long. Raises: Failed(overflow)."""
    if abs(found) <= _SPAN_MAX:
        return found
    raise Failed(OVERFLOW)


def decimal(found: Decimal) -> Decimal:
    """The number without idle zeros. Raises: Failed(overflow) for too many digits."""
    kept = fitting(found)
    if kept is None:
        raise Failed(OVERFLOW)
    return kept


def _typed_arithmetic(sign: str, a: Value, b: Value) -> Value:
    """An operator between two values of which one is no number. Raises: Failed."""
    if isinstance(a, Decimal) and isinstance(b, Decimal) and sign in _OF_DECIMALS:
        return decimal(_OF_DECIMALS[sign](a, b))
    if isinstance(a, timedelta) and sign in "*/":
        return _scaled_span(sign, a, b)
    if isinstance(b, timedelta) and type(a) is int and sign == "*":
        return _scaled_span(sign, b, a)
    if sign == "+" and isinstance(b, datetime | date):
        a, b = b, a
    back = -1 if sign == "-" else 1
    if sign not in "+-":
        raise Failed(WRONG_TYPE)
    match a, b:
        case datetime(), timedelta():
            return instant(lambda: a + back * b)
        case datetime(), datetime() if sign == "-":
            return a - b
        case timedelta(), timedelta():
            return span(a + back * b)
        case (datetime(), _) | (_, datetime()):
            raise Failed(WRONG_TYPE)
        case date(), date() if sign == "-":
            return (a - b).days
        case date(), int() if type(b) is int:
            return _moved(a, back * b)
    raise Failed(WRONG_TYPE)


def _moved(day: date, days: int) -> date:
    try:
        return day + timedelta(days=days)
    except OverflowError:
        raise Failed(OVERFLOW) from None


def _scaled_span(sign: str, a: timedelta, b: Value) -> Value:
    """A duration times or by a whole number, or by another duration."""
    micros = micros_of_span(a)
    if sign == "/" and isinstance(b, timedelta):
        if not b:
            raise Failed(DIVISION_BY_ZERO)
        return micros / micros_of_span(b)
    if type(b) is not int:
        raise Failed(WRONG_TYPE)
    found = micros * b if sign == "*" else _divide_whole(micros, b)
    if abs(found) > SPAN_MAX:
        raise Failed(OVERFLOW)
    return timedelta(microseconds=found)


_OF_DECIMALS: Mapping[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply,
}  # fmt: skip
_SPAN_MAX = timedelta(microseconds=SPAN_MAX)


def _arithmetic(
    sign: str, on_whole: Callable[[int, int], int], on_float: Callable[[float, float], float]
) -> Callable[[Value, Value], Value]:
    def operator(a: Value, b: Value) -> Value:
        if a is None or b is None:
            return None
        if type(a) is int and type(b) is int:
            return whole(on_whole(a, b))
        if not (is_number(a) and is_number(b)):
            return _typed_arithmetic(sign, a, b)
        try:
            return finite(on_float(float(a), float(b)))  # type: ignore[arg-type]
        except OverflowError:
            raise Failed(OVERFLOW) from None

    return operator


def _divide_whole(a: int, b: int) -> int:
    if b == 0:
        raise Failed(DIVISION_BY_ZERO)
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _divide_float(a: float, b: float) -> float:
    if b == 0.0:
        raise Failed(DIVISION_BY_ZERO)
    return a / b


def _remain_whole(a: int, b: int) -> int:
    if b == 0:
        raise Failed(DIVISION_BY_ZERO)
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def _remain_float(a: float, b: float) -> float:
    if b == 0.0:
        raise Failed(DIVISION_BY_ZERO)
    if not (math.isfinite(a) and math.isfinite(b)):
        raise Failed(OVERFLOW)
    return math.fmod(a, b)


add = _arithmetic("+", lambda a, b: a + b, lambda a, b: a + b)
subtract = _arithmetic("-", lambda a, b: a - b, lambda a, b: a - b)
multiply = _arithmetic("*", lambda a, b: a * b, lambda a, b: a * b)
divide = _arithmetic("/", _divide_whole, _divide_float)
remainder = _arithmetic("%", _remain_whole, _remain_float)


def negate(a: Value) -> Value:
    """Minus the number, null for null. Raises: Failed(overflow) for the least whole number."""
    if a is None:
        return None
    if type(a) is int:
        return whole(-a)
    if type(a) is float:
        return finite(-a)
    if isinstance(a, timedelta):
        return span(-a)
    if isinstance(a, Decimal):
        return decimal(a.copy_negate())
    raise Failed(WRONG_TYPE)


def equal(a: Value, b: Value) -> bool:
    """Whether two values are equal: null only to itself, a whole number to its float.

    A truth value equals no number.
    """
    if type(a) is int and type(b) is float:
        return float(a) == b
    if type(a) is float and type(b) is int:
        return a == float(b)
    if type(a) is bool or type(b) is bool:
        return a is b
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return isinstance(a, Decimal) and isinstance(b, Decimal) and a == b
    return a == b


def differ(a: Value, b: Value) -> bool:
    """Whether the two are not one value."""
    return not equal(a, b)


def _ordered(order: Callable[[int], bool]) -> Callable[[Value, Value], bool]:
    def operator(a: Value, b: Value) -> bool:
        if a is None or b is None:
            return False
        return order(compare(a, b))

    return operator


def compare(a: Value, b: Value) -> int:
    """-1, 0 or 1 by the order of the language: numbers by value, text by code point, false first.

    Times are in their own order, bytes and UUIDs in that of their bytes.

    Raises: Failed(wrong type) where the two have no common order.
    """
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return int(a.compare(b))
    if is_number(a) and is_number(b):
        if type(a) is not type(b):
            a, b = float(a), float(b)  # type: ignore[arg-type]
    elif type(a) is not type(b) or isinstance(a, frozenset | Json):
        raise Failed(WRONG_TYPE)
    return 0 if a == b else -1 if a < b else 1  # type: ignore[operator]


less = _ordered(lambda c: c < 0)
less_equal = _ordered(lambda c: c <= 0)
greater = _ordered(lambda c: c > 0)
greater_equal = _ordered(lambda c: c >= 0)


def widen(value: Value) -> Value:
    """The value as a float column holds it: whole numbers become floats, null stays null.

    Cost: O(1), O(n) for a set.
    """
    if type(value) is int:
        return float(value)
    if type(value) is frozenset:
        return frozenset(element(widen(each)) for each in value)
    return value
