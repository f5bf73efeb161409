"""Expressions over columns.

A row that fails is flagged; its error is worded value by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.arrangement.kernels import BoolArray
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.columns.column import Column, Unsuited, Values
from tidemill.datalog.columns.functions import (
    ARITHMETIC,
    COMPUTED,
    NUMBERS,
    ORDERS,
    Result,
    arithmetic,
    common,
    function,
    order,
    typed_arithmetic,
)
from tidemill.datalog.columns.spelling import MOMENTS, TEXTS, spelled, word_of_moment
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    WIDEN,
    Call,
    Constant,
    Expression,
    Type,
    Variable,
)


class Calculator:
    """Evaluates expressions of a rule for many matches at once.

    `scope` says what is known of the variables: where that shows that nothing can fail, nothing is
    looked over. Matches may be more than those that the rule is about: if none of them fails, none
    of those does.
    """

    def __init__(
        self,
        scope: TypeEnvironment,
        variables: Mapping[str, Column],
        rows: int,
        texts: Texts,
        allowance: Allowance,
    ) -> None:
        self._scope = scope
        self._variables = variables
        self._rows = rows
        self._texts = texts
        self._allowance = allowance
        self._failed: BoolArray | None = None

    def evaluated(
        self, expression: Expression, kind: Type | None
    ) -> tuple[Column, BoolArray | None]:
        """The values, and the rows that fail, None for none.

        Whole numbers are widened where `kind` is float. Raises: Unsuited.
        """
        self._failed = None
        column = self._evaluate(expression)
        if kind is Type.FLOAT and column.kind is Type.INT:
            column = Column(Type.FLOAT, column.values.astype(np.float64), column.nulls)
        if kind is not None and column.kind is not kind:
            raise Unsuited
        return column, self._failed

    def judged(self, expression: Expression) -> tuple[BoolArray, BoolArray | None]:
        """Flags of a true condition and of the rows that fail, None for none. Raises: Unsuited."""
        self._failed = None
        return self._true(self._evaluate(expression)), self._failed

    def _evaluate(self, expression: Expression) -> Column:
        if isinstance(expression, Constant):
            return self._constant(expression.value)
        if isinstance(expression, Variable):
            known = self._variables.get(expression.name)
            if known is None:
                raise Unsuited
            return known
        if expression.name in ("&&", "||"):
            return self._both(expression)
        column, failed = self._call(expression)
        self._note(failed)
        return column

    def _note(self, failed: BoolArray | None) -> None:
        if failed is not None:
            self._failed = failed if self._failed is None else self._failed | failed

    def _constant(self, value: Any) -> Column:
        kind = TYPE_OF.get(type(value))
        if kind is None or kind is Type.SET:
            raise Unsuited  # null has the type of where it stands
        word = value
        if kind in TEXTS:
            word = self._texts.number(value if kind is Type.TEXT else spelled(value, kind))
        elif kind in MOMENTS:
            word = word_of_moment(value, kind)
        dtype = {Type.FLOAT: np.float64, Type.BOOL: np.bool_}.get(kind, np.int64)
        one: Values = np.array(word, dtype)
        return Column(kind, np.ndarray((self._rows,), dtype, one, strides=(0,)))

    def _both(self, call: Call) -> Column:
        """`&&` and `||`: what the right side fails at counts where the left one does not decide."""
        left = self._true(self._evaluate(call.arguments[0]))
        before, self._failed = self._failed, None
        right = self._true(self._evaluate(call.arguments[1]))
        inner, self._failed = self._failed, before
        if inner is not None:
            self._note(inner & (left if call.name == "&&" else ~left))
        return Column(Type.BOOL, left & right if call.name == "&&" else left | right)

    def _call(self, call: Call) -> Result:
        name = call.name
        arguments = [self._evaluate(argument) for argument in call.arguments]
        if name in ("==", "!="):
            same = _equal(*arguments)
            return Column(Type.BOOL, same if name == "==" else ~same), None
        if name == WIDEN:
            (column,) = arguments
            if column.kind is not Type.INT:
                raise Unsuited
            return Column(Type.FLOAT, column.values.astype(np.float64), column.nulls), None
        if name in ORDERS:
            return order(name, arguments, self._texts, self._allowance)
        if (name in ARITHMETIC or name == "neg") and not NUMBERS.issuperset(
            argument.kind for argument in arguments
        ):
            return typed_arithmetic(name, arguments, self._texts, self._allowance)
        if name in ARITHMETIC:
            return arithmetic(name, arguments, checked=self._scope.fallible(call))
        if name not in COMPUTED or (
            name in FUNCTIONS and self._scope.functions.get(name) is not FUNCTIONS[name]
        ):
            raise Unsuited
        return function(name, arguments, self._texts, self._allowance)

    def _true(self, column: Column) -> BoolArray:
        if column.kind is not Type.BOOL:
            raise Unsuited
        truth: BoolArray = column.values
        return truth if column.nulls is None else truth & ~column.nulls


def _equal(left: Column, right: Column) -> BoolArray:
    if left.kind in NUMBERS and right.kind in NUMBERS:
        a, b = common((left, right))
    elif left.kind is right.kind:
        a, b = left.values, right.values
    else:
        raise Unsuited
    same: BoolArray = np.equal(a, b)
    if left.nulls is None and right.nulls is None:
        return same
    return np.where(left.known & right.known, same, ~left.known & ~right.known)
