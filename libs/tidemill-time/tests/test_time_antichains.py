"""Antichains, frontiers and counts per time against their twins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.testkit.generators import DOMAINS, LATTICES, antichains_of, times_of
from tidemill.testkit.twins.orders import counted_frontier, minimal_times
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    U64_TIME,
    Antichain,
    ChangeBatch,
    MutableAntichain,
    PartitionedOrder,
    Partitions,
    frontier,
    frontier_changes,
    partition_frontier,
    partition_offsets,
    sole_time,
)

any_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
any_lattice = pytest.mark.parametrize("lattice", LATTICES, ids=lambda lattice: lattice.name)


@any_domain
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_antichain_is_the_minimal_times_however_they_come(
    domain: Any, data: st.DataObject
) -> None:
    times = data.draw(st.lists(times_of(domain), max_size=6))
    held: Antichain[Any] = Antichain(domain)
    for time in times:
        before, held = held, held.insert(time)
        assert (held is not before) == (not before.less_equal(time))
    assert set(held) == minimal_times(domain, times)
    assert held == Antichain.of(domain, times)
    assert hash(held) == hash(Antichain.of(domain, reversed(times)))


@any_domain
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_frontiers_compare_as_the_sets_of_times_beyond_them(
    domain: Any, data: st.DataObject
) -> None:
    a, b = data.draw(antichains_of(domain)), data.draw(antichains_of(domain))
    probes = [*data.draw(st.lists(times_of(domain), max_size=5)), *a, *b]
    if a.precedes(b):
        assert all(a.less_equal(time) for time in probes if b.less_equal(time))
    assert (a.precedes(b) and b.precedes(a)) == (a == b)
    met = a.meet(b)
    assert all(met.less_equal(t) == (a.less_equal(t) or b.less_equal(t)) for t in probes)
    assert a.precedes(Antichain(domain))
    assert Antichain(domain).precedes(a) == a.empty


@any_domain
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_frontier_covers_what_one_of_its_times_is_before(
    domain: Any, data: st.DataObject
) -> None:
    times = data.draw(st.lists(times_of(domain), max_size=40))
    held = Antichain.of(domain, data.draw(st.lists(times_of(domain), max_size=40)))
    beyond = held.beyond()
    for time in (*times, *held):
        assert beyond.covers(time) == any(domain.less_equal(each, time) for each in held)


def test_v14_partitions_are_compared_with_their_own_offsets_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice 2,000 partitions take 2,000 comparisons, and not 4,000,000."""
    compared: list[None] = []
    less_equal = PartitionedOrder.less_equal

    def counting(order: PartitionedOrder, a: Partitions, b: Partitions) -> bool:
        compared.append(None)
        return less_equal(order, a, b)

    monkeypatch.setattr(PartitionedOrder, "less_equal", counting)
    before, after = (partition_frontier(dict.fromkeys(range(2000), at)) for at in (3, 7))
    assert before.precedes(after)
    assert not after.precedes(before)
    assert len(before.meet(after)) == len(before)
    assert 2000 < len(compared) < 10_000


@any_lattice
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_join_of_frontiers_is_what_is_beyond_both(lattice: Any, data: st.DataObject) -> None:
    a, b = data.draw(antichains_of(lattice)), data.draw(antichains_of(lattice))
    joined = a.join(b, lattice)
    for time in [*data.draw(st.lists(times_of(lattice), max_size=5)), *a, *b]:
        assert joined.less_equal(time) == (a.less_equal(time) and b.less_equal(time))
    assert a.join(Antichain(lattice), lattice).empty
    assert a.meet(Antichain(lattice)) == a


