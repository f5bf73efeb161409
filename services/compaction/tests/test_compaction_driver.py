"""Compaction keeps collections small and never changes what can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import msgspec
import pyarrow as pa
import pytest

from tidemill.errors import AlreadyUsed, Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, Limits, MemoryBlob, MemoryConsensus
from tidemill.shard.compaction import Merge
from tidemill.shard.log import folder_of
from tidemill.shard.part_store import LIMITS
from tidemill.shard.ports import Version
from tidemill.time import frontier
from tidemill_compaction.driver import CompactionDriver
from tidemill_compaction.settings import CompactionSettings

ROWS = pa.schema([("row", pa.string())])
SETTINGS = CompactionSettings(
    batches_max=6, idle_looks=2, garbage_grace_s=10, orphan_age_s=100, orphan_looks=3
)


def append_of(time: int, rows: int) -> pa.Table:
    return pa.table(
        {
            "row": [f"row {time % 4} {n}" for n in range(rows)],
            "_time": pa.array([time] * rows, pa.uint64()),
            "_diff": pa.array([1] * rows, pa.int64()),
        }
    )


class CountedConsensus(MemoryConsensus):
    """Counts the questions for versions."""

    asked = 0

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        self.asked += 1
        return await super().scan(key, start)


class World:
    """A collection, its stores and a compaction driver under one clock."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.clock = ManualClock(1_000_000)
        self.blob = MemoryBlob(self.clock.now_ms)
        self.names = count(1)
        self.consensus = CountedConsensus()
        self.collections = Collections(
            self.consensus, self.blob, self.clock, lambda: f"{next(self.names):032x}",
            limits=limits,
        )  # fmt: skip
        self.driver = CompactionDriver(self.collections, self.clock, SETTINGS)

    async def write(self, start: int, stop: int, rows: int = 1) -> None:
        for step in range(start, stop):
            await self.collections.compare_and_append(
                "t", frontier(step), frontier(step + 1), append_of(step, rows), writer="w"
            )


async def test_batches_stay_few_and_answers_stay_equal() -> None:
    world = World()
    read, _ = await world.collections.create("t", Description(ROWS), lease_ms=None)
    before = []
    for step in range(0, 60, 5):
        await world.write(step, step + 5)
        before.append(await world.collections.snapshot(read, step))
        await world.driver.look()
        assert (await world.collections.status("t")).batches <= SETTINGS.batches_max + 5
    assert world.driver.counts.merges > 0
    for index, step in enumerate(range(0, 60, 5)):
        assert (await world.collections.snapshot(read, step)).equals(before[index])


class Elsewhere:
    """Does merges elsewhere, once it is let."""

    def __init__(self, world: World) -> None:
        self.world, self.go, self.taken = world, asyncio.Event(), list[bool]()

    async def merge(self, merge: Merge) -> bool:
        await self.go.wait()
        while not merge.done:
            await merge.step(self.world.collections._core.parts)
        self.taken.append(await self.world.collections.commit_merge(merge))
        return self.taken[-1]


async def test_a_merge_elsewhere_of_very_many_parts_is_taken() -> None:
    world = World(Limits(inline_bytes_max=0, part_bytes_max=1_000, listed_parts=4))
    await world.collections.create("t", Description(ROWS), lease_ms=None)
    await world.write(0, 8, rows=500)
    elsewhere = Elsewhere(world)
    world.driver.bulk = elsewhere
    world.driver.settings = msgspec.structs.replace(SETTINGS, spark_rows=100)
    for _ in range(3):
        await world.driver.look()
    assert any(len(batch.parts) > 4 for batch in (await world.collections.newest("t")).batches)
    elsewhere.go.set()
    await world.driver.settle()
    assert elsewhere.taken == [True]
    assert (await world.collections.newest("t")).batches[0].lists


async def test_an_idle_collection_becomes_one_batch_at_since_once() -> None:
    world = World()
    read, _ = await world.collections.create("t", Description(ROWS), lease_ms=None)
    await world.write(0, 4)
    await world.collections.downgrade(read, frontier(3))
    for _ in range(6):
        await world.driver.look()
    status = await world.collections.status("t")
    assert (status.batches, world.driver.counts.merges) == (1, 1)
    # Updates from before since stay apart from those at it, so a reader can resume there.
    assert set((await world.collections.read_updates("t"))["_time"].to_pylist()) == {2, 3}


async def test_objects_that_nobody_names_go_after_their_grace() -> None:
    world = World()
    await world.collections.create("t", Description(ROWS), lease_ms=None)
    await world.write(0, 3, rows=60_000)
    await world.collections.compact("t")
    await world.driver.look()
    assert world.driver.counts.deleted == 0
    await world.clock.advance(11)
    await world.driver.look()
    assert world.driver.counts.deleted == 3
    folder = (await world.blob.list(""))[0].key.split("/")[0]
    await world.blob.put(f"{folder}/part-orphan", b"never linked")
    await world.clock.advance(101)
    for _ in range(SETTINGS.orphan_looks):
        await world.driver.look()
    assert world.driver.counts.orphans == 1
    assert len(await world.blob.list("")) == 1


async def test_leases_that_ran_out_end_at_the_next_look() -> None:
    world = World()
    read, _ = await world.collections.create("t", Description(ROWS, retain_ms=0))
    await world.collections.drop(read)
    await world.collections.read_hold("t", owner="session", lease_ms=5_000)
    await world.write(0, 3)
    await world.driver.look()
    assert (await world.collections.status("t")).since == frontier(0)
    await world.clock.advance(6)
    await world.driver.look()
    assert (await world.collections.status("t")).since == frontier(3)


