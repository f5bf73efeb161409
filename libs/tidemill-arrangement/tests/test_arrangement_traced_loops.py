"""Laws of computations between traces, and of traces that stand still."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.columns import (
    ColumnArrangement,
    FrozenTrace,
    ImportedColumns,
    ReadableTrace,
    TraceJoin,
)
from tidemill.arrangement.columns.reductions import least
from tidemill.arrangement.kernels import Columns
from tidemill.arrangement.loops import Changes, Collection, Loop, TracedComputation
from tidemill.arrangement.update_sets import accumulate_updates
from tidemill.errors import BeforeSince, UsageError
from tidemill.testkit.twins.loops import distances
from tidemill.time import U64_TIME, Antichain, ProductOrder, frontier

Update = tuple[tuple[int, int], Any, int]


def columns(updates: list[Update], lanes: int = 1) -> Columns:
    if not updates:
        return Columns.empty(lanes)
    times = [time if isinstance(time, tuple) else (time,) for _, time, _ in updates]
    return Columns(
        np.array([key for (key, _), _, _ in updates], np.uint64),
        np.array([val for (_, val), _, _ in updates], np.uint64),
        np.ascontiguousarray(np.array(times, np.uint64).T),
        np.array([diff for _, _, diff in updates], np.int64),
    )


def updates_of(trace: ReadableTrace) -> list[Update]:
    found: list[Update] = []
    for batch in trace.history():
        rows = batch.updates()
        data = zip(rows.keys.tolist(), rows.vals.tolist(), strict=True)
        times: list[Any] = [tuple(time) for time in rows.times.T.tolist()]
        if trace.lattice is U64_TIME:
            times = [time[0] for time in times]
        found += zip(data, times, rows.diffs.tolist(), strict=True)
    return found


def held(trace: ReadableTrace, at: Any) -> dict[tuple[int, int], int]:
    return accumulate_updates(updates_of(trace), trace.lattice, at)


def lengths(edges: Collection, roots: Collection) -> Collection:
    """Distances from the roots, each `(root, 0)`."""

    def body(loop: Loop, found: Collection) -> Collection:
        known = loop.enter(edges)
        onward = found.join(known, lambda _, length, b: (b, length + np.uint64(1)))
        return onward.concat(loop.enter(roots)).reduce(least)

    return roots.iterate(body)


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[list[Update], list[Update], int, int]]:
    """Rounds: what is appended to the edges and to the roots, and both new uppers."""
    rounds: list[tuple[list[Update], list[Update], int, int]] = []
    uppers = [0, 0]
    held: list[dict[tuple[int, int], int]] = [{}, {}]
    node = st.integers(0, 4)
    records = (st.tuples(node, node), st.tuples(node, st.just(0)))
    for _ in range(draw(st.integers(1, 6))):
        fresh: list[list[Update]] = [[], []]
        for side in (0, 1):
            upper = uppers[side] + draw(st.integers(0, 3))
            for time in range(uppers[side], upper):
                for record in draw(st.lists(records[side], max_size=4, unique=True)):
                    present = held[side].get(record, 0)
                    diff = -present if present and draw(st.booleans()) else 1
                    held[side][record] = present + diff
                    fresh[side].append((record, time, diff))
            uppers[side] = upper
        rounds.append((fresh[0], fresh[1], *uppers))
    return rounds


@settings(max_examples=25, deadline=None)
@given(schedules(), st.data())
def test_a_traced_loop_holds_at_each_time_what_its_traces_make(
    schedule: Any, data: st.DataObject
) -> None:
    """It starts late, on compacted histories, and follows writers that keep their own pace."""
    sides = ColumnArrangement(U64_TIME, "edges"), ColumnArrangement(U64_TIME, "roots")
    started = data.draw(st.integers(0, len(schedule) - 1))
    everything: list[list[Update]] = [[], []]
    computation, since, result = None, 0, None
    for at, (edges, roots, *uppers) in enumerate(schedule):
        for side, fresh, upper, seen in zip(sides, (edges, roots), uppers, everything, strict=True):
            if side.upper != frontier(upper):
                side.push(columns(fresh), frontier(upper))
            seen += fresh
        if at == started:
            since = data.draw(st.integers(0, max(uppers)))
            for side, upper in zip(sides, uppers, strict=True):
                side.compact(frontier(min(since, upper)))
                side.exert(64)
            handles = [side.trace.hold("reader") for side in sides]
            computation = TracedComputation(since)
            sources = [computation.follow(handle) for handle in handles]
            result = computation.arrange(lengths(sources[0], sources[1]))
            for handle in handles:
                handle.drop()
        if computation is None or result is None or data.draw(st.booleans()):
            continue
        reached = computation.advance()
        assert reached == result.upper == computation.upper
        for side in sides:
            side.compact(side.upper)
            side.exert(64)
        for time in range(since, max(reached, default=0)):
            given_edges, given_roots = (
                {record for record, n in accumulate_updates(seen, U64_TIME, time).items() if n > 0}
                for seen in everything
            )
            expected = distances(given_edges, [root for root, _ in given_roots])
            with result.trace.hold("check") as check:
                assert held(check, time) == dict.fromkeys(expected, 1)
    assert computation is not None
    computation.close()
    for side in sides:
        assert len(side.status().holders) == 1  # the writer's own


def test_its_result_is_a_trace_like_any_other() -> None:
    edges = ColumnArrangement(U64_TIME, "edges")
    edges.push(columns([((0, 1), 3, 1), ((1, 2), 4, 1)]), frontier(5))
    handle = edges.trace.hold("reader")
    traced = TracedComputation(0)
    known = traced.follow(handle)
    roots = traced.computation.constant(Changes.of([0], [0]))
    result = traced.arrange(lengths(known, roots), "distances")
    assert traced.advance() == frontier(5)
    join = TraceJoin(handle, result.trace.hold("join"), "join")
    join.follow()
    found = join.work(100)
    # Key, head of an edge from there, distance of the key.
    rows = found.keys.tolist(), found.left_vals.tolist(), found.right_vals.tolist()
    assert set(zip(*rows, strict=True)) == {(0, 1, 0), (1, 2, 1)}
    edges.push(columns([((0, 2), 7, 1)]), Antichain(U64_TIME))
    assert traced.advance() == Antichain(U64_TIME)
    with result.trace.hold("check") as check:
        assert held(check, 2) == {(0, 0): 1}
        assert held(check, 4) == {(0, 0): 1, (1, 1): 1, (2, 2): 1}
        assert held(check, 7) == {(0, 0): 1, (1, 1): 1, (2, 1): 1}


def test_a_step_that_failed_leaves_no_output_behind() -> None:
    edges = ColumnArrangement(U64_TIME, "edges")
    traced = TracedComputation(0)
    known = traced.follow(edges.trace.hold("reader"))
    endless = known.iterate(lambda _, found: found.map(lambda a, b: (a, b + np.uint64(1))), 9)
    result = traced.arrange(endless)
    edges.push(columns([((0, 1), 0, 1)]), frontier(1))
    for upper in (2, 3):
        with pytest.raises(UsageError):
            traced.advance()
        edges.push(columns([]), frontier(upper))
    assert result.upper == traced.upper == frontier(0)


def test_what_cannot_be_followed_is_refused() -> None:
    traced = TracedComputation(2)
    with pytest.raises(UsageError):
        traced.follow(ColumnArrangement(ProductOrder(2)).trace.hold("reader"))
    edges = ColumnArrangement(U64_TIME, "edges")
    edges.push(columns([((0, 1), 0, 1)]), frontier(9))
    edges.compact(frontier(5))
    with pytest.raises(BeforeSince):
        traced.follow(edges.trace.hold("reader"))
    traced = TracedComputation(5)
    known = traced.follow(edges.trace.hold("reader"))
    traced.arrange(known)
    traced.advance()
    with pytest.raises(UsageError):
        traced.follow(edges.trace.hold("another"))
    with pytest.raises(UsageError):
        traced.arrange(known)


def test_an_import_lets_go_of_the_times_that_it_has_read() -> None:
    edges = ColumnArrangement(U64_TIME, "edges")
    imported = ImportedColumns(edges.trace.hold("reader"), "import", frontier(0))
    edges.push(columns([((0, 1), 3, 1)]), frontier(5))
    assert len(imported.step()) == 1
    holders = {holder.name: holder for holder in edges.status().holders}
    assert holders["import"].logical == frontier(5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([U64_TIME, ProductOrder(2), ProductOrder(3)]), st.data())
def test_a_frozen_trace_shows_what_there_was(lattice: Any, data: st.DataObject) -> None:
    """At every time not before it, whatever comes later, however it is asked to compact."""
    lane = st.integers(0, 4)
    time = lane if lattice is U64_TIME else st.tuples(*[lane] * lattice.lanes)
    edit = st.tuples(
        st.tuples(st.integers(0, 1), st.integers(0, 1)), time, st.sampled_from([1, -1])
    )
    arrangement = ColumnArrangement(lattice, "source")
    at = data.draw(time)
    frozen = FrozenTrace(arrangement.trace.hold("reader"), at).clone("frozen")
    everything: list[Update] = []
    lower = Antichain.minimum(lattice)
    for _ in range(data.draw(st.integers(1, 4))):
        times = data.draw(st.lists(time, min_size=1, max_size=2))
        upper = lower.join(Antichain.of(lattice, times), lattice)
        listed = data.draw(st.lists(edit, max_size=6))
        fresh = [u for u in listed if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
        if upper != lower:
            lanes = 1 if lattice is U64_TIME else lattice.lanes
            arrangement.push(columns(fresh, lanes), upper)
            everything += fresh
            lower = upper
        arrangement.compact(upper)
        frozen.set_logical(upper)
        frozen.set_physical(upper)
        arrangement.exert(64)
        wanted = accumulate_updates(everything, lattice, at)
        assert held(frozen, at) == wanted
        assert held(frozen, lattice.join(at, data.draw(time))) == wanted
    assert frozen.logical.less_equal(at)
    frozen.set_logical(Antichain(lattice))
    assert frozen.logical == Antichain(lattice)


def test_a_time_that_is_not_distinguished_cannot_be_frozen() -> None:
    arrangement = ColumnArrangement(U64_TIME, "source")
    arrangement.push(columns([((0, 1), 3, 1)]), frontier(9))
    arrangement.compact(frontier(5))
    handle = arrangement.trace.hold("reader")
    with pytest.raises(BeforeSince):
        FrozenTrace(handle, 4)
    assert held(FrozenTrace(handle, 5), 8) == {(0, 1): 1}
