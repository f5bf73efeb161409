"""Matches with a witness against their meaning: at each instant, whether any row agrees."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    END_WORD,
    NegativeRow,
    Witnesses,
    WitnessShape,
)
from tidemill.arrangement.interval_updates.witness_loops import note_full, touched_by
from tidemill.testkit.twins.interval_updates import with_witness

LAST, RANKS = 12, 9
Row = tuple[int, ...]
MATCH, WITNESS = 5, 6
PLACES = 1, 2, 3, 4
"""Columns of a witness: time, key, rank, id, expiry, nulls."""
ALIKE = 1, 2, -1, 4
"""The same where an id does not matter."""


def matrix(rows: list[Row], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)


def sides(
    by_start: bool, expiring: bool, apart_: bool = True, timed: bool = False
) -> Witnesses:  # fmt: skip
    keys, apart = np.array([[0], [1]]), np.array([[1], [3]])[:, :apart_]
    expiries = (3, 4) if expiring else (-1, -1)
    return Witnesses(WitnessShape(MATCH, WITNESS, keys, apart, by_start, expiries, timed))


def pieces(rng: Random, held: list[Row], lower: int) -> Row | None:
    """A part of a row that is held, which goes; None where nothing is there to go."""
    there = [row for row in held if row[-1] > lower]
    if not there:
        return None
    row = rng.choice(there)
    held.remove(row)
    start = rng.randint(max(row[-2], lower), row[-1] - 1)
    end = rng.randint(start + 1, row[-1])
    held += [(*row[:-2], a, b) for a, b in ((row[-2], start), (end, row[-1])) if a < b]
    return (*row[:-2], start, end, -1)


def interval(rng: Random, lower: int) -> tuple[int, int]:
    start = rng.randint(lower, LAST - 1)
    return start, rng.randint(start + 1, LAST)


class Both:
    """Both sides with random rows, beside what was told of them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.by_start, self.expiring = rng.random() < 0.3, rng.random() < 0.5
        self.low, self.high = rng.choice([(0, 1), (1, 1), (1, 0)])
        if self.by_start:
            self.low = self.high = 0
        self.apart, timed = rng.random() < 0.5, rng.random() < 0.5
        self.sides = sides(self.by_start, self.expiring, self.apart, timed)
        self.matches, self.witnesses = list[Row](), list[Row]()
        self.told = Counter[tuple[Row, int]]()

    def limits(self, match: Row) -> tuple[int, int]:
        low = match[1] - 2 if self.low else -END_WORD
        return low, match[1] + 1 if self.high else END_WORD

    def change(self, held: list[Row], lower: int, mine: bool) -> np.ndarray:
        rng, rows = self.rng, list[Row]()
        for _ in range(rng.choice([1, 1, 3, 8])):
            gone = pieces(rng, held, lower) if rng.random() < 0.3 else None
            if gone is not None:
                rows.append(gone)
                continue
            nulls = rng.choice([0, 0, 1])
            key, start = 0 if nulls else rng.randint(0, 1), interval(rng, lower)
            expiry = rng.randint(1, 4)
            row = (
                (key, rng.randint(0, RANKS), 0, expiry, nulls, *start)
                if mine
                else (0, key, rng.randint(0, RANKS), rng.randint(0, 2), expiry, 2 * nulls, *start)
            )
            held.append(row)
            rows.append((*row, 1))
        rows.sort(key=lambda row: -row[-1])
        return matrix(rows, (MATCH if mine else WITNESS) + 3)

    def step(self, lower: int) -> None:
        if self.rng.random() < 0.5:
            change = self.change(self.matches, lower, True)
            limits = [self.limits(tuple(row)) for row in change.tolist()]
            low = np.array([each[0] for each in limits]) if self.low else None
            high = np.array([each[1] for each in limits]) if self.high else None
            if high is None and low is not None:
                low, high = None, ~low
            told = self.sides.take_matches(change, high, low)
        else:
            change = self.change(self.witnesses, lower, False)
            rank = None if self.by_start else change[:, PLACES[1]].copy()
            if rank is not None and not self.high:
                rank = ~rank
            told = self.sides.take_witnesses(change, rank, lower)
        for row in told.tolist():
            assert row[-3] >= lower
            for instant in range(row[-3], row[-2]):
                self.told[tuple(row[:5]), instant] += row[-1]

    def expected(self, lower: int) -> Counter[tuple[Row, int]]:
        found = Counter[tuple[Row, int]]()
        places = PLACES if self.apart else ALIKE
        for match in self.matches:
            for instant in range(lower, LAST):
                best = with_witness(match, self.limits(match), self.witnesses, places, instant)
                if best is not None:
                    expiry = best if self.expiring else match[3]
                    found[(*match[:3], expiry, match[4]), instant] += 1
        return found


