"""The commands of durable collections as sessions of users give them."""

from __future__ import annotations

import asyncio
import itertools

import pyarrow as pa
import pytest

from tidemill.rpc.messages import (
    Appended,
    CapabilityPair,
    Changes,
    CollectionShape,
    HeldCapability,
    Progress,
    UpperMismatch,
)
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, MemoryBlob, MemoryConsensus
from tidemill.time import (
    AlreadyUsed,
    CapabilityExpired,
    UnknownCapability,
    UnknownCollection,
    UsageError,
    frontier,
)
from tidemill_query.storage import StorageDriver

SHAPE = CollectionShape(pa.schema([("n", pa.int64())]), user_writable=True)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(0)
        ids = map(str, itertools.count())
        self.collections = Collections(MemoryConsensus(), MemoryBlob(), self.clock, ids.__next__)
        self.storage = StorageDriver(self.collections, self.clock)

    async def created(self, lease_ms: int | None = 900_000) -> CapabilityPair:
        return await self.storage.create("c", SHAPE, frontier(0), "me", lease_ms)


def rows(*numbers: int, at: int) -> pa.Table:
    count = len(numbers)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "_time": pa.array([at] * count, pa.uint64()),
            "_diff": pa.array([1] * count, pa.int64()),
        }
    )


def writer(pair: CapabilityPair) -> HeldCapability:
    assert pair.write is not None
    return pair.write


async def test_what_is_written_with_one_capability_is_read_with_another() -> None:
    world = World()
    pair = await world.created()
    write = writer(pair)
    outcome = await world.storage.update_and_downgrade(write, rows(1, 2, at=3), frontier(5), None)
    assert outcome == Appended(frontier(5))
    read = (await world.storage.acquire("c", "you", 900_000)).read
    events = [event async for event in world.storage.subscribe_at(read, 3, True, 5)]
    table = pa.concat_tables([event.table for event in events if isinstance(event, Changes)])
    assert sorted(table["n"].to_pylist()) == [1, 2]
    assert events[-1] == Progress(frontier(5))


async def test_a_lost_race_is_a_value_and_a_token_writes_once() -> None:
    world = World()
    write = writer(await world.created())
    first = await world.storage.update_and_downgrade(write, rows(1, at=0), frontier(2), "t")
    again = await world.storage.update_and_downgrade(write, rows(1, at=0), frontier(2), "t")
    assert first == again == Appended(frontier(2))
    late = await world.storage.update_and_downgrade(write, rows(9, at=0), frontier(3), "other")
    assert late == UpperMismatch(frontier(2))
    state = await world.collections.state("c")
    assert sum(part.rows for part in state.parts()) == 1


async def test_a_name_is_bound_once_and_an_unbound_one_is_unknown() -> None:
    world = World()
    await world.created()
    with pytest.raises(AlreadyUsed):
        await world.created()
    with pytest.raises(UnknownCollection):
        await world.storage.acquire("d", "me", None)
    with pytest.raises(UsageError):
        await world.storage.create("", SHAPE, frontier(0), "me", None)


async def test_transfer_kills_the_old_id_and_clone_does_not() -> None:
    world = World()
    pair = await world.created()
    copy = await world.storage.clone(pair.read)
    moved = await world.storage.transfer(pair.read, "you")
    with pytest.raises(UnknownCapability):
        await world.storage.downgrade(pair.read, frontier(0))
    await world.storage.drop(copy)
    holders = (await world.collections.status("c")).holders
    assert [holder.owner for holder in holders] == ["you"]
    assert (await world.storage.downgrade(moved, frontier(0))).frontier == frontier(0)


async def test_a_right_does_not_do_the_work_of_the_other() -> None:
    world = World()
    pair = await world.created()
    with pytest.raises(UsageError):
        await world.storage.update_and_downgrade(pair.read, None, frontier(1), None)
    with pytest.raises(UsageError):
        await world.storage.downgrade(writer(pair), frontier(1))
    with pytest.raises(UsageError):
        await anext(aiter(world.storage.subscribe_at(writer(pair), 0, True, None)))


@pytest.mark.parametrize("listening", [True, False])
async def test_a_lease_does_not_run_out_while_somebody_listens(listening: bool) -> None:
    world = World()
    pair = await world.created(lease_ms=1_000)
    write = writer(await world.storage.acquire("c", "writer", None))
    await world.storage.drop(writer(pair))

    async def listen() -> list[int]:
        async for event in world.storage.subscribe_at(pair.read, 0, True, 1):
            if isinstance(event, Changes):
                return event.table["n"].to_pylist()  # type: ignore[no-any-return]  # pyarrow's
        return []

    heard = asyncio.create_task(listen()) if listening else None
    for _ in range(12):
        await world.clock.advance(0.25)
    if heard is None:
        with pytest.raises(CapabilityExpired):
            await world.storage.downgrade(pair.read, frontier(0))
        return
    await world.storage.update_and_downgrade(write, rows(7, at=0), frontier(1), None)
    assert await heard == [7]
