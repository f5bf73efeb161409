"""Laws of the operators on columns: round by round they give what the operators on rows give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.columns import (
    ColumnArrangement,
    ColumnCount,
    ColumnJoin,
    ColumnReduce,
    ColumnSemijoin,
    Joined,
    TraceJoin,
    TraceReduce,
    matching,
    reductions,
)
from tidemill.arrangement.kernels import Columns
from tidemill.arrangement.operators import (
    count,
    distinct,
    first_count,
    greatest,
    least,
    threshold,
    top,
    total,
)
from tidemill.arrangement.update_sets import accumulate_updates
from tidemill.errors import UsageError
from tidemill.testkit.generators import rounds_of
from tidemill.testkit.twins.collections import consolidated
from tidemill.testkit.twins.operators import joined, reduced
from tidemill.time import U64_TIME, Antichain, ProductOrder, frontier

LATTICES: list[Any] = [U64_TIME, ProductOrder(2), ProductOrder(3), ProductOrder(4)]

REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "count": (count, reductions.count),
    "total": (total, reductions.total()),
    "distinct": (distinct, reductions.distinct),
    "least": (least, reductions.least),
    "greatest": (greatest, reductions.greatest),
    "top": (top(2), reductions.top(2)),
    "threshold": (threshold(lambda _, n: n % 2), reductions.threshold(lambda _, n: n % 2)),
    "any": (first_count, reductions.by_group(first_count)),
}


def of_columns(inputs: int, lattices: list[Any] = LATTICES) -> st.SearchStrategy[Any]:
    """Rounds whose keys are words, one small and one large."""
    return rounds_of(inputs, lattices=lattices, keys=(3, 2**40), idle=False)


def columns(lattice: Any, changes: list[Any]) -> Columns:
    lanes = 1 if lattice is U64_TIME else lattice.lanes
    if not changes:
        return Columns.empty(lanes)
    times = [time if isinstance(time, tuple) else (time,) for _, time, _ in changes]
    return Columns(
        np.array([key for (key, _), _, _ in changes], np.uint64),
        np.array([val for (_, val), _, _ in changes], np.uint64),
        np.ascontiguousarray(np.array(times, np.uint64).T),
        np.array([diff for _, _, diff in changes], np.int64),
    )


def times_of(lattice: Any, times: Any) -> list[Any]:
    return times[0].tolist() if lattice is U64_TIME else [tuple(t) for t in times.T.tolist()]


def changes_of(lattice: Any, batch: Any) -> dict[Any, int]:
    found = batch.updates()
    # Results are words in two's complement.
    data = zip(found.keys.tolist(), found.vals.view(np.int64).tolist(), strict=True)
    times = times_of(lattice, found.times)
    return dict(zip(zip(data, times, strict=True), found.diffs.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(of_columns(1), st.sampled_from(sorted(REDUCTIONS)), st.sampled_from([1, 5, 10**9]))
def test_a_reduction_in_rounds_equals_recomputation(schedule: Any, name: str, limit: int) -> None:
    lattice, rounds = schedule
    by_row, by_column = REDUCTIONS[name]
    operator = ColumnReduce(lattice, by_column)
    everything = [update for (updates,), _, _ in rounds for update in updates]
    oracle = reduced(lattice, by_row, everything)
    for (updates,), upper, since in rounds:
        lower = operator.upper
        operator.push(columns(lattice, updates), upper)
        changes = None
        while changes is None:
            assert not operator.done
            changes = operator.work(limit)
        assert operator.done
        wanted = [u for u in oracle if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
        assert changes_of(lattice, changes) == consolidated(wanted)
        operator.compact(since)
        while operator.exert(64):
            pass
    assert operator.pending == 0


@settings(max_examples=50, deadline=None)
@given(of_columns(1), st.sampled_from(sorted(REDUCTIONS)), st.data())
def test_a_reduction_of_a_shared_trace_adds_up_to_the_reduction_from_its_start_on(
    schedule: Any, name: str, data: st.DataObject
) -> None:
    """A writer at its own pace, a reduction that starts late, history compacted before."""
    lattice, rounds = schedule
    by_row, by_column = REDUCTIONS[name]
    source = ColumnArrangement(lattice, "writer")
    handle = source.trace.hold("kept")
    started = data.draw(st.integers(0, len(rounds) - 1))
    operator, start = None, Antichain.minimum(lattice)
    found: list[Any] = []
    for at_round, ((updates,), upper, since) in enumerate(rounds):
        if at_round == started:
            start = handle.logical
            operator = TraceReduce(handle, by_column, "reader")
            handle.drop()
        source.push(columns(lattice, updates), upper)
        source.compact(since)
        source.exert(64)
        if operator is None:
            handle.set_physical(upper)
            handle.set_logical(since)
        elif at_round == len(rounds) - 1 or data.draw(st.booleans()):
            operator.follow()
            while not operator.done:
                batch = operator.work(data.draw(st.sampled_from([1, 7, 10**9])))
                if batch is not None:
                    found += [(*of, n) for of, n in changes_of(lattice, batch).items()]
            operator.compact(operator.upper if at_round < len(rounds) - 1 else since)
    assert operator is not None
    assert operator.upper.empty
    assert operator.pending == 0
    wanted = reduced(lattice, by_row, [u for (updates,), _, _ in rounds for u in updates])
    for time in {t for _, t, _ in wanted} | {t for _, t, _ in found}:
        if start.less_equal(time):
            assert accumulate_updates(found, lattice, time) == accumulate_updates(
                wanted, lattice, time
            )
    operator.close()
    assert [holder.name for holder in source.status().holders] == ["writer"]


@pytest.mark.parametrize("lattice", LATTICES)
def test_a_call_of_a_reduction_reads_what_it_is_allowed_and_one_key(lattice: Any) -> None:
    """Forty keys of up to 300 rows; each call within the limit, one key, and one round of both."""
    lanes = 1 if lattice is U64_TIME else lattice.lanes
    sizes = np.random.default_rng(1).integers(1, 300, 40)
    keys = np.repeat(np.arange(40, dtype=np.uint64), sizes)
    vals = np.arange(len(keys), dtype=np.uint64)
    operator = ColumnReduce(lattice, reductions.least)
    twin = ColumnReduce(lattice, reductions.least)
    for at_round in range(2):
        time, then = ((at_round + i,) + (0,) * (lanes - 1) for i in range(2))
        upper = Antichain.of(lattice, then if lattice is U64_TIME else [then])
        updates = Columns.at(time, keys, vals + np.uint64(at_round), np.ones(len(keys), np.int64))
        operator.push(updates, upper)
        batch, calls = None, 0
        while batch is None:
            before = operator.rows_read
            batch = operator.work(400)
            most = 400 + (at_round + 1) * 299 + 1
            assert operator.rows_read - before <= 2 * most
            calls += 1
        assert calls >= len(keys) // (2 * most)
        assert changes_of(lattice, batch) == changes_of(lattice, twin.step(updates, upper))


def test_a_reduction_takes_one_interval_at_a_time_and_drops_one_that_it_cannot_add_up() -> None:
    operator = ColumnReduce(U64_TIME, reductions.count)
    operator.push(at(0, [1, 2]), frontier(1))
    with pytest.raises(UsageError):
        operator.push(at(1, [1]), frontier(2))
    assert operator.work(1) is None
    while operator.work(1) is None:
        pass
    assert operator.upper == frontier(1)
    ones = np.ones(2, np.uint64)
    operator.push(
        Columns.at((1,), ones, np.arange(2, dtype=np.uint64), np.full(2, 2**62)), frontier(2)
    )
    with pytest.raises(UsageError) as refused:
        operator.work(100)
    assert refused.value.reason == "Overflow"
    assert operator.work(100) is None
    assert (operator.done, operator.upper) == (True, frontier(1))
    assert len(operator.step(at(1, [1]), frontier(2))) == 2


@settings(max_examples=50, deadline=None)
@given(of_columns(1, [U64_TIME]))
def test_counts_in_rounds_equal_recomputation(schedule: Any) -> None:
    lattice, rounds = schedule
    operator = ColumnCount()
    everything = [((key, 0), t, n) for (updates,), _, _ in rounds for (key, _), t, n in updates]
    oracle = reduced(lattice, count, everything)
    for (updates,), upper, since in rounds:
        lower = operator.upper
        changes = operator.step(columns(lattice, updates), upper)
        wanted = [u for u in oracle if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
        assert changes_of(lattice, changes) == consolidated(wanted)
        operator.compact(since)
        while operator.exert(64):
            pass


@pytest.fixture(params=[1, matching._MANY], scope="module")
def _netted(request: pytest.FixtureRequest) -> Any:
    """The same law where every key is netted before its updates are paired, and where few are."""
    many, matching._MANY = matching._MANY, request.param
    yield
    matching._MANY = many


@settings(max_examples=50, deadline=None)
@given(of_columns(2), st.integers(1, 5))
@pytest.mark.usefixtures("_netted")
def test_a_join_in_rounds_equals_recomputation(schedule: Any, limit: int) -> None:
    lattice, rounds = schedule
    join = ColumnJoin(lattice)
    found: list[Any] = []
    lefts: list[Any] = []
    rights: list[Any] = []

    def take() -> None:
        piece = join.work(limit)
        assert len(piece) <= limit
        data = zip(
            piece.keys.tolist(), piece.left_vals.tolist(), piece.right_vals.tolist(), strict=True
        )
        times = times_of(lattice, piece.times)
        found.extend(zip(data, times, piece.diffs.tolist(), strict=True))

    for (left, right), upper, _ in rounds:
        join.push(columns(lattice, left), columns(lattice, right), upper)
        lefts += left
        rights += right
        for _ in range(3):
            take()
        join.exert(64)
    while not join.done:
        take()
    assert consolidated(found) == joined(lattice, lefts, rights)


def at(time: int, keys: list[int], diff: int = 1) -> Columns:
    column = np.array(keys, np.uint64)
    return Columns.at((time,), column, column, np.full(len(keys), diff, np.int64))


def test_a_key_of_many_matches_needs_no_more_memory_than_is_asked_for() -> None:
    join = ColumnJoin(U64_TIME)
    many = np.arange(3000, dtype=np.uint64)
    side = Columns.at((0,), many * 0, many, np.ones(3000, np.int64))
    join.push(side, side, frontier(1))
    sizes = []
    while not join.done:
        sizes.append(len(join.work(100_000)))
    assert sum(sizes) == 9_000_000
    assert max(sizes) <= 100_000


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("lattice", LATTICES[:2])
def test_long_histories_of_a_key_are_netted_before_they_are_paired(
    lattice: Any, together: bool
) -> None:
    """A val that comes and goes 2,000 times on both sides, in one interval or one after the other."""
    join = ColumnJoin(lattice)
    n, lanes = 2000, 1 if lattice is U64_TIME else lattice.lanes
    times = np.zeros((lanes, n), np.uint64)
    times[0] = np.arange(n)
    zeros, diffs = np.zeros(n, np.uint64), np.where(np.arange(n) % 2 == 0, 1, -1)
    left, right = (Columns(zeros, zeros + val, times, diffs) for val in np.uint64([1, 2]))
    end = n if lattice is U64_TIME else (n,) + (0,) * (lanes - 1)
    if together:
        join.push(left, right, Antichain(lattice))
    else:
        join.push(left, Columns.empty(lanes), Antichain.of(lattice, [end]))
        later = Columns(right.keys, right.vals, times + times[:, -1:] + np.uint64(1), diffs)
        join.push(Columns.empty(lanes), later, Antichain(lattice))
    pieces = []
    while not join.done:
        pieces.append(join.work(100))
        assert len(pieces[-1]) <= 100
    found = Joined.concatenate(pieces, lanes)
    assert len(found) <= 20 * n  # all pairs are four millions
    changes = consolidated(
        zip(zip(found.left_vals.tolist(), found.right_vals.tolist(), strict=True),
            times_of(lattice, found.times), found.diffs.tolist(), strict=True)
    )  # fmt: skip
    # Both are there in even rounds; a left side that has gone matches nothing that comes later.
    wanted = [] if not together else consolidated(
        ((1, 2), time, n) for time, n in zip(times_of(lattice, times), diffs.tolist(), strict=True)
    )  # fmt: skip
    assert changes == (wanted or {})


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_refused_step_changes_nothing(rows: int) -> None:
    counting, reducing = ColumnCount(), ColumnReduce(U64_TIME, reductions.least)
    join = ColumnJoin(U64_TIME)
    keys = list(range(rows))
    empty = Columns.empty(1)
    for operator in (counting, reducing):
        operator.step(at(0, keys, 2**62), frontier(1))
        for refused in (at(0, keys), at(2, keys)):
            with pytest.raises(UsageError):
                operator.step(refused, frontier(2))
    with pytest.raises(UsageError):
        counting.step(at(1, keys, 2**62), frontier(2))
    join.push(at(0, keys), at(0, keys), frontier(1))
    with pytest.raises(UsageError):
        join.push(at(1, keys), at(0, keys), frontier(2))
    assert join.upper == counting.upper == reducing.upper == frontier(1)
    assert len(counting.step(at(1, keys), frontier(2))) == 2 * rows
    assert len(reducing.step(at(1, keys), frontier(2))) == 0
    while not join.done:
        assert len(join.work(10**6)) == rows
    join.push(at(1, keys), empty, frontier(2))
    assert len(join.work(10**6)) == rows


@settings(max_examples=40, deadline=None)
@given(of_columns(2), st.booleans(), st.integers(1, 5))
def test_a_semijoin_in_rounds_equals_recomputation(schedule: Any, anti: bool, limit: int) -> None:
    lattice, rounds = schedule
    semijoin = ColumnSemijoin(lattice, anti)
    found: list[Any] = []
    for (records, keys), upper, since in rounds:
        semijoin.push(columns(lattice, records), columns(lattice, keys), upper)
        while not semijoin.done:
            piece = semijoin.work(limit)
            assert len(piece) <= limit
            data = zip(piece.keys.tolist(), piece.vals.tolist(), strict=True)
            times = times_of(lattice, piece.times)
            found.extend(zip(data, times, piece.diffs.tolist(), strict=True))
        semijoin.compact(since)
        semijoin.exert(64)
    left, right = ([u for inputs, _, _ in rounds for u in inputs[side]] for side in (0, 1))
    bare = [((key, 0), time, diff) for (key, _), time, diff in right]
    present = [(data, time, n) for data, time, n in reduced(lattice, distinct, bare)]
    matched = {
        ((key, val), time): n for ((key, val, _), time), n in joined(lattice, left, present).items()
    }
    wanted = [(data, time, -n if anti else n) for (data, time), n in matched.items()]
    assert consolidated(found) == consolidated([*wanted, *(left if anti else [])])


@settings(max_examples=60, deadline=None)
@given(of_columns(2), st.integers(1, 5), st.data())
def test_a_join_of_shared_traces_adds_up_to_the_join_from_its_start_on(
    schedule: Any, limit: int, data: st.DataObject
) -> None:
    """Two writers at their own pace, a join that starts late, histories compacted before."""
    lattice, rounds = schedule
    sides = ColumnArrangement(lattice, "left"), ColumnArrangement(lattice, "right")
    handles = [side.trace.hold("kept") for side in sides]
    started = data.draw(st.integers(0, len(rounds) - 1))
    join, start = None, Antichain.minimum(lattice)
    found: list[Any] = []

    def take() -> None:
        assert join is not None
        piece = join.work(limit)
        assert len(piece) <= limit
        rows = zip(
            piece.keys.tolist(), piece.left_vals.tolist(), piece.right_vals.tolist(), strict=True
        )
        times = times_of(lattice, piece.times)
        found.extend(zip(rows, times, piece.diffs.tolist(), strict=True))

    for at_round, (inputs, upper, since) in enumerate(rounds):
        if at_round == started:
            start = handles[0].logical
            join = TraceJoin(*handles, "join")
            for handle in handles:
                handle.drop()
        for side, handle, changes in zip(sides, handles, inputs, strict=True):
            side.push(columns(lattice, changes), upper)
            side.compact(since)
            side.exert(64)
            if at_round < started:
                handle.set_physical(upper)
                handle.set_logical(since)
            if join is not None and data.draw(st.booleans()):
                join.follow()
                take()
    assert join is not None
    join.follow()
    while not join.done:
        take()
    lefts, rights = ([u for inputs, _, _ in rounds for u in inputs[side]] for side in (0, 1))
    wanted = [(d, t, n) for (d, t), n in joined(lattice, lefts, rights).items()]
    for time in {t for _, t, _ in wanted} | {t for _, t, _ in found}:
        if start.less_equal(time):
            assert accumulate_updates(found, lattice, time) == accumulate_updates(
                wanted, lattice, time
            )
    join.close()
    assert sides[0].status().holders[0].name == "left"
    assert len(sides[0].status().holders) == 1


def test_a_join_needs_a_cut_at_the_upper_of_its_traces() -> None:
    sides = ColumnArrangement(U64_TIME, "left"), ColumnArrangement(U64_TIME, "right")
    left, right = (side.trace.hold("reader") for side in sides)
    right.set_physical(frontier(5))
    with pytest.raises(UsageError):
        TraceJoin(left, right, "join")
