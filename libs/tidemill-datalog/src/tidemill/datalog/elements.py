"""Elements of sets, which keep their types apart: `1`, `1.0` and `True` are three elements.

To Python they are one key.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any


class TruthElement(int):
    """A truth value in a set: equal to truth values alone."""

    __slots__ = ()
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return type(other) in (bool, TruthElement) and int(self) == int(other)  # type: ignore[call-overload]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(bool(self))


class FloatElement(float):
    """A float in a set: equal to floats alone."""

    __slots__ = ()
    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        return type(other) in (float, FloatElement) and float(self) == float(other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other


class DecimalElement(Decimal):
    """A decimal number in a set: equal to decimal numbers alone."""

    __slots__ = ()
    __hash__ = Decimal.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decimal) and Decimal.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def element(value: Any) -> Any:
    """The form of a value in sets. An element stays as it is."""
    kind = type(value)
    if kind is bool:
        return TruthElement(value)
    if kind is Decimal:
        return DecimalElement(value)
    return FloatElement(value) if kind is float else value


def holds(elements: frozenset[Any], value: Any) -> bool:
    """Whether some element equals the value as the language compares them.

    A whole number equals its float, a truth value no number. Cost: O(1); O(n) for a float beyond
    2^53, of which several whole numbers may be one.
    """
    if element(value) in elements:
        return True
    if type(value) is int:
        return FloatElement(value) in elements
    if type(value) is float:
        if -(2.0**53) < value < 2.0**53:
            return value.is_integer() and int(value) in elements
        return any(type(each) is int and float(each) == value for each in elements)
    return False
