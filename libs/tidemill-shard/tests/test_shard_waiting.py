"""Waiting and following: woken by commits of this process, by polling for those of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidemill.errors import (
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    NotYet,
    UnknownCapability,
    UsageError,
)
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    Progress,
    ReadCapability,
    Updates,
)
from tidemill.shard.offloading import all_of
from tidemill.shard.part_store import LIMITS
from tidemill.shard.waking import Wakeups
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string()), ("n", pa.int64())])


class Counted(MemoryConsensus):
    """Counts the reads of the store."""

    scans = 0

    async def scan(self, key: str, start: int) -> object:  # type: ignore[override]  # it only counts
        self.scans += 1
        return await super().scan(key, start)


class World:
    """One store under one clock; processes share nothing else."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.consensus = Counted()
        self.blob = MemoryBlob()
        self.names = count()
        self.here, self.there = self.open(), self.open()

    def open(self, limits: Limits = LIMITS) -> Collections:
        return Collections(
            self.consensus,
            self.blob,
            self.clock,
            lambda: f"{next(self.names):032x}",
            poll_interval_s=1.0,
            limits=limits,
        )

    async def create(self) -> ReadCapability:
        read, _ = await self.here.create("c", Description(ROWS), lease_ms=None)
        return read

    async def write(
        self, by: Collections, lower: int, upper: int, *rows: tuple[str, int, int]
    ) -> None:
        table = pa.table(
            {
                "row": pa.array([row for row, _, _ in rows], pa.string()),
                "n": pa.array([time for _, time, _ in rows], pa.int64()),
                "_time": pa.array([time for _, time, _ in rows], pa.uint64()),
                "_diff": pa.array([n for _, _, n in rows], pa.int64()),
            }
        )
        await by.compare_and_append("c", frontier(lower), frontier(upper), table, writer="w")


async def test_a_commit_of_this_process_wakes_at_once() -> None:
    world = World()
    await world.create()
    waiting = asyncio.create_task(world.here.wait_for_upper("c", 4, 60))
    await world.clock.settle()
    await world.write(world.here, 0, 3)
    await world.clock.settle()
    assert not waiting.done()
    await world.write(world.here, 3, 5)
    await world.clock.settle()
    assert waiting.done()
    assert await waiting == frontier(5)
    assert world.clock.now_ms() == 0


async def test_a_commit_of_another_process_is_found_by_polling() -> None:
    world = World()
    await world.create()
    waiting = asyncio.create_task(world.here.wait_for_upper("c", 4, 60))
    await world.clock.settle()
    await world.write(world.there, 0, 5)
    await world.clock.settle()
    assert not waiting.done()
    await world.clock.advance(1.0)
    assert await waiting == frontier(5)


@pytest.mark.rule("F13")
async def test_at_the_deadline_it_is_not_yet_whatever_happened_meanwhile() -> None:
    world = World()
    await world.create()
    waiting = asyncio.create_task(world.here.wait_for_upper("c", 100, 5))
    for step in range(20):
        await world.clock.advance(0.2)
        await world.write(world.here, step, step + 1)
    assert not waiting.done()
    await world.clock.advance(1.1)
    with pytest.raises(NotYet) as refused:
        await waiting
    assert refused.value.details["upper"] == frontier(20)
    with pytest.raises(NotYet):
        await world.here.wait_for_upper("c", 100, 0)


async def test_many_that_wait_for_one_collection_poll_the_store_as_one_does() -> None:
    world = World()
    await world.create()
    waiting = [asyncio.create_task(world.here.wait_for_upper("c", 4, 600)) for _ in range(50)]
    await world.clock.settle()
    before = world.consensus.scans
    await world.clock.advance(10)
    assert world.consensus.scans - before <= 20
    await world.write(world.here, 0, 5)
    assert set(await asyncio.gather(*waiting)) == {frontier(5)}


