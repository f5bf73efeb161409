"""Rows of parts by the hash of a key: the twin reads every part again, and finds the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.datalog.placement.column_hashes import spots_of_columns
from tidemill.shard import Description, DirectoryBlob
from tidemill.shard.part_store import Limits, PartStore
from tidemill.shard.parts import Part
from tidemill_compute.views.windows.part_rows import (
    ENTRY_BYTES,
    HeldRows,
    Key,
    PartRows,
    Wanted,
)
from tidemill_compute.views.windows.planning import CHANGES, RANGES_MIN, RangeCount

DESCRIPTION = Description(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
KEYS = {name: Key(name, lambda rows, name=name: [rows[name].combine_chunks()]) for name in "kv"}


class Counting(PartStore):
    """Counts the parts that are decoded."""

    read = 0

    async def table(self, part: Part, description: Description, *, keep: bool = True) -> pa.Table:
        self.read += 1
        return await super().table(part, description, keep=keep)


def store_in(folder: Path, inline_bytes_max: int = 1 << 16) -> Counting:
    names = iter(map(str, range(99)))
    blob = DirectoryBlob(folder, lambda: next(names))
    return Counting(blob, lambda: next(names), Limits(inline_bytes_max=inline_bytes_max))


async def part_of(store: PartStore, begin: int, rows: int = 50) -> Part:
    keys = np.arange(begin, begin + rows)
    words = [keys, keys % 7, np.full(rows, 3, np.uint64), np.ones(rows, np.int64)]
    table = pa.table(dict(zip(["k", "v", TIME, DIFF], words, strict=True)))
    (part,) = await store.write("c", DESCRIPTION, table)
    return part


def wanted_in(number: int, ranges: int, keys: np.ndarray | None = None) -> Wanted:
    spots = None
    begin, end = ((each << 32) // ranges for each in (number, number + 1))
    if keys is not None:
        found = np.unique(spots_of_columns([pa.array(keys)]))
        spots = found[(begin <= found) & (found < end)]
    return Wanted(begin, end, spots)


@pytest.mark.parametrize("inline_bytes_max", [1 << 16, 0])
async def test_parts_that_are_held_have_the_rows_that_are_read_again(
    tmp_path: Path, inline_bytes_max: int
) -> None:
    store = store_in(tmp_path / "blob", inline_bytes_max)
    parts = [await part_of(store, begin) for begin in (0, 50, 100)]
    mine = PartRows(store, tmp_path / "files", HeldRows())
    twin = PartRows(store, None, HeldRows(0))
    for _ in range(2):
        for part in parts:
            for key in KEYS.values():
                for at in range(4):
                    for keys in (None, np.array([3, 60, 61, 149, 200])):
                        wanted = wanted_in(at, 4, keys)
                        found = await mine.some(part, DESCRIPTION, key, wanted)
                        assert found.equals(await twin.some(part, DESCRIPTION, key, wanted))
    rows = [await mine.some(parts[0], DESCRIPTION, KEYS["k"], wanted_in(at, 4)) for at in range(4)]
    assert sum(each.num_rows for each in rows) == 50


async def test_a_small_part_is_decoded_once_for_each_key(tmp_path: Path) -> None:
    store, held = store_in(tmp_path), HeldRows()
    part = await part_of(store, 0)
    assert part.inline is not None
    for _ in range(3):  # one for each window
        rows = PartRows(store, None, held)
        for at in range(4):
            for key in KEYS.values():
                await rows.some(part, DESCRIPTION, key, wanted_in(at, 4))
    assert store.read == 2


async def test_rows_that_were_used_last_stay(tmp_path: Path) -> None:
    table = await store_in(tmp_path).table(await part_of(store_in(tmp_path), 0), DESCRIPTION)
    held = HeldRows(2 * (table.nbytes + ENTRY_BYTES))
    held.keep(b"a", table)
    held.keep(b"b", table)
    assert held.get(b"a") is table
    held.keep(b"c", table)
    assert [held.get(name) is table for name in (b"a", b"b", b"c")] == [True, False, True]
    HeldRows(0).keep(b"a", table)


async def test_parts_of_one_row_are_held_by_the_memory_of_their_objects(tmp_path: Path) -> None:
    """Each has fifty bytes of rows, and a hundred times as much beside them."""
    store = store_in(tmp_path)
    bytes_max = 100 * ENTRY_BYTES
    held = HeldRows(bytes_max)
    part = await part_of(store, 0, 1)
    names = [b"%d" % at for at in range(5_000)]
    for name in names:
        held.keep(name, KEYS["k"].ordered(await store.table(part, DESCRIPTION)))
    kept = [name for name in names if held.get(name) is not None]
    assert 50 < len(kept) < 100
    assert kept == names[-len(kept) :], "those that were used last stay"


def test_ranges_of_a_window_over_few_keys_follow_its_changes_and_not_the_rows_alive() -> None:
    for alive in (1_000_000, 10_000_000, 100_000_000):
        count = RangeCount()
        most = count.take(alive, 1_000, whole=True)
        assert most >= min(256, alive // 1_000_000)
        assert count.take(alive, 1_000, whole=False) == most
        for _ in range(3):
            count.learn(2_000, 1_000)
            assert count.take(alive, 1_000, whole=False) == RANGES_MIN


def test_a_window_that_looks_at_many_rows_or_failed_has_more_ranges() -> None:
    count = RangeCount()
    count.learn(100_000_000, 1_000)
    assert count.take(100_000_000, 1_000, whole=False) == 128
    assert count.take(100_000_000, 1_000, whole=False) == 128, "the one before it has not ended"
    count.learn(2_000, 1_000)
    assert count.take(100_000_000, 32 * CHANGES, whole=False) == 32
