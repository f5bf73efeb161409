"""The rows of an input on columns are those that it holds one by one, whichever way each window
asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import empty_updates
from tidemill.catalog.record_rows import (
    PredicateShape,
    Row,
    row_of,
    shape_of_events,
    shape_of_relation,
)
from tidemill.datalog.columnar import Columns, Texts
from tidemill.datalog.columnar.columns import END_WORD
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import format_presence
from tidemill.errors import Corrupt
from tidemill_compute.views.column_rows import rows_of_columns
from tidemill_compute.views.input_state import InputState, cut_window

FIELDS = [
    ("name", pa.string()),
    ("level", pa.int64()),
    ("share", pa.float64()),
    ("open", pa.bool_()),
]
RELATION = shape_of_relation("p", pa.schema(FIELDS))
EVENTS = shape_of_events("p", pa.schema([*FIELDS, ("time", pa.int64()), ("expires", pa.int64())]))
UPPER = 12
Update: TypeAlias = "tuple[Row, int, int]"
Way: TypeAlias = Literal["columns", "rows", "changes", "facts", "aside"]

values = st.tuples(
    st.sampled_from(("a", "é", "", None)),
    st.sampled_from((0, -1, (1 << 63) - 1, None)),
    st.sampled_from((0.0, -0.0, 2.5, None)),
    st.sampled_from((True, False, None)),
)
times = st.tuples(st.sampled_from((0, 3, None)), st.sampled_from((5, 1 << 40, None)))
ways = st.sampled_from(("columns", "columns", "rows", "changes", "facts", "aside"))


@st.composite
def histories(draw: st.DrawFn, shape: PredicateShape, corrupt: bool = False) -> list[Update]:
    """Updates of rows that come and go, several copies of some; with `corrupt` one goes too
    often.
    """
    pool = (
        values if not shape.timed else st.tuples(values, times).map(lambda both: both[0] + both[1])
    )
    rows = draw(st.lists(pool, min_size=1, max_size=4))
    found: list[Update] = []
    for row in rows:
        instants = draw(st.lists(st.integers(0, UPPER - 1), max_size=5))
        copies = 0
        for at in sorted(instants):
            diff = -copies if copies and draw(st.booleans()) else draw(st.integers(1, 2))
            found.append((row, at, diff))
            copies += diff
    if corrupt:
        found.append((draw(st.sampled_from(rows)), draw(st.integers(0, UPPER - 1)), -99))
    return draw(st.permutations(found))


def table(shape: PredicateShape, updates: list[Update]) -> pa.Table:
    schema = empty_updates(shape.schema).schema
    rows = [(*row, at, diff) for row, at, diff in updates]
    arrays = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass
class Oracle:
    """The same updates, looked at instant by instant."""

    updates: list[Update]

    def stretches(self, row: Row, seen: int, upper: int) -> set[tuple[int, int]]:
        """When a row is there from `seen` on, as pairs of instants in [seen, upper)."""
        return {
            (at, at + 1)
            for at in range(max(seen, 0), upper)
            if sum(diff for mine, time, diff in self.updates if mine == row and time <= at) > 0
        }


def instants(
    stretches: list[tuple[Row, float, float]], seen: int, upper: int
) -> set[tuple[Row, int]]:
    found = [
        (row, at)
        for row, start, stop in stretches
        for at in range(max(seen, 0, int(max(start, 0))), int(min(stop, upper)))
    ]
    assert len(found) == len(set(found)), "a row is there twice"
    return set(found)


def of_columns(found: Columns, shape: PredicateShape) -> list[tuple[Row, float, float]]:
    ends = [END if stop == END_WORD else stop for stop in found.stop.tolist()]
    return list(zip(rows_of_columns(found, shape), found.start.tolist(), ends, strict=True))


def of_presences(found: list[Presence], shape: PredicateShape) -> list[tuple[Row, float, float]]:
    row = row_of(shape)
    return [(row(p.record), p.start, p.end) for p in found]


@pytest.mark.parametrize("shape", [RELATION, EVENTS], ids=["relation", "events"])
def test_windows_hold_the_same_rows_whichever_way_they_are_taken(shape: PredicateShape) -> None:
    taken = []

    @settings(max_examples=80, deadline=None)
    @given(
        histories(shape),
        st.lists(st.integers(1, UPPER - 1), max_size=4, unique=True),
        st.lists(ways, min_size=6, max_size=6),
        st.booleans(),
    )
    def law(updates: list[Update], cuts: list[int], asked: list[Way], restarted: bool) -> None:
        living, texts, oracle = InputState(shape), Texts(), Oracle(updates)
        borders = [0, *sorted(cuts), UPPER]
        every = {row for row, _, _ in updates}
        for (lower, upper), way in zip(pairwise(borders), asked, strict=False):
            seen = lower - 1
            if restarted and lower:
                living = again(shape, updates, lower)
            middle = (lower + upper) // 2
            for first, last in ((lower, middle), (middle, upper)):
                due = [update for update in updates if first <= update[1] < last]
                living.extend(table(shape, due), last)
            assert living.waiting(upper) == sum(lower <= at < upper for _, at, _ in updates)
            if way == "columns":
                window = living.advance_columns(upper, texts)
                assert window is not None
                assert living.on_columns
                found = of_columns(window.columns, shape)
            elif way in ("facts", "aside"):
                if way == "aside":
                    was, other = (living.columns, living.facts, living.alive), living.aside()
                    assert other.hold_facts(lambda: None) is not None
                    assert (living.columns, living.facts, living.alive) == was
                    living.become(other)
                assert living.hold_facts() is not None
                living.walk(upper)
                held = {row for row, _, _ in living._held()}
                assert held == {row for row in every if oracle.stretches(row, upper - 1, upper)}
                assert not living.on_columns
                taken.append(way)
                continue
            elif way == "rows":
                found = of_presences(living.advance(upper), shape)
            else:
                before = of_presences(living.present(), shape)
                found = followed(before, living.take(upper), shape)
            taken.append(way)
            expected = {(row, at) for row in every for at, _ in oracle.stretches(row, seen, upper)}
            assert instants(found, seen, upper) == expected
            if len(taken) % 3 == 0:
                texts = Texts()  # numbers are begun anew

    law()
    assert {"columns", "rows", "changes", "facts"} <= set(taken)


def again(shape: PredicateShape, updates: list[Update], lower: int) -> InputState:
    """A process that begins at `lower` with what it reads there."""
    held: dict[Row, int] = {}
    for row, at, diff in updates:
        if at < lower:
            held[row] = held.get(row, 0) + diff
    rows = [(row, 0, copies) for row, copies in held.items() if copies]
    living = InputState(shape)
    living.restart(table(shape, rows).drop_columns(["_time"]), lower)
    assert living.alive == len(rows)
    return living


def followed(
    before: list[tuple[Row, float, float]],
    moved: list[tuple[object, int, int]],
    shape: PredicateShape,
) -> list[tuple[Row, float, float]]:
    """Stretches from what was present, and which records begin and end."""
    row = row_of(shape)
    open_ = {row_: start for row_, start, _ in before}
    found: list[tuple[Row, float, float]] = []
    for record, at, diff in moved:
        if diff > 0:
            open_[row(record)] = at  # type: ignore[arg-type]  # a record
        else:
            found.append((row(record), open_.pop(row(record)), at))  # type: ignore[arg-type]
    return found + [(row_, start, END) for row_, start in open_.items()]


@settings(max_examples=60, deadline=None)
@given(histories(EVENTS, corrupt=True), st.integers(0, UPPER))
def test_a_row_that_goes_too_often_is_corrupt_in_every_way(updates: list[Update], cut: int) -> None:
    said = []
    ways: tuple[Way, ...] = ("columns", "rows", "facts")
    for way in ways:
        living = InputState(EVENTS)
        living.extend(table(EVENTS, updates), UPPER)
        with pytest.raises(Corrupt, match=r"input p: .* is taken away more often") as caught:
            take_twice(living, cut, way)
        said.append(caught.value.details["time"])
    assert said[0] == said[1] == said[2]


def take_twice(living: InputState, cut: int, way: Way) -> None:
    """Two windows."""
    for upper in (cut, UPPER):
        if way == "columns":
            living.advance_columns(upper, Texts())
        elif way == "facts":
            living.hold_facts()
            living.walk(upper)
        else:
            living.advance(upper)


def test_instants_that_numbers_of_columns_mean_something_else_by_stay_rows() -> None:
    living = InputState(EVENTS)
    far = (1 << 63) - 1
    living.extend(table(EVENTS, [(("a", 1, 1.0, True, 3, far), 3, 1)]), 9)
    assert living.advance_columns(9, Texts()) is None
    (found,) = living.advance(9)
    assert found.record.expires == far
    assert format_presence(found.record, found.start, found.end).startswith("[3,-)")


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=9), min_size=1, max_size=3),
    st.integers(1, 5),
)
@settings(max_examples=80, deadline=None)
def test_a_window_ends_where_it_has_enough_and_never_within_an_instant(
    changes: list[list[int]], most: int
) -> None:
    inputs = []
    for mine in changes:
        living = InputState(RELATION)
        updates: list[Update] = [(("a", n, None, None), at, 1) for n, at in enumerate(mine)]
        living.extend(table(RELATION, updates), 40)
        inputs.append(living)
    every = sorted(at for mine in changes for at in mine)
    upper = cut_window(inputs, 0, 40, most)
    due = [at for at in every if at < upper]
    if len(every) <= most:
        assert upper == 40
    elif upper < 40:
        assert len(due) <= most or len(set(due)) == 1
        assert sum(at <= upper for at in every) > most or len(set(due)) == 1
