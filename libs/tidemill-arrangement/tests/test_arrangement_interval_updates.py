"""Interval updates against their meaning: functions from rows and instants to multiplicities."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    END_WORD,
    Arrangement,
    JoinShape,
    Latch,
    Merged,
    NegativeRow,
    Sums,
    join,
    subtract,
)

LAST = 10
Row = tuple[int, ...]
NO_PAIRS = np.empty((2, 0), np.int64)


def matrix(rows: list[Row], width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)


def pairs(*found: tuple[int, int]) -> np.ndarray:
    return np.array(found, np.int64).reshape(-1, 2).T.copy()


def interval(rng: Random) -> tuple[int, int]:
    start = rng.randint(0, LAST - 2)
    return start, rng.randint(start + 1, LAST)


def some_change(rng: Random, held: list[Row]) -> list[Row]:
    """Rows (time, key, expiry, nulls, start, end, diff); what goes is a part of what is held."""
    change: list[Row] = []
    for _ in range(rng.randint(1, 5)):
        if held and rng.random() < 0.45:
            row = held.pop(rng.randrange(len(held)))
            start = rng.randint(row[-2], row[-1] - 1)
            end = rng.randint(start + 1, row[-1])
            held += [(*row[:-2], a, b) for a, b in ((row[-2], start), (end, row[-1])) if a < b]
            change.append((*row[:-2], start, end, -1))
        else:
            row = (0, rng.randint(0, 2), rng.randint(1, 3), 0, *interval(rng))
            held.append(row)
            change.append((*row, 1))
    return change


def at(rows: list[list[int]], key: int, instant: int) -> list[list[int]]:
    return [row for row in rows if row[1] == key and row[4] <= instant < row[5]]


@pytest.mark.parametrize("seed", range(60))
def test_a_fact_is_the_derivation_that_ends_last_at_every_instant(seed: int) -> None:
    rng, held, told = Random(seed), [], Counter[tuple[int, int, int]]()
    merged = Merged(4, (0, 1), 2)
    for _ in range(6):
        for row in merged.take(matrix(some_change(rng, held), 7)).tolist():
            for instant in range(row[4], row[5]):
                told[row[1], instant, row[2]] += row[6]
        facts = merged.facts.rows[: len(merged.facts)].tolist()
        for key in range(3):
            for instant in range(LAST):
                best = max((row[2] for row in at(list(map(list, held)), key, instant)), default=0)
                expected = [best] if best else []
                assert [row[2] for row in at(facts, key, instant)] == expected
                found = [x for x in range(4) if told[key, instant, x]]
                assert found == expected


def test_a_stream_in_order_of_time_is_not_looked_up_and_says_the_same() -> None:
    merged, plain = Merged(4, (0, 1), 2), Merged(4, (0, 1), 2)
    for first in range(0, 400, 100):
        rows = [(first + i, i % 7, 900, 0, first + i, 900, 1) for i in range(100)]
        taken = merged.take(matrix(rows, 7))
        one_by_one = [plain.take(matrix([row], 7)) for row in rows]
        assert taken.tolist() == np.concatenate(one_by_one).tolist()
    again = matrix([(399, 399 % 100 % 7, 900, 0, 399, 900, 1)], 7)
    assert len(merged.take(again)) == len(plain.take(again.copy())) == 0
    gone = matrix([(5, 5, 900, 0, 100, 900, -1)], 7)
    assert merged.take(gone).tolist() == plain.take(gone.copy()).tolist() == gone.tolist()


def test_what_is_not_there_cannot_be_taken_away() -> None:
    merged = Merged(4, (0, 1), 2)
    merged.take(matrix([(0, 1, 5, 0, 2, 5, 1)], 7))
    with pytest.raises(NegativeRow):
        merged.take(matrix([(0, 1, 5, 0, 4, 6, -1)], 7))


@pytest.mark.parametrize("seed", range(60))
def test_a_join_is_bilinear_on_intervals(seed: int) -> None:
    rng, right = Random(seed), Arrangement(4)
    rows = [
        (rng.randint(0, 9), rng.randint(0, 3), rng.randint(10, 20), 0, *interval(rng))
        for _ in range(rng.randint(0, 30))
    ]
    right.append(matrix(rows, 6))
    left = [
        (rng.randint(0, 3), 0, rng.randint(0, 9), rng.randint(5, 30), 0, *interval(rng), diff)
        for diff in rng.choices((1, -1), k=rng.randint(0, 10))
    ]
    shape = JoinShape(pairs((0, 1)), pairs((1, 0)), NO_PAIRS, True, 2)
    found = sorted(map(tuple, join(matrix(left, 8), right, shape).tolist()))
    assert found == sorted(
        (a[0], b[0], max(a[2], b[0]), min(a[3], b[2]), 0, max(a[5], b[4]), min(a[6], b[5]), a[7])
        for a in left
        for b in rows
        if a[0] == b[1] and max(a[5], b[4]) < min(a[6], b[5])
    )
    rest = subtract(matrix(left, 8), right, np.array([0]), np.array([1])).tolist()
    for key in range(4):
        for instant in range(LAST):
            covered = any(b[1] == key and b[4] <= instant < b[5] for b in rows)
            mine = sum(a[7] for a in left if a[0] == key and a[5] <= instant < a[6])
            now = sum(a[7] for a in rest if a[0] == key and a[5] <= instant < a[6])
            assert now == (0 if covered else mine)


def test_a_null_joins_a_null_alone() -> None:
    right = Arrangement(4)
    right.append(matrix([(0, 0, END_WORD, 0b01, 0, 9), (0, 0, END_WORD, 0b11, 0, 9)], 6))
    left = matrix([(0, 0, 0, END_WORD, 0b101, 0, 9, 1)], 8)
    shape = JoinShape(pairs((0, 1)), NO_PAIRS, NO_PAIRS, False, -1)
    assert len(join(left, right, shape)) == 1


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_those_of_the_contributions_at_every_instant(seed: int) -> None:
    rng, sums, low = Random(seed), Sums(1, 1), 0
    held: list[Row] = []
    for _ in range(5):
        change: list[Row] = []
        for _ in range(rng.randint(1, 6)):
            if held and rng.random() < 0.4:
                group, value, start, end = held.pop(rng.randrange(len(held)))
                if start < low:
                    held.append((group, value, start, min(low, end)))
                if max(low, start) < end:
                    change.append((group, 0, 99, value, 0, max(low, start), end, -1))
            else:
                start = rng.randint(low, low + 4)
                row = (rng.randint(0, 1), rng.randint(-5, 5), start, start + rng.choice((2, 900)))
                held.append(row)
                change.append((row[0], 0, 99, row[1], 0, row[2], row[3], 1))
        heads, since = sums.take(matrix(change, 8), low)
        stretches, mixed = sums.stretches(heads, since)
        assert not mixed
        for head, first in zip(heads.tolist(), since.tolist(), strict=True):
            group = int(sums.rows.rows[head, 0])
            for instant in range(first, first + 12):
                values = [v for g, v, s, e in held if g == group and s <= instant < e]
                found = [
                    (row[3], (row[5] << 32) + row[6])
                    for row in stretches.tolist()
                    if row[0] == group and row[-2] <= instant < row[-1]
                ]
                assert found == ([(len(values), sum(values))] if values else [])
        low += rng.randint(0, 3)


def test_a_match_lives_from_when_it_held_first_until_its_own_end() -> None:
    latch = Latch(4, (0,), 2)

    def take(*rows: Row) -> list[list[int]]:
        return latch.take(matrix([(7, 0, 50, 0, *row) for row in rows], 7)).tolist()

    assert take((3, 9, 1)) == [[7, 0, 50, 0, 3, 50, 1]]
    assert take((20, 30, 1)) == []
    assert take((5, 9, -1)) == []
    assert take((3, 5, -1)) == [[7, 0, 50, 0, 20, 50, 1], [7, 0, 50, 0, 3, 50, -1]]
    assert take((20, 30, -1)) == [[7, 0, 50, 0, 20, 50, -1]]


def test_an_arrangement_forgets_what_has_ended() -> None:
    arranged = Arrangement(2)
    for first in range(0, 100_000, 1_000):
        start = np.arange(first, first + 1_000)
        arranged.append(np.stack([start, np.zeros(1_000, np.int64), start, start + 10], axis=1))
        arranged.compact(first + 1_000)
    assert arranged.nbytes < 400_000
    rows = arranged.living()
    assert set(range(99_991, 100_000)) <= set(rows[:, 0].tolist())
