"""Expressions over columns: those that cannot fail, by the ranges of what they are computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tidemill.arrangement.kernels import BoolArray
from tidemill.datalog.columnar.columns import Column, Texts, Unsuited, Values
from tidemill.datalog.evaluation.expressions import Scope
from tidemill.datalog.evaluation.forms import Call, Constant, Expression, Type, Variable
from tidemill.datalog.functions import FUNCTIONS

_KINDS: Mapping[type, Type] = {int: Type.INT, float: Type.FLOAT, str: Type.TEXT, bool: Type.BOOL}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "%": np.fmod,
}  # fmt: skip
_ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_NUMBERS = (Type.INT, Type.FLOAT)


class Calculator:
    """Evaluates expressions of a rule for many matches at once.

    `scope` says what is known of the variables: an expression is only evaluated if it cannot fail.
    """

    def __init__(
        self, scope: Scope, variables: Mapping[str, Column], rows: int, texts: Texts
    ) -> None:
        self._scope = scope
        self._variables = variables
        self._rows = rows
        self._texts = texts

    def column(self, expression: Expression, kind: Type | None = None) -> Column:
        """The values, whole numbers widened where `kind` is float. Raises: Unsuited."""
        column = self._evaluate(expression)
        if kind is Type.FLOAT and column.kind is Type.INT:
            return Column(Type.FLOAT, column.values.astype(np.float64), column.nulls)
        if kind is not None and column.kind is not kind:
            raise Unsuited
        return column

    def truth(self, expression: Expression) -> BoolArray:
        """Where a condition is true; null counts as false. Raises: Unsuited."""
        if self._scope.fallible(expression):
            raise Unsuited
        column = self._evaluate(expression)
        if column.kind is not Type.BOOL:
            raise Unsuited
        truth: BoolArray = column.values
        return truth if column.nulls is None else truth & ~column.nulls

    def _evaluate(self, expression: Expression) -> Column:
        if isinstance(expression, Constant):
            return self._constant(expression.value)
        if isinstance(expression, Variable):
            known = self._variables.get(expression.name)
            if known is None:
                raise Unsuited
            return known
        if self._scope.fallible(expression):
            raise Unsuited
        return self._call(expression)

    def _constant(self, value: Any) -> Column:
        kind = _KINDS.get(type(value))
        if kind is None:
            raise Unsuited  # null has the type of where it stands
        word = self._texts.number(value) if kind is Type.TEXT else value
        dtype = {Type.FLOAT: np.float64, Type.BOOL: np.bool_}.get(kind, np.int64)
        return Column(kind, np.broadcast_to(np.array(word, dtype), (self._rows,)))

    def _call(self, call: Call) -> Column:
        name = call.name
        arguments = [self._evaluate(argument) for argument in call.arguments]
        if name in ("&&", "||"):
            sides = [self._true(argument) for argument in arguments]
            both = sides[0] & sides[1] if name == "&&" else sides[0] | sides[1]
            return Column(Type.BOOL, both)
        if name in ("==", "!="):
            same = _equal(*arguments)
            return Column(Type.BOOL, same if name == "==" else ~same)
        if name in _ORDERS:
            left, right = _numbers(arguments)
            nulls = _nulls(arguments)
            truth = _ORDERS[name](left, right)
            return Column(Type.BOOL, truth if nulls is None else truth & ~nulls)
        if name in FUNCTIONS and self._scope.functions.get(name) is not FUNCTIONS[name]:
            raise Unsuited
        if name == "is_null":
            return Column(Type.BOOL, ~arguments[0].known)
        if name in _ARITHMETIC:
            return _arithmetic(name, arguments)
        if name in ("neg", "abs") and arguments[0].kind in _NUMBERS:
            change = np.negative if name == "neg" else np.abs
            return Column(arguments[0].kind, change(arguments[0].values), arguments[0].nulls)
        if name == "bucket":
            return _bucket(arguments)
        raise Unsuited

    def _true(self, column: Column) -> BoolArray:
        if column.kind is not Type.BOOL:
            raise Unsuited
        truth: BoolArray = column.values
        return truth if column.nulls is None else truth & ~column.nulls


def _nulls(columns: Sequence[Column]) -> BoolArray | None:
    known = [column.nulls for column in columns if column.nulls is not None]
    if not known:
        return None
    nulls: BoolArray = np.logical_or.reduce(known)
    return nulls


def _numbers(columns: Sequence[Column]) -> tuple[Values, Values]:
    """Two columns of numbers as the operators see them: whole if both are, else floats."""
    left, right = columns
    if left.kind not in _NUMBERS or right.kind not in _NUMBERS:
        raise Unsuited
    if left.kind is right.kind:
        return left.values, right.values
    return left.values.astype(np.float64), right.values.astype(np.float64)


def _equal(left: Column, right: Column) -> BoolArray:
    if left.kind in _NUMBERS and right.kind in _NUMBERS:
        a, b = _numbers((left, right))
    elif left.kind is right.kind:
        a, b = left.values, right.values
    else:
        raise Unsuited
    same: BoolArray = np.equal(a, b)
    if left.nulls is None and right.nulls is None:
        return same
    return np.where(left.known & right.known, same, ~left.known & ~right.known)


def _arithmetic(name: str, arguments: Sequence[Column]) -> Column:
    left, right = _numbers(arguments)
    nulls = _nulls(arguments)
    kind = Type.INT if left.dtype == np.int64 else Type.FLOAT
    if nulls is not None:
        fill = 1 if name in ("/", "%") else 0
        right = np.where(nulls, left.dtype.type(fill), right)
        left = np.where(nulls, left.dtype.type(0), left)
    if kind is Type.INT and name in ("/", "%"):
        rest = np.fmod(left, right)
        values = rest if name == "%" else (left - rest) // right
    else:
        values = _ARITHMETIC[name](left, right)
    if nulls is not None:
        values = np.where(nulls, values.dtype.type(0), values)
    return Column(kind, values, nulls)


def _bucket(arguments: Sequence[Column]) -> Column:
    value, size = arguments
    if value.kind is not Type.INT or size.kind is not Type.INT or _nulls(arguments) is not None:
        raise Unsuited
    return Column(Type.INT, value.values - np.mod(value.values, size.values))


__all__ = ["Calculator"]
