"""Expressions as Python source: the shortest code that is right for what is known of the variables.

An operator is written as that of Python if the ranges show that it cannot fail and its operands
are not null. Otherwise the source calls the checked operator of `tidemill.datalog.values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.datalog import sums, values
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.lattices import Lattice
from tidemill.datalog.logical.bounds import Bounds, bounds_of
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    WIDEN,
    Call,
    Constant,
    Expression,
    Type,
    Variable,
)
from tidemill.datalog.signatures import called, negated, operated

_NAMES = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder", "neg": "negate",
    "==": "equal", "!=": "differ",
    "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
OPERATORS: Mapping[str, Callable[..., Any]] = {
    sign: getattr(values, name) for sign, name in _NAMES.items()
}
"""The checked operators, by their signs."""
_ORDERS = frozenset({"<", "<=", ">", ">="})
_INT_FUNCTIONS = frozenset({"floor", "ceil", "round", "length", "int"})
_TEXT_FUNCTIONS = frozenset({"lower", "upper", "concat", "substring", "text"})
_BOOL_FUNCTIONS = frozenset({"starts_with", "ends_with", "contains", "is_null"})
_PLAIN = frozenset({Type.INT, Type.FLOAT, Type.TEXT, Type.BOOL, Type.SET, Type.ANY})
_BOOL_SIGNS = _ORDERS | {"==", "!=", "&&", "||"}

RUNTIME: Mapping[str, Any] = {
    **{name: OPERATORS[sign] for sign, name in _NAMES.items()},
    "widen": values.widen,
    "among_floats": sums.among_floats,
    "inf": math.inf,
}
"""The names that generated code uses beside functions and constants."""


@dataclass(slots=True)
class TypeEnvironment:
    """Context of an expression: type and range of every variable, names of constants.

    `constants` collects the values that generated code refers to by name.
    """

    types: Mapping[str, Type]
    bounds: Mapping[str, Bounds]
    functions: Mapping[str, ScalarFunction]
    lattices: Mapping[str, Lattice]
    names: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)

    def name_of(self, variable: str) -> str:
        """The Python name of a variable."""
        name = self.names.get(variable)
        if name is None:
            name = self.names[variable] = f"v{len(self.names)}"
        return name

    def constant(self, value: Any, prefix: str = "k") -> str:
        """A Python name or literal for a value."""
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    def bounds_of(self, expression: Expression) -> Bounds | None:
        """The range of the expression, None if it may fail."""
        return bounds_of(expression, self.bounds)

    def fallible(self, expression: Expression) -> bool:
        """Whether the expression may fail."""
        return self.bounds_of(expression) is None

    def nullable(self, expression: Expression) -> bool:
        """Whether the expression may be null."""
        known = self.bounds_of(expression)
        return known is None or known.nullable


def type_of(expression: Expression, types: Mapping[str, Type]) -> Type:
    """The type of an expression, ANY where only the values can tell."""
    if isinstance(expression, Constant):
        return TYPE_OF.get(type(expression.value), Type.ANY)
    if isinstance(expression, Variable):
        return types.get(expression.name, Type.ANY)
    name = expression.name
    if name in _BOOL_SIGNS or name in _BOOL_FUNCTIONS:
        return Type.BOOL
    if name in _TEXT_FUNCTIONS:
        return Type.TEXT
    if name in _INT_FUNCTIONS:
        return Type.INT
    if name in ("float", WIDEN):
        return Type.FLOAT
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


def source_of(expression: Expression, scope: TypeEnvironment) -> str:
    """Python source that evaluates the expression; it raises Failed where the expression fails."""
    if isinstance(expression, Constant):
        return scope.constant(expression.value)
    if isinstance(expression, Variable):
        return scope.name_of(expression.name)
    if expression.name in ("&&", "||"):
        word = "and" if expression.name == "&&" else "or"
        parts = [truth_of(argument, scope) for argument in expression.arguments]
        return "(" + f" {word} ".join(parts) + ")"
    if expression.name in _ORDERS or expression.name in ("==", "!="):
        return _comparison(expression, scope)
    if expression.name in OPERATORS:
        return _arithmetic(expression, scope)
    if expression.name == WIDEN:
        return f"widen({source_of(expression.arguments[0], scope)})"
    function = scope.functions[expression.name]
    name = f"f_{expression.name}"
    scope.constants[name] = function.evaluate
    arguments = _widened(expression, scope)
    return f"{name}({', '.join(arguments)})"


def truth_of(expression: Expression, scope: TypeEnvironment) -> str:
    """Python source of a truth value: null counts as false."""
    source = source_of(expression, scope)
    certain = type_of(expression, scope.types) is Type.BOOL and not scope.nullable(expression)
    if certain or (isinstance(expression, Call) and expression.name in _BOOL_SIGNS):
        return source
    return f"({source} is True)"


def _widened(call: Call, scope: TypeEnvironment) -> list[str]:
    """The arguments; whole numbers widened where the result is a float (`coalesce`, `least`, …)."""
    sources = [source_of(argument, scope) for argument in call.arguments]
    if call.name in ("coalesce", "least", "greatest", "bucket") and (
        type_of(call, scope.types) is Type.FLOAT
    ):
        return [
            source if type_of(argument, scope.types) is Type.FLOAT else f"widen({source})"
            for argument, source in zip(call.arguments, sources, strict=True)
        ]
    return sources


def _arithmetic(call: Call, scope: TypeEnvironment) -> str:
    arguments = [source_of(argument, scope) for argument in call.arguments]
    checked = f"{_NAMES[call.name]}({', '.join(arguments)})"
    if scope.nullable(call) or scope.fallible(call):
        return checked
    kinds = {type_of(argument, scope.types) for argument in call.arguments}
    if not kinds <= {Type.INT, Type.FLOAT}:
        return checked
    if call.name == "neg":
        return f"(-{arguments[0]})"
    if call.name in "+-*":
        return f"({arguments[0]} {call.name} {arguments[1]})"
    if Type.FLOAT in kinds:
        return f"({arguments[0]} / {arguments[1]})" if call.name == "/" else checked
    ranges = [scope.bounds_of(argument) for argument in call.arguments]
    if all(known is not None and known.low >= 0 for known in ranges):
        return f"({arguments[0]} {'//' if call.name == '/' else '%'} {arguments[1]})"
    return checked


def _comparison(call: Call, scope: TypeEnvironment) -> str:
    left, right = call.arguments
    sources = [source_of(left, scope), source_of(right, scope)]
    checked = f"{_NAMES[call.name]}({sources[0]}, {sources[1]})"
    kinds = {type_of(left, scope.types), type_of(right, scope.types)}
    if Type.ANY in kinds or Type.SET in kinds or len(kinds) > 1:
        return checked
    nulls = [
        source
        for source, argument in zip(sources, (left, right), strict=True)
        if scope.nullable(argument)
    ]
    if nulls and call.name in _ORDERS:
        if not all(isinstance(argument, Variable | Constant) for argument in (left, right)):
            return checked
        guards = " and ".join(f"{source} is not None" for source in nulls)
        return f"({guards} and {sources[0]} {call.name} {sources[1]})"
    return f"({sources[0]} {call.name} {sources[1]})"
