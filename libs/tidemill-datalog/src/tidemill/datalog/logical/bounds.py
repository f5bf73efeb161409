"""Which expressions cannot fail, shown from the ranges of the columns they are computed from.

A condition that cannot fail may be evaluated anywhere in a join. A condition that may fail keeps
the order of language.md 9.1, because the text of its error depends on it. Borders of whole numbers
are whole and exact: a border that is rounded beyond 64 bits would call an overflow impossible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemill.datalog.logical.forms import WIDEN, Call, Constant, Expression, Variable
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.values import INT_MAX, INT_MIN, Value, is_number


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a column or an expression: a range of numbers, and whether null occurs."""

    low: Instant
    high: Instant
    nullable: bool


UNBOUNDED = Bounds(BEGINNING, END, True)


_ALWAYS = frozenset(
    {
        "==", "!=", "<", "<=", ">", ">=", "&&", "||", "least", "greatest", "length", "starts_with",
        "ends_with", "contains", "text", "is_null", "coalesce",
    }
)  # fmt: skip
"""Functions that never fail on arguments of their types.

Functions that make a new text may fail: it grows too long, or gets too many marks.
"""

_BORDER_MAX = 2**500
"""Products of borders up to this one are finite, as whole numbers and as floats."""


def bounds_of(expression: Expression, known: Mapping[str, Bounds]) -> Bounds | None:
    """The range of an expression's values, None if its evaluation may fail.

    `known` holds the ranges of the variables; a variable that is no number has the unbounded range.
    """
    if isinstance(expression, Constant):
        return _of_constant(expression.value)
    if isinstance(expression, Variable):
        return known.get(expression.name, UNBOUNDED)
    arguments = [bounds_of(argument, known) for argument in expression.arguments]
    if any(argument is None for argument in arguments):
        return None
    return _of_call(expression, [argument for argument in arguments if argument is not None])


def _of_constant(value: Value) -> Bounds:
    if is_number(value):
        return Bounds(value, value, False)  # type: ignore[arg-type]
    return Bounds(-math.inf, math.inf, value is None)


def _of_call(call: Call, arguments: list[Bounds]) -> Bounds | None:
    nullable = any(argument.nullable for argument in arguments)
    if call.name in _CORNERS:
        return _corners(_CORNERS[call.name], arguments, nullable)
    if call.name in ("/", "%"):
        return _quotient(call.name, arguments, nullable)
    if call.name == WIDEN:
        (known,) = arguments
        return Bounds(float(known.low), float(known.high), nullable)
    if call.name in ("least", "greatest"):
        pick = min if call.name == "least" else max
        return Bounds(pick(a.low for a in arguments), pick(a.high for a in arguments), nullable)
    if call.name == "coalesce":
        return Bounds(
            min(a.low for a in arguments),
            max(a.high for a in arguments),
            all(a.nullable for a in arguments),
        )
    if call.name == "is_null" or call.name in ("==", "!="):
        return Bounds(-math.inf, math.inf, False)
    if call.name == "length":
        return Bounds(0, INT_MAX, nullable)
    if call.name in _ALWAYS:
        never = call.name in ("<", "<=", ">", ">=", "&&", "||")
        return Bounds(-math.inf, math.inf, nullable and not never)
    return _of_partial(call.name, arguments, nullable)


def _of_partial(name: str, arguments: list[Bounds], nullable: bool) -> Bounds | None:
    first = arguments[0]
    if name in ("abs", "floor", "ceil", "round"):
        if first.low - 1 <= INT_MIN or first.high + 1 >= INT_MAX:
            return None
        if name == "abs":
            magnitudes = (abs(first.low), abs(first.high))
            crosses = first.low <= 0 <= first.high
            return Bounds(0 if crosses else min(magnitudes), max(magnitudes), nullable)
        return Bounds(math.floor(first.low), math.ceil(first.high), nullable)
    if name == "substring":
        safe = arguments[1].low >= 0 and arguments[2].low >= 0
        return Bounds(-math.inf, math.inf, nullable) if safe else None
    if name == "bucket":
        size = arguments[1]
        low = first.low - size.high
        if size.low > 0 and low >= INT_MIN and first.high <= INT_MAX:
            return Bounds(low, first.high, nullable)
    return None


_CORNERS: Mapping[str, Callable[..., int | float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "neg": lambda a: -a,
}


def _corners(
    operator: Callable[..., int | float], arguments: list[Bounds], nullable: bool
) -> Bounds | None:
    if any(abs(border) > _BORDER_MAX for a in arguments for border in (a.low, a.high)):
        return None
    corners: list[tuple[int | float, ...]] = [()]
    for argument in arguments:
        corners = [
            (*corner, border) for corner in corners for border in (argument.low, argument.high)
        ]
    return _within([operator(*corner) for corner in corners], nullable)


def _quotient(sign: str, arguments: list[Bounds], nullable: bool) -> Bounds | None:
    dividend, divisor = arguments
    if any(abs(border) > _BORDER_MAX for a in arguments for border in (a.low, a.high)):
        return None
    if divisor.low <= 0 <= divisor.high or 0 in (divisor.low, divisor.high):
        return None
    if sign == "%":
        size = max(abs(divisor.low), abs(divisor.high))
        return _within([-size if dividend.low < 0 else 0, size], nullable)
    smallest = min(abs(divisor.low), abs(divisor.high))
    largest = max(abs(dividend.low), abs(dividend.high))
    if type(largest) is int and type(smallest) is int:
        quotient: int | float = -(-largest // smallest)  # exact: a float would round at the border
    else:
        quotient = largest / smallest
    negative = dividend.low < 0 or divisor.low < 0
    return _within([-quotient if negative else 0, quotient], nullable)


def _within(numbers: list[int | float], nullable: bool) -> Bounds | None:
    low, high = min(numbers), max(numbers)
    fits = low >= INT_MIN and high <= INT_MAX
    return Bounds(low, high, nullable) if fits else None
