"""Solutions that hold together are merged as one stretch after the other would merge them.

The judge of those that a compiled loop merges is the pointwise twin.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from random import Random
from typing import Any

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.dataflow.operators.reducing import Reduction
from tidemill.datalog.dataflow.operators.stretches import Stretches
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.sums import ExactSum, exact_average, exact_sum
from tidemill.datalog.values import INT_MAX, Failed
from tidemill.testkit.held import Held
from tidemill.testkit.twins.pointwise import answers


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


COLUMNS = (("group", "int"), ("whole", "int"), ("float", "float"), ("flag", "bool"))
TOGETHER = """
    best(g) @max(x) @min(w) @latest(b) @count(x) := r(g, w, x, b);
    sums(g) @sum(x) @average(x) @count(b) := r(g, _, x, b);
    both(g) @sum(w) @average(x) @earliest(x) := r(g, w, x, _);
    last(b) @latest(w) @average(w) @min(x) := r(_, w, x, b);
    all() @sum(x) @max(w) := r(_, w, x, _);
"""
UPPER = 12


def drawn(rng: Random, wide: bool) -> list[Presence]:
    """Readings that begin, end and are null; with `wide` floats that no loop adds up."""
    floats = [0.1, -0.1, 3.5, -0.0, 1e6, 1 / 3, *([1e300, -1e300, 5e-324] if wide else [])]
    wholes = [-3, 0, 7, *([INT_MAX, -INT_MAX] if wide else [])]
    found = []
    for _ in range(rng.randint(1, 25)):
        values = rng.choice(wholes), rng.choice(floats), rng.random() < 0.5
        row = [None if rng.random() < 0.2 else value for value in values]
        start = rng.randrange(UPPER)
        end = rng.choice([END, start + rng.randint(1, 6)])
        found.append(Presence(Record("r", (rng.randrange(3), *row)), start, end))
    return list({(each.record, each.start): each for each in found}.values())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_what_a_loop_merges_is_what_the_twin_says(seed: int, wide: bool) -> None:
    rng = Random(seed)
    checked = check(parse(TOGETHER), InputSchemas({"r": InputSchema("r", "relation", COLUMNS)}))
    given = drawn(rng, wide)
    held = Held(checked)
    for at, expected in enumerate(answers(checked, {"r": given}, 0, UPPER)[1:]):
        held.feed({"r": [each for each in given if each.start == at]})
        held.step(at + 1)
        assert {text for name in checked.derived for text in held.texts(name)} == {
            text for name in checked.derived for text in expected.records[name]
        }
        assert held.errors() == set(expected.errors)


@pytest.mark.parametrize("wide", [False, True])
def test_the_loop_merges_what_it_can(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    read = Reduction._read_together

    def noted(self: Reduction, touched: Any) -> Any:
        found = read(self, touched)
        said.append(found is not None)
        return found

    monkeypatch.setattr(Reduction, "_read_together", noted)
    for seed in range(30):
        test_what_a_loop_merges_is_what_the_twin_says(seed, wide)
    assert all(said) is not wide
    assert any(said)
