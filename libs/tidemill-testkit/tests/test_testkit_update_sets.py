"""Update sets over partially ordered times, the batcher, and merging batches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import BeforeSince, NotYet, UsageError
from tidemill.testkit.generators import DOMAINS, LATTICES, PRODUCT_2, antichains_of, times_of
from tidemill.testkit.partial_orders.batcher import Batcher, SealedBatch, merge_batches
from tidemill.testkit.partial_orders.update_sets import (
    PartialCollection,
    accumulate_updates,
    advance_updates,
    consolidate_updates,
    split_updates,
    updates_of_versions,
)
from tidemill.testkit.twins.collections import accumulated, consolidated
from tidemill.time import U64_TIME, Antichain, frontier

any_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
any_lattice = pytest.mark.parametrize("lattice", LATTICES, ids=lambda lattice: lattice.name)


def updates_of(domain: Any) -> st.SearchStrategy[list[tuple[str, Any, int]]]:
    return st.lists(st.tuples(st.sampled_from("ab"), times_of(domain), st.integers(-2, 2)))


@any_domain
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_consolidating_is_summing_by_record_and_time(domain: Any, data: st.DataObject) -> None:
    updates = data.draw(updates_of(domain))
    found = consolidate_updates(updates)
    assert {(d, t): n for d, t, n in found} == consolidated(updates)
    assert len(found) == len(consolidated(updates))


@any_lattice
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_reads_beyond_since_do_not_see_compaction(lattice: Any, data: st.DataObject) -> None:
    updates = data.draw(updates_of(lattice))
    since = data.draw(antichains_of(lattice))
    at = data.draw(times_of(lattice))
    compacted = advance_updates(updates, since, lattice)
    if since.less_equal(at):
        expected = accumulated(lattice, updates, at)
        assert accumulate_updates(compacted, lattice, at) == expected


@any_domain
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_partial_collection_answers_exactly_between_its_frontiers(
    domain: Any, data: st.DataObject
) -> None:
    updates = tuple(data.draw(updates_of(domain)))
    since, upper = data.draw(antichains_of(domain)), data.draw(antichains_of(domain))
    at = data.draw(times_of(domain))
    collection = PartialCollection(domain, updates, since, upper)
    if not since.less_equal(at):
        with pytest.raises(BeforeSince):
            collection.read(at)
    elif upper.less_equal(at):
        with pytest.raises(NotYet):
            collection.read(at)
    else:
        expected = accumulated(domain, updates, at)
        assert collection.read(at) == expected


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-3, 3).filter(bool)), max_size=4)
)
@settings(max_examples=50, deadline=None)
def test_versions_come_back_from_their_differences(contents: list[dict[str, int]]) -> None:
    versions = [(10 * at, version) for at, version in enumerate(contents)]
    updates = updates_of_versions(versions)
    assert consolidate_updates(updates) == updates
    for at, version in versions:
        assert accumulate_updates(updates, U64_TIME, at + 9) == version


def test_a_sum_that_needs_more_than_64_bits_is_refused() -> None:
    big = 2**63 - 1
    assert consolidate_updates([("a", 0, big), ("a", 0, 1), ("a", 0, -1)]) == [("a", 0, big)]
    with pytest.raises(UsageError):
        consolidate_updates([("a", 0, big), ("a", 0, 1)])
    with pytest.raises(UsageError):
        accumulate_updates([("a", 0, -big), ("a", 1, -2)], U64_TIME, 1)


@any_domain
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_batches_of_a_batcher_touch_and_hold_every_update_once(
    domain: Any, data: st.DataObject
) -> None:
    batcher: Batcher[str, Any] = Batcher(domain)
    pushed: list[tuple[str, Any, int]] = []
    sealed: list[SealedBatch[str, Any]] = []
    upper = Antichain.minimum(domain)
    for _ in range(3):
        updates = [u for u in data.draw(updates_of(domain)) if upper.less_equal(u[1])]
        batcher.push(updates)
        pushed += updates
        beyond = [t for t in data.draw(antichains_of(domain)) if upper.less_equal(t)]
        upper = Antichain.of(domain, beyond)
        batch = batcher.seal(upper)
        assert batch.lower == (sealed[-1].upper if sealed else Antichain.minimum(domain))
        assert batch.upper == upper == batcher.lower
        assert all(
            batch.lower.less_equal(t) and not upper.less_equal(t) for _, t, _ in batch.updates
        )
        sealed.append(batch)
        _, held = split_updates(consolidate_updates(pushed), upper)
        assert batcher.frontier() == Antichain.of(domain, [time for _, time, _ in held])
    last = batcher.seal(Antichain(domain))
    shipped = [update for batch in (*sealed, last) for update in batch.updates]
    assert consolidated(shipped) == consolidated(pushed)


def test_a_seal_that_goes_back_is_refused_and_changes_nothing() -> None:
    batcher: Batcher[str, int] = Batcher(U64_TIME)
    batcher.seal(frontier(5))
    with pytest.raises(UsageError):
        batcher.seal(frontier(4))
    assert batcher.lower == frontier(5)
    assert batcher.seal(frontier(5)).updates == ()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_merged_batch_reads_as_both_did_beyond_its_since(data: st.DataObject) -> None:
    lattice: Any = PRODUCT_2
    middle = data.draw(antichains_of(lattice).filter(lambda held: not held.empty))
    upper = middle.join(data.draw(antichains_of(lattice)), lattice)
    updates = data.draw(updates_of(lattice))
    low, rest = split_updates(updates, middle)
    high, _ = split_updates(rest, upper)
    sinces = [data.draw(antichains_of(lattice, 2)) for _ in range(3)]
    a = SealedBatch(
        Antichain.minimum(lattice), middle, sinces[0],
        tuple(advance_updates(low, sinces[0], lattice)),
    )  # fmt: skip
    b = SealedBatch(middle, upper, sinces[1], tuple(advance_updates(high, sinces[1], lattice)))
    merged = merge_batches(a, b, sinces[2], lattice)
    assert (merged.lower, merged.upper) == (a.lower, b.upper)
    assert all(since.precedes(merged.since) for since in sinces)
    for at in data.draw(st.lists(times_of(lattice), max_size=5)):
        if merged.since.less_equal(at):
            expected = accumulated(lattice, [*low, *high], at)
            assert accumulate_updates(merged.updates, lattice, at) == expected


def test_only_neighbours_merge() -> None:
    def batch(lower: Any, upper: Any) -> SealedBatch[str, int]:
        return SealedBatch(lower, upper, frontier(0), ())

    with pytest.raises(UsageError):
        merge_batches(
            batch(frontier(0), frontier(4)), batch(frontier(5), frontier(6)), frontier(0), U64_TIME
        )
    with pytest.raises(UsageError):
        merge_batches(
            batch(frontier(0), frontier()), batch(frontier(), frontier()), frontier(0), U64_TIME
        )
