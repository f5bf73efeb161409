"""Sums of contributions with times of their own are those of each instant, at a bounded cost."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import END_WORD, Sums, multisets

Held = list[tuple[int, int, int, int, int, int]]
"""Group, time, expiry, value, start, end."""


def contributions(held: Held, diff: int, low: int = 0) -> list[list[int]]:
    """They begin or go at an instant, or later where they begin later."""
    return [[g, t, x, v, 0, max(low, s), e, diff] for g, t, x, v, s, e in held if max(low, s) < e]


def change_of(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 8)


@pytest.mark.parametrize("seed", range(120))
def test_stretches_have_the_sum_the_latest_time_and_the_first_expiry_of_each_instant(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some contributions are taken away, the latest of their group often."""
    if seed % 2:
        monkeypatch.setattr(multisets, "_NODES_MIN", 1)  # forget whenever it may be worth it
    rng, sums, low = Random(seed), Sums(1, 1, timed=True), 0
    held: Held = []
    ends: Sequence[int] = rng.choice(((END_WORD,), (5, END_WORD), (1, 2, 5, 9)))
    if seed % 10 == 0:
        ends = range(1, 400, 7)
    for _ in range(8):
        change: list[list[int]] = []
        for _ in range(rng.choice((1, 5, 60) if seed % 10 else (1, 300))):
            if held and rng.random() < 0.4:
                last = max(range(len(held)), key=lambda at: held[at][1])
                gone = held.pop(rng.choice((last, rng.randrange(len(held)))))
                change += contributions([gone], -1, low)
            else:
                start = rng.randint(low, low + 4)
                life = rng.choice(ends)
                end = END_WORD if life == END_WORD else start + life
                expiry = rng.choice((end, END_WORD))
                row = rng.randint(0, 1), start - rng.randint(0, 9), expiry, rng.randint(-5, 5)
                held.append((*row, start, end))
                change += contributions(held[-1:], 1)
        sums.add(change_of(change), low)
        heads, since = sums.touched()
        stretches = sums.stretches(heads, since).tolist()
        groups = sums.rows.rows[heads, 0].tolist()
        for group, first in zip(groups, since.tolist(), strict=True):
            for instant in range(first, first + 16):
                there = [each for each in held if each[0] == group and each[4] <= instant < each[5]]
                found = [
                    (row[1], row[2], row[3], (row[5] << 32) + row[6])
                    for row in stretches
                    if row[0] == group and row[-2] <= instant < row[-1]
                ]
                expected = [(
                    max(each[1] for each in there), min(each[2] for each in there),
                    len(there), sum(each[3] for each in there),
                )] if there else []  # fmt: skip
                assert found == expected
        low += rng.randint(0, 4)
        sums.compact(low)


@pytest.mark.parametrize(("size", "mixed"), [(300, 0), (700, 1), (3_000, 1)])
@pytest.mark.parametrize("timed", [True, False])
def test_many_contributions_of_one_time_are_added_up_by_their_ends(
    size: int, mixed: int, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heavy group costs what its ends cost to sort, and says what a sum at each instant says."""
    found, rest = list[int](), Sums._mixed
    monkeypatch.setattr(Sums, "_mixed", lambda *told: found.append(1) or rest(*told))
    rng, sums = Random(size), Sums(1, 1, timed=timed)
    starts = [rng.randrange(2 * size) for _ in range(size)]
    held = [
        (0, 3, END_WORD, rng.randint(-1, 1), at, at + rng.choice((7, size))) for at in starts
    ] + [(1, 3, END_WORD, 1, 5, 9), (1, 3, END_WORD, 1, 9, 12)]
    sums.add(change_of(contributions(held, 1)), 0)
    stretches = sums.stretches(*sums.touched()).tolist()
    there, total = np.zeros(4 * size, np.int64), np.zeros(4 * size, np.int64)
    for _, _, _, value, start, end in held[:-2]:
        there[start:end] += 1
        total[start:end] += value
    said = np.zeros((2, 4 * size), np.int64)
    last = None
    for row in stretches:
        assert row[1:3] == [3, END_WORD]
        if row[0] == 0:
            said[:, row[-2] : row[-1]] += np.array([[row[3]], [(row[5] << 32) + row[6]]])
            assert last is None or last[-1] < row[-2] or last[3:-2] != row[3:-2]
            last = row
    assert (said == np.array([there, total])).all()
    assert [row[-2:] for row in stretches if row[0] == 1] == [[5, 12]]
    assert len(found) == mixed


def test_what_holds_without_an_end_is_one_sum_however_many_times_it_has() -> None:
    sums = Sums(1, 1, timed=True)
    for low in range(0, 60_000, 1_000):
        held = [(0, low + at, END_WORD, 1, low + at, END_WORD) for at in range(1_000)]
        sums.add(change_of(contributions(held, 1)), low - 1)
        stretches = sums.stretches(*sums.touched())
        assert stretches[-1, 3] == low + 1_000
        assert sums.rows.useful(low) <= 2_001
        sums.compact(low)
    assert sums.nbytes < 60_000 * 48


def test_many_contributions_of_two_times_are_two_of_them() -> None:
    sums = Sums(1, 1, timed=True)
    sums.add(change_of(contributions([(0, 6, END_WORD, 1, 6, END_WORD)], 1)), 6)
    for low in range(7, 107):
        late = [(0, 5, END_WORD, 1, low, END_WORD)] * 1_000
        sums.add(change_of(contributions(late, 1)), low)
        stretches = sums.stretches(*sums.touched())
        assert stretches[-1, 1] == 6
        assert stretches[-1, 3] == 1 + 1_000 * (low - 6)
        sums.compact(low)
    assert sums.nbytes < 300_000


def test_times_that_were_taken_away_are_forgotten() -> None:
    """A thousand contributions hold, and each step replaces the oldest of them."""
    sums, step = Sums(1, 1, timed=True), 100
    for low in range(0, 100_000, step):
        held = [(0, low + at, END_WORD, 1, low, END_WORD) for at in range(step)]
        old = [(0, time - 1_000, *rest) for _, time, *rest in held if time >= 1_000]
        change = contributions(held, 1) + contributions(old, -1, low)
        sums.add(change_of(change), low)
        (stretch,) = sums.stretches(*sums.touched()).tolist()
        assert stretch[1] == low + step - 1
        assert stretch[3] == min(low + step, 1_000)
        sums.compact(low)
    assert sums.nbytes < 1_000_000
