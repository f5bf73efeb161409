"""Arithmetic bounds on one variable from comparisons that are linear in it.

`te < tc ^ te >= tc - period` says `te + 1 <= tc <= te + period`. So a join with a clock costs the
ticks that can match. A join on a range of times costs the rows inside the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tidemill.datalog.logical.expressions import TypeEnvironment, type_of
from tidemill.datalog.logical.forms import Call, Constant, Expression, Type, Variable, variables_of


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """Limits of a variable, which is on or between them; each side may have several."""

    low: tuple[Expression, ...] = ()
    high: tuple[Expression, ...] = ()


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
    low: list[Expression] = []
    high: list[Expression] = []
    if scope.types.get(variable) is not Type.INT:
        return ValueLimits()
    for part in (each for condition in conditions for each in conjuncts(condition)):
        if scope.fallible(part):
            break
        if isinstance(part, Call) and part.name in COMPARISONS:
            _read(part, variable, bound, scope, low, high)
    return ValueLimits(tuple(low), tuple(high))


def at_most(expression: Expression, variable: str, scope: TypeEnvironment) -> bool:
    """Whether an expression never exceeds a variable: it is that, less a constant or nothing."""
    found = _linear(expression, variable, scope)
    if found is None or found[0] != 1:
        return False
    rest = scope.bounds_of(found[1])
    return not variables_of(found[1]) and rest is not None and rest.high <= 0


def _read(
    comparison: Call,
    variable: str,
    bound: AbstractSet[str],
    scope: TypeEnvironment,
    low: list[Expression],
    high: list[Expression],
) -> None:
    others = variables_of(comparison) - {variable}
    if not others <= bound:
        return
    left, right = (_linear(side, variable, scope) for side in comparison.arguments)
    if left is None or right is None:
        return
    factor, total, sign = left[0] - right[0], _minus(right[1], left[1]), comparison.name
    if factor == 0 or (sign == "==" and others):
        return  # null equals null, and a range holds none
    if factor < 0:
        factor, total = -factor, _minus(_ZERO, total)
        sign = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
    if sign in ("<", ">"):
        total = _plus(total, Constant(-1 if sign == "<" else 1))
    if sign in ("<", "<=", "=="):
        high.append(_quotient(total, factor))
    if sign in (">", ">=", "=="):
        low.append(_minus(_ZERO, _quotient(_minus(_ZERO, total), factor)))


_ZERO = Constant(0)


def _plus(left: Expression, right: Expression) -> Expression:
    return right if left == _ZERO else left if right == _ZERO else Call("+", (left, right))


def _minus(left: Expression, right: Expression) -> Expression:
    if left != _ZERO:
        return left if right == _ZERO else Call("-", (left, right))
    if isinstance(right, Call) and right.name == "neg":
        return right.arguments[0]
    return right if right == _ZERO else Call("neg", (right,))


def _quotient(total: Expression, factor: int) -> Expression:
    """The quotient by a whole number above 0, rounded down."""
    if factor == 1:
        return total
    divisor = Constant(factor)
    return Call("/", (Call("bucket", (total, divisor)), divisor))


def _linear(
    expression: Expression, variable: str, scope: TypeEnvironment
) -> tuple[int, Expression] | None:
    """(factor of the variable, the rest); None if not linear in whole numbers."""
    if type_of(expression, scope.types) is not Type.INT:
        return None
    if isinstance(expression, Variable) and expression.name == variable:
        return 1, _ZERO
    if variable not in variables_of(expression):
        known = scope.bounds_of(expression)
        if known is None or (known.nullable and not _null_with_its_variables(expression)):
            return None
        return 0, expression
    if not isinstance(expression, Call):
        return None
    parts = [_linear(argument, variable, scope) for argument in expression.arguments]
    if expression.name in ("+", "-") and parts[0] is not None and parts[1] is not None:
        (a, left), (b, right) = parts[0], parts[1]
        return (
            (a + b, _plus(left, right)) if expression.name == "+" else (a - b, _minus(left, right))
        )
    if expression.name == "neg" and parts[0] is not None:
        return -parts[0][0], _minus(_ZERO, parts[0][1])
    return _scaled(expression, parts)


def _null_with_its_variables(expression: Expression) -> bool:
    """Whether an expression is null just where one of its variables is."""
    if isinstance(expression, Call):
        strict = expression.name in ("+", "-", "*", "neg")
        return strict and all(map(_null_with_its_variables, expression.arguments))
    return isinstance(expression, Variable) or expression.value is not None


def _scaled(
    product: Call, parts: Sequence[tuple[int, Expression] | None]
) -> tuple[int, Expression] | None:
    if product.name != "*":
        return None
    for factor, inner in zip(product.arguments, reversed(parts), strict=True):
        if isinstance(factor, Constant) and type(factor.value) is int and inner is not None:
            rest = inner[1] if inner[1] == _ZERO else Call("*", (factor, inner[1]))
            return inner[0] * factor.value, rest
    return None
