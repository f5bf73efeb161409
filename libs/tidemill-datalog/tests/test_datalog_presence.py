"""Interval sets against sets of instants, rows of relations, and the frontier of streams."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.arrival import (
    Admitted,
    Ahead,
    ArrivalPolicy,
    EventStream,
    Late,
    event_presence,
)
from tidemill.datalog.presence import (
    BEGINNING,
    END,
    Interval,
    NegativeMultiplicity,
    clip,
    intersect,
    normalise,
    row_presences,
    subtract,
)
from tidemill.datalog.records import Record

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


def test_the_frontier_of_a_stream_is_that_of_its_slowest_partition_and_never_goes_back() -> None:
    stream = EventStream.of_partitions(ArrivalPolicy(skew=10), (0, 1))
    assert stream.frontier == BEGINNING
    assert stream.admit(100, 0) == Admitted(100)
    assert stream.frontier == BEGINNING
    assert stream.admit(40, 1) == Admitted(40)
    assert stream.frontier == 30
    assert stream.admit(29, 0) == Late(None, 30)
    stream.silence(1)
    assert stream.frontier == 90
    assert stream.admit(95, 1) == Admitted(95)
    assert stream.frontier == 90


def test_a_stream_goes_on_from_its_state_exactly() -> None:
    stream = EventStream.of_partitions(ArrivalPolicy(skew=1, late="correct"), (0, 1))
    stream.admit(50, 0)
    stream.heartbeat(20, 1)
    again = EventStream(ArrivalPolicy(skew=1, late="correct"), stream.state)
    assert again.frontier == stream.frontier == 20
    assert again.admit(7, 1) == stream.admit(7, 1) == Late(20, 20)
    assert again.state == stream.state


def test_an_event_too_far_ahead_of_the_wall_clock_moves_nothing() -> None:
    stream = EventStream.of_partitions(ArrivalPolicy(max_ahead=1000))
    assert stream.admit(2001, wall=1000) == Ahead(1000)
    assert stream.frontier == BEGINNING
    assert stream.admit(2000, wall=1000) == Admitted(2000)


def test_a_late_event_that_has_expired_is_never_present() -> None:
    assert event_presence(Record("e", (1,), 5, 9), 9) is None
    presence = event_presence(Record("e", (1,), 5, 9), 8)
    assert presence is not None
    assert (presence.start, presence.end) == (8, 9)
