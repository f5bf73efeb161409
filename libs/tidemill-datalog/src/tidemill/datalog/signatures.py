"""Types of operators and functions over the types beside numbers, texts and truths.

Nothing is converted by itself but whole numbers to floats: a program names every other conversion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.datalog.inputs import ColumnType, exact, scale_of
from tidemill.datalog.scalar import ScalarFunction
from tidemill.time.typed import SCALE_MAX

PLAIN = frozenset(("int", "float", "text", "bool", "set", "any"))
"""Types that the rules of numbers, texts, truths and sets are about."""

_OPERATED: Mapping[tuple[str, str, str], ColumnType] = {
    ("+", "timestamp", "duration"): "timestamp", ("+", "duration", "timestamp"): "timestamp",
    ("-", "timestamp", "duration"): "timestamp", ("-", "timestamp", "timestamp"): "duration",
    ("+", "date", "int"): "date", ("+", "int", "date"): "date", ("-", "date", "int"): "date",
    ("-", "date", "date"): "int",
    ("+", "duration", "duration"): "duration", ("-", "duration", "duration"): "duration",
    ("*", "duration", "int"): "duration", ("*", "int", "duration"): "duration",
    ("/", "duration", "int"): "duration", ("/", "duration", "duration"): "float",
}  # fmt: skip


def operated(sign: str, left: ColumnType, right: ColumnType) -> ColumnType | None:
    """The type of `+ - * / %` between two types of which one is not plain; None if it has none."""
    scales = scale_of(left), scale_of(right)
    if scales[0] is not None and scales[1] is not None:
        if sign in "+-":
            return exact(max(scales[0], scales[1]))
        if sign == "*" and "decimal" in (left, right):  # the checker has seen their digits
            return exact(SCALE_MAX)
        scale = scales[0] + scales[1]
        return exact(scale) if sign == "*" and scale <= SCALE_MAX else None
    if "any" in (left, right):
        other = right if left == "any" else left
        kinds = {kind for (s, a, b), kind in _OPERATED.items() if s == sign and other in (a, b)}
        return kinds.pop() if len(kinds) == 1 else ("any" if kinds or scale_of(other) else None)
    return _OPERATED.get((sign, left, right))


def negated(kind: ColumnType) -> ColumnType | None:
    """The type of a value with a sign before it, where it is not plain."""
    return kind if kind == "duration" or scale_of(kind) is not None else None


def called(
    function: ScalarFunction, given: Sequence[ColumnType], digits: int | None = None
) -> ColumnType | None:
    """The type of a function of arguments of these types; None if it takes none such.

    `digits` is the last argument, if it is a literal: of decimal numbers it may be their scale.
    """
    found = {
        given[0] if gives == "same" else gives
        for takes, gives in function.signatures
        if len(given) <= len(takes) and all(map(_fits, given, takes))
    }
    if "decimal" in found:
        return exact(SCALE_MAX if digits is None else max(0, min(digits, SCALE_MAX)))
    if len(found) > 1:
        return "any"
    return found.pop() if found else None


def _fits(given: ColumnType, taken: ColumnType) -> bool:
    if given in ("any", taken) or taken == "any":
        return True
    return (taken == "decimal" and scale_of(given) is not None) or (given, taken) == (
        "int",
        "float",
    )


def united(a: ColumnType, b: ColumnType) -> ColumnType | None:
    """The least type of decimal numbers that holds two such types, None for others."""
    scales = scale_of(a), scale_of(b)
    if scales[0] is None or scales[1] is None:
        return None
    return exact(max(scales[0], scales[1]))
