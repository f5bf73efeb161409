"""Minting under races, with one collection and many operators."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import BeforeSince, Corrupt, NotYet, UnknownCapability, UsageError
from tidemill.reclock import MintAt, Minter, Wait, mint_time
from tidemill.testkit.generators import DOMAINS, histories_of
from tidemill.testkit.twins.reclocking import remap_at
from tidemill.testkit.twins.remap_shard import RemapShard
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    U64_TIME,
    Antichain,
    PartitionedOrder,
    Partitions,
    frontier,
    partition_frontier,
)

any_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)


@any_domain
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_racing_minters_leave_one_monotone_history(domain: Any, data: st.DataObject) -> None:
    shard: RemapShard[Any] = RemapShard(domain)
    for name in "AB":
        shard.open(name, 0)
    probes = data.draw(histories_of(domain))
    landed: list[tuple[int, Antichain[Any]]] = [(0, Antichain.minimum(domain))]
    for _ in range(data.draw(st.integers(0, 6))):
        at, source = data.draw(st.integers(0, 9)), data.draw(st.sampled_from(probes))
        before = shard.upper
        minted = shard.mint(data.draw(st.sampled_from("AB")), at, source)
        assert minted.mismatches <= 1
        wanted = before.less_equal(at) and landed[-1][1].precedes(source)
        assert minted.lands_at == (at if wanted else None)
        if wanted:
            landed.append((at, source))
        assert shard.upper == (before if not wanted else _after(at, source))
    for time in range(10):
        held = [source for at, source in landed if at <= time][-1]
        assert remap_at(domain, shard.bindings, time) == held
        counts = [n for _, bound, n in shard.bindings if bound <= time]
        assert sum(counts) == len(held)
    assert all(a.precedes(b) for (_, a), (_, b) in pairwise(landed))


def _after(at: int, source: Antichain[Any]) -> Antichain[int]:
    return frontier() if source.empty else frontier(at + 1)


def test_an_unknown_outcome_is_safe_to_retry() -> None:
    minter: Minter[int] = Minter(U64_TIME, 0, [(0, 0, 1)], frontier(1))
    proposal = minter.propose(10, frontier(7))
    assert proposal is not None
    # The write happened and its answer was lost: the retry meets its own write as a mismatch.
    minter.lost([(0, 0, 1), *proposal.bindings], proposal.new)
    assert minter.propose(10, frontier(7)) is None
    assert minter.view.current == frontier(7)
    assert (minter.landed_count, minter.lost_count) == (0, 1)


def test_a_new_partition_writes_what_changes_and_nothing_else() -> None:
    start = [(element, 0, 1) for element in partition_frontier({0: 4})]
    minter: Minter[Partitions] = Minter(PARTITIONED, 0, start, frontier(1))
    proposal = minter.propose(9, partition_frontier({0: 4, 2: 7}))
    assert proposal is not None
    assert set(proposal.bindings) == {
        (Partitions(1, U64_MAX, 0), 9, -1),
        (Partitions(1, 1, 0), 9, 1),
        (Partitions(2, 2, 7), 9, 1),
        (Partitions(3, U64_MAX, 0), 9, 1),
    }
    assert (proposal.expected, proposal.new) == (frontier(1), frontier(10))


def test_v14_minting_compares_a_partition_with_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round of 2,000 partitions takes some comparisons of each, and not 4,000,000."""
    start = [(element, 0, 1) for element in partition_frontier({})]
    minter: Minter[Partitions] = Minter(PARTITIONED, 0, start, frontier(1))
    compared: list[None] = []
    less_equal = PartitionedOrder.less_equal

    def counting(order: PartitionedOrder, a: Partitions, b: Partitions) -> bool:
        compared.append(None)
        return less_equal(order, a, b)

    monkeypatch.setattr(PartitionedOrder, "less_equal", counting)
    for offset in (4, 7):
        seen = partition_frontier(dict.fromkeys(range(2000), offset))
        proposal = minter.propose(9 + offset, seen)
        assert proposal is not None
        minter.landed(proposal)
        assert minter.view.current == seen
    assert 4000 < len(compared) < 30_000


