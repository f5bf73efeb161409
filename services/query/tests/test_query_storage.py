"""The commands of durable collections as sessions of users give them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import (
    AlreadyUsed,
    CapabilityExpired,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc.messages import (
    Appended,
    CapabilityPair,
    Changes,
    CollectionShape,
    Comparison,
    Condition,
    HeldCapability,
    Progress,
    Right,
    UpperMismatch,
)
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_query.storage import StorageDriver

SHAPE = CollectionShape(pa.schema([("n", pa.int64())]), user_writable=True)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(0)
        ids = map(str, itertools.count())
        self.collections = Collections(MemoryConsensus(), MemoryBlob(), self.clock, ids.__next__)
        self.storage = StorageDriver(self.collections, self.clock)

    async def create(self, lease_ms: int | None = 900_000) -> CapabilityPair:
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
    pair = await world.create()
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
    write = writer(await world.create())
    first = await world.storage.update_and_downgrade(write, rows(1, at=0), frontier(2), "t")
    again = await world.storage.update_and_downgrade(write, rows(1, at=0), frontier(2), "t")
    assert first == again == Appended(frontier(2))
    late = await world.storage.update_and_downgrade(write, rows(9, at=0), frontier(3), "other")
    assert late == UpperMismatch(frontier(2))
    state = await world.collections.state("c")
    assert sum(part.rows for part in state.parts()) == 1


async def test_a_name_is_bound_once_and_an_unbound_one_is_unknown() -> None:
    world = World()
    await world.create()
    with pytest.raises(AlreadyUsed):
        await world.create()
    with pytest.raises(UnknownCollection):
        await world.storage.acquire("d", "me", None)
    with pytest.raises(UsageError):
        await world.storage.create("", SHAPE, frontier(0), "me", None)


async def test_transfer_kills_the_old_id_and_clone_does_not() -> None:
    world = World()
    pair = await world.create()
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
    pair = await world.create()
    with pytest.raises(UsageError):
        await world.storage.update_and_downgrade(pair.read, None, frontier(1), None)
    with pytest.raises(UsageError):
        await world.storage.downgrade(writer(pair), frontier(1))
    with pytest.raises(UsageError):
        await anext(aiter(world.storage.subscribe_at(writer(pair), 0, True, None)))


@pytest.mark.parametrize("listening", [True, False])
async def test_a_lease_does_not_run_out_while_somebody_listens(listening: bool) -> None:
    world = World()
    pair = await world.create(lease_ms=1_000)
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


@pytest.mark.rule("SU6")
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ([], lambda n, s: True),
        ([("n", "==", 3)], lambda n, s: n == 3),
        ([("n", "!=", 3)], lambda n, s: n != 3),
        ([("n", ">", 2), ("n", "<=", 5)], lambda n, s: n is not None and 2 < n <= 5),
        ([("n", "<", 2), ("s", "==", "a")], lambda n, s: n is not None and n < 2 and s == "a"),
        ([("s", "==", None)], lambda n, s: s is None),
        ([("s", "!=", None), ("n", ">=", 1)], lambda n, s: s is not None and (n or 0) >= 1),
        ([("n", "<", None)], lambda n, s: False),
    ],
)
@pytest.mark.parametrize("columns", [[], ["s"], ["n", "s"]])
async def test_su6_a_filter_and_projection_before_sending_is_one_after_it(
    where: list[tuple[str, str, Any]], kept: Callable[[Any, Any], bool], columns: list[str]
) -> None:
    world = World()
    shape = CollectionShape(pa.schema([("n", pa.int64()), ("s", pa.string())]), user_writable=True)
    pair = await world.storage.create("c", shape, frontier(0), "me", None)
    numbers, texts = [1, 2, 3, 4, 5, None], ["a", None, "a", "b", "b", "a"]
    write = writer(pair)
    for at in range(2):
        table = pa.table(
            {
                "n": pa.array(numbers, pa.int64()), "s": pa.array(texts),
                "_time": pa.array([at] * 6, pa.uint64()), "_diff": pa.array([1] * 6, pa.int64()),
            }
        )  # fmt: skip
        await world.storage.update_and_downgrade(write, table, frontier(at + 1), None)
        write = replace(write, frontier=frontier(at + 1))
    conditions = [Condition(column, Comparison(sign), value) for column, sign, value in where]
    events = [
        event
        async for event in world.storage.subscribe_at(pair.read, 0, True, 2, columns, conditions)
    ]
    sent = pa.concat_tables([event.table for event in events if isinstance(event, Changes)] or [
        pa.table({"_time": pa.array([], pa.uint64()), "_diff": pa.array([], pa.int64())})
    ])  # fmt: skip
    shown = columns or ["n", "s"]
    wanted = Counter(
        (*({"n": n, "s": s}[name] for name in shown), at)
        for at in range(2)
        for n, s in zip(numbers, texts, strict=True)
        if kept(n, s)
    )
    found: Counter[tuple[Any, ...]] = Counter()
    for row in sent.to_pylist():
        found[(*(row[name] for name in shown), row["_time"])] += row["_diff"]
    assert found == wanted
    assert events[-1] == Progress(frontier(2))


@pytest.mark.parametrize(
    "condition",
    [
        Condition("x", Comparison.EQUAL, 1), Condition("n", Comparison.EQUAL, "one"),
        Condition("n", Comparison.LESS, 1.5), Condition("n", Comparison.EQUAL, True),
        Condition("n", Comparison.EQUAL, [1]), Condition("n", Comparison.EQUAL, 2**70),
    ],
)  # fmt: skip
async def test_su6_a_condition_that_does_not_fit_is_refused(condition: Condition) -> None:
    world = World()
    pair = await world.create()
    with pytest.raises(UsageError, match="filter refused"):
        await anext(aiter(world.storage.subscribe_at(pair.read, 0, True, None, (), [condition])))


@pytest.mark.rule("K4", "SU7")
@pytest.mark.parametrize("stated", [3, 9999])
async def test_v11_a_subscription_by_a_frontier_that_is_not_held_is_refused(stated: int) -> None:
    world = World()
    pair = await world.create()
    await world.storage.update_and_downgrade(writer(pair), rows(1, at=3), frontier(9), None)
    read = await world.storage.downgrade(pair.read, frontier(5))
    with pytest.raises(UsageError, match="states"):
        await anext(aiter(world.storage.subscribe_at(
            replace(read, frontier=frontier(stated)), 5, True, 6
        )))  # fmt: skip
    with pytest.raises(UsageError):
        await world.storage.clone(replace(writer(pair), right=Right.READ))
    with pytest.raises(UsageError):
        await world.storage.drop(replace(read, right=Right.WRITE))
    assert await anext(aiter(world.storage.subscribe_at(read, 5, True, 6)))


@pytest.mark.rule("K15", "CR3")
@pytest.mark.parametrize(("retain_ms", "first"), [(None, 0), (3, 7)])
async def test_v10_an_unset_retention_is_the_whole_history(
    retain_ms: int | None, first: int
) -> None:
    world = World()
    shape = replace(SHAPE, retain_ms=retain_ms)
    pair = await world.storage.create("c", shape, frontier(0), "me", None)
    await world.storage.update_and_downgrade(writer(pair), rows(1, at=5), frontier(10), None)
    await world.storage.downgrade(pair.read, frontier(8))
    held = await world.storage.acquire_right("c", Right.READ, "me", None)
    assert held.frontier == frontier(first)
    await world.storage.drop(held)