async def collect(
    stream: AsyncIterator[Updates | Progress],
) -> tuple[list[tuple[str, int, int]], list[int | None]]:
    """(updates in order, uppers in order) of a stream to its end."""
    updates, uppers = [], []
    async for event in stream:
        if isinstance(event, Progress):
            uppers.append(event.upper.elements[0] if event.upper.elements else None)
        else:
            updates += [(r["row"], r["_time"], r["_diff"]) for r in event.table.to_pylist()]
    return updates, uppers


@pytest.mark.rule("SU1", "SU2", "SU6")
async def test_a_stream_gives_the_contents_then_each_update_and_ends_where_asked() -> None:
    world = World()
    read = await world.create()
    await world.write(world.here, 0, 4, ("a", 0, 1), ("b", 2, 1))
    following = asyncio.create_task(collect(world.here.subscribe(read, 1, up_to=8)))
    await world.clock.settle()
    await world.write(world.here, 4, 6, ("a", 5, -1))
    await world.clock.settle()
    await world.write(world.there, 6, 12, ("c", 7, 1), ("d", 8, 1), ("e", 11, 1))
    await world.clock.advance(2)
    updates, uppers = await following
    assert updates == [("a", 1, 1), ("b", 2, 1), ("a", 5, -1), ("c", 7, 1)]
    assert uppers == [4, 6, 8]


@pytest.mark.rule("L3", "SU2")
async def test_a_stream_of_a_closed_collection_ends_with_the_empty_frontier() -> None:
    world = World()
    read = await world.create()
    await world.write(world.here, 0, 4, ("a", 0, 1))
    await world.here.close_collection("c")
    assert await collect(world.here.subscribe(read, 3)) == ([("a", 3, 1)], [None])
    assert await collect(world.here.subscribe(read, 3, up_to=9)) == ([("a", 3, 1)], [9])


@pytest.mark.rule("SU6")
async def test_filter_and_projection_of_a_stream_equal_what_the_client_would_do() -> None:
    world = World()
    read = await world.create()
    rows = [(f"r{n % 3}", n, 1) for n in range(12)]
    await world.write(world.here, 0, 12, *rows)
    await world.here.close_collection("c")
    whole = await collect(world.here.subscribe(read, 4))
    filtered = await collect(world.here.subscribe(read, 4, where=pc.field("row") == "r1"))
    assert filtered[0] == [update for update in whole[0] if update[0] == "r1"]
    stream = world.here.subscribe(read, 4, columns=["row"])
    first = await anext(stream)
    await stream.aclose()
    assert isinstance(first, Updates)
    assert first.table.column_names == ["row", "_time", "_diff"]
    assert first.table.filter(pc.field("_time") == 4).to_pylist() == [
        {"row": "r0", "_time": 4, "_diff": 2},
        {"row": "r1", "_time": 4, "_diff": 2},
        {"row": "r2", "_time": 4, "_diff": 1},
    ]
    with pytest.raises(UsageError):
        await world.here.snapshot(read, 4, columns=["none"])


@pytest.mark.rule("SU6", "F11")
async def test_a_projected_snapshot_adds_up_rows_that_become_equal() -> None:
    world = World()
    read = await world.create()
    await world.write(world.here, 0, 9, ("a", 1, 1), ("a", 2, 1), ("b", 3, 1))
    rows = (await world.here.snapshot(read, 8, columns=["row"])).to_pylist()
    assert rows == [{"row": "a", "_diff": 2}, {"row": "b", "_diff": 1}]
    only = await world.here.snapshot(read, 8, columns=["n"], equal={"row": "a"})
    assert only.to_pylist() == [{"n": 1, "_diff": 1}, {"n": 2, "_diff": 1}]
    where = (pc.field("n") > 1) & (pc.field("row") == "a")
    assert (await world.here.snapshot(read, 8, where=where)).num_rows == 1
    for wrong in ({"none": 1}, {"n": "x"}):
        with pytest.raises(UsageError):
            await world.here.snapshot(read, 8, equal=wrong)


