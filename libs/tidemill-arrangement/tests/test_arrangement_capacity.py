"""Arrays that grow, the memory they take, and rows that are forgotten while others come."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import END_WORD, Arrangement
from tidemill.arrangement.interval_updates import arranged as arranged_module
from tidemill.arrangement.kernels import capacity

LAST = 60


class Holder:
    def __init__(self, rows: int = 3) -> None:
        self.rows = np.arange(2 * rows, dtype=np.int64).reshape(rows, 2)


def resident_bytes(array: np.ndarray) -> int:
    """Memory in use of the mapping that an array lies in."""
    address, found = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif found and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no mapping has the array")


def test_an_array_that_grows_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that refer to it keep what they see. A large one has whole large pages."""
    monkeypatch.setattr(capacity, "MAPPED_BYTES", 1 << 10)
    monkeypatch.setattr(capacity, "WHOLE_BYTES", 1 << 15)
    holder, kept = Holder(), 3
    for rows in (10, 200, 5_000, 6_000, 90_000):
        seen = holder.rows[:kept] if rows != 6_000 else None
        before = None if seen is None else seen.copy()
        capacity.grow(holder, "rows", rows, kept)
        capacity.take_pages(holder.rows, kept, rows)
        assert holder.rows.shape == (rows, 2)
        memory = capacity._memory_of(holder.rows)
        large = holder.rows.nbytes >= capacity.WHOLE_BYTES
        assert memory is None or (len(memory) % capacity.PAGE_BYTES == 0) == large
        assert holder.rows[:kept, 0].tolist() == list(range(0, 2 * kept, 2))
        holder.rows[:] = np.arange(2 * rows).reshape(rows, 2)
        kept = rows
        assert seen is None or np.array_equal(seen, before)


def test_few_rows_take_as_much_memory_as_they_have() -> None:
    """Also those that stand in a large page of their own."""
    holder, rows = Holder(), 4 << 20
    capacity.grow(holder, "rows", rows, 3)
    before = resident_bytes(holder.rows)
    for first in range(rows // 2, rows, capacity.PAGE_BYTES // 16):
        capacity.take_pages(holder.rows, first, first + 1_000)
        holder.rows[first : first + 1_000] = first
    pieces = rows // 2 * 16 // capacity.PAGE_BYTES
    assert 16_000 * pieces <= resident_bytes(holder.rows) - before < 40_000 * pieces


def test_pages_beyond_an_array_are_nobodys() -> None:
    """An array that is small, or ends sooner than the rows that may come, stays as it is."""
    for rows in (10, 1 << 17):
        holder = Holder()
        capacity.grow(holder, "rows", rows, 3)
        capacity.take_pages(holder.rows, rows - 1, 2 * rows)
        capacity.take_pages(holder.rows, 2 * rows, 3 * rows)
        assert holder.rows[:3].tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each look, of arrangements that look at few at a time."""
    found: list[int] = []
    look = arranged_module._useful

    def counted(rows: np.ndarray, first: int, last: int, ends: int, since: int) -> int:
        found.append(last - first)
        return look(rows, first, last, ends, since)

    monkeypatch.setattr(arranged_module, "_useful", counted)
    monkeypatch.setattr(arranged_module, "_COMPACT_ROWS_MIN", 1)
    monkeypatch.setattr(arranged_module, "_LOOKS", 4)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_use_stay_however_often_an_arrangement_is_compacted(
    seed: int, looks: list[int]
) -> None:
    """Rows come, end sooner and go on, between the looks at them. Twin: a list."""
    rng, arranged, twin = Random(seed), Arrangement(1), dict[int, tuple[int, int]]()
    since = 0
    for number in range(LAST):
        many = rng.choice((0, 1, 1, 9))
        rows = [
            (100 * number + at, number, number + rng.choice((1, 9, LAST))) for at in range(many)
        ]
        arranged.append(np.array(rows, np.int64).reshape(-1, 3))
        twin |= {name: (start, end) for name, start, end in rows}
        for _ in range(rng.randint(0, 3) * (len(arranged) > 0)):
            row = arranged.rows[rng.randrange(len(arranged))]
            row[2] = max(int(row[1]), since + rng.randint(-1, 5))
            twin[int(row[0])] = int(row[1]), int(row[2])
        since += rng.randint(0, 2)
        arranged.compact(since)
        kept = {int(name): (int(start), int(end)) for name, start, end in arranged.living()}
        assert kept.items() <= twin.items()
        useful = {name: each for name, each in twin.items() if each[0] < each[1] > since}
        assert useful.items() <= kept.items()
    assert len(looks) > 1


def test_a_step_looks_at_few_of_the_rows_that_all_stay(looks: list[int]) -> None:
    """While all rows are of use, no look is at more than a few for each row that has come."""
    arranged, come = Arrangement(1), 3
    for number in range(2_000):
        start = np.arange(come * number, come * (number + 1))
        arranged.append(np.stack([start, start, np.full(come, END_WORD)], axis=1))
        arranged.compact(number)
    assert max(looks) <= arranged_module._LOOKS_EACH * come
    assert sum(looks) < 3 * len(arranged)


def test_rows_that_end_never_are_more_than_those_of_use(looks: list[int]) -> None:
    """The second fact of two is of use for long. Memory stays near that of these."""
    arranged = Arrangement(1)
    for number in range(0, 8_000, 2):
        rows = np.array([[number, number, number + 1], [number + 1, number, number + 800]])
        arranged.append(rows)
        arranged.compact(number)
        assert len(arranged) <= 3 * 400 + 64
    assert max(looks) > 4 * 4
