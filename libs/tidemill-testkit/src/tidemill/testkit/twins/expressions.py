"""Expressions evaluated as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.datalog import ast, values
from tidemill.datalog.checked import ResolvedRule
from tidemill.datalog.functions import FUNCTIONS

_OPERATORS = {
    "+": values.add, "-": values.subtract, "*": values.multiply, "/": values.divide,
    "%": values.remainder, "==": values.equal, "!=": values.differ, "<": values.less,
    "<=": values.less_equal, ">": values.greater, ">=": values.greater_equal,
}  # fmt: skip


def value_of(rule: ResolvedRule, term: ast.Expression, bound: Mapping[str, Any]) -> Any:
    """The value of an expression, definitions evaluated where they are used. Raises: Failed."""
    match term:
        case ast.Literal():
            return term.value
        case ast.Variable():
            if term.name in rule.definitions:
                return value_of(rule, rule.definitions[term.name], bound)
            return bound[term.name]
        case ast.Unary():
            return values.negate(value_of(rule, term.operand, bound))
        case ast.Binary(operator="&&"):
            return (
                value_of(rule, term.left, bound) is True
                and value_of(rule, term.right, bound) is True
            )
        case ast.Binary(operator="||"):
            return (
                value_of(rule, term.left, bound) is True
                or value_of(rule, term.right, bound) is True
            )
        case ast.Binary():
            left = value_of(rule, term.left, bound)
            return _OPERATORS[term.operator](left, value_of(rule, term.right, bound))
        case ast.Call():
            arguments = [value_of(rule, argument, bound) for argument in term.arguments]
            return FUNCTIONS[term.name].evaluate(*arguments)
    raise AssertionError("a wildcard has no value")
