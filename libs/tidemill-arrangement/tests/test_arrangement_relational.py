"""Loops over rows that are present on intervals equal their twins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.relational import (
    Buckets,
    Groups,
    Sums,
    accumulate_groups,
    add_sums,
    add_up,
    best_by_run,
    buckets_of,
    clipped,
    counting,
    covers,
    drawn_together,
    extent,
    few_drawn_together,
    grouping,
    inside,
    join_buckets,
    join_ranges,
    lasting,
    lone_rows,
    quotients,
    range_buckets,
    runs_of,
    stacked_sums,
    stacked_words,
    subtract,
    surely_apart,
    tick_pairs,
    total_of,
    turns,
    uniform_facts,
    uniform_groups,
    within,
)
from tidemill.testkit.twins import relational as twin

LAW = settings(max_examples=100, deadline=None)
Words = npt.NDArray[np.int64]

small = st.integers(-3, 3)
wide = small | st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 40])
groups = st.integers(0, 3)
intervals = st.tuples(st.integers(0, 9), st.integers(1, 6)).map(lambda p: (p[0], p[0] + p[1]))


def words(values: object) -> Words:
    return np.array(values, np.int64)


def columns(rows: list[tuple[int, ...]], width: int) -> list[Words]:
    return [words([row[at] for row in rows]) for at in range(width)]


@contextmanager
def no_rows_are_few() -> Iterator[None]:
    before, grouping.FEW_ROWS = grouping.FEW_ROWS, -1
    try:
        yield
    finally:
        grouping.FEW_ROWS = before


@LAW
@given(
    st.sampled_from([small, wide]).flatmap(lambda v: st.lists(st.tuples(v, v), max_size=40)),
    st.booleans(),
)
def test_equal_rows_have_one_number(rows: list[tuple[int, ...]], few: bool) -> None:
    with nullcontext() if few else no_rows_are_few():
        found = Groups.of(columns(rows, 2), len(rows))
    assert found.ids.tolist() == twin.numbers(rows)
    assert [rows[at] for at in found.firsts] == list(dict.fromkeys(rows))
    others = [*rows, (7, 7), (-9, 0), (1 << 50, 2)]
    known = {row: at for at, row in enumerate(dict.fromkeys(rows))}
    assert found.find(columns(others, 2), len(others)).tolist() == [
        known.get(row, -1) for row in others
    ]


def test_many_different_rows_outgrow_the_first_table() -> None:
    rng = np.random.default_rng(5)
    drawn = [rng.integers(-(1 << 62), 1 << 62, 20_000) for _ in range(2)]
    found = Groups.of(drawn, 20_000)
    assert found.ids.tolist() == list(range(20_000))
    assert found.find(drawn, 20_000).tolist() == list(range(20_000))


@LAW
@given(st.lists(st.tuples(st.integers(0, 9), groups), max_size=12), st.booleans())
def test_rows_said_to_differ_do(rows: list[tuple[int, ...]], ordered: bool) -> None:
    shown = sorted(rows) if ordered else rows
    assert surely_apart(columns(shown, 2), len(rows)) == (len(set(rows)) == len(rows))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(0, 3), st.booleans())
def test_many_rows_said_to_differ_do(seed: int, copies: int, near: bool) -> None:
    rng, count = np.random.default_rng(seed), 80_000
    times = np.arange(count) // 2 + rng.integers(0, 2_000, count)
    rows = np.arange(count)
    copied = rng.integers(1, count, copies)
    rows[copied] = copied - 1 if near else rng.integers(0, count, copies)
    drawn = [column[rows] for column in (times, np.full(count, 7), np.arange(count) % 2_000)]
    different = len(np.unique(drawn[0] * 2_000 + drawn[2])) == count
    assert surely_apart(drawn, count) == different


def test_rows_are_told_apart_in_any_order_unless_one_value_has_too_many() -> None:
    rng, count = np.random.default_rng(3), 900_000
    serial, others = np.arange(count) ^ 5, np.arange(count) % 10
    mixed = rng.permutation(count)
    for order in (slice(None), mixed):
        assert surely_apart([others[order], serial[order]], count)
    assert not surely_apart([others[mixed], np.arange(count)[mixed] // 200_000], count)
    serial[899_000] = serial[899_010]
    for order in (slice(None), mixed):
        assert not surely_apart([others[order], serial[order]], count)


@LAW
@given(st.lists(wide, min_size=1, max_size=20), st.integers(0, 6))
def test_rows_are_put_together_by_ranges_of_a_column(values: list[int], parts: int) -> None:
    found = range_buckets(words(values), parts)
    borders = found.starts.tolist()
    assert len(borders) - 1 <= max(parts, 2)
    ranges = [found.order[a:b].tolist() for a, b in pairwise(borders)]
    assert sorted(row for mine in ranges for row in mine) == list(range(len(values)))
    assert all(mine == sorted(mine) for mine in ranges)
    kept = [[values[row] for row in mine] for mine in ranges if mine]
    assert all(max(mine) < min(other) for mine, other in pairwise(kept))


@LAW
@given(
    st.lists(st.tuples(groups, intervals), max_size=8),
    st.lists(st.tuples(groups, intervals, small), max_size=8),
    st.data(),
)
def test_rows_of_one_group_that_are_present_together_are_paired(
    left: list[tuple[int, tuple[int, int]]],
    right: list[tuple[int, tuple[int, int], int]],
    data: st.DataObject,
) -> None:
    of_right = words([group for group, _, _ in right])
    ids = words([group for group, _ in left])
    mine = words([s for _, (s, _) in left]), words([f for _, (_, f) in left])
    theirs = words([s for _, (s, _), _ in right]), words([f for _, (_, f), _ in right])
    found = join_buckets(ids, buckets_of(of_right, 4), mine, theirs)
    every = [(-9, 9)] * len(left)
    assert set(zip(*map(Words.tolist, found), strict=True)) == twin.pairs(left, right, every)
    limits = [data.draw(st.tuples(small, small)) for _ in left]
    values = words([value for _, _, value in right])
    order = np.lexsort((values, of_right)) if right else words([])
    starts = np.searchsorted(of_right[order], np.arange(5))
    given_ = words([low for low, _ in limits]), words([high for _, high in limits])
    ranged = join_ranges(ids, Buckets(starts, order), values[order], given_, mine, theirs)
    assert set(zip(*map(Words.tolist, ranged), strict=True)) == twin.pairs(left, right, limits)


FOREVER = (1 << 63) - 1


@LAW
@given(st.lists(intervals, max_size=12), st.integers(0, 8), st.integers(1, 8))
def test_rows_are_cut_to_a_window(rows: list[tuple[int, int]], lower: int, length: int) -> None:
    upper = lower + length
    found = clipped(*columns(rows, 2), lower, upper)
    expected = [
        (row, start, FOREVER if stop is None else stop)
        for row, start, stop in twin.within(rows, lower, upper)
    ]
    assert list(zip(*map(Words.tolist, found), strict=True)) == expected
    unchanged = expected == [(row, *interval) for row, interval in enumerate(rows)]
    assert inside(*columns(rows, 2), lower, upper) == unchanged
    assert inside(*found[1:], lower, upper)


@LAW
@given(st.lists(intervals, max_size=12), st.integers(0, 8), st.integers(1, 8), st.booleans())
def test_rows_begin_and_end_in_a_window(
    rows: list[tuple[int, int]], seen: int, length: int, first: bool
) -> None:
    lower = seen if first else seen + 1
    upper = lower + length
    _, start, stop = clipped(*columns(rows, 2), seen, upper)
    kept = [row for row, _, _ in twin.within(rows, seen, upper)]
    found = turns(start, stop, seen, lower, upper)
    changes = list(zip(*map(Words.tolist, found), strict=True))
    assert len(set(changes)) == len(changes)
    assert {(kept[row], at, diff) for row, at, diff in changes} == twin.turns(
        rows, seen, lower, upper
    )


@LAW
@given(
    st.lists(st.tuples(groups, intervals), max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_rows_of_a_group_are_drawn_together(
    rows: list[tuple[int, tuple[int, int]]], odd: list[bool]
) -> None:
    ids = Groups.of([words([group for group, _ in rows])], len(rows))
    start, stop = columns([interval for _, interval in rows], 2)
    uniform = drawn_together(ids.ids, len(ids), start, stop, ids.ids)
    assert uniform is not None
    found = list(zip(*map(Words.tolist, uniform), strict=True))
    last: dict[int, int] = {}
    for row, begin, end in found:
        assert begin > last.get(rows[row][0], -1)
        last[rows[row][0]] = end
    present = {(rows[row][0], at) for row, begin, end in found for at in range(begin, end)}
    assert present == {(group, at) for group, (a, b) in rows for at in range(a, b)}
    marks = words(odd[: len(rows)])
    several = any(
        a[0] == b[0] and odd[i] != odd[j] for i, a in enumerate(rows) for j, b in enumerate(rows)
    )
    assert (drawn_together(ids.ids, len(ids), start, stop, marks) is None) == several
    block = stacked_words([ids.ids], len(rows))
    for each, expected in ((ids.ids, uniform), (marks, None if several else uniform)):
        different, drawn = few_drawn_together(block, start, stop, each)
        assert different == len(ids)
        if different == len(rows) or expected is None:
            assert drawn is None
        else:
            assert drawn is not None
            assert drawn.tolist() == [column.tolist() for column in expected]


@LAW
@given(st.lists(wide, min_size=1, max_size=12), st.lists(st.integers(0, 3), max_size=8))
def test_ranges_and_numbers_that_come_once(values: list[int], ids: list[int]) -> None:
    assert extent(words(values)) == (min(values), max(values))
    assert extent(words(values)[::-1]) == (min(values), max(values))
    lone = [row for row, number in enumerate(ids) if ids.count(number) == 1]
    assert lone_rows(words(ids), 4).tolist() == lone
    assert counting(words(ids)) == (ids == list(range(len(ids))))
    assert counting(np.arange(5))
    kept = [row for row, value in enumerate(values) if -2 <= value <= 1 << 40]
    assert within(words(values), -2, 1 << 40).tolist() == kept
    assert lasting(words(ids), 2) == (ids.count(2), ids.count(3))


@LAW
@given(
    st.lists(st.tuples(groups, st.integers(0, 1), st.integers(2, 3), st.integers(4, 5)), max_size=9)
)
def test_facts_are_uniform_where_all_their_rows_are_alike(rows: list[tuple[int, ...]]) -> None:
    found = Groups.of([words([row[0] for row in rows])], len(rows))
    same, several = uniform_facts(found.ids, *columns(rows, 4)[1:], found.firsts)
    expected = [len({row for row in rows if row[0] == rows[at][0]}) == 1 for at in found.firsts]
    assert same.tolist() == expected
    assert several == expected.count(False)


@LAW
@given(
    st.lists(st.tuples(small, st.integers(1, 4), *[st.integers(-9, 9)] * 3)),
    st.integers(-9, 9),
    st.integers(0, 40),
)
def test_a_clock_ticks_between_its_limits(
    clocks: list[tuple[int, int, int, int, int]], upper: int, most: int
) -> None:
    offset, period, low, high, stop = columns([*clocks], 5)
    found = tick_pairs(offset, period, low, high, (stop, upper), most)
    expected = [
        (i, time)
        for i, (*clock, greatest, end) in enumerate(clocks)
        for time in twin.ticks(*clock, min(greatest, end - 1, upper - 1))
    ]
    if found is None:
        assert len(expected) > most
    else:
        assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
        assert len(expected) <= most


LAST = (1 << 63) - 1
far = st.sampled_from((-LAST, -LAST + 1, -3, 0, 1, 2, 1 << 62, LAST - 1, LAST))


@LAW
@given(st.lists(st.tuples(far, far.filter(lambda n: n > 0), far, far, far), max_size=4))
def test_a_clock_ticks_at_no_word_that_there_is_not(
    clocks: list[tuple[int, int, int, int, int]],
) -> None:
    offset, period, low, high, stop = columns([*clocks], 5)
    found = tick_pairs(offset, period, low, high, (stop, LAST), 99)
    expected = [
        range(
            max(first, -((first - least) // step) * step + first), min(greatest, end - 1) + 1, step
        )
        for first, step, least, greatest, end in clocks
    ]
    if found is None:
        assert sum(max(0, -((t.start - t.stop) // t.step)) for t in expected) > 99
    else:
        pairs = [(row, time) for row, times in enumerate(expected) for time in times]
        assert list(zip(*(column.tolist() for column in found), strict=True)) == pairs


@LAW
@given(
    st.lists(st.tuples(groups, intervals), max_size=8),
    st.lists(st.tuples(groups, intervals), max_size=8),
)
def test_what_a_group_covers_is_taken_away(
    rows: list[tuple[int, tuple[int, int]]], over: list[tuple[int, tuple[int, int]]]
) -> None:
    cover = covers(
        words([g for g, _ in over]), 4, words([a for _, (a, _) in over]), words([b for _, (_, b) in over])
    )  # fmt: skip
    row, start, stop = subtract(
        words([g for g, _ in rows]), words([a for _, (a, _) in rows]), words([b for _, (_, b) in rows]), cover
    )  # fmt: skip
    found = [
        (i, at)
        for i, a, b in zip(row.tolist(), start.tolist(), stop.tolist(), strict=True)
        for at in range(a, b)
    ]
    assert len(found) == len(set(found))
    assert set(found) == twin.remains(rows, over, range(16))


@LAW
@given(st.lists(st.tuples(groups, intervals, st.none() | small), max_size=10))
def test_runs_say_who_is_present_and_who_is_best(
    rows: list[tuple[int, tuple[int, int], int | None]],
) -> None:
    ids = words([g for g, _, _ in rows])
    start, stop = words([a for _, (a, _), _ in rows]), words([b for _, (_, b), _ in rows])
    ranks = words([0 if rank is None else rank for _, _, rank in rows])
    known = np.array([rank is not None for _, _, rank in rows], np.bool_)
    runs = runs_of(ids, start, stop)
    best = best_by_run(runs, ranks, known)
    seen = set()
    for at in range(len(runs.group)):
        group, mine = int(runs.group[at]), int(best[at])
        for instant in range(int(runs.start[at]), int(runs.stop[at])):
            seen.add((group, instant))
            count, rank = twin.best_at(rows, group, instant)
            assert int(runs.present[at]) == count
            assert (int(ranks[mine]) if mine >= 0 else None) == rank
    assert {(g, at) for g, (a, b), _ in rows for at in range(a, b)} <= seen


@LAW
@given(
    st.lists(st.tuples(groups, intervals), max_size=80),
    st.sampled_from(("as they come", "by start", "backwards")),
)
def test_stretches_list_comings_and_goings_in_the_order_of_sorting(
    rows: list[tuple[int, tuple[int, int]]], order: str
) -> None:
    if order != "as they come":
        rows = sorted(rows, key=lambda row: row[1], reverse=order == "backwards")
    runs = runs_of(words([g for g, _ in rows]), *columns([i for _, i in rows], 2))
    moves = [(g, a, at) for at, (g, (a, _)) in enumerate(rows)]
    moves += [(g, b, ~at) for at, (g, (_, b)) in enumerate(rows)]
    moves.sort(key=lambda move: move[:2])  # stable: comings first, each in the order of the rows
    assert runs.events.tolist() == [event for _, _, event in moves]
    cuts = [at for at, move in enumerate(moves) if not at or move[:2] != moves[at - 1][:2]]
    assert runs.bounds.tolist() == [*cuts, len(moves)]
    assert list(zip(runs.group, runs.start, strict=True)) == [moves[at][:2] for at in cuts]


@LAW
@given(st.lists(st.tuples(groups, intervals), min_size=1, max_size=6))
def test_groups_are_uniform_where_all_come_and_go_together(
    rows: list[tuple[int, tuple[int, int]]],
) -> None:
    found = Groups.of([words([g for g, _ in rows])], len(rows))
    start, stop = words([a for _, (a, _) in rows]), words([b for _, (_, b) in rows])
    same = uniform_groups(found.ids, start, stop, found.firsts)
    for at, first in enumerate(found.firsts):
        group = rows[first][0]
        assert bool(same[at]) == (len({i for g, i in rows if g == group}) == 1)


@LAW
@given(
    st.lists(
        st.tuples(groups, st.integers(0, 5), st.sampled_from((1, 1, 2, -1, -1))), max_size=12
    ).map(lambda updates: sorted(updates, key=lambda update: update[1]))
)
def test_groups_are_there_while_they_have_a_copy(updates: list[tuple[int, int, int]]) -> None:
    ids, times, diffs = columns(updates, 3)
    found = accumulate_groups(buckets_of(ids, 4), times, diffs)
    expected = twin.stretches(updates)
    if isinstance(expected, int):
        assert int(times[found.wrong]) == expected
        return
    assert found.wrong < 0
    ends = [None if stop == (1 << 63) - 1 else stop for stop in found.stop.tolist()]
    assert set(zip(found.groups.tolist(), found.start.tolist(), ends, strict=True)) == expected[0]
    alive = zip(found.since.tolist(), found.copies.tolist(), strict=True)
    assert dict(zip(found.alive.tolist(), alive, strict=True)) == expected[1]


numbers = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.floats(-1e9, 1e9).map(lambda x: 0.0 if abs(x) < 1e-3 else x)


@LAW
@given(
    st.sampled_from([numbers, floats, st.floats(-1.0, 1.0).map(lambda x: round(x, 2))]).flatmap(
        lambda values: st.lists(values, min_size=1, max_size=12)
    ),
    st.integers(1, 1 << 31),
)
def test_sums_are_exact_and_quotients_rounded_once(values: list[int | float], divisor: int) -> None:
    column = np.array(values, np.int64 if isinstance(values[0], int) else np.float64)
    ones = np.ones(len(values), np.int64)
    flags = np.ones(len(values), np.bool_)
    found = add_up(column, flags, np.zeros(len(values), np.int64), ones, 1)
    assert found is not None
    assert found.counts.tolist() == [len(values)]
    total = total_of(found.limbs[0].tolist())
    assert total * Fraction(2) ** found.exponent == sum(map(Fraction, values))
    rounded, exact = quotients(found.limbs, words([divisor]), found.exponent)
    if exact[0]:
        assert rounded[0] == twin.quotient(values, divisor)
    else:
        assert divisor >= 1 << 32 or abs(total) >= 1 << 150


def test_numbers_too_far_apart_are_left_to_others() -> None:
    ones = np.ones(2, np.int64)
    far = add_up(np.array([1.0, 1e-30]), np.ones(2, np.bool_), np.zeros(2, np.int64), ones, 1)
    assert far is None
    parts = [one_sum([1.0]), one_sum([1e-30])]
    assert stacked_sums(parts) is None


def one_sum(values: list[int | float]) -> Sums:
    column = np.array(values, np.int64 if isinstance(values[0], int) else np.float64)
    ones = np.ones(len(values), np.int64)
    found = add_up(column, ones > 0, ones - 1, ones, 1)
    assert found is not None
    return found


@LAW
@given(
    st.sampled_from([numbers, floats, st.floats(-1.0, 1.0).map(lambda x: round(x, 2))]).flatmap(
        lambda values: st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=6)
    ),
    st.data(),
)
def test_sums_of_parts_are_those_of_the_whole(
    parts: list[list[int | float]], data: st.DataObject
) -> None:
    sums = stacked_sums([one_sum(part) for part in parts])
    assert sums is not None
    way = st.tuples(st.integers(0, len(parts) - 1), st.integers(0, 2), st.sampled_from([1, -1]))
    ways = data.draw(st.lists(way, max_size=8))
    rows, groups, signs = columns(ways, 3)
    found = add_sums(sums, rows, groups, signs, 3)
    for group in range(3):
        moved = [(parts[row], sign) for row, mine, sign in ways if mine == group]
        assert found.counts[group] == sum(sign * len(part) for part, sign in moved)
        total = total_of(found.limbs[group].tolist())
        expected = sum(sign * sum(map(Fraction, part)) for part, sign in moved)
        assert total * Fraction(2) ** found.exponent == expected