@any_domain
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_counts_hold_the_frontier_of_what_adds_up_to_more_than_zero(
    domain: Any, data: st.DataObject
) -> None:
    some = st.sampled_from(data.draw(st.lists(times_of(domain), min_size=1, max_size=4)))
    steps = data.draw(st.lists(st.lists(st.tuples(some, st.integers(-2, 2)), max_size=4)))
    counts: MutableAntichain[Any] = MutableAntichain(domain)
    seen: list[tuple[Any, int]] = []
    for step in steps:
        before = set(counts.frontier)
        seen += step
        changes = dict(counts.update(step))
        now = counted_frontier(domain, seen)
        assert set(counts.frontier) == now
        assert changes == {**dict.fromkeys(before - now, -1), **dict.fromkeys(now - before, 1)}
        for time, _ in seen:
            assert counts.count(time) == sum(n for at, n in seen if at == time)
            assert counts.less_equal(time) == counts.frontier.less_equal(time)
            assert counts.less_than(time) == counts.frontier.less_than(time)


@any_domain
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_holders_that_move_leave_the_meet_of_where_they_are(
    domain: Any, data: st.DataObject
) -> None:
    counts: MutableAntichain[Any] = MutableAntichain(domain)
    nowhere: Antichain[Any] = Antichain(domain)
    at = [nowhere] * data.draw(st.integers(1, 3))
    for _ in range(data.draw(st.integers(0, 8))):
        holder = data.draw(st.integers(0, len(at) - 1))
        to = Antichain.of(domain, data.draw(st.lists(times_of(domain), max_size=3)))
        before = counts.frontier
        changed = counts.move(at[holder], to)
        at[holder] = to
        assert counts.frontier == Antichain.of(domain, [time for held in at for time in held])
        assert changed == (counts.frontier != before)
        for time in to:
            assert counts.count(time) == sum(time in held.elements for held in at)


def test_a_change_batch_adds_up_and_drains() -> None:
    batch = ChangeBatch([(3, 1), (4, 2), (3, -1)])
    assert list(batch) == [(4, 2)]
    assert len(batch) == 1
    assert not batch.empty
    assert batch.drain() == [(4, 2)]
    assert batch.empty
    batch.update(5, 0)
    assert batch.empty


def test_the_empty_frontier_is_no_more_times() -> None:
    closed = frontier()
    assert closed.empty
    assert not closed.less_equal(U64_MAX)
    assert frontier(3, 5, 4) == frontier(3)
    assert sole_time(frontier(3)) == 3
    with pytest.raises(UsageError):
        sole_time(closed)
    assert frontier_changes(frontier(3), closed) == [(3, -1)]
    assert str(frontier(3)) == "[3]"


def test_equality_is_of_elements_and_nothing_else_is_an_antichain() -> None:
    assert Antichain(U64_TIME) == Antichain(PARTITIONED)
    assert frontier(1) != (1,)


@given(st.dictionaries(st.sampled_from([0, 1, 2, 5, U64_MAX]), st.sampled_from([0, 3, U64_MAX])))
@settings(max_examples=60, deadline=None)
def test_a_partition_map_says_something_about_every_partition_once(
    offsets: dict[int, int],
) -> None:
    held = partition_frontier(offsets)
    assert held == Antichain.of(PARTITIONED, held)
    for partition in [0, 1, 2, 3, 4, 5, 6, U64_MAX - 1, U64_MAX]:
        covering = [element for element in held if element.lo <= partition <= element.hi]
        assert [element.offset for element in covering] == [offsets.get(partition, 0)]
    named = partition_offsets(held)
    assert {p: named[p] for p in offsets} == offsets


def test_no_partition_at_all_is_the_minimum_and_not_the_end() -> None:
    assert partition_frontier({}) == Antichain.minimum(PARTITIONED)
    assert partition_offsets(Antichain(PARTITIONED)) == {}
    assert list(partition_frontier({1: 10})) == [
        Partitions(0, 0, 0), Partitions(1, 1, 10), Partitions(2, U64_MAX, 0),
    ]  # fmt: skip
    for wrong in ({-1: 0}, {0: -1}, {U64_MAX + 1: 0}, {0: U64_MAX + 1}):
        with pytest.raises(UsageError):
            partition_frontier(wrong)


def test_a_point_is_never_before_a_range() -> None:
    wide, point = Partitions(0, 9, 0), Partitions(4, 4, 7)
    assert PARTITIONED.less_equal(wide, point)
    assert not PARTITIONED.less_equal(point, wide)
    assert not PARTITIONED.less_equal(Partitions(4, 4, 0), Partitions(5, 5, 9))
