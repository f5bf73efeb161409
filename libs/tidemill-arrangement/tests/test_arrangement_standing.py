"""Facts of groups that change where they stand: what is told of them at each instant."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    BEGIN_WORD,
    COUNT,
    END_WORD,
    MEAN,
    SUM,
    Change,
    Merged,
    Sums,
    finish,
    replaced,
)
from tidemill.testkit.twins.interval_updates import tallied

Row = tuple[int, ...]
KINDS = np.array([COUNT, SUM, MEAN])
COLUMNS = 7
"""Of a fact: time, group, expiry, three values, nulls."""


def matrix(rows: list[Row]) -> Change:
    """Contributions (group, time, expiry, three values, nulls, start, end, diff)."""
    return np.array(rows, np.int64).reshape(-1, 10)


class Groups:
    """The sums of groups beside their facts, as a reduction keeps them."""

    def __init__(self) -> None:
        self.sums, self.merged, self.standing = Sums(1, 3), Merged(COLUMNS, (1,), 2), 0

    def take(self, rows: list[Row], since: int) -> list[Row]:
        facts = self.merged.facts
        self.sums.add(matrix(rows), since)
        heads, starts = self.sums.touched()
        said, gone, made, rest = self.sums.change_standing(heads, starts, facts, 1, KINDS)
        assert said[:, -1].tolist() == [-1] * gone + [1] * (len(said) - gone)
        assert len({tuple(row[:-1]) for row in said.tolist()}) == len(said)
        self.standing += made
        heads, starts = heads[rest], starts[rest]
        groups = self.sums.rows.rows.take(heads, axis=0)
        before = replaced(groups, starts, facts, 1, 2, in_place=True)
        come = finish(self.sums.stretches(heads, starts), 1, 1, KINDS, COLUMNS)
        assert come is not None
        merged = [self.merged.take(each) for each in (said[made:], come)]
        told = np.concatenate([said[:made], before, *merged])
        return [tuple(row) for row in told.tolist()]


def some_change(rng: Random, held: list[Row], at: int, groups: int) -> list[Row]:
    """Contributions from an instant on, or a bit later, and some that go again."""
    change: list[Row] = []
    for _ in range(rng.randint(1, 2 * groups)):
        if held and rng.random() < 0.4:
            row = held.pop(rng.randrange(len(held)))
            end = row[-1]
            if end > at:
                change.append((*row[:-2], max(at, row[-2]), end, -1))
            continue
        start = at if rng.random() < 0.9 else at + rng.randint(1, 3)
        end = END_WORD if rng.random() < 0.9 else start + rng.randint(1, 5)
        expiry = END_WORD if rng.random() < 0.9 else 90
        null = rng.choice((0, 0, 0, 1 << 4))
        value = 0 if null else rng.randint(-3, 3) << rng.choice((0, 0, 31))
        group, number = rng.randint(1, groups), rng.randint(1, 9)
        row = (group, BEGIN_WORD, expiry, number, value, 7, null, start, end)
        held.append(row)
        change.append((*row, 1))
    return change


@pytest.mark.parametrize("seed", range(80))
def test_facts_that_change_where_they_stand_are_told_as_sums_say(seed: int) -> None:
    rng, groups, held, kept = Random(seed), Groups(), list[Row](), list[Row]()
    told = Counter[tuple[Row, int]]()
    for at in range(0, 42, 6):
        change = some_change(rng, held, at, 1 + seed % 7 * 12)
        kept += change
        for row in groups.take(change, at):
            for instant in range(row[-3], min(row[-2], 60)):
                told[row[:-3], instant] += row[-1]
        expected = {(row, t) for t in range(60) for row in tallied(kept, KINDS.tolist(), t)}
        assert {each: n for each, n in told.items() if n} == dict.fromkeys(expected, 1)
        living = groups.merged.facts.living().tolist()
        facts = {(tuple(row[:-2]), t) for row in living for t in range(row[-2], min(row[-1], 60))}
        assert {each for each in facts if each[1] >= at} == {e for e in expected if e[1] >= at}
    assert groups.standing or seed % 7 == 0


def test_a_fact_is_not_changed_where_it_stands_while_readers_may_ask_what_was_before() -> None:
    groups = Groups()
    groups.take([(1, BEGIN_WORD, END_WORD, 1, 5, 7, 0, 0, END_WORD, 1)], 0)
    groups.take([(1, BEGIN_WORD, END_WORD, 2, 6, 7, 0, 9, END_WORD, 1)], 4)
    assert not groups.standing
    assert sorted(row[-2:] for row in groups.merged.facts.living().tolist()) == [
        [0, 9], [9, END_WORD],
    ]  # fmt: skip
    groups.take([(1, BEGIN_WORD, END_WORD, 3, 6, 7, 0, 12, END_WORD, 1)], 12)
    groups.take([(1, BEGIN_WORD, END_WORD, 4, 6, 7, 0, 13, END_WORD, 1)], 13)
    assert groups.standing == 2
    assert [13, END_WORD] in groups.merged.facts.rows[:, -2:].tolist()


def test_a_fact_without_a_group_changes_where_it_stands() -> None:
    """Contributions (time, expiry, number, nulls), facts (time, expiry, count, nulls)."""
    sums, merged, told = Sums(0, 1), Merged(4, (), 1), list[list[int]]()
    for at, diff in ((0, 1), (1, 1), (2, 1), (3, -1)):
        row = [BEGIN_WORD, END_WORD, 7, 0, at, END_WORD, diff]
        sums.add(np.array([row]), at)
        heads, starts = sums.touched()
        kinds = np.array([COUNT])
        said, _, made, rest = sums.change_standing(heads, starts, merged.facts, 1, kinds)
        assert not len(rest)
        assert merged.take(said[made:]).tolist() == said[made:].tolist()
        told += said[:, -5:].tolist()
    assert [(row[0], row[2], row[4]) for row in told] == [
        (1, 0, 1), (1, 1, -1), (2, 1, 1), (2, 2, -1), (3, 2, 1), (3, 3, -1), (2, 3, 1),
    ]  # fmt: skip