@pytest.mark.parametrize("seed", range(200))
def test_a_match_is_told_where_any_row_is_its_witness(seed: int) -> None:
    both, lower = Both(seed), 0
    for _ in range(14):
        both.step(lower)
        told = {key: n for key, n in both.told.items() if key[1] >= lower and n}
        assert told == both.expected(lower)
        if both.rng.random() < 0.3:
            lower = min(lower + 1, LAST - 1)
            both.sides.compact(lower)


def click(at: int) -> Row:
    return (7, at, at, 0, 0, at, at + 30_000, 1)


def recent(at: int) -> Row:
    return (at, 7, at, -1, 0, 0, at, at + 30_000, 1)


def lasting(at: int) -> Row:
    return (*recent(at)[:-2], END_WORD, 1)


@pytest.mark.parametrize("rows_each", [1, 100, 20_000])
def test_rows_of_one_key_tell_one_stretch_for_each_match(rows_each: int) -> None:
    """As of clicks of one user, each of which asks for an earlier one: pairs would be 2·10⁸."""
    held, many = sides(False, False), 20_000 if rows_each > 1 else 2_000
    told = []
    for first in range(0, many, rows_each):
        rows = range(first, first + rows_each)
        matches = matrix([click(at) for at in rows], MATCH + 3)
        told.append(held.take_matches(matches, matches[:, 1] - 1, None))
        witnesses = matrix([recent(at) for at in rows], WITNESS + 3)
        told.append(held.take_witnesses(witnesses, witnesses[:, 2].copy(), first))
    found = np.concatenate(told)
    assert len(found) <= 3 * many
    stretches = Counter[int]()
    for row in found.tolist():
        stretches[row[1]] += row[-1]
    assert stretches == dict.fromkeys(range(1, many), 1)


@pytest.mark.parametrize(("order", "changes"), [
    ("first", 999), ("last", 999), ("any", 999), ("replaced", 1),
])  # fmt: skip
def test_of_a_witness_that_goes_few_matches_look_for_another(order: str, changes: int) -> None:
    """Others admit one that is as good: each look at the whole key would be 10⁶ rows and more."""
    held, many = sides(False, False, apart_=False), 1_000
    matches = matrix([click(at) for at in range(many)], MATCH + 3)
    held.take_matches(matches, matches[:, 1] - 1, None)
    witnesses = matrix([lasting(at) for at in range(many)], WITNESS + 3)
    held.take_witnesses(witnesses, witnesses[:, 2].copy(), 0)
    held.compact(0)
    before, told, going = held.looked, 0, list(range(many))
    if order == "last":
        going.reverse()
    elif order == "any":
        Random(3).shuffle(going)
    for at in going:
        rows = [(*lasting(at)[:-3], many, END_WORD, -1)]
        if order == "replaced":
            rows.append((at, 7, at - 1, -1, 0, 0, many, END_WORD, 1))
        change = matrix(rows, WITNESS + 3)
        told += len(held.take_witnesses(change, change[:, 2].copy(), many))
        held.compact(many)
    assert held.looked - before < 100 * many
    assert told == changes


