"""Sums and greatest words of rows on each stretch are those of each instant."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates.counted_rows import CountedRows


@pytest.mark.parametrize("seed", range(60))
def test_each_stretch_has_the_sums_and_the_greatest_word_of_its_instants(seed: int) -> None:
    """Some words are taken back for the rest of their time, by a row with a negative count."""
    rng, rows = Random(seed), []
    for _ in range(rng.randint(1, 30)):
        start, word = rng.randrange(30), rng.randrange(-5, 6)
        end, count = rng.randint(start + 1, 31), rng.randint(1, 2)
        rows.append((start, end, count, word))
        if rng.random() < 0.4:
            rows.append((rng.randint(start, end - 1), end, -rng.randint(1, count), word))
    starts, ends, counts, words = (np.array(each, np.int64) for each in zip(*rows, strict=True))
    counted = CountedRows(starts, ends, counts)
    sums, greatest = (
        counted.sums(np.stack([counts, counts * words], axis=1)),
        counted.greatest(words),
    )
    for at, (first, last) in enumerate(zip(counted.borders, counted.borders[1:], strict=False)):
        for instant in range(first, last):
            held = Counter[int]()
            for start, end, count, word in rows:
                held[word] += count * (start <= instant < end)
            assert sums[at].tolist() == [held.total(), sum(w * n for w, n in held.items())]
            there = [word for word, count in held.items() if count > 0]
            assert greatest[at] == max(there, default=np.iinfo(np.int64).min)
