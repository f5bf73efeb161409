"""Sums and means of floats are those of fractions, rounded once."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates.float_sums import (
    LOWER_BITS,
    base_of,
    lower_part,
    rounded,
    upper_part,
)


def some_floats(rng: Random) -> list[float]:
    size, wide = rng.choice((1, 2, 3, 50)), rng.choice((1.0, 1e3, 1e12, 1e-60, 1e200))
    exact = rng.random() < 0.3
    found = [wide * (rng.randrange(-99, 99) if exact else rng.uniform(-1, 1)) for _ in range(size)]
    if rng.random() < 0.3:  # which leaves little, or nothing
        found += [-each for each in found[1:]]
    return [each + 0.0 for each in found]


@pytest.mark.parametrize("seed", range(400))
def test_sums_and_means_are_rounded_once(seed: int) -> None:
    floats = some_floats(Random(seed))
    words = np.array(floats).view(np.int64)
    base = base_of(words, np.zeros(len(words), np.bool_))
    if base is None:
        pytest.skip("the exponents lie too far apart")
    parts = [(int(upper_part(word, base)), int(lower_part(word, base))) for word in words]
    total = sum((upper << LOWER_BITS) + lower for upper, lower in parts)
    upper, lower = np.array([total >> LOWER_BITS]), np.array([total & ((1 << LOWER_BITS) - 1)])
    exact = sum(map(Fraction, floats))
    count = np.array([len(floats)])
    assert rounded(count, upper, lower, base, False).tolist() == [float(exact)]
    assert rounded(count, upper, lower, base, True).tolist() == [float(exact / len(floats))]


def test_few_of_the_sums_are_skipped() -> None:
    drawn = [np.array(some_floats(Random(seed))).view(np.int64) for seed in range(400)]
    assert sum(base_of(each, np.zeros(len(each), np.bool_)) is None for each in drawn) < 20


@pytest.mark.parametrize(
    "floats",
    [[1.0, 1e20], [1e-310, 1.0], [float("inf")], [1e308, 1e308], [5e-324], [1e-300, 2e-300]],
)
def test_floats_that_do_not_fit_are_told(floats: list[float]) -> None:
    assert base_of(np.array(floats).view(np.int64), np.zeros(len(floats), np.bool_)) is None


def test_nulls_and_zeros_say_nothing_of_exponents() -> None:
    words = np.array([0.0, -0.0, float("inf"), 2.5]).view(np.int64)
    assert base_of(words, np.array([False, False, True, False])) == 1_024
    assert base_of(words[:3], np.array([False, False, True])) is not None
