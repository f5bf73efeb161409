"""What groups of vals reduce to, many groups in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tidemill.arrangement.kernels.arrays import I64Array, U64Array
from tidemill.arrangement.kernels.reducing import (
    COUNT,
    DISTINCT,
    GREATEST,
    LEAST,
    SUM,
    TOP,
    reduce_groups,
)

GroupRows: TypeAlias = tuple[U64Array, U64Array, I64Array]
"""Keys, results and multiplicities."""

GroupReduction: TypeAlias = Callable[[U64Array, U64Array, I64Array], GroupRows]
"""Keys, vals and multiplicities, sorted by (key, val), none zero, to the results of each key.

It depends on nothing else, and a key without rows has no result.
"""

count: GroupReduction = partial(reduce_groups, kind=COUNT)
"""The sum of the multiplicities, once, as a word in two's complement."""

least: GroupReduction = partial(reduce_groups, kind=LEAST)
"""The least val with positive multiplicity, once."""

greatest: GroupReduction = partial(reduce_groups, kind=GREATEST)
"""The greatest val with positive multiplicity, once."""

distinct: GroupReduction = partial(reduce_groups, kind=DISTINCT)
"""Each val with positive multiplicity, once."""


def total(offset: int = 0) -> GroupReduction:
    """The sum of value times multiplicity, once: `val - offset` and the sum in two's complement.

    With the offset 2^63 vals are in the order of the whole numbers that they stand for.
    """
    return partial(reduce_groups, kind=SUM, offset=offset)


def top(limit: int) -> GroupReduction:
    """The `limit` least vals with positive multiplicity, each as often as it is there.

    Together at most `limit` rows.
    """
    return partial(reduce_groups, kind=TOP, limit=limit)


def threshold(rule: Callable[[U64Array, I64Array], I64Array]) -> GroupReduction:
    """Each val as often as `rule` says of vals and multiplicities."""

    def reduction(keys: U64Array, vals: U64Array, diffs: I64Array) -> GroupRows:
        kept = rule(vals, diffs)
        there = kept != 0
        return keys[there], vals[there], kept[there]

    return reduction
