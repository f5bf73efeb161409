"""Solutions that hold together are merged as one stretch after the other would merge them.

The judge of those that a compiled loop merges is the pointwise twin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import add
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.columns import texts
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
SPELLED_COLUMNS = (
    ("group", "int"), ("text", "text"), ("cost", "decimal(20,2)"), ("tag", "bytes"), ("id", "uuid"),
)  # fmt: skip
SPELLED = """
    most(g) @max(t) @min(c) @sum(c) @count(t) := r(g, t, c, _, _);
    least(g) @min(t) @max(c) @average(c) := r(g, t, c, _, _);
    tags(g) @max(b) @min(u) := r(g, _, _, b, u);
    twice(g) @max(d) := r(g, _, c, _, _) where d = c * c;
    all() @min(b) @max(u) := r(_, _, _, b, u);
"""
DRAWN: Mapping[str, Sequence[Any]] = {
    "text": ["", "Z", "a", "aa", "é", "\ue000", "\U00010000"],
    "cost": [Decimal(written) for written in ("-2", "-10.25", "0", "9", "10", "10.5", "100000")],
    "tag": [b"", b"\0", b"\x7f", b"\x80", b"\xff", b"a"],
    "id": [UUID(int=number) for number in (0, 5, 1 << 64, (1 << 128) - 1)],
}
UPPER = 12


def drawn(rng: Random, wide: bool) -> list[Presence]:
    """Readings that begin, end and are null; with `wide` floats that no loop adds up."""
    floats = [0.1, -0.1, 3.5, -0.0, 1e6, 1 / 3, *([1e300, -1e300, 5e-324] if wide else [])]
    wholes = [-3, 0, 7, *([INT_MAX, -INT_MAX] if wide else [])]
    return presences(rng, (wholes, floats, (False, True)))


def presences(rng: Random, columns: Sequence[Sequence[Any]]) -> list[Presence]:
    """Rows of values of these columns that begin, end and are null."""
    found = []
    for _ in range(rng.randint(1, 25)):
        values = [rng.choice(column) for column in columns]
        row = [None if rng.random() < 0.2 else value for value in values]
        start = rng.randrange(UPPER)
        end = rng.choice([END, start + rng.randint(1, 6)])
        found.append(Presence(Record("r", (rng.randrange(3), *row)), start, end))
    return list({(each.record, each.start): each for each in found}.values())


def check_answers(program: str, columns: Any, given: Sequence[Presence]) -> None:
    """The engine says at each instant what the twin says."""
    checked = check(parse(program), InputSchemas({"r": InputSchema("r", "relation", columns)}))
    held = Held(checked)
    for at, expected in enumerate(answers(checked, {"r": given}, 0, UPPER)[1:]):
        held.feed({"r": [each for each in given if each.start == at]})
        held.step(at + 1)
        assert {text for name in checked.derived for text in held.texts(name)} == {
            text for name in checked.derived for text in expected.records[name]
        }
        assert held.errors() == set(expected.errors)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_what_a_loop_merges_is_what_the_twin_says(seed: int, wide: bool) -> None:
    check_answers(TOGETHER, COLUMNS, drawn(Random(seed), wide))


@pytest.mark.parametrize("seed", range(30))
def test_texts_and_decimals_are_merged_in_their_order(seed: int) -> None:
    check_answers(SPELLED, SPELLED_COLUMNS, presences(Random(seed), list(DRAWN.values())))


@pytest.mark.parametrize("wide", [False, True])
def test_the_loop_merges_what_it_can(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said = noted(monkeypatch)
    for seed in range(30):
        test_what_a_loop_merges_is_what_the_twin_says(seed, wide)
    assert all(said) is not wide
    assert any(said)


def test_the_loop_merges_texts_and_decimals(monkeypatch: pytest.MonkeyPatch) -> None:
    said = noted(monkeypatch)
    monkeypatch.delattr(Reduction, "_read_one_by_one")
    for seed in range(10):
        test_texts_and_decimals_are_merged_in_their_order(seed)
    assert all(said)


def test_texts_of_more_bytes_than_an_array_holds_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group of 2 GiB of different texts made its view fail."""
    monkeypatch.setattr(texts, "_ARROW_BYTES_MAX", 3)
    monkeypatch.delattr(Reduction, "_read_one_by_one")
    for seed in range(10):
        drawn_rows = presences(Random(seed), list(DRAWN.values()))
        check_answers("all() @max(t) @sum(c) := r(_, t, c, _, _);", SPELLED_COLUMNS, drawn_rows)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each reading of groups from now on was by the loop."""
    said: list[bool] = []
    read = Reduction._read_together

    def read_and_noted(self: Reduction, *given: Any) -> Any:
        found = read(self, *given)
        said.append(found is not None)
        return found

    monkeypatch.setattr(Reduction, "_read_together", read_and_noted)
    return said
