"""Solutions that hold together are merged as one stretch after the other would merge them."""

from __future__ import annotations

from functools import reduce
from operator import add
from random import Random

import pytest

from tidemill.datalog.dataflow.operators.stretches import Stretches
from tidemill.datalog.sums import ExactSum, exact_average, exact_sum
from tidemill.datalog.values import Failed


def some_rows(rng: Random) -> list[list[int]]:
    """Rows of which start, end and diff are the last words."""
    rows = []
    for at in range(rng.randint(1, 40)):
        start = rng.randrange(30)
        rows.append([at, start, rng.randint(start + 1, 31), 1])
    return rows


def holding(rows: list[list[int]], instant: int) -> list[int]:
    return [row[0] for row in rows if row[1] <= instant < row[2]]


@pytest.mark.parametrize("seed", range(60))
def test_values_are_merged_stretch_by_stretch(seed: int) -> None:
    rng = Random(seed)
    rows = some_rows(rng)
    stretches, values = Stretches(rows), [rng.randint(-9, 9) for _ in rows]
    sets = [frozenset({value}) for value in values]
    greatest = stretches.merged(values, max)
    united = stretches.merged(sets, frozenset.__or__)
    sums = stretches.merged(values, add)
    for at, (start, end) in enumerate(stretches):
        for instant in range(start, end):
            alive = holding(rows, instant)
            if not alive:
                assert greatest[at] is united[at] is sums[at]
                assert not isinstance(sums[at], int)
                continue
            assert greatest[at] == max(values[each] for each in alive)
            assert united[at] == reduce(frozenset.__or__, (sets[each] for each in alive))
            assert sums[at] == sum(values[each] for each in alive)


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_exact_stretch_by_stretch(seed: int) -> None:
    rng = Random(seed)
    rows = some_rows(rng)
    values = [rng.choice([0.1, 1e300, -1e300, 3, None, float("inf")]) for _ in rows]

    def expected(alive: list[int], average: bool) -> object:
        try:
            return (exact_average if average else exact_sum)([values[each] for each in alive])
        except Failed as failed:
            return failed.reason

    stretches = Stretches(rows)
    for average, seen in ((False, ExactSum.sum), (True, ExactSum.average)):
        found = stretches.summed(values, seen)
        for at, (start, _) in enumerate(stretches):
            told = found[at].reason if isinstance(found[at], Failed) else found[at]
            assert told == expected(holding(rows, start), average)


def test_merges_do_not_grow_with_what_holds_together() -> None:
    """A thousand values that all hold for a long time are merged in O(n log n)."""
    merges = 0

    def merge(mine: int, other: int) -> int:
        nonlocal merges
        merges += 1
        return max(mine, other)

    size = 1_000
    found = Stretches([[at, at, at + size, 1] for at in range(size)]).merged(range(size), merge)
    assert found[:size] == list(range(size))
    assert merges < 25 * size  # half a million, one by one