async def test_a_source_that_only_says_it_is_there_reaches_its_smallest_form() -> None:
    world = World()
    read, _ = await world.collections.create("t", Description(ROWS, retain_ms=5))
    await world.collections.drop(read)
    await world.write(0, 4)
    for step in range(4, 30):
        await world.collections.compare_and_append(
            "t", frontier(step), frontier(step + 1), None, writer="w"
        )
        await world.driver.look()
    status = await world.collections.status("t")
    assert (status.batches, status.updates) == (1, 4)
    assert len(set((await world.collections.read_updates("t"))["_time"].to_pylist())) == 1
    assert world.driver.counts.merges == 2


async def test_a_damaged_collection_does_not_stop_the_others() -> None:
    world = World()
    told: list[str] = []
    world.driver.report = lambda collection, message: told.append(collection)
    await world.collections.create("s", Description(ROWS), lease_ms=None)
    for step in range(2):
        await world.collections.compare_and_append(
            "s", frontier(step), frontier(step + 1), append_of(step, 60_000), writer="w"
        )
    lost = (await world.collections.state("s")).parts()[0].key
    assert lost is not None
    await world.blob.delete(lost)
    await world.collections.create("t", Description(ROWS), lease_ms=None)
    await world.write(0, 3)
    world.driver.collections = Collections(
        world.consensus, world.blob, world.clock, lambda: f"{next(world.names):032x}"
    )
    for _ in range(4):
        await world.driver.look()
    assert set(told) == {"s"}
    assert (await world.collections.status("t")).batches == 1


async def test_v1_what_breaks_a_look_breaks_it_at_one_collection_and_is_tried_again() -> None:
    world = World()
    told: list[tuple[str, str]] = []
    world.driver.report = lambda collection, message: told.append((collection, message))
    for name in ("s", "t"):
        await world.collections.create(name, Description(ROWS), lease_ms=None)
    await world.write(0, 3)
    merged = world.collections.compact_quiet

    async def fail_for_s(collection: str) -> int:
        if collection == "s":
            raise OverflowError("the diffs of one record are S3CR3T")
        return await merged(collection)

    world.collections.compact_quiet = fail_for_s  # type: ignore[method-assign]
    for _ in range(12):
        await world.driver.look()
    assert (await world.collections.status("t")).batches == 1
    assert {collection for collection, _ in told} == {"s"}
    assert all(message.startswith("OverflowError in ") for _, message in told)
    # Looked at in the third look, and then after 1, 2 and 4 more.
    assert world.driver.counts.broken == {"s": 4}
    world.collections.compact_quiet = merged  # type: ignore[method-assign]
    for _ in range(16):
        await world.driver.look()
    assert world.driver.counts.broken == {"s": 4}


async def test_v1_a_list_of_collections_that_cannot_be_read_is_one_look_less() -> None:
    world = World()
    listed = world.collections.ids

    async def fails() -> list[str]:
        raise KeyError("s")

    world.collections.ids = fails  # type: ignore[method-assign]
    await world.driver.look()
    assert (world.driver.counts.skipped, world.driver.counts.broken) == (1, {"every": 1})
    world.collections.ids = listed  # type: ignore[method-assign]
    await world.driver.look()
    assert world.driver.counts.skipped == 1


class AwayConsensus(MemoryConsensus):
    """A Consensus that can be taken away."""

    away = False

    async def keys(self) -> Sequence[str]:
        if self.away:
            raise Unavailable("the store is away")
        return await super().keys()


async def test_a_look_while_the_store_is_away_is_counted_and_the_next_one_goes_on() -> None:
    world, consensus, told = World(), AwayConsensus(), list[str]()
    collections = Collections(
        consensus, world.blob, world.clock, lambda: f"{next(world.names):032x}"
    )
    driver = CompactionDriver(collections, world.clock, SETTINGS, lambda _, says: told.append(says))
    await collections.create("t", Description(ROWS), lease_ms=None)
    consensus.away = True
    await driver.look()
    assert (driver.counts.skipped, told) == (1, ["the store is away"])
    consensus.away = False
    await driver.look()
    assert driver.counts.skipped == 1


async def test_v4_a_tombstone_is_emptied_and_never_looked_at_again() -> None:
    world = World()
    read, _ = await world.collections.create("t", Description(ROWS), lease_ms=None)
    await world.write(0, 3, rows=60_000)
    await world.collections.retire("t")
    await world.driver.look()
    assert (await world.collections.snapshot(read, 2)).num_rows == 180_000
    await world.collections.drop(read)
    assert (await world.collections.status("t")).closed
    await world.clock.advance(11)
    await world.driver.look()
    assert (await world.blob.list(""), world.driver.counts.deleted) == ([], 3)
    logged = await world.consensus.scan("t", 0)
    await world.driver.look()
    # The log holds one rollup and the version that names it: rows in it are gone, too.
    assert (len(logged), len(await world.consensus.scan("t", 0))) == (7, 1)
    # An upload that broke off before the end is found once it is old, and that look is the last
    # one.
    folder = folder_of("t")
    await world.blob.put(f"{folder}/part-orphan", b"never linked")
    await world.clock.advance(101)
    await world.driver.look()
    await world.driver.look()
    assert world.driver.counts.orphans == 1
    asked = world.consensus.asked
    await world.driver.look()
    assert world.consensus.asked == asked > 0
    with pytest.raises(AlreadyUsed):
        await world.collections.create("t", Description(ROWS))
    assert (await world.collections.status("t")).closed