def test_minting_at_the_last_time_closes_the_collection() -> None:
    minter: Minter[int] = Minter(U64_TIME, 0, [(0, 0, 1)], frontier(1))
    proposal = minter.propose(U64_MAX, frontier(3))
    assert proposal is not None
    assert proposal.new == frontier()
    minter.landed(proposal)
    assert minter.propose(U64_MAX, frontier(4)) is None


def test_views_follow_what_others_wrote() -> None:
    minter: Minter[int] = Minter(U64_TIME, 0, [(0, 0, 1)], frontier(1))
    minter.extend([(0, 4, -1), (6, 4, 1)], frontier(5))
    assert minter.view.current == frontier(6)
    minter.downgrade(frontier(4))
    assert (minter.hold, minter.view.since) == (frontier(4), frontier(4))
    with pytest.raises(UsageError):
        minter.downgrade(frontier(3))
    with pytest.raises(Corrupt):
        minter.refresh([(0, 0, 1), (6, 4, 1)], frontier(5))


def test_holds_of_operators_hold_since_and_a_hold_may_lie_beyond_the_view() -> None:
    shard: RemapShard[int] = RemapShard(U64_TIME)
    shard.open("A", 0)
    shard.open("B", 0)
    shard.mint("B", 10, frontier(5))
    shard.downgrade("A", frontier(8))
    assert shard.since == frontier(0)
    shard.close("B")
    assert shard.since == frontier(8)
    assert shard.bindings == ((0, 8, 1), (0, 10, -1), (5, 10, 1))
    assert shard.target_times("A", [4, 5]) == [10, None]
    shard.close("A")
    assert shard.since == frontier(8)
    with pytest.raises(UnknownCapability):
        shard.mint("A", 20, frontier(9))
    with pytest.raises(BeforeSince):
        shard.open("C", 7)
    with pytest.raises(NotYet):
        shard.open("C", 11)
    shard.open("C", 10)
    with pytest.raises(UsageError):
        shard.open("C", 10)
    assert shard.since == frontier(10)


def test_an_operator_whose_hold_is_beyond_upper_goes_on_minting() -> None:
    shard: RemapShard[int] = RemapShard(U64_TIME)
    shard.open("A", 0)
    shard.downgrade("A", frontier(50))
    for at, source in ((10, 5), (20, 6)):
        assert shard.mint("A", at, frontier(source)).lands_at == at
    assert shard.target_times("A", [4]) == [None]
    assert shard.target_frontier("A", frontier(4)) == frontier(50)
    assert shard.mint("A", 60, frontier(9)).lands_at == 60
    assert shard.target_times("A", [5, 6, 9]) == [50, 60, None]
    assert shard.source_upper("A", 60) == frontier(6)


def test_opening_beyond_the_first_upper_still_writes_the_minimum() -> None:
    shard: RemapShard[int] = RemapShard(U64_TIME)
    with pytest.raises(NotYet):
        shard.open("A", 5)
    assert (shard.upper, shard.bindings) == (frontier(1), ((0, 0, 1),))


@given(st.integers(0, 10_000), st.integers(1, 2_000), st.integers(0, 12_000))
@settings(max_examples=100, deadline=None)
def test_probes_are_bound_at_the_next_multiple_of_the_interval_or_wait(
    now: int, interval: int, upper: int
) -> None:
    answer = mint_time(now, interval, frontier(upper))
    rounded = next(t for t in range(now, now + interval) if t % interval == 0)
    assert answer == (MintAt(rounded) if upper <= rounded else Wait(upper - now))


def test_a_mint_time_needs_an_interval_an_open_collection_and_64_bits() -> None:
    assert mint_time(U64_MAX, 1, frontier(0)) == MintAt(U64_MAX)
    for now, interval, upper in (
        (0, 0, frontier(0)),
        (0, 1, frontier()),
        (U64_MAX, 1000, frontier(0)),
    ):
        with pytest.raises(UsageError):
            mint_time(now, interval, upper)
