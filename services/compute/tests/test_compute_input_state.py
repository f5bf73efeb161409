"""An input hands on its changes, as tables or as records, and says when a step has enough."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.catalog.record_rows import (
    PredicateShape,
    Row,
    record_of,
    row_of,
    shape_of_events,
    shape_of_relation,
)
from tidemill.errors import Corrupt
from tidemill_compute.views.input_state import REST_PART, InputState, cut_step

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

values = st.tuples(
    st.sampled_from(("a", "é", "", None)),
    st.sampled_from((0, -1, (1 << 63) - 1, None)),
    st.sampled_from((0.0, -0.0, 2.5, None)),
    st.sampled_from((True, False, None)),
)
times = st.tuples(st.sampled_from((0, 3, None)), st.sampled_from((5, 1 << 40, None)))


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


def there(updates: list[Update], at: int) -> set[Row]:
    """The rows of which copies are there at an instant."""
    copies: dict[Row, int] = {}
    for row, time, diff in updates:
        if time <= at:
            copies[row] = copies.get(row, 0) + diff
    return {row for row, count in copies.items() if count}


def held(shape: PredicateShape, updates: list[Update], lower: int) -> pa.Table:
    """The rows just before an instant, with their multiplicities."""
    before = [(row, 0, diff) for row, at, diff in updates if at < lower]
    return consolidate(table(shape, before)).drop_columns(["_time"])


@pytest.mark.parametrize("shape", [RELATION, EVENTS], ids=["relation", "events"])
@pytest.mark.parametrize("stored", [False, True])
def test_an_input_hands_on_what_it_begins_with_and_each_change_once(
    shape: PredicateShape, stored: bool
) -> None:
    @settings(max_examples=60, deadline=None)
    @given(histories(shape), st.lists(st.integers(1, UPPER - 1), max_size=4, unique=True))
    def law(updates: list[Update], cuts: list[int]) -> None:
        first, *borders = [*sorted(cuts), UPPER]
        living = InputState(shape)
        living.stored = stored
        living.restart(held(shape, updates, first), first)
        assert living.alive == len(there(updates, first - 1))
        assert living.take_present() == held(shape, updates, first)
        assert living.alive == living.take_present().num_rows == 0, "handed on twice"
        found: list[pa.Table] = []
        for lower, upper in pairwise((first, *borders)):
            # It has read further than it hands on.
            middle = (upper + UPPER + 1) // 2
            due = [update for update in updates if living.upper <= update[1] < middle]
            living.extend(table(shape, due), middle)
            assert living.waiting(upper) == sum(lower <= at < upper for _, at, _ in updates)
            found.append(living.take_updates(upper))
            assert set(found[-1]["_time"].to_pylist()) <= set(range(lower, upper))
        rest = [update for update in updates if update[1] >= first]
        assert consolidate(pa.concat_tables([table(shape, []), *found])) == consolidate(
            table(shape, rest)
        )

    law()


@pytest.mark.parametrize("shape", [RELATION, EVENTS], ids=["relation", "events"])
def test_records_begin_and_end_with_the_first_and_the_last_copy_of_a_row(
    shape: PredicateShape,
) -> None:
    @settings(max_examples=60, deadline=None)
    @given(histories(shape), st.lists(st.integers(1, UPPER - 1), max_size=4, unique=True))
    def law(updates: list[Update], cuts: list[int]) -> None:
        first, *borders = [*sorted(cuts), UPPER]
        living, row = InputState(shape), row_of(shape)
        living.restart(held(shape, updates, first), first)
        alive = {row(record) for record in living.present()}
        assert alive == there(updates, first - 1)
        rest = [update for update in updates if update[1] >= first]
        living.extend(table(shape, rest), UPPER)
        for lower, upper in pairwise((first, *borders)):
            moves: dict[int, list[tuple[Row, int]]] = {}
            for record, at, diff in living.take(upper):
                moves.setdefault(at, []).append((row(record), diff))
            for at in range(lower, upper):
                for data, diff in moves.pop(at, ()):
                    assert (data in alive) == (diff < 0), "it begins twice, or ends twice"
                    (alive.add if diff > 0 else alive.discard)(data)
                assert alive == there(updates, at)
            assert not moves
            assert living.alive == len(alive)

    law()


@settings(max_examples=60, deadline=None)
@given(histories(EVENTS, corrupt=True), st.integers(0, UPPER))
def test_a_record_that_goes_too_often_is_corrupt(updates: list[Update], cut: int) -> None:
    living = InputState(EVENTS)
    living.extend(table(EVENTS, updates), UPPER)
    with pytest.raises(Corrupt, match=r"input p: .* is taken away more often"):
        take_twice(living, cut)


def take_twice(living: InputState, cut: int) -> None:
    """Two steps."""
    for upper in (cut, UPPER):
        living.take(upper)


def test_a_record_is_that_of_its_row() -> None:
    living, row = InputState(EVENTS), ("a", 1, 1.0, True, 3, (1 << 63) - 1)
    living.extend(table(EVENTS, [(row, 3, 1)]), 9)
    assert living.take(9) == [(record_of(EVENTS)(row), 3, 1)]


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=9), min_size=1, max_size=3),
    st.integers(1, 5) | st.integers(8, 24),
)
@settings(max_examples=80, deadline=None)
def test_a_step_ends_where_it_has_enough_and_never_within_an_instant(
    changes: list[list[int]], most: int
) -> None:
    inputs = []
    for mine in changes:
        living = InputState(RELATION)
        updates: list[Update] = [(("a", n, None, None), at, 1) for n, at in enumerate(mine)]
        living.extend(table(RELATION, updates), 40)
        inputs.append(living)
    every = sorted(at for mine in changes for at in mine)
    upper = cut_step(inputs, 0, 40, most)
    due = [at for at in every if at < upper]
    if len(every) <= most + most // REST_PART:  # a small rest is no step of its own
        assert upper == 40
    elif upper < 40:
        assert len(due) <= most or len(set(due)) == 1
        assert sum(at <= upper for at in every) > most or len(set(due)) == 1
