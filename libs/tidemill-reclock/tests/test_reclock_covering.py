"""Source offsets to our times and back: both translations, and that they fit each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import advance, consolidate
from tidemill.errors import UsageError
from tidemill.reclock import covered_since, rows_of_bindings
from tidemill.testkit.generators import partition_histories, remap_histories
from tidemill.testkit.twins.reclocking import (
    bindings_of_history,
    covered_at,
    remap_at,
    says_at_least,
)
from tidemill.testkit.twins.remap_shard import RemapShard
from tidemill.time import PARTITIONED, U64_MAX, Partitions, frontier, partition_frontier

laws = settings(max_examples=120, deadline=None)
LAST = 24
"""Past the last binding that is drawn."""

offsets = st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=4)


@st.composite
def ranges(draw: st.DrawFn) -> list[Partitions]:
    """Wanted offsets of some disjoint ranges of partitions."""
    cuts = sorted(draw(st.sets(st.integers(0, 8), min_size=2, max_size=8)))
    spans = [(a, b - 1) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    return [Partitions(lo, hi, draw(st.integers(0, 9))) for lo, hi in spans]


@pytest.mark.rule("G11")
@given(remap_histories(PARTITIONED, latest=LAST - 2), ranges(), st.sampled_from([0, 3, 20]))
@laws
def test_g11_an_instant_is_at_or_past_what_covers_offsets_exactly_if_it_holds_them(
    history: Any, wanted: list[Partitions], since: int
) -> None:
    """The Galois connection, for all that R may be and wherever compaction has left its
    bindings.
    """
    bindings = bindings_of_history(history)
    compacted = [(s, max(t, since), n) for s, t, n in bindings]
    times = range(since, LAST)
    rows = consolidate(advance(rows_of_bindings(bindings), frontier(since)))
    found = covered_since(rows, wanted, since)
    assert found == covered_at(compacted, times, wanted)
    for time in times:
        holds = says_at_least(remap_at(PARTITIONED, bindings, time), wanted)
        assert (found is not None and found <= time) == holds


@given(partition_histories(), offsets, offsets)
@laws
def test_offsets_are_there_with_the_last_of_their_records_in_the_order_of_frontiers(
    history: Any, wanted: dict[int, int], more: dict[int, int]
) -> None:
    """Wanted offsets are covered when the last of their records is, by the twin's map of single
    records.

    More wanted offsets never get an earlier instant.
    """
    shard = RemapShard(PARTITIONED)
    shard.open("reader", 0)
    shard.open("minter", 0)
    for number, held in enumerate(history, 1):
        shard.mint("minter", number, held)
    rows = rows_of_bindings(shard.bindings)
    covered = {p: o for p, o in wanted.items() if o}
    found = covered_since(rows, partition_frontier(wanted).elements, 0)
    lasts = [Partitions(p, p, o - 1) for p, o in covered.items()]
    targets = shard.target_times("reader", lasts)
    expected = None if None in targets else max([0, *(t for t in targets if t is not None)])
    assert found == expected
    further = {p: max(wanted.get(p, 0), more.get(p, 0)) for p in wanted | more}
    later = covered_since(rows, partition_frontier(further).elements, 0)
    assert later is None or (found is not None and found <= later)


@given(partition_histories(), st.integers(0, 6))
@laws
def test_what_is_in_an_answer_is_covered_no_later_and_by_nothing_less(
    history: Any, time: int
) -> None:
    """There and back is where R came to what it says at that instant: R of it is the same."""
    shard = RemapShard(PARTITIONED)
    shard.open("reader", 0)
    for number, held in enumerate(history, 1):
        shard.mint("reader", number, held)
    assume(not shard.upper.less_equal(time))
    there = shard.source_upper("reader", time + 1)
    back = covered_since(rows_of_bindings(shard.bindings), there.elements, 0)
    assert back is not None
    assert back <= time
    assert shard.source_upper("reader", back + 1) == there or back == 0


def test_the_end_of_a_source_covers_everything_and_nothing_bound_nothing() -> None:
    ended = rows_of_bindings(
        [(Partitions(0, U64_MAX, 0), 0, 1), (Partitions(0, U64_MAX, 0), 7, -1)]
    )
    everything = [Partitions(0, U64_MAX, U64_MAX)]
    assert covered_since(ended, everything, 0) == 7
    assert covered_since(ended.slice(0, 1), everything, 0) is None
    assert covered_since(ended.slice(0, 1), [], 0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        [Partitions(1, 1, 3), Partitions(1, 1, 4)],
        [Partitions(2, 2, 3), Partitions(1, 1, 4)],
        [Partitions(2, 1, 3)],
    ],
)
def test_ranges_that_overlap_or_do_not_ascend_are_refused(wrong: list[Partitions]) -> None:
    with pytest.raises(UsageError, match="offsets refused"):
        covered_since(rows_of_bindings([]), wrong, 0)
