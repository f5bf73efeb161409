"""Reductions of a group of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Group: TypeAlias = Sequence[tuple[Any, int]]  # Any: values of the caller's type
"""Values in their order with their multiplicities, none of them zero, at least one value."""

Rows: TypeAlias = Sequence[tuple[Any, int]]  # Any: results of the caller's type
"""Results with their multiplicities."""

Reduction: TypeAlias = Callable[[Group], Rows]
"""A function of a group that depends on nothing else; it is not called for an empty group."""


def count(group: Group) -> Rows:
    """The sum of the multiplicities, once."""
    return [(sum(n for _, n in group), 1)]


def total(group: Group) -> Rows:
    """The sum of value times multiplicity, once."""
    return [(sum(value * n for value, n in group), 1)]


def distinct(group: Group) -> Rows:
    """Each value with positive multiplicity, once."""
    return [(value, 1) for value, n in group if n > 0]


def least(group: Group) -> Rows:
    """The least value with positive multiplicity, once."""
    return distinct(group)[:1]


def greatest(group: Group) -> Rows:
    """The greatest value with positive multiplicity, once."""
    return distinct(group)[-1:]


def first_count(group: Group) -> Rows:
    """The least value, as many times as there are values."""
    return [(group[0][0], len(group))]


def top(limit: int) -> Reduction:
    """The `limit` least values with positive multiplicity, each as often as it is there.

    Together at most `limit` rows.
    """

    def reduction(group: Group) -> Rows:
        left, rows = limit, []
        for value, n in group:
            taken = min(n, left)
            if taken > 0:
                rows.append((value, taken))
                left -= taken
        return rows

    return reduction


def threshold(rule: Callable[[Any, int], int]) -> Reduction:
    """Each value as often as `rule` says of the value and its multiplicity."""

    def reduction(group: Group) -> Rows:
        return [(value, kept) for value, n in group if (kept := rule(value, n))]

    return reduction
