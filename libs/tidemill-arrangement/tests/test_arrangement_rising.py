"""Facts in the order of a column: what is told of them, and that no index is made for it."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import END_WORD, Merged, NegativeRow
from tidemill.testkit.twins.interval_updates import best_at

LAST = 8
KEY = (0, 1, 2)
Row = tuple[int, ...]


def matrix(rows: list[Row]) -> np.ndarray:
    """Rows (time, a, b, expiry, nulls, start, end, diff)."""
    return np.array(rows, np.int64).reshape(-1, 8)


def fresh(rng: Random, number: int, skewed: bool) -> Row:
    word = number if not skewed else number**5 - 40
    start = rng.randint(0, LAST - 3)
    end = rng.choice((LAST, rng.randint(start + 1, LAST)))
    return (0, rng.randint(0, 2), word, LAST, 1, start, end)


def change_of(rng: Random, held: list[Row], number: int, skewed: bool, plain: bool) -> list[Row]:
    """Rows that come, some that go as a whole, and with `plain` false other ones."""
    change = [(*fresh(rng, number + at, skewed), 1) for at in range(rng.randint(0, 12))]
    held += [row[:-1] for row in change]
    for _ in range(rng.randint(0, min(6, len(held)))):
        row = held.pop(rng.randrange(len(held)))
        start = row[-2] if plain or rng.random() < 0.5 else rng.randint(row[-2], row[-1] - 1)
        end = row[-1] if plain or rng.random() < 0.8 else rng.randint(start + 1, row[-1])
        held += [(*row[:-2], a, b) for a, b in ((row[-2], start), (end, row[-1])) if a < b]
        change.insert(rng.randint(0, len(change)), (*row[:-2], start, end, -1))
    if not plain and rng.random() < 0.2:
        row = (*fresh(rng, rng.randint(0, number), skewed), rng.randint(1, 2))
        held += [row[:-1]] * row[-1]
        change.append(row)
    return change


@pytest.mark.parametrize("seed", range(120))
def test_facts_that_rise_are_told_as_derivations_are_at_every_instant(seed: int) -> None:
    rng, merged, held = Random(seed), Merged(5, KEY, 3), list[Row]()
    plain, skewed, number, told = seed % 3 == 0, seed % 2 == 0, 0, Counter[tuple[Row, int]]()
    for _ in range(8):
        change = change_of(rng, held, number, skewed, plain)
        number += 12
        for row in merged.take(matrix(change)).tolist():
            for instant in range(row[-3], row[-2]):
                told[tuple(row[:5]), instant] += row[-1]
        expected = best_at(held, KEY, 3, range(LAST))
        assert {at: n for at, n in told.items() if n} == dict.fromkeys(expected, 1)
        facts = merged.facts.living().tolist()
        assert best_at(facts, KEY, 3, range(LAST)) == expected
        merged.compact(rng.randint(-1, 0))
    if plain:
        assert merged.facts.complete(KEY) is None


def test_a_fact_that_does_not_rise_makes_an_index() -> None:
    merged = Merged(5, KEY, 3)
    merged.take(matrix([(0, 1, at, LAST, 1, 0, LAST, 1) for at in range(100)]))
    merged.take(matrix([(0, 1, 50, LAST, 1, 0, LAST, -1)]))
    assert merged.facts.complete(KEY) is None
    merged.take(matrix([(0, 2, 50, LAST, 1, 0, LAST, 1), (0, 1, 51, LAST, 1, 0, LAST, -1)]))
    assert merged.facts.complete(KEY) is not None
    assert len(merged.facts.living()) == 99


def spread(many: int) -> set[int]:
    """Numbers of which most are near each other and some are as far apart as words are."""
    rng = Random(many)
    return {rng.choice((1, 2**20, 2**61)) * rng.randint(-3, 3) + at for at in range(many)}


def word_of(number: float) -> int:
    """The word of a float that is not below 0."""
    return int(np.float64(number).view(np.int64))


WORDS = {
    "one": spread(1),
    "three": spread(3),
    "a thousand": spread(1000),
    "neighbours at 2^53": {2**53, 2**53 + 1},
    "neighbours at -2^53": {-(2**53) - 1, -(2**53)},
    "neighbours at 2^60": {2**60 + 1, 2**60 + 2},
    "snowflakes": {1_800_000_000_000_000_000 + at for at in range(40)},
    "adjacent floats": {word_of(0.3), word_of(0.1 + 0.2)},
    "the greatest": {2**63 - 2, 2**63 - 3},
    "the least": {-(2**63) + 1, -(2**63) + 2},
    "both extremes": {-(2**63) + 1, -(2**63) + 2, -1, 0, 1, 2**63 - 3, 2**63 - 2},
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_facts_are_found_in_any_order_however_far_apart_they_are(words: set[int]) -> None:
    rng, merged, numbers = Random(len(words)), Merged(5, KEY, 3), sorted(words)
    rows = [(0, 1, number, END_WORD, 1, 0, END_WORD) for number in numbers]
    merged.take(matrix([(*row, 1) for row in rows]))
    order = rng.sample(rows, len(rows))
    for row in order[:20]:
        assert merged.take(matrix([(*row, -1)])).tolist() == [[*row, -1]]
    assert merged.facts.complete(KEY) is None
    rest = matrix([(*row, -1) for row in order[20:]])
    assert merged.take(rest.copy()).tolist() == rest.tolist()
    assert not len(merged.facts.living())


@pytest.mark.parametrize("number", [-1, 5, 50, 99, 100])
def test_what_does_not_rise_and_is_not_there_cannot_be_taken_away(number: int) -> None:
    merged = Merged(5, KEY, 3)
    merged.take(matrix([(0, 1, 2 * at, LAST, 1, 0, LAST, 1) for at in range(50)]))
    with pytest.raises(NegativeRow):
        merged.take(matrix([(0, 2, number, LAST, 1, 0, LAST, -1)]))