@pytest.mark.parametrize("first", ["matches", "witnesses"])
@pytest.mark.parametrize("window", [(-1, 0), (0, 1), (-1, 1)])
def test_the_nearest_of_a_wide_window_is_enough(window: tuple[int, int], first: str) -> None:
    """All rows of a key come at once, and each match admits half of them or all: 4·10⁸ pairs."""
    held, many = sides(False, True, apart_=False, timed=True), 20_000
    matches = matrix([(*click(at)[:3], at + 30_000, *click(at)[4:]) for at in range(many)], 8)
    low, high = (matches[:, 1] + each * many for each in window)
    witnesses = matrix([(*recent(at)[:4], at + 30_000, *recent(at)[5:]) for at in range(many)], 9)
    witnesses = witnesses[witnesses[:, 0] % 2 == 1]
    told = []
    if first == "matches":
        told.append(held.take_matches(matches, high, low))
    told.append(held.take_witnesses(witnesses, witnesses[:, 2].copy(), 0))
    if first == "witnesses":
        told.append(held.take_matches(matches, high, low))
    assert many - 1 <= sum(map(len, told)) <= 2 * many
    assert held.looked < 100 * many


def test_rows_of_no_use_behind_many_stretches_are_not_looked_at() -> None:
    """The match has some hundred stretches of several expiries, as the greatest ranks have them."""
    held, many, short = sides(False, True, apart_=False), 20_000, 50
    nearest = [(0, 7, many + at, -1, 9, 0, 20 * at, 20 * at + 10, 1) for at in range(short)]
    whole = [(0, 7, many - 1, -1, 8, 0, 0, 20 * short, 1)]
    useless = [(0, 7, at, -1, 7, 0, at % (20 * short), 20 * short, 1) for at in range(many - 1)]
    rows = matrix([*nearest, *whole, *useless], WITNESS + 3)
    held.take_witnesses(rows, rows[:, 2].copy(), 0)
    match = matrix([(7, 0, 0, 10, 0, 0, 20 * short, 1)], MATCH + 3)
    told = held.take_matches(match, np.array([2 * many]), None)
    assert sorted(set(told[:, 3].tolist())) == [8, 9]
    assert len(told) == 2 * short
    assert held.looked < 400


