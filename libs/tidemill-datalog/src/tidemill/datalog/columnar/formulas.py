"""Expressions made ready for columns: as code over whole arrays where they can neither fail nor be
null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from tidemill.datalog.evaluation.joins import LOWER
from tidemill.datalog.logical.expressions import Scope
from tidemill.datalog.logical.forms import Call, Constant, Expression, Type, Variable
from tidemill.datalog.values import INT_MAX, INT_MIN

_ARITHMETIC = frozenset("+-*")
_ORDERS = frozenset({"<", "<=", ">", ">="})
_EQUALITIES = frozenset({"==", "!="})
_JOINED = {"&&": "&", "||": "|"}
_NUMBERS = (Type.INT, Type.FLOAT)
_COLUMNS = (Type.INT, Type.FLOAT, Type.TEXT, Type.BOOL)
_LIMIT_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression, and code for its values over arrays of the values of its variables.

    `variables` are those of the code: its name for each, the name in the rule, and the type that
    its column has to have; none of them may be null. Without `code` the expression is worked out
    step by step.
    """

    expression: Expression
    kind: Type
    code: CodeType | None = None
    variables: tuple[tuple[str, str, Type], ...] = ()


def formula(expression: Expression, scope: Scope) -> Formula:
    """Make an expression ready; what is known of its variables is known of every column it will be
    about.
    """
    if isinstance(expression, Call) and not scope.fallible(expression):
        variables: dict[str, tuple[str, Type]] = {}
        written = _written(expression, scope, variables)
        if written is not None and variables:
            text, kind = written
            named = tuple((python, name, of) for name, (python, of) in variables.items())
            return Formula(expression, kind, _code(text), named)
    return Formula(expression, Type.ANY)


def formulas(expressions: Iterable[Expression], scope: Scope) -> tuple[Formula, ...]:
    """Make several ready."""
    return tuple([formula(expression, scope) for expression in expressions])


def _written(
    expression: Expression, scope: Scope, variables: dict[str, tuple[str, Type]]
) -> tuple[str, Type] | None:
    """The text and the type of an expression that cannot fail; None if it takes more than operators
    on arrays.
    """
    if isinstance(expression, Constant):
        return _number(expression.value)
    if isinstance(expression, Variable):
        kind = scope.types.get(expression.name, Type.ANY)
        if kind not in _COLUMNS:
            return None
        python, _ = variables.setdefault(expression.name, (f"v{len(variables)}", kind))
        return python, kind
    parts = [_written(argument, scope, variables) for argument in expression.arguments]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    (left, kind), (right, other), sign = parts[0], parts[1], expression.name
    if kind is not other:
        return None
    if sign in _ARITHMETIC and kind in _NUMBERS:
        return f"({left} {sign} {right})", kind
    if (sign in _ORDERS and kind in _NUMBERS) or sign in _EQUALITIES:
        return f"({left} {sign} {right})", Type.BOOL
    if sign in _JOINED and kind is Type.BOOL:
        return f"({left} {_JOINED[sign]} {right})", Type.BOOL
    return None


def _number(value: object) -> tuple[str, Type] | None:
    if type(value) is int and INT_MIN <= value <= INT_MAX:
        return f"({value!r})", Type.INT
    if type(value) is float and math.isfinite(value):
        return f"({value!r})", Type.FLOAT
    return None


@dataclass(frozen=True, slots=True)
class Limit:
    """The least or the greatest value that matches leave to a variable, as code over arrays of
    whole numbers.

    `variables`: the name in the code and in the rule of each. It cannot overflow.
    """

    code: CodeType
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Size:
    """No less than any number, whatever its sign, that is met on the way to a value; 1 at least."""

    most: int

    def _with(self, other: _Size | int) -> _Size:
        return _Size(self.most + (other.most if isinstance(other, _Size) else abs(other)))

    __add__ = __radd__ = __sub__ = __rsub__ = _with
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _with

    def __mul__(self, other: _Size | int) -> _Size:
        return _Size(self.most * (other.most if isinstance(other, _Size) else max(abs(other), 1)))

    __rmul__ = __mul__

    def __neg__(self) -> _Size:
        return self


def limit(source: str, scope: Scope, window: tuple[int, int]) -> Limit | None:
    """Make a limit ready that was written for numbers; None if it takes functions, or words may be
    too small for it.

    `window` are the least and the greatest instant at which a window may begin.
    """
    if " is not " in source:
        return None
    code = _code(source)
    rule_names = {python: name for name, python in scope.names.items()}
    if not rule_names.keys() >= set(code.co_names):
        return None
    variables = tuple((python, rule_names[python]) for python in code.co_names)
    sizes: dict[str, _Size] = {}
    for python, name in variables:
        low, high = window
        if name != LOWER:
            bounds = scope.bounds.get(name)
            if bounds is None or not max(abs(bounds.low), abs(bounds.high)) < _LIMIT_MAX:
                return None
            low, high = int(bounds.low), int(bounds.high)
        sizes[python] = _Size(max(abs(low), abs(high), 1))
    found = eval(code, {}, sizes)  # our own text
    if isinstance(found, _Size) and found.most >= _LIMIT_MAX:
        return None
    return Limit(code, variables)


@lru_cache(1 << 10)
def _code(text: str) -> CodeType:
    return compile(text, "<columns>", "eval")


def over(code: CodeType, values: Mapping[str, Any]) -> Any:
    """What code says of arrays."""
    return eval(code, {}, values)  # our own text


__all__ = ["Formula", "Limit", "formula", "formulas", "limit", "over"]
