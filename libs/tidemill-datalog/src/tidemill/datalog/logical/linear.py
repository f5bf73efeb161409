"""Arithmetic bounds on one variable from comparisons that are linear in it.

`te < tc ^ te >= tc - period` says `te + 1 <= tc <= te + period`. So a join with a clock costs the
ticks that can match. A join on a range of times costs the rows inside the range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tidemill.datalog.logical.expressions import TypeEnvironment, source_of, type_of
from tidemill.datalog.logical.forms import Call, Constant, Expression, Type, Variable, variables_of


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """Python sources of the limits of a variable; each side may have several."""

    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()


NO_LIMITS = ValueLimits()
COMPARISONS = frozenset({"<", "<=", ">", ">=", "=="})


def conjuncts(expression: Expression) -> Iterable[Expression]:
    """The parts that must all be true for the expression to be, in the order of evaluation."""
    if isinstance(expression, Call) and expression.name == "&&":
        for argument in expression.arguments:
            yield from conjuncts(argument)
    else:
        yield expression


def limits_of(
    variable: str, conditions: Sequence[Expression], bound: AbstractSet[str], scope: TypeEnvironment
) -> ValueLimits:
    """Limits of a whole-number variable by conditions over the variables in `bound`.

    Only comparisons of whole numbers are read. A part that can fail ends the reading: it fails for
    values outside of later limits, too. A null in a comparison leaves no value at all.
    """
    low: list[str] = []
    high: list[str] = []
    if scope.types.get(variable) is not Type.INT:
        return ValueLimits()
    for part in (each for condition in conditions for each in conjuncts(condition)):
        if scope.fallible(part):
            break
        if isinstance(part, Call) and part.name in COMPARISONS:
            _read(part, variable, bound, scope, low, high)
    return ValueLimits(tuple(low), tuple(high))


def _read(
    comparison: Call,
    variable: str,
    bound: AbstractSet[str],
    scope: TypeEnvironment,
    low: list[str],
    high: list[str],
) -> None:
    if not variables_of(comparison) - {variable} <= bound:
        return
    left, right = (_linear(side, variable, scope) for side in comparison.arguments)
    if left is None or right is None:
        return
    factor = left[0] - right[0]
    if factor == 0:
        return
    rest = [*right[1], *(("-" if sign == "+" else "+", source) for sign, source in left[1])]
    total = "0" + "".join(f" {sign} {source}" for sign, source in rest)
    if abs(factor) > 1 and any(
        math.isinf(border)
        for name in variables_of(comparison) - {variable}
        for border in (scope.bounds[name].low, scope.bounds[name].high)
    ):
        return  # an expiry may be infinite, and infinity has no whole quotient
    sign = comparison.name
    if factor < 0:
        factor, total = -factor, f"-({total})"
        sign = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
    if sign == "<":
        total = f"({total}) - 1"
    elif sign == ">":
        total = f"({total}) + 1"
    nulls = [
        f"{scope.name_of(name)} is not None"
        for name in sorted(variables_of(comparison) - {variable})
        if scope.bounds[name].nullable
    ]
    if sign == "==" and nulls and scope.bounds[variable].nullable:
        return  # null equals null, and a range holds none
    if sign in ("<", "<=", "=="):
        most = f"({total})" if factor == 1 else f"(({total}) // {factor})"
        high.append(_unless_null(most, nulls, "beginning"))
    if sign in (">", ">=", "=="):
        least = f"({total})" if factor == 1 else f"(-(-({total}) // {factor}))"
        low.append(_unless_null(least, nulls, "inf"))


def _unless_null(source: str, known: Sequence[str], otherwise: str) -> str:
    return f"({source} if {' and '.join(known)} else {otherwise})" if known else source


def _linear(
    expression: Expression, variable: str, scope: TypeEnvironment
) -> tuple[int, list[tuple[str, str]]] | None:
    """(factor of the variable, signed sources of the rest); None if not linear in whole numbers."""
    if type_of(expression, scope.types) is not Type.INT:
        return None
    if isinstance(expression, Variable) and expression.name == variable:
        return 1, []
    if variable not in variables_of(expression):
        known = scope.bounds_of(expression)
        if known is None or (known.nullable and not _null_with_its_variables(expression)):
            return None
        return 0, [("+", source_of(expression, scope))]
    if not isinstance(expression, Call):
        return None
    parts = [_linear(argument, variable, scope) for argument in expression.arguments]
    if expression.name in ("+", "-") and parts[0] is not None and parts[1] is not None:
        (a, left), (b, right) = parts[0], parts[1]
        if expression.name == "+":
            return a + b, [*left, *right]
        return a - b, [*left, *(("-" if s == "+" else "+", source) for s, source in right)]
    if expression.name == "neg" and parts[0] is not None:
        a, left = parts[0]
        return -a, [("-" if s == "+" else "+", source) for s, source in left]
    return _scaled(expression, variable, scope)


def _null_with_its_variables(expression: Expression) -> bool:
    """Whether an expression is null just where one of its variables is."""
    if isinstance(expression, Call):
        strict = expression.name in ("+", "-", "*", "neg")
        return strict and all(map(_null_with_its_variables, expression.arguments))
    return isinstance(expression, Variable) or expression.value is not None


def _scaled(
    product: Call, variable: str, scope: TypeEnvironment
) -> tuple[int, list[tuple[str, str]]] | None:
    if product.name != "*":
        return None
    for factor, other in (product.arguments, tuple(reversed(product.arguments))):
        if isinstance(factor, Constant) and type(factor.value) is int:
            inner = _linear(other, variable, scope)
            if inner is not None:
                scaled = [(sign, f"{factor.value} * {source}") for sign, source in inner[1]]
                return inner[0] * factor.value, scaled
    return None
