"""Readers that want the same contents at the same time read them once, and each by itself else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest

from tidemill.errors import Exhausted
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, ReadCapability
from tidemill.shard.offloading import all_of
from tidemill.shard.part_store import Limits
from tidemill.shard.stores_memory import MemoryBlob, MemoryConsensus
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string()), ("n", pa.int64())])


class Slow(MemoryBlob):
    """A blob that lets others go on before it answers, and counts its answers."""

    answers = 0

    async def get(self, key: str) -> bytes | None:
        await asyncio.sleep(0)
        self.answers += 1
        return await super().get(key)


async def world() -> tuple[Slow, Collections, ReadCapability]:
    """Rows at the instants 1 and 2, each in an object of its own; nothing is kept in memory."""
    blob, names = Slow(), count()
    store = Collections(
        MemoryConsensus(), blob, ManualClock(1), lambda: f"{next(names):032x}",
        limits=Limits(inline_bytes_max=0, cache_bytes_max=0),
    )  # fmt: skip
    read, write = await store.create("t", Description(ROWS, user_writable=True))
    assert write is not None
    for at in (1, 2):
        rows = {"row": ["a", "b"], "n": [at, at], "_time": [at, at], "_diff": [1, 1]}
        schema = Description(ROWS).update_schema()
        new = frontier(at + 1)
        await store.update_and_downgrade(write, pa.table(rows, schema=schema), new)
        write = replace(write, frontier=new)
    return blob, store, read


async def test_s9_equal_reads_at_once_are_one_and_each_hears_of_its_bytes() -> None:
    blob, store, read = await world()
    alone = await store.snapshot(read, 2)
    once, heard = blob.answers, list[int]()
    found = await all_of(
        store.snapshot(read, 2, told=heard.append) if number % 2 else
        store.read_without_hold("t", 2, told=heard.append)
        for number in range(10)
    )  # fmt: skip
    assert blob.answers == 2 * once
    assert all(table is not None and table.equals(alone) for table in found)
    assert len(heard) == 10
    assert min(heard) > 0
    await store.snapshot(read, 2)
    assert blob.answers == 3 * once  # nothing is kept once nobody wants it


async def test_s9_reads_of_other_instants_columns_and_rows_are_not_shared() -> None:
    blob, store, read = await world()
    former, named, chosen, whole = await all_of([
        store.snapshot(read, 1), store.snapshot(read, 2, columns=["n"]),
        store.snapshot(read, 2, equal={"n": 1}), store.snapshot(read, 2),
    ])  # fmt: skip
    assert [table.num_rows for table in (former, named, chosen, whole)] == [2, 2, 2, 4]
    assert named.column_names == ["n", "_diff"]
    assert blob.answers > 4


async def test_s9_the_refusal_of_one_reader_is_not_that_of_the_others() -> None:
    _, store, read = await world()

    def refuse(size: int) -> None:
        raise Exhausted("too large", setting="limits.answer_bytes")

    reads = [store.snapshot(read, 2, told=told) for told in (refuse, None, refuse, None)]
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [isinstance(each, Exhausted) for each in found] == [True, False, True, False]


@pytest.mark.parametrize("gone", range(4))
async def test_s9_a_reader_that_goes_away_leaves_the_contents_to_the_others(gone: int) -> None:
    _, store, read = await world()
    reads = [asyncio.ensure_future(store.snapshot(read, 2)) for _ in range(4)]
    await asyncio.sleep(0)
    reads[gone].cancel()
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [isinstance(each, pa.Table) for each in found] == [n != gone for n in range(4)]
