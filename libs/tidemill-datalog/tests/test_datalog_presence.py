"""Interval sets against sets of instants, and rows of relations."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.presence import (
    END,
    Interval,
    clip,
    intersect,
    normalise,
    subtract,
)
from tidemill.testkit.row_presences import NegativeMultiplicity, row_presences

LAW = settings(max_examples=100, deadline=None)
INTERVALS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


def instants(intervals: list[Interval]) -> set[int]:
    return {at for at in range(21) if any(s <= at < f for s, f in intervals)}


@LAW
@given(INTERVALS, INTERVALS)
def test_operations_on_intervals_are_operations_on_instants(
    left: list[Interval], right: list[Interval]
) -> None:
    a, b = normalise(left), normalise(right)
    assert instants(a) == instants(left)
    assert instants(intersect(a, b)) == instants(left) & instants(right)
    assert instants(subtract(a, b)) == instants(left) - instants(right)
    for found in (a, intersect(a, b), subtract(a, b)):
        assert normalise(found) == found


def test_clipping_keeps_what_lies_in_the_window_and_forgets_ends_beyond_it() -> None:
    assert clip([(0, 5), (7, 12), (15, END)], 3, 10) == [(3, 5), (7, END)]


def test_a_row_is_present_while_its_diffs_sum_above_zero() -> None:
    row = ("a",)
    assert row_presences([(row, 5, -1), (row, 3, 2), (row, 9, -1), (row, 12, 1)], 11) == {
        row: [(3, 9)]
    }
    assert row_presences([(row, 3, 1), (row, 4, -2), (("b",), 2, -1)]) == NegativeMultiplicity(
        ("b",), 2
    )
    assert row_presences([(row, 4, -1)], 4) == {}
