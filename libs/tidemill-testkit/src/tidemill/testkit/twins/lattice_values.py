"""Lattices by their definition: an aggregate of numbers is the set of (identity, value) of its
contributions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tidemill.datalog import values
from tidemill.datalog.elements import element
from tidemill.datalog.values import Failed
from tidemill.time.typed import EXACT


def inject(lattice: str, written: Sequence[Any], identity: Any) -> Any:
    """The inner value of what was written, for one solution."""
    first = written[0]
    if lattice in ("count", "sum", "average"):
        return frozenset(((identity, first),))
    if lattice in ("set", "count_distinct", "provenance"):
        if isinstance(first, frozenset) and lattice != "count_distinct":
            return first
        return frozenset() if first is None else frozenset((element(first),))
    if lattice == "extent":
        return (written[0], written[1], inject("provenance", written[2:], identity))
    return first


def given_value(lattice: str, seen: Sequence[Any], record: Any) -> Any:
    """The inner value of what an input's record carries: a count is so many contributions of its
    own.

    Lattices of one fact merge each by itself (event-datalog.md, products). So what a value is does
    not depend on the others beside it, nor on the expiry.
    """
    if lattice == "count":
        return frozenset(((record.key, at), 1) for at in range(seen[0]))
    if lattice == "count_distinct":
        return frozenset((record.key, at) for at in range(seen[0]))
    return inject(lattice, seen, ("given", record.key))


def _merge(lattice: str, a: Any, b: Any) -> Any:
    if lattice in ("min", "earliest"):
        return min((x for x in (a, b) if x is not None), default=None)
    if lattice in ("max", "latest"):
        return max((x for x in (a, b) if x is not None), default=None)
    if lattice == "extent":
        return (_merge("min", a[0], b[0]), _merge("max", a[1], b[1]), a[2] | b[2])
    return a | b


def observe(lattice: str, inner: Any) -> Any:
    """The observed value of an inner value. Raises: Failed."""
    if lattice == "count":
        return sum(value is not None for _, value in inner)
    if lattice in ("sum", "average"):
        return _total(lattice, [value for _, value in inner if value is not None])
    return len(inner) if lattice == "count_distinct" else inner


def _total(lattice: str, numbers: list[Any]) -> Any:
    if not numbers:
        return None
    if any(abs(number) == float("inf") for number in numbers):
        raise Failed(values.OVERFLOW)
    if numbers and isinstance(numbers[0], timedelta):
        return values.span(sum(numbers, timedelta()))
    exact = sum(map(Fraction, numbers), Fraction(0))
    if lattice == "sum" and numbers and isinstance(numbers[0], Decimal):
        return values.decimal(EXACT.divide(Decimal(exact.numerator), Decimal(exact.denominator)))
    if lattice == "average":
        exact /= len(numbers)
    elif all(type(number) is int for number in numbers):
        return values.whole(int(exact))
    try:
        return float(exact)
    except OverflowError:
        raise Failed(values.OVERFLOW) from None


def merge_into(inner: dict[str, Any], lattice: str, value: Any) -> None:
    """Merge one value into the values of a fact."""
    inner[lattice] = _merge(lattice, inner[lattice], value) if lattice in inner else value


def merged(versions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The merge of several sets of values."""
    inner: dict[str, Any] = {}
    for version in versions:
        for lattice, value in version.items():
            merge_into(inner, lattice, value)
    return inner


def merge_alternative(facts: dict[Any, Any], key: Any, carried: Any) -> None:
    """Alternative derivations of one fact: the latest expiry, other lattices merged (language.md
    3.3).
    """
    known = facts.get(key)
    if known is None:
        facts[key] = carried
    else:
        facts[key] = (max(known[0], carried[0]), merged((known[1], carried[1])))
