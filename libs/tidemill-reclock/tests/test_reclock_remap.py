"""The remap collection, chains of deferred updates, and the translations between both clocks."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import BeforeSince, NotYet
from tidemill.reclock import (
    RemapTrace,
    bindings_of_rows,
    remap_problems,
    remap_rows,
    rows_of_bindings,
    source_upper,
    target_frontier,
    target_times,
)
from tidemill.testkit.generators import (
    DOMAINS,
    antichains_of,
    histories_of,
    points_of,
    remap_histories,
    times_of,
)
from tidemill.testkit.partial_orders.update_sets import split_updates
from tidemill.testkit.twins import reclocking as twin
from tidemill.testkit.twins.deferred_updates import ChainBatch, DeferredUpdates
from tidemill.testkit.twins.reclocking import bindings_of_history
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    U64_TIME,
    Antichain,
    Partitions,
    frontier,
    partition_frontier,
)

any_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
laws = settings(max_examples=60, deadline=None)


@any_domain
@given(data=st.data(), since=st.sampled_from([0, 3, 20]), to=st.sampled_from([0, 5, U64_MAX]))
@laws
def test_the_trace_accumulates_as_its_bindings_do_at_every_time_beyond_since(
    domain: Any, data: st.DataObject, since: int, to: int
) -> None:
    bindings = bindings_of_history(data.draw(remap_histories(domain)))
    remap: RemapTrace[Any] = RemapTrace(domain, since)
    for time in range(0, 22, 7):
        due = [b for b in bindings if time <= b[1] < time + 7]
        remap.insert(due, frontier(time + 7))
    remap.insert([b for b in bindings if b[1] >= 28], frontier())
    remap.compact(frontier(to))
    for at in (since, 7, 11, 20, U64_MAX):
        if at < max(since, to):
            with pytest.raises(BeforeSince):
                remap.at(at)
        else:
            assert remap.at(at) == twin.remap_at(domain, bindings, at)
    assert remap.current == twin.remap_at(domain, bindings, U64_MAX)


def test_what_upper_has_not_passed_does_not_count() -> None:
    remap: RemapTrace[int] = RemapTrace(U64_TIME)
    remap.insert([(0, 0, 1), (0, 5, -1), (9, 5, 1)], frontier(5))
    assert remap.at(4) == frontier(0)
    assert remap.retained == 2
    with pytest.raises(NotYet):
        remap.at(5)
    remap.insert([], frontier(6))
    assert remap.at(5) == frontier(9)


def test_opposite_open_bindings_are_no_binding() -> None:
    remap: RemapTrace[int] = RemapTrace(U64_TIME)
    remap.insert([(0, 0, 1), (7, 4, 1), (0, 4, -1)])
    remap.insert([(7, 4, -1), (0, 4, 1)], frontier(9))
    assert list(remap.steps()) == [(0, frontier(0))]


def test_a_since_beyond_upper_waits_for_it() -> None:
    remap: RemapTrace[int] = RemapTrace(U64_TIME)
    remap.insert([(0, 0, 1)], frontier(1))
    remap.compact(frontier(50))
    assert not remap.readable
    assert target_times(remap, [0]) == [None]
    assert target_frontier(remap, frontier(0)) == frontier(50)
    remap.insert([(0, 20, -1), (3, 20, 1)], frontier(51))
    assert target_times(remap, [2, 3]) == [50, None]


def test_since_never_goes_back_and_an_empty_one_forgets_all() -> None:
    remap: RemapTrace[int] = RemapTrace(U64_TIME)
    remap.insert([(0, 0, 1), (0, 5, -1), (9, 5, 1)], frontier(6))
    remap.compact(frontier(6))
    remap.compact(frontier(2))
    assert remap.since == frontier(6)
    remap.compact(frontier())
    remap.insert([(9, 8, -1), (10, 8, 1)], frontier(9))
    assert (remap.retained, list(remap.steps()), list(remap.changes())) == (0, [], [])


@any_domain
@given(data=st.data(), since=st.sampled_from([0, 3, 20]))
@laws
def test_source_times_and_frontiers_translate_as_the_definition_says(
    domain: Any, data: st.DataObject, since: int
) -> None:
    bindings = bindings_of_history(data.draw(remap_histories(domain)))
    remap: RemapTrace[Any] = RemapTrace(domain, since)
    remap.insert(bindings, frontier(30))
    closed = [(s, max(t, since), n) for s, t, n in bindings if t < 30]
    candidates = {since} | {time for _, time, _ in closed}
    times = data.draw(st.lists(points_of(domain), max_size=5))
    expected = [twin.target_time(domain, closed, candidates, time) for time in times]
    assert target_times(remap, times) == expected

    source = data.draw(histories_of(domain))[-1]
    reached = target_frontier(remap, source)
    later = [t for t in candidates if not twin.remap_at(domain, closed, t).precedes(source)]
    assert reached == (frontier(min(later)) if later else frontier(30))


@any_domain
@given(data=st.data())
@laws
def test_our_times_translate_back_to_what_they_cover(domain: Any, data: st.DataObject) -> None:
    bindings = bindings_of_history(data.draw(remap_histories(domain)))
    remap: RemapTrace[Any] = RemapTrace(domain)
    remap.insert(bindings, frontier())
    for upper in (1, 5, 20, 21, U64_MAX):
        assert source_upper(remap, upper) == twin.remap_at(domain, bindings, upper - 1)
    assert source_upper(remap, 0) == Antichain.minimum(domain)
    remap.compact(frontier(5))
    assert source_upper(remap, 5) == Antichain.minimum(domain)
    assert source_upper(remap, 6) == twin.remap_at(domain, bindings, 5)


@any_domain
@given(data=st.data())
@laws
def test_deferred_updates_give_out_each_update_once_when_its_frontier_comes(
    domain: Any, data: st.DataObject
) -> None:
    deferred: DeferredUpdates[str, Any] = DeferredUpdates(domain)
    kept: list[tuple[str, Any, int]] = []
    for _ in range(3):
        added = data.draw(
            st.lists(st.tuples(st.sampled_from("ab"), times_of(domain), st.integers(-1, 1)))
        )
        deferred.add(ChainBatch(domain, added))
        held = data.draw(antichains_of(domain))
        taken, kept = split_updates([*kept, *added], held)
        assert Counter(deferred.extract(held)) == Counter(taken)
        assert Counter(deferred.held()) == Counter(kept)
        assert len(deferred) == len(kept)
    deferred.clear()
    assert deferred.held() == []


def test_deferred_batches_stay_few() -> None:
    deferred: DeferredUpdates[str, int] = DeferredUpdates(U64_TIME)
    for time in range(1000):
        deferred.add(ChainBatch(U64_TIME, [("a", time, 1)]))
        assert deferred.batches <= 10
    assert len(deferred.extract(frontier(999))) == 999


def test_merging_deferred_updates_adds_them_up() -> None:
    deferred: DeferredUpdates[str, int] = DeferredUpdates(U64_TIME)
    deferred.merge([("a", 0, 1), ("b", 0, 1)])
    deferred.merge([("a", 0, -1), ("b", 0, 1)])
    assert deferred.held() == [("b", 0, 2)]


def test_bindings_come_back_from_their_rows() -> None:
    history = [(0, partition_frontier({})), (U64_MAX, partition_frontier({3: U64_MAX}))]
    bindings = bindings_of_history(history)
    rows = rows_of_bindings(bindings)
    assert rows.column_names == ["lo", "hi", "offset", "_time", "_diff"]
    assert Counter(bindings_of_rows(rows)) == Counter(bindings)
    assert bindings_of_rows(rows_of_bindings([])) == []
    assert type(bindings_of_rows(rows)[0][0]) is Partitions
    remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED)
    remap.insert(bindings_of_rows(rows), frontier())
    assert remap.current == history[-1][1]


@given(data=st.data(), since=st.sampled_from([0, 3, 20]), at_once=st.sampled_from([1, 3, 1_000]))
@laws
def test_d3_bindings_that_are_as_they_should_be_pass_the_check_of_a_store(
    data: st.DataObject, since: int, at_once: int
) -> None:
    bindings = bindings_of_history(data.draw(remap_histories(PARTITIONED)))
    counted = [(s, max(t, since), n) for s, t, n in bindings]
    rows = rows_of_bindings(counted)
    closed = rows_of_bindings(each for each in counted if each[1] < U64_MAX)
    with mock.patch.object(remap_rows, "ROWS_MAX", at_once):
        assert list(remap_problems(rows, frontier(since), frontier())) == []
        assert list(remap_problems(closed, frontier(since), frontier(U64_MAX))) == []
    assert list(remap_problems(rows, frontier(), frontier())) == []


@pytest.mark.parametrize("at_once", [1, 1_000])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ((Partitions(0, U64_MAX, 0), 0, 1), "exactly once at 0"),
        ((Partitions(0, 0, 5), 30, 1), "exactly once at 30"),
        ((Partitions(7, 7, 0), 30, -1), "exactly once at 30"),
        ((Partitions(0, 0, 4), 30, 1), "goes back at 30"),
        ((Partitions(0, U64_MAX, 0), 30, 1), "goes back at 30"),
        ((Partitions(0, 0, 6), 30, 1), "not an antichain at 30"),
        ((Partitions(0, 0, 9), 20, 1), "not an antichain at 20"),
    ],
)
def test_d3_bindings_by_which_a_record_may_have_two_instants_are_found(
    wrong: tuple[Partitions, int, int], says: str, at_once: int
) -> None:
    good: list[tuple[Partitions, int, int]] = [(Partitions(0, U64_MAX, 0), 0, 1)]
    good += [(Partitions(0, U64_MAX, 0), 10, -1)]
    good += [(element, 10, 1) for element in partition_frontier({0: 3})]
    good += [(Partitions(0, 0, 3), 20, -1), (Partitions(0, 0, 5), 20, 1)]
    with mock.patch.object(remap_rows, "ROWS_MAX", at_once):
        assert not list(remap_problems(rows_of_bindings(good), frontier(0), frontier(40)))
        (said,) = remap_problems(rows_of_bindings([*good, wrong]), frontier(0), frontier(40))
    assert says in said