@pytest.mark.rule("SU4")
async def test_a_cancelled_subscriber_leaves_nothing_behind() -> None:
    world = World()
    read = await world.create()
    following = asyncio.create_task(collect(world.here.subscribe(read, 3)))
    await world.clock.settle()
    assert world.clock.sleepers == 1
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await world.clock.settle()
    assert world.clock.sleepers == 0
    assert len((await world.here.status("c")).holders) == 1


@pytest.mark.rule("SU7", "K12")
async def test_a_stream_dies_with_its_lease_and_begins_nowhere_before_since() -> None:
    world = World()
    read = await world.create()
    leased, _ = await world.here.acquire("c", lease_ms=5_000)
    await world.write(world.here, 0, 9)
    following = asyncio.create_task(collect(world.here.subscribe(leased, 3)))
    await world.clock.advance(6)
    await world.write(world.here, 9, 10)
    with pytest.raises(CapabilityExpired):
        await following
    await world.here.downgrade(read, frontier(6))
    stream = world.here.subscribe(read, 5)
    with pytest.raises(BeforeSince):
        await anext(stream)


@pytest.mark.rule("SU5", "P7")
async def test_a_client_that_crashes_and_resumes_misses_nothing_and_sees_nothing_twice() -> None:
    world = World()
    read = await world.create()
    seen: list[tuple[str, int, int]] = []
    reached = 0
    for step in range(0, 40, 5):
        await world.write(world.here, step, step + 5, *((f"r{n}", step + n, 1) for n in range(5)))
        # A new process each time: it knows its capability and how far it has come.
        client = world.open()
        stream = client.subscribe(read, max(0, reached - 1), snapshot=reached == 0, up_to=step + 5)
        updates, uppers = await collect(stream)
        seen += updates
        last = uppers[-1]
        assert last == step + 5
        reached = last
        read = await client.downgrade(read, frontier(reached - 1))
        await client.compact("c")
    assert seen == [(f"r{n % 5}", n, 1) for n in range(40)]


@pytest.mark.rule("SU1", "SU6")
async def test_subscribers_of_one_place_share_what_they_read_and_get_what_each_would_alone() -> (
    None
):
    world = World()
    read = await world.create()
    together = [world.here.subscription(read, 2) for _ in range(5)]
    behind = world.here.subscription(read, 2)
    alone = world.open().subscription(read, 2)
    for step in range(0, 40, 10):
        rows = [(f"r{time % 3}", time, 1) for time in range(step, step + 10)]
        await world.write(world.here, step, step + 10, *rows)
        expected, upper = await alone.poll()
        for subscription in together:
            table, reached = await subscription.poll()
            assert reached == upper
            assert table.equals(expected)
        if step == 20:
            late, _ = await behind.poll()
            assert late.num_rows > expected.num_rows


async def test_of_several_reads_one_failure_ends_the_others_before_it_is_told() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise Corrupt("here", object="part")

    with pytest.raises(Corrupt):
        await all_of([wait(), fail()])
    assert ended == ["other"]


async def test_an_upper_is_known_to_be_past_an_instant_without_a_read() -> None:
    world = World()
    await world.create()
    assert not world.there.known_past("c", 0)
    await world.write(world.here, 0, 10, ("a", 3, 1))
    assert not world.there.known_past("c", 3)  # another process has not read it yet
    assert await world.there.wait_for_upper("c", 3, 0.0) == frontier(10)
    scans = world.consensus.scans
    assert world.there.known_past("c", 9)
    assert not world.there.known_past("c", 10)
    assert not world.there.known_past("none", 0)
    assert world.consensus.scans == scans


