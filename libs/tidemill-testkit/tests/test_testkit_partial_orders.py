"""Laws of the operators: over several rounds with compaction they equal recomputation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.testkit.generators import rounds_of, small_antichains, small_times
from tidemill.testkit.partial_orders import (
    Join,
    Reduce,
    Reduction,
    count,
    distinct,
    first_count,
    greatest,
    interesting_times,
    least,
    threshold,
    tiles,
    top,
    total,
)
from tidemill.testkit.partial_orders.replay import joined_histories
from tidemill.testkit.partial_orders.update_sets import consolidate_updates
from tidemill.testkit.twins.collections import consolidated
from tidemill.testkit.twins.operators import active_times, joined, reduced
from tidemill.time import U64_TIME, Antichain, ProductOrder, frontier

LATTICES: list[Any] = [U64_TIME, ProductOrder(2), ProductOrder(3), ProductOrder(4)]

REDUCTIONS: list[Reduction] = [
    count,
    total,
    distinct,
    least,
    greatest,
    first_count,
    top(2),
    threshold(lambda value, n: n % 2),
]


@settings(max_examples=50, deadline=None)
@given(rounds_of(1, lattices=LATTICES), st.sampled_from(REDUCTIONS))
def test_a_reduction_in_rounds_equals_recomputation(schedule: Any, reduction: Reduction) -> None:
    lattice, rounds = schedule
    operator: Reduce[str, int, Any] = Reduce(lattice, reduction)
    everything = [update for (updates,), _, _ in rounds for update in updates]
    oracle = reduced(lattice, reduction, everything)
    for (updates,), upper, since in rounds:
        lower = operator.upper
        changes = operator.step(updates, upper)
        wanted = [u for u in oracle if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
        assert {(d, t): n for d, t, n in changes} == consolidated(wanted)
        operator.compact(since)
        while operator.exert(64):
            pass
    assert operator.pending == 0


@settings(max_examples=50, deadline=None)
@given(rounds_of(2, lattices=LATTICES), st.integers(1, 5))
def test_a_join_in_rounds_equals_recomputation(schedule: Any, limit: int) -> None:
    lattice, rounds = schedule
    join: Join[str, int, int, Any] = Join(lattice)
    found: list[Any] = []
    for (left, right), upper, since in rounds:
        join.push(left, right, upper)
        for _ in range(3):
            piece = join.work(limit)
            assert len(piece) <= limit
            found += piece
        join.compact(since)
        join.exert(64)
    while not join.done:
        found += join.work(limit)
    sides = [[u for inputs, _, _ in rounds for u in inputs[side]] for side in (0, 1)]
    assert consolidated(found) == joined(lattice, *sides)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(LATTICES), st.data())
def test_active_times_are_the_joins_beyond_a_seed(lattice: Any, data: st.DataObject) -> None:
    listed = st.lists(small_times(lattice), max_size=4)
    upper = data.draw(small_antichains(lattice))
    new = [time for time in data.draw(listed) if not upper.less_equal(time)]
    pending, stored = data.draw(listed), data.draw(listed)
    times = interesting_times(lattice, new, pending, stored, upper)
    seeds = [time for time in [*new, *pending] if not upper.less_equal(time)]
    assert set(times.active) == active_times(lattice, seeds, [*stored, *pending], upper)
    assert list(times.active) == sorted(times.active, key=lattice.sort_key)
    partners = {*times.active, *stored, *new, *pending}
    joins = {lattice.join(a, b) for a in times.active for b in partners}
    wanted = {time for time in {*joins, *pending} if upper.less_equal(time)}
    assert wanted <= times.pended
    assert all(upper.less_equal(time) for time in times.pended)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LATTICES), st.data())
def test_a_wave_adds_up_to_all_pairs(lattice: Any, data: st.DataObject) -> None:
    edit = st.tuples(st.integers(0, 1), small_times(lattice), st.sampled_from([1, -1]))
    left, right = (data.draw(st.lists(edit, min_size=10, max_size=16)) for _ in range(2))
    found = [((v, w), t, n) for v, w, t, n in joined_histories(lattice, left, right)]
    pairs = [((v, w), lattice.join(t, u), n * m) for v, t, n in left for w, u, m in right]
    assert consolidated(found) == consolidated(pairs)


def test_long_histories_that_add_up_to_little_give_little() -> None:
    edits = [(0, i, 1 if i % 2 == 0 else -1) for i in range(2_000)]
    found = list(joined_histories(U64_TIME, edits, edits))
    assert len(found) <= 4_000
    assert consolidate_updates(((v, w), t, n) for v, w, t, n in found)


def test_a_stored_time_beyond_upper_is_a_partner_of_what_waits() -> None:
    lattice = ProductOrder(3)
    upper = Antichain.of(lattice, [(0, 1, 2), (2, 1, 0)])
    for stored in ((2, 0, 0), (2, 1, 0)):
        times = interesting_times(lattice, [(0, 2, 0), (0, 1, 1)], [], [stored], upper)
        assert times.active == ((0, 1, 1), (0, 2, 0), (0, 2, 1))
        assert {(2, 1, 1), (2, 2, 0), (2, 2, 1)} <= times.pended


def test_a_refused_step_changes_nothing() -> None:
    operator: Reduce[str, int, int] = Reduce(U64_TIME, count)
    assert operator.step([(("k", 1), 0, 1)], frontier(1)) == ((("k", 1), 0, 1),)
    with pytest.raises(UsageError):
        operator.step([(("k", 2), 0, 1)], frontier(2))
    with pytest.raises(UsageError):
        operator.step([], frontier(0))
    assert operator.step([], frontier(1)) == ()
    assert operator.step([(("k", 2), 1, 1)], frontier(2)) == ((("k", 1), 1, -1), (("k", 2), 1, 1))
    join: Join[str, int, int, int] = Join(U64_TIME)
    join.push([(("k", 1), 0, 1)], [], frontier(1))
    with pytest.raises(UsageError):
        join.push([], [(("k", 2), 5, 1)], frontier(2))
    join.push([], [(("k", 2), 1, 1)], frontier(2))
    assert join.work(10) == [(("k", 1, 2), 1, 1)]
    assert join.done


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LATTICES), st.data())
def test_tiles_cover_the_interval_once(lattice: Any, data: st.DataObject) -> None:
    lower = data.draw(small_antichains(lattice))
    upper = lower.join(data.draw(small_antichains(lattice)), lattice)
    held = sorted(
        {
            t
            for t in data.draw(st.lists(small_times(lattice), max_size=4))
            if not upper.less_equal(t)
        }
        | set(lower),
        key=lattice.sort_key,
    )
    held = [time for time in held if lower.less_equal(time) and not upper.less_equal(time)]
    edge = lower
    for start, end, time in tiles(lower, upper, held):
        assert start == edge
        assert end != start
        assert time in held
        edge = end
    assert edge == upper
