"""Intervals of one fact stand from late to early, and a look at them ends where it can."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    END_WORD,
    Arrangement,
    JoinShape,
    Merged,
    join,
    long_chains,
    merging,
    subtract,
)
from tidemill.arrangement.interval_updates.long_chains import LONG
from tidemill.arrangement.interval_updates.slots import ROW_BITS

KEY = (0, 1)
FACTS, LAST = 3, 40
SHAPE = JoinShape(
    np.array([[0, 1], [0, 1]]), np.empty((2, 0), np.int64), np.empty((2, 0), np.int64), False, -1
)


def merged_by(rng: Random, changes: int, compacted: bool) -> tuple[Merged, set[tuple[int, int]]]:
    """Facts (0, key, expiry, nulls) that come and go anywhere; which hold at which instants."""
    merged, alive = Merged(4, KEY, 2), set[tuple[int, int]]()
    for at in range(changes):
        key, start = rng.randrange(FACTS), rng.randrange(LAST)
        end = rng.randint(start + 1, LAST)
        instants = {(key, instant) for instant in range(start, end)}
        diff = 1 if not instants & alive else -1 if instants <= alive else 0
        if diff:
            merged.take(np.array([(0, key, END_WORD, 0, start, end, diff)], np.int64))
            alive ^= instants
        if compacted and at == changes // 2:
            merged.facts.compact(0)
            merged.facts.clear()
            rows = [(0, k, END_WORD, 0, t, t + 1) for k, t in sorted(alive)]
            rng.shuffle(rows)
            merged.facts.append(np.array(rows, np.int64).reshape(-1, 6))
    return merged, alive


@pytest.mark.parametrize("seed", range(60))
def test_the_intervals_of_a_fact_stand_from_late_to_early(seed: int) -> None:
    merged, _ = merged_by(Random(seed), 60, seed % 2 == 1)
    index, rows = merged.facts.index(KEY), merged.facts.rows
    assert index.ordered
    for word in index.slots[index.slots >= 0].tolist():
        row, before = word & ((1 << int(index.used[ROW_BITS])) - 1), END_WORD
        while row >= 0:
            start, end = rows[row, -2:].tolist()
            if start < end:
                assert end <= before
                before = start
            row = int(index.nexts[row])


@pytest.mark.parametrize("seed", range(60))
def test_a_look_that_ends_early_finds_all_that_meets_an_interval(seed: int) -> None:
    rng = Random(seed)
    merged, alive = merged_by(rng, 60, seed % 2 == 1)
    asked = [(0, rng.randrange(FACTS), 0, 0, *sorted(rng.sample(range(LAST), 2))) for _ in range(9)]
    left = np.array([(*row, 1) for row in asked], np.int64)
    instants = [{(row[1], at) for at in range(row[4], row[5])} for row in asked]
    for found, expected in (
        (join(left, merged.facts, SHAPE), [each & alive for each in instants]),
        (subtract(left, merged.facts, *np.array([KEY, KEY])), [each - alive for each in instants]),
    ):
        told = sorted((r[1], at) for r in found.tolist() for at in range(r[4], r[5]))
        assert told == sorted(each for one in expected for each in one)


def some_rows(rng: Random, count: int, diffs: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Rows (0, key, word, expiry, nulls, start, end, diff), a good half of them of one key."""
    return [
        (0, rng.choice((0, 0, 1, 2)), rng.randrange(4), END_WORD, 0,
         *sorted(rng.sample(range(LAST), 2)), rng.choice(diffs))
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("count", [9, 3 * LONG])
def test_looks_at_long_chains_find_what_a_walk_would(seed: int, count: int) -> None:
    rng = Random(seed)
    left, right = some_rows(rng, 30, (1, -1)), some_rows(rng, count, (1, -1))
    copied = JoinShape(
        np.array([[1], [1]]), np.array([[2], [2]]), np.empty((2, 0), np.int64), False, -1
    )
    other = Arrangement.of_change(np.array(right, np.int64))
    found = join(np.array(left, np.int64), other, copied)
    expected = [
        (0, a[1], b[2], END_WORD, 0, max(a[5], b[5]), min(a[6], b[6]), a[7] * b[7])
        for a in left
        for b in right
        if a[1] == b[1] and max(a[5], b[5]) < min(a[6], b[6])
    ]
    assert sorted(map(tuple, found.tolist())) == sorted(expected)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("least", [(-1, -1), (2, 2)])
@pytest.mark.parametrize("count", [3, 3 * LONG])
def test_long_chains_take_away_what_a_walk_would(
    seed: int, least: tuple[int, int], count: int
) -> None:
    rng = Random(seed)
    left, right = some_rows(rng, 30, (1,)), some_rows(rng, count, (1,))
    kept = rng.sample(right, min(count, 100))
    right = [(*row[:5], row[5], row[5] + 1, 1) for row in right if row not in kept] + kept[:2]
    other = Arrangement(5)
    other.append(np.array(right, np.int64)[:, :-1])
    key = np.array([1])
    found = subtract(np.array(left, np.int64), other, key, key, least)
    told = Counter((*row[:5], at) for row in found.tolist() for at in range(row[5], row[6]))
    assert told == Counter(
        (*a[:5], at)
        for a in left
        for at in range(a[5], a[6])
        if not any(
            a[1] == b[1] and b[5] <= at < b[6] and (least == (-1, -1) or b[2] >= a[2])
            for b in right
        )
    )


def test_a_chain_that_many_look_at_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def read(*given: Any) -> int:  # Any: the arguments of a compiled loop
        lengths.append(given[-1].shape[1])
        return int(long_chains_read(*given))

    long_chains_read = long_chains._read
    monkeypatch.setattr(long_chains, "_read", read)
    rows = [(0, 1, at, END_WORD, 0, at, at + 1, 1) for at in range(10 * LONG)]
    many = Arrangement.of_change(np.array(rows, np.int64))
    left = np.array(rows, np.int64)
    key = np.array([1])
    assert len(subtract(left, many, key, key)) == 0
    assert lengths == [10 * LONG]


def test_a_look_does_end_before_intervals_that_are_past() -> None:
    """A row is damaged that each look would meet if it read all intervals of the fact."""
    merged = Merged(4, KEY, 2)
    for at in range(5):
        merged.take(np.array([(0, 1, END_WORD, 0, 2 * at, 2 * at + 1, 1)], np.int64))
    merged.facts.rows[0, -1] = END_WORD
    left = np.array([(0, 1, 0, 0, 20, 30, 1)], np.int64)
    assert len(join(left, merged.facts, SHAPE)) == 0
    assert subtract(left, merged.facts, *np.array([KEY, KEY])).tolist() == left.tolist()
    taken = merged.take(np.array([(0, 1, END_WORD, 0, 20, 21, 1)], np.int64))
    assert (len(taken), len(merged.spare)) == (1, 0)


def test_a_fact_whose_start_was_cut_past_a_dead_one_is_found() -> None:
    merged = Merged(5, KEY, 2)

    def take(value: int, start: int, end: int, diff: int) -> list[list[int]]:
        row = [1, 7, 50, value, 0, start, end, diff]
        return merged.take(np.array([row], np.int64)).tolist()

    for change in (0, 20, 22, 1), (1, 5, 6, 1), (0, 0, 5, 1), (1, 5, 6, -1), (0, 5, 9, 1):
        assert take(*change)
    take(0, 0, 8, -1)
    take(2, 7, 8, 1)
    assert take(0, 8, 9, 1) == []
    assert merged.spare.living().tolist() == [[1, 7, 50, 0, 0, 8, 9]]


def fact(key: int, start: int, end: int, diff: int) -> list[int]:
    return [0, key, END_WORD, 0, start, end, diff]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("more", [0, 2])
def test_rows_go_that_meet_nothing_beside_one_added_that_meets_a_fact(
    place: int, more: int
) -> None:
    merged = Merged(4, KEY, 2)
    merged.take(np.array([fact(key, 1, END_WORD, 1) for key in range(4)], np.int64))
    change = [fact(key, 1, END_WORD, -1) for key in range(3)]
    change.insert(place, fact(3, 1, 9, 1))
    change += [fact(7 + at, 5, 9, 1) for at in range(more)]
    told = merged.take(np.array(change, np.int64)).tolist()
    assert sorted(told) == sorted(row for row in change if row[1] != 3)
    facts = [fact(3, 1, END_WORD, 1), *change[4:]]
    assert sorted(merged.facts.living().tolist()) == [row[:-1] for row in facts]
    assert merged.spare.living().tolist() == [fact(3, 1, 9, 1)[:-1]]


def test_a_row_that_meets_a_fact_does_not_hold_up_those_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at, merge = [], merging._merge

    def counted(change: Any, *rest: Any) -> int:
        looked_at.append(len(change))
        return merge(change, *rest)

    monkeypatch.setattr(merging, "_merge", counted)
    merged, rows = Merged(4, KEY, 2), [fact(at, 1, END_WORD, 1) for at in range(900)]
    alike = [rows[0], rows[5]]
    told = merged.take(np.array(rows[:100] + alike[:1] + rows[100:] + alike[1:], np.int64))
    assert sorted(told.tolist()) == sorted(rows)
    assert looked_at == [2]
    assert sorted(merged.spare.living().tolist()) == [row[:-1] for row in alike]


@pytest.mark.parametrize("added_first", [True, False])
def test_a_fact_that_ends_sooner_goes_from_there_on_alone(added_first: bool) -> None:
    """The fact does not go as a whole and come back in part, though all else is plain."""
    merged = Merged(4, KEY, 2)
    merged.take(np.array([fact(key, 1, END_WORD, 1) for key in range(2)], np.int64))
    change = [fact(0, 1, END_WORD, -1), fact(1, 1, END_WORD, -1), fact(1, 1, 9, 1)]
    told = merged.take(np.array(change[::-1] if added_first else change, np.int64)).tolist()
    assert sorted(told) == [fact(0, 1, END_WORD, -1), fact(1, 9, END_WORD, -1)]
    assert merged.facts.living().tolist() == [fact(1, 1, 9, 1)[:-1]]
    assert len(merged.spare.living()) == 0


@pytest.mark.parametrize("seed", range(200))
def test_derivations_that_come_and_go_are_facts_and_spares_of_every_instant(seed: int) -> None:
    """Of a fact the one with the greatest expiry is shown, and of these one with fewest nulls."""
    rng, merged = Random(seed), Merged(5, KEY, 2)
    held: list[tuple[int, ...]] = []
    told = Counter[tuple[int, ...]]()
    for _ in range(rng.randint(1, 10)):
        change = []
        for _ in range(rng.randint(1, 8)):
            if held and rng.random() < 0.4:
                *row, first, last = held.pop(rng.randrange(len(held)))
                start = rng.randint(first, last - 1)
                end = rng.randint(start + 1, last)
                held += [(*row, a, b) for a, b in ((first, start), (end, last)) if a < b]
                change.append((*row, start, end, -1))
                continue
            start, expiry, null = rng.randrange(11), rng.choice((10, 11, 12)), rng.choice((0, 0, 8))
            value = 0 if null else rng.choice((0, expiry))
            new = (rng.randrange(2), 7, expiry, value, null, start, rng.randint(start + 1, 12))
            diff = rng.choice((1, 1, 1, 2))
            held += [new] * diff
            change.append((*new, diff))
        for *row, start, end, diff in merged.take(np.array(change, np.int64)).tolist():
            for instant in range(start, end):
                told[(instant, *row)] += diff
        facts, spare = pointwise(merged.facts), pointwise(merged.spare)
        assert facts == +told
        assert facts + spare == Counter(
            (instant, *row) for *row, start, end in held for instant in range(start, end)
        )
        assert max(Counter(row[:2] for row in facts.elements()).values(), default=1) == 1
        for instant, key, seven, expiry, _, nulls in facts:
            others = [row for row in facts + spare if row[:3] == (instant, key, seven)]
            assert (-expiry, nulls) == min((-row[3], row[5]) for row in others)


def pointwise(rows: Arrangement) -> Counter[tuple[int, ...]]:
    return Counter(
        (instant, *row)
        for *row, start, end in rows.living().tolist()
        for instant in range(start, end)
    )