def test_nothing_of_what_has_ended_is_kept() -> None:
    held, sizes = sides(False, False), []
    for first in range(0, 3_000_000, 10_000):
        rows = range(first, first + 10_000, 100)
        matches = matrix([click(at) for at in rows], MATCH + 3)
        held.take_matches(matches, matches[:, 1] - 1, None)
        held.take_witnesses(matrix([recent(at) for at in rows], WITNESS + 3), matches[:, 1], first)
        held.compact(first)
        sizes.append(held.nbytes)
    assert sizes[-1] <= sizes[len(sizes) // 10]


def test_nothing_is_kept_of_rows_that_end_before_they_said() -> None:
    """As of a table whose rows are replaced: each row ends with the next one, without an expiry."""
    held = sides(False, False)
    first = matrix([lasting(0)], WITNESS + 3)
    held.take_witnesses(first, first[:, 2], 0)
    held.compact(0)
    sizes = []
    for at in range(1, 2_000):
        change = matrix([lasting(at), (*lasting(at - 1)[:-3], at, END_WORD, -1)], WITNESS + 3)
        held.take_witnesses(change, change[:, 2], at)
        held.compact(at)
        sizes.append(held.nbytes)
    assert sizes[-1] == sizes[len(sizes) // 10]


def test_many_parts_of_one_row_go_at_once() -> None:
    held, gaps = sides(False, False), 200
    first = matrix([lasting(0)], WITNESS + 3)
    held.take_witnesses(first, first[:, 2], 0)
    parts = [(*lasting(0)[:-3], 10 * at, 10 * at + 5, -1) for at in range(1, gaps + 1)]
    change = matrix(parts, WITNESS + 3)
    held.take_witnesses(change, change[:, 2], 1)
    match = matrix([(7, 1, 1, 0, 0, 0, 10 * gaps, 1)], MATCH + 3)
    told = held.take_matches(match, match[:, 1] - 1, None)
    stretches = sorted(told[:, -3:-1].tolist())
    assert stretches == [[10 * at + 5 * (at > 0), 10 * at + 10] for at in range(gaps)]


@pytest.mark.parametrize("full", [1, 63, 64])
def test_the_way_over_full_matches_stays_among_them(full: int) -> None:
    """A word behind the last place belongs to others."""
    nexts = np.append(np.arange(1, full + 1), -7)
    groups, bounds = (
        np.array([[7, 0, END_WORD, 0, END_WORD, END_WORD, BEGIN_WORD]]),
        np.array([0, full]),
    )
    rows, ranks = np.zeros((full, MATCH + 2), np.int64), np.zeros((full, 4), np.int64)
    ranks[:, 0], out = 7, np.empty(full, np.int64)
    found = touched_by(
        groups, rows, ranks, np.zeros((full, 4), np.int64), nexts, bounds, False, out
    )
    assert found == 0
    assert nexts.tolist() == [*[full] * full, -7]


@pytest.mark.parametrize("seed", range(60))
def test_ways_lead_to_each_match_that_is_not_full(seed: int) -> None:
    """Twin: all matches of the key that are not full, in two tiers that some keys are in."""
    rng, many = Random(seed), 60
    keys = [sorted(rng.randint(0, 4) for _ in range(many // 2)) for _ in range(2)]
    bounds, places = np.array([0, many // 2, many]), np.arange(many)
    rows, ranks = np.zeros((many, MATCH + 2), np.int64), np.zeros((many, 4), np.int64)
    rows[:, -1], ranks[:, 0] = LAST, [*keys[0], *keys[1]]
    reaches = np.zeros((many, 4), np.int64)
    reaches[:, 1], nexts, full = LAST, places.copy(), np.zeros(many, np.int64)
    for _ in range(12):
        share, key = rng.choice((0.0, 0.5, 0.9, 1.0)), rng.randint(0, 4)
        touched = np.array([at for at in places if ranks[at, 0] == key and rng.random() < 0.8], int)
        said = np.array([rng.random() < share for _ in touched], np.int64)
        full[touched] = said
        note_full(touched, said, ranks, nexts)
        for each in rng.sample(range(5), 3):
            out, asked = (
                np.empty(many, np.int64),
                np.array([[each, 0, 0, 0, LAST, END_WORD, BEGIN_WORD]]),
            )
            found = touched_by(asked, rows, ranks, reaches, nexts, bounds, False, out)
            expected = [at for at in places if ranks[at, 0] == each and not full[at]]
            assert out[:found].tolist() == expected


def test_a_match_that_is_not_full_any_more_changes_no_way_of_other_keys() -> None:
    """However many there are: a witness that goes costs what its key has."""
    many = 1_000
    ranks, nexts = np.zeros((many, 4), np.int64), np.arange(many)
    ranks[:, 0] = np.arange(many) // 10
    note_full(np.arange(many), np.ones(many, np.int64), ranks, nexts)
    before = nexts.copy()
    note_full(np.array([505]), np.array([0]), ranks, nexts)
    assert np.flatnonzero(nexts != before).tolist() == [505]
    nexts[500:505] = 510  # as a way becomes when it is gone
    note_full(np.array([505]), np.array([1]), ranks, nexts)
    note_full(np.array([505]), np.array([0]), ranks, nexts)
    assert nexts[495:515].tolist() == [*range(496, 505), 505, 505, *range(507, 516)]


def test_memory_of_rows_that_have_ended_is_given_back() -> None:
    held, rows = sides(False, False), range(200_000)
    empty = held.nbytes
    matches = matrix([click(at) for at in rows], MATCH + 3)
    held.take_matches(matches, matches[:, 1] - 1, None)
    held.take_witnesses(matrix([recent(at) for at in rows], WITNESS + 3), matches[:, 1], 0)
    full = held.nbytes
    held.compact(300_000)
    assert held.nbytes <= 2 * empty < full // 100


def test_a_row_that_is_not_there_is_not_taken_away() -> None:
    held = sides(False, False)
    with pytest.raises(NegativeRow):
        held.take_witnesses(matrix([(*recent(3)[:-1], -1)], WITNESS + 3), np.array([3]), 0)