async def test_an_upper_that_is_known_is_answered_without_a_read() -> None:
    world = World()
    await world.create()
    await world.write(world.here, 0, 10, ("a", 3, 1))
    assert await world.there.upper_seen("c") == frontier(10)
    await world.write(world.here, 10, 20, ("b", 13, 1))
    scans = world.consensus.scans
    assert await world.there.upper_seen("c") == frontier(10), "the newest that it has seen"
    assert await world.there.wait_for_upper("c", 9, 0.0) == frontier(10)
    assert await world.there.upper_of_rows("c", 0, 10, 1_000) == 10
    assert world.consensus.scans == scans
    # A later upper is looked for: an old version is not taken for the newest.
    assert await world.there.wait_for_upper("c", 10, 0.0) == frontier(20)
    await world.write(world.here, 20, 30, ("c", 23, 1))
    assert await world.there.upper_of_rows("c", 0, 30, 2) < 30
    assert await world.there.upper_seen("c") == frontier(30)


@pytest.mark.rule("F8", "K12")
async def test_changes_below_an_upper_that_is_known_are_those_of_every_later_version() -> None:
    world = World()
    limits = Limits(inline_bytes_max=0, cache_bytes_max=0)
    world.here, world.there = world.open(limits), world.open(limits)
    read = await world.create()
    for at in range(10):
        await world.write(world.here, at, at + 1, (f"r{at}", at, 1))
    assert await world.there.upper_seen("c") == frontier(10)
    exact = await world.here.changes(read, 1, 10)
    await world.write(world.here, 10, 12, ("later", 11, 1))
    scans = world.consensus.scans
    assert await world.there.changes(read, 1, 10, seen=True) == exact
    assert world.consensus.scans == scans
    await world.there.changes(read, 1, 10)
    assert world.consensus.scans > scans, "only who says so is answered by a version that it saw"
    # Its objects are merged, and gone: the newest version says the same.
    there = world.open(limits)
    assert await there.upper_seen("c") == frontier(12)
    await world.here.compact("c")
    assert await world.here.collect_garbage("c", 0) > 0
    assert await there.changes(read, 1, 10, seen=True) == exact
    # Later changes are read, and so is a capability that came later.
    await world.write(world.here, 12, 14, ("late", 13, 1))
    assert (await there.changes(read, 10, 14, seen=True)).num_rows == 2
    late, _ = await world.here.acquire("c")
    assert await there.changes(late, 1, 10, seen=True) == exact
    await there.drop(late)
    with pytest.raises(UnknownCapability):
        await there.changes(late, 1, 10, seen=True)


@pytest.mark.rule("SU4")
async def test_any_number_of_subscribers_wait_with_one_task_that_sleeps() -> None:
    """Hundreds of them wake at one commit: each is a future, and no task."""
    world = World()
    read = await world.create()
    quiet = len(asyncio.all_tasks())
    following = [
        asyncio.create_task(collect(world.here.subscribe(read, 3, up_to=9))) for _ in range(50)
    ]
    await world.clock.settle()
    assert len(asyncio.all_tasks()) == quiet + len(following) + 1
    assert world.clock.sleepers == 1
    await world.write(world.there, 0, 6)  # which nobody here hears of
    await world.clock.advance(1.5)
    assert not any(each.done() for each in following)
    await world.write(world.here, 6, 9)
    assert len({len(found) for found in await asyncio.gather(*following)}) == 1
    await world.clock.settle()
    assert world.clock.sleepers == 0


async def test_each_waits_for_its_own_pause_or_the_change() -> None:
    clock = ManualClock()
    wakeups = Wakeups(clock)
    long, short = wakeups.change("long"), wakeups.change("short")
    waits = {
        name: asyncio.create_task(wakeups.wait(change, pause_s))
        for name, change, pause_s in (
            ("long", long, 3.0), ("short", short, 1.0), ("woken", long, 4.0), ("soon", short, 0.0),
        )
    }  # fmt: skip
    await clock.settle()
    assert {name for name, each in waits.items() if each.done()} == {"soon"}
    await clock.advance(1.5)
    assert {name for name, each in waits.items() if each.done()} == {"soon", "short"}
    await clock.advance(1.6)
    assert not waits["woken"].done()
    assert waits["long"].done()
    wakeups.changed("long")
    await clock.settle()
    assert waits["woken"].done()
    await wakeups.wait(long, 60.0)  # it has come
    assert clock.sleepers == 0
