"""Rows found by their columns, in small tables and in large ones that grow and are renumbered."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    END_WORD,
    Arrangement,
    JoinShape,
    Merged,
    join,
    slots,
)
from tidemill.arrangement.interval_updates import arranged as arranged_module
from tidemill.arrangement.interval_updates.slots import BITS, FULL, PAGE_BITS, PAGES, ROW_BITS
from tidemill.testkit.twins.interval_updates import rows_by_key

NO_PAIRS = np.empty((2, 0), np.int64)
MANY = 300_000
"""Rows beyond the first size of a row's number."""


def chains(arranged: Arrangement, columns: tuple[int, ...]) -> list[list[int]]:
    """The rows in each slot of an index that are not dead, in order of their first row."""
    index, found = arranged.index(columns), []
    low = (1 << int(index.used[ROW_BITS])) - 1
    for word in index.slots[: index.used[PAGES] << index.used[BITS]].tolist():
        row, chain = word & low if word >= 0 else -1, []
        while row >= 0:
            if arranged.rows[row, -2] < arranged.rows[row, -1]:
                chain.append(row)
            row = int(index.nexts[row])
        found.append(chain)
    return sorted(chain for chain in found if chain)


@pytest.mark.parametrize("seed", range(30))
def test_an_index_has_the_rows_of_each_key_from_new_to_old(seed: int) -> None:
    """Also where rows die, and where a null has the word of a value."""
    rng, arranged = Random(seed), Arrangement(4)
    keys = rng.choice((2, 9, 500))
    for _ in range(rng.randint(1, 6)):
        rows = [
            (rng.randint(0, keys), rng.randint(0, 1), 7, rng.choice((0, 0, 0b1)), 3, 9)
            for _ in range(rng.randint(0, 90))
        ]
        arranged.append(np.array(rows, np.int64).reshape(-1, 6))
        for _ in range(rng.randint(0, 9)):
            if len(arranged):
                arranged.rows[rng.randrange(len(arranged)), -1] = 3
        columns = rng.choice(((0,), (1, 0), (), (0, 1, 2)))
        expected = rows_by_key(arranged.rows[: len(arranged)].tolist(), columns)
        assert chains(arranged, columns) == sorted(expected.values())


def some_rows(keys: int, many: int = MANY) -> np.ndarray:
    """Rows (number, key, expiry, nulls) present for ever, as a change."""
    rows = np.zeros((many, 7), np.int64)
    rows[:, 0], rows[:, 2] = np.arange(many), END_WORD
    rows[:, 1] = np.random.default_rng(keys).integers(0, keys, many)
    rows[:, -2], rows[:, -1] = END_WORD, 1
    return rows


@pytest.mark.parametrize("keys", [1 << 40, 5_000, 3])
def test_a_large_index_has_all_rows_of_each_key(keys: int) -> None:
    arranged, rows = Arrangement(4), some_rows(keys)
    for first in range(0, MANY, 70_000):
        arranged.append(rows[first : first + 70_000, :-1])
        arranged.index((1,))
    asked = rows[:: 50_000 if keys == 3 else 1_000].copy()
    asked[:, 0] = -1
    shape = JoinShape(np.array([[1], [1]]), np.array([[0], [0]]), NO_PAIRS, False, -1)
    matches = np.zeros((len(asked), 8), np.int64)  # number, key, time, expiry, nulls, interval
    matches[:, :2], matches[:, -3:] = asked[:, :2], asked[:, -3:]
    found = join(matches, arranged, shape)
    wanted = np.concatenate([(rows[:, 1] == key).nonzero()[0] for key in asked[:, 1]])
    assert sorted(found[:, 0].tolist()) == sorted(wanted.tolist())


def test_a_large_table_grows_by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of a stream waits until all keys have moved."""
    moved: list[int] = []

    def spread(rows: object, columns: object, old: np.ndarray, *table: object) -> None:
        moved.append(len(old))
        slots.spread(rows, columns, old, *table)

    monkeypatch.setattr(arranged_module, "spread", spread)
    arranged, rows = Arrangement(4), some_rows(1 << 40)
    for first in range(0, MANY, 1_000):
        arranged.append(rows[first : first + 1_000, :-1])
        index = arranged.index((1,))
    assert index.used[PAGES] > 100
    assert max(moved) <= 1 << PAGE_BITS
    assert chains(arranged, (1,)) == [[row] for row in range(MANY)]


def keys_of_one_page(many: int) -> np.ndarray:
    """Whole numbers whose hashes say the same page, however many pages there are."""
    factor = np.uint64(0x9E37_79B9_7F4A_7C15)
    keys = np.arange(4_096 * many, dtype=np.uint64)
    state = (keys ^ factor) * factor
    hashes = (state ^ (state >> np.uint64(29))) * factor
    return keys[(hashes >> np.uint64(33)) & np.uint64(0xFFF) == 0].view(np.int64)


@pytest.mark.parametrize("step", [100, 1 << 20])
def test_keys_that_are_alike_on_purpose_fill_one_great_page(step: int) -> None:
    keys = keys_of_one_page(6_000)
    arranged, rows = Arrangement(4), some_rows(1, len(keys))
    rows[:, 1] = keys
    for first in range(0, len(keys), step):
        arranged.append(rows[first : first + step, :-1])
        index = arranged.index((1,))
    assert chains(arranged, (1,)) == [[row] for row in range(len(keys))]
    assert (index.used[PAGES], index.used[FULL]) == (1, 0)
    assert index.used[BITS] > PAGE_BITS


def test_a_large_change_tells_each_new_fact_once() -> None:
    """Most rows are new, some meet facts, some go; a second time nothing is new."""
    merged, rows = Merged(4, (0, 1), 2), some_rows(1 << 40)
    assert len(merged.take(rows[:1_000])) == 1_000
    told = merged.take(np.concatenate([rows, rows[5:6], rows[7:9]]))
    assert np.array_equal(told[np.argsort(told[:, 0])], rows[1_000:])
    assert len(merged.take(rows)) == 0
    going = rows.copy()
    going[:, -1] = -1
    assert len(merged.take(going)) == 0
    assert sorted(merged.take(going)[:, 0].tolist()) == sorted(set(range(1_000, MANY)) - {5, 7, 8})
