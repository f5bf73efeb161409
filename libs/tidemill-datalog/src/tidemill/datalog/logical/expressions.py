"""Types and failures of expressions, and their values one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from tidemill.datalog import values
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.lattices import Lattice
from tidemill.datalog.logical.bounds import Bounds, bounds_of
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    WIDEN,
    Constant,
    Expression,
    Type,
    Variable,
)
from tidemill.datalog.nodes import dataclass
from tidemill.datalog.signatures import called, negated, operated

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": values.add, "-": values.subtract, "*": values.multiply, "/": values.divide,
    "%": values.remainder, "neg": values.negate, "==": values.equal, "!=": values.differ,
    "<": values.less, "<=": values.less_equal,
    ">": values.greater, ">=": values.greater_equal,
}  # fmt: skip
"""The checked operators, by their signs."""
_ORDERS = frozenset({"<", "<=", ">", ">="})
_PLAIN = frozenset({Type.INT, Type.FLOAT, Type.TEXT, Type.BOOL, Type.SET, Type.ANY})
_BOOL_SIGNS = _ORDERS | {"==", "!=", "&&", "||"}

_WIDENING = frozenset({"coalesce", "least", "greatest", "bucket"})
"""Functions of which a float among the arguments makes floats of all."""

Evaluate: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""The value of an expression by the values of its variables. Raises: Failed."""


@dataclass(frozen=True, slots=True)
class TypeEnvironment:
    """Context of an expression: the types of variables, and the ranges of some."""

    types: Mapping[str, Type]
    bounds: Mapping[str, Bounds]
    functions: Mapping[str, ScalarFunction]
    lattices: Mapping[str, Lattice]

    def bounds_of(self, expression: Expression) -> Bounds | None:
        """The range of the expression, None if it may fail."""
        return bounds_of(expression, self.bounds)

    def fallible(self, expression: Expression) -> bool:
        """Whether the expression may fail."""
        return self.bounds_of(expression) is None


def type_of(expression: Expression, types: Mapping[str, Type]) -> Type:
    """The type of an expression, ANY where only the values can tell."""
    if isinstance(expression, Constant):
        return TYPE_OF.get(type(expression.value), Type.ANY)
    if isinstance(expression, Variable):
        return types.get(expression.name, Type.ANY)
    name = expression.name
    if name in _BOOL_SIGNS:
        return Type.BOOL
    if name == WIDEN:
        return Type.FLOAT
    function = FUNCTIONS.get(name)
    if function is not None and function.takes is None and function.gives != "any":
        return Type(function.gives)
    given = [type_of(argument, types) for argument in expression.arguments]
    found = set(given)
    if not found <= _PLAIN and name not in ("least", "greatest", "coalesce"):
        return _typed(name, [kind.value for kind in given])
    if name in ("+", "-", "*", "/", "%", "neg", "abs", "bucket", "least", "greatest", "coalesce"):
        if Type.FLOAT in found:
            return Type.FLOAT
        known = found - {Type.ANY}
        return known.pop() if len(known) == 1 else Type.ANY
    return _typed(name, [kind.value for kind in given])


def _typed(name: str, given: list[str]) -> Type:
    """The type of an operator or a function of the language by the types of its arguments."""
    if name == "neg":
        return Type(negated(given[0]) or "any")
    if name in FUNCTIONS:
        return Type(called(FUNCTIONS[name], given) or FUNCTIONS[name].gives)
    return Type(operated(name, *given) or "any") if len(given) == 2 else Type.ANY


def evaluating(expression: Expression, scope: TypeEnvironment) -> Evaluate:
    """A function from the values of variables to the value of the expression.

    It keeps nothing of a call, and raises Failed where the expression fails. Cost of making it:
    O(parts); of a call: some 100 ns for each part.
    """
    if isinstance(expression, Constant):
        value = expression.value
        return lambda bound: value
    if isinstance(expression, Variable):
        return itemgetter(expression.name)
    name = expression.name
    parts = [evaluating(argument, scope) for argument in expression.arguments]
    if name in ("&&", "||"):
        left, right = parts
        if name == "&&":
            return lambda bound: left(bound) is True and right(bound) is True
        return lambda bound: left(bound) is True or right(bound) is True
    if name in _WIDENING and type_of(expression, scope.types) is Type.FLOAT:
        parts = [partial(_widened, part) for part in parts]
    function = _function(name, scope)
    if len(parts) == 1:
        (first,) = parts
        return lambda bound: function(first(bound))
    if len(parts) == 2:
        first, second = parts
        return lambda bound: function(first(bound), second(bound))
    return lambda bound: function(*[part(bound) for part in parts])


def _function(name: str, scope: TypeEnvironment) -> Callable[..., Any]:
    if name == WIDEN:
        return values.widen
    return OPERATORS.get(name) or scope.functions[name].evaluate


def _widened(part: Evaluate, bound: Mapping[str, Any]) -> Any:
    return values.widen(part(bound))
