"""Groups that are read whole have at each instant what their rows of then make, one by one."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    COUNT,
    END_WORD,
    FLOAT_SUM,
    GREATEST,
    LEAST,
    SUM,
    SUM_WORDS,
    base_of,
    merged_stretches,
    rounded,
)

KINDS = (GREATEST, LEAST, COUNT, SUM)
GROUPS = 1
NONE = np.zeros(len(KINDS), np.int64)
VALUE = GROUPS + 2
NULLS = VALUE + len(KINDS)
LAST = 20
WORDS = (-(1 << 63), -5, 0, 7, 1 << 40, (1 << 63) - 1)


def some_rows(rng: Random, group: int) -> list[list[int]]:
    rows = []
    for _ in range(rng.randint(0, 12)):
        values = [rng.choice(WORDS) for _ in KINDS]
        null, start = rng.randrange(1 << len(KINDS)) << VALUE, rng.randrange(LAST)
        end = rng.randint(start + 1, LAST)
        expiry = rng.choice((end, END_WORD))
        rows.append([group, rng.randrange(9), expiry, *values, null, start, end, 1])
    return rows


def expected(rows: list[list[int]]) -> list[int]:
    """Time, expiry, rows, and the words of each kind, of rows that hold together."""
    found = [max(row[GROUPS] for row in rows), min(row[GROUPS + 1] for row in rows), len(rows)]
    for at, kind in enumerate(KINDS, VALUE):
        some = [row[at] for row in rows if not row[NULLS] >> at & 1]
        if kind in (GREATEST, LEAST):
            best = (max if kind == GREATEST else min)(some, default=None)
            found += [len(some), best if best is not None else 0]
        else:
            found += [len(some), sum(some) if kind == SUM else 0]
    return found


def told(stretch: list[int]) -> list[int]:
    """The same of a stretch as it is told."""
    found = stretch[GROUPS : GROUPS + 3]
    for at, kind in enumerate(KINDS):
        count, upper, lower = stretch[VALUE + 1 + SUM_WORDS * at :][:SUM_WORDS]
        if kind == SUM:
            found += [count, (upper << 32) + lower]
        else:
            found += [count, upper if count and kind != COUNT else 0]
    return found


@pytest.mark.parametrize("seed", range(80))
def test_a_stretch_of_a_group_is_what_its_rows_of_then_make(seed: int) -> None:
    rng = Random(seed)
    groups = [some_rows(rng, 10 * number) for number in range(rng.randint(1, 5))]
    rows = np.array([row for group in groups for row in group], np.int64).reshape(-1, NULLS + 4)
    firsts = np.cumsum([0, *map(len, groups)])
    found = merged_stretches(rows, firsts, GROUPS, np.array(KINDS), NONE).tolist()
    at = 0
    for number, group in enumerate(groups):
        for instant in range(LAST):
            alive = [row for row in group if row[-3] <= instant < row[-2]]
            if not alive:
                continue
            while at < len(found) and (found[at][0], found[at][-1]) <= (10 * number, instant):
                at += 1
            assert found[at][0] == 10 * number
            assert found[at][-2] <= instant < found[at][-1]
            assert told(found[at]) == expected(alive)
    covered = sum(stretch[-1] - stretch[-2] for stretch in found)
    assert covered == len(
        {(r[0], t) for group in groups for r in group for t in range(r[-3], r[-2])}
    )


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_floats_carry_from_word_to_word(seed: int) -> None:
    rng = Random(seed)
    floats = [rng.choice((-1, 1)) * rng.uniform(1, 1 << 20) for _ in range(rng.randint(1, 60))]
    ends = [rng.randint(1, LAST) for _ in floats]
    words = np.array(floats).view(np.int64).tolist()
    rows = [[0, 0, END_WORD, w, 0, 0, end, 1] for w, end in zip(words, ends, strict=True)]
    base = base_of(np.array(words), np.zeros(len(words), np.bool_))
    assert base is not None
    found = merged_stretches(
        np.array(rows), np.array([0, len(rows)]), GROUPS, np.array([FLOAT_SUM]), np.array([base])
    )
    sums = rounded(*found[:, VALUE + 1 : VALUE + 1 + SUM_WORDS].T, base, False)
    for total, start, end in zip(sums.tolist(), *found[:, -2:].T.tolist(), strict=True):
        held = [x for x, last in zip(floats, ends, strict=True) if last >= end and start < last]
        assert total == float(sum(map(Fraction, held)))
