"""Functions of numbers, with the same digits on every machine.

Roots, powers, logarithms and angles are computed with 80 digits, and rounded once. The C library of
a machine is not asked: its last digit depends on its version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, localcontext
from functools import wraps

from tidemill.datalog.scalar import ScalarFunction, function, number_of, whole_of
from tidemill.datalog.values import (
    FLOAT_EXACT_MAX,
    NOT_DEFINED,
    OVERFLOW,
    Failed,
    Value,
    finite,
    whole,
)

_EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN, Emin=-9_999, Emax=9_999, traps=[])
_ROUNDING = Context(prec=1_200)
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482"
)
_EXPONENT_MAX = 1_000
"""Powers of e beyond this one are no floats, and beyond its negative they are 0."""
_TINY = -82
"""Exponent of ten of a term that adds nothing to 80 digits."""
ROUNDED_DIGITS_MAX = 30
"""Digits that `round_to` keeps behind the point, or drops before it."""


def _computed(exact: Callable[..., Decimal]) -> Callable[..., Value]:
    """A function of exact numbers as one of floats: rounded once. Zero has no sign."""

    @wraps(exact)
    def evaluate(*arguments: Value) -> Value:
        with localcontext(_EXACT):
            return finite(float(exact(*map(_exact, arguments)))) + 0.0

    return evaluate


def _exact(value: Value) -> Decimal:
    number = number_of(value)
    if not math.isfinite(number):
        raise Failed(OVERFLOW)
    return Decimal(number)


def _root(x: Decimal) -> Decimal:
    """The square root."""
    if x < 0:
        raise Failed(NOT_DEFINED)
    return x.sqrt()


def _exp(x: Decimal) -> Decimal:
    """The power of the number e, 2.71828…, by `x`."""
    if x > _EXPONENT_MAX:
        raise Failed(OVERFLOW)
    return x.exp() if x > -_EXPONENT_MAX else Decimal(0)


def _ln(x: Decimal) -> Decimal:
    """The logarithm to the base e."""
    if x <= 0:
        raise Failed(NOT_DEFINED)
    return x.ln()


def _log(x: Decimal, base: Decimal = Decimal(10)) -> Decimal:
    """The logarithm to a base, by default 10."""
    below = _ln(base)
    if below == 0:
        raise Failed(NOT_DEFINED)
    return _ln(x) / below


def _pow(x: Decimal, y: Decimal) -> Decimal:
    """The power of `x` by `y`, a float."""
    whole_power = y == y.to_integral_value()
    if (x == 0 and y < 0) or (x < 0 and not whole_power):
        raise Failed(NOT_DEFINED)
    if x == 0 or y == 0:
        return Decimal(1 if y == 0 else 0)
    power = _exp(y * abs(x).ln())
    if x == x.to_integral_value() and whole_power and 0 < y < _EXPONENT_MAX and abs(x) < 10:
        power = abs(x) ** int(y)
    return -power if x < 0 and int(y) % 2 else power


def _sin(x: Decimal) -> Decimal:
    """The sine of an angle in radians."""
    if abs(x) > FLOAT_EXACT_MAX + 2:
        raise Failed(OVERFLOW)
    turns = (x / _PI).to_integral_value(ROUND_HALF_EVEN)
    rest = x - turns * _PI
    total = term = rest
    n = 1
    while term and term.adjusted() > _TINY:
        term *= -rest * rest / (2 * n * (2 * n + 1))
        total += term
        n += 1
    return -total if int(turns) % 2 else total


def _cos(x: Decimal) -> Decimal:
    """The cosine of an angle in radians."""
    return _sin(x + _PI / 2)


def _tan(x: Decimal) -> Decimal:
    """The tangent of an angle in radians."""
    return _sin(x) / _cos(x)


def _atan(x: Decimal) -> Decimal:
    """The angle in radians of which the number is the tangent."""
    doubled = 1
    while abs(x) > Decimal("0.1"):
        x, doubled = x / (1 + (1 + x * x).sqrt()), doubled * 2
    total = power = x
    n = 1
    while power and power.adjusted() > _TINY:
        power *= -x * x
        n += 2
        total += power / n
    return total * doubled


def _asin(x: Decimal) -> Decimal:
    """The angle in radians of which the number is the sine."""
    if abs(x) > 1:
        raise Failed(NOT_DEFINED)
    return x * _PI / 2 if abs(x) == 1 else _atan(x / ((1 - x) * (1 + x)).sqrt())


def _acos(x: Decimal) -> Decimal:
    """The angle in radians of which the number is the cosine."""
    return _PI / 2 - _asin(x)


def _atan2(y: Decimal, x: Decimal) -> Decimal:
    """The angle in radians of the point (x, y), from the x axis; 0 for the origin."""
    if x == 0:
        return _PI / 2 * ((y > 0) - (y < 0))
    angle = _atan(y / x)
    return angle if x > 0 else angle + (_PI if y >= 0 else -_PI)


def _radians(x: Decimal) -> Decimal:
    """An angle in radians from one in degrees."""
    return x * _PI / 180


def _degrees(x: Decimal) -> Decimal:
    """An angle in degrees from one in radians."""
    return x * 180 / _PI


def _sign(x: Value) -> Value:
    """-1, 0 or 1: the sign of the number."""
    number = number_of(x)
    return (number > 0) - (number < 0)


def _round_to(x: Value, digits: Value) -> Value:
    """The nearest float of so many digits after the point; below 0 of tens, hundreds, ….

    A half moves away from zero.
    """
    wanted = whole_of(digits)
    if abs(wanted) > ROUNDED_DIGITS_MAX:
        raise Failed(OVERFLOW)
    with localcontext(_ROUNDING):
        nearest = _exact(x).scaleb(wanted).to_integral_value(ROUND_HALF_UP)
        return finite(float(nearest.scaleb(-wanted))) + 0.0


def _bit_and(a: Value, b: Value) -> Value:
    """The bits that both whole numbers have."""
    return whole_of(a) & whole_of(b)


def _bit_or(a: Value, b: Value) -> Value:
    """The bits that one of the whole numbers has."""
    return whole_of(a) | whole_of(b)


def _bit_xor(a: Value, b: Value) -> Value:
    """The bits that exactly one of the whole numbers has."""
    return whole_of(a) ^ whole_of(b)


def _shift(a: Value, bits: Value) -> Value:
    """The whole number times two, so many times; below 0, divided by two and rounded down."""
    number, by = whole_of(a), whole_of(bits)
    return whole(number << min(by, 64)) if by >= 0 else number >> min(-by, 64)


_ONE_NUMBER = {
    "root": _root, "exp": _exp, "ln": _ln, "sin": _sin, "cos": _cos, "tan": _tan, "asin": _asin,
    "acos": _acos, "atan": _atan, "radians": _radians, "degrees": _degrees,
}  # fmt: skip

MATH_FUNCTIONS: tuple[ScalarFunction, ...] = (
    *(function(name, _computed(f), ("float",), "float") for name, f in _ONE_NUMBER.items()),
    function("log", _computed(_log), ("float", "float"), "float", optional=1),
    function("pow", _computed(_pow), ("float", "float"), "float"),
    function("atan2", _computed(_atan2), ("float", "float"), "float"),
    function("sign", _sign, ("float",), "int"),
    function("round_to", _round_to, ("float", "int"), "float"),
    function("bit_and", _bit_and, ("int", "int"), "int"),
    function("bit_or", _bit_or, ("int", "int"), "int"),
    function("bit_xor", _bit_xor, ("int", "int"), "int"),
    function("shift", _shift, ("int", "int"), "int"),
)
"""Numbers of 64 bits in, one number out; the angle of `sin` and the others up to 2^53."""
