"""Scalar functions as the language calls them, and the tests of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeAlias

from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.values import OVERFLOW, TEXT_MAX, WRONG_TYPE, Failed, Value, normal

Signature: TypeAlias = "tuple[tuple[ColumnType, ...], ColumnType]"
"""Types of arguments, and the type of the value."""


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A pure function of values: how many arguments it takes and what it computes.

    The docstring of `evaluate` is the function's line in the reference of the language. `takes` are
    the types of its arguments, the optional ones last, and `gives` is that of its value. Functions
    of several types leave `takes` out. A function of a host states both. `also` are further types:
    `same` is the type of the first argument, and `decimal` has the digits behind the point that the
    last argument names.
    """

    name: str
    arity_min: int
    arity_max: int | None
    evaluate: Callable[..., Value]
    takes: tuple[ColumnType, ...] | None = None
    gives: ColumnType = "any"
    also: tuple[Signature, ...] = ()

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """The types that it takes, and the type that it then gives."""
        own = () if self.takes is None else ((self.takes, self.gives),)
        return (*self.also, *own)


def function(
    name: str,
    evaluate: Callable[..., Value],
    takes: tuple[ColumnType, ...],
    gives: ColumnType,
    optional: int = 0,
    also: tuple[Signature, ...] = (),
) -> ScalarFunction:
    """A function of null that is null, the last `optional` arguments of which may be left out."""
    most = len(takes)
    return ScalarFunction(name, most - optional, most, strict(evaluate), takes, gives, also)


def text_of(value: Value) -> str:
    """The value itself if it is text. Raises: Failed(wrong type)."""
    if isinstance(value, str):
        return value
    raise Failed(WRONG_TYPE)


def number_of(value: Value) -> int | float:
    """The value itself if it is a number. Raises: Failed(wrong type)."""
    if type(value) is int or type(value) is float:
        return value
    raise Failed(WRONG_TYPE)


def whole_of(value: Value) -> int:
    """The value itself if it is a whole number. Raises: Failed(wrong type)."""
    if type(value) is int:
        return value
    raise Failed(WRONG_TYPE)


def made(text: str) -> str:
    """A text that a function made, in normal form. Raises: Failed(overflow, too many marks)."""
    if len(text) > TEXT_MAX:
        raise Failed(OVERFLOW)
    return normal(text)


def strict(evaluate: Callable[..., Value]) -> Callable[..., Value]:
    """The function that is null of null."""

    @wraps(evaluate)
    def of_null_is_null(*arguments: Value) -> Value:
        if None in arguments:
            return None
        return evaluate(*arguments)

    return of_null_is_null
