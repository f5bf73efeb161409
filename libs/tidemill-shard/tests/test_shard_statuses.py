"""Statuses of many collections at once: those of each alone, without a look for each of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tidemill.errors import Corrupt, UnknownCollection
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    CollectionStatus,
    Description,
    MemoryBlob,
    MemoryConsensus,
)
from tidemill.shard.ports import Version
from tidemill.time import frontier

ROWS = pa.schema([("n", pa.int64())])
UPDATES = pa.schema([*ROWS, ("_time", pa.uint64()), ("_diff", pa.int64())])
NAMES = [f"c{n:03}" for n in range(150)]
PACE = "pace/1000/here"


class Looking(MemoryConsensus):
    """Counts the looks at each key."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: Counter[str] = Counter()

    async def head(self, key: str) -> Version | None:
        self.looks[key] += 1
        return await super().head(key)

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        self.looks[key] += 1
        return await super().scan(key, start)


class World:
    """One store and two processes over it; the first one has made NAMES."""

    def __init__(self) -> None:
        self.clock, self.consensus = ManualClock(), Looking()
        ids, blob = map(str, itertools.count()), MemoryBlob()
        self.here, self.there = (
            Collections(self.consensus, blob, self.clock, ids.__next__, poll_interval_s=0.5)
            for _ in range(2)
        )

    async def create(self) -> World:
        for name in NAMES:
            assert await self.here.bind(name, Description(ROWS))
            await self.here.read_hold(name, owner=f"view:{name}", lease_ms=None)
        return self

    async def write(self, by: Collections, name: str, lower: int, upper: int) -> None:
        none = pa.table({"n": [], "_time": [], "_diff": []}, UPDATES)
        await by.compare_and_append(name, frontier(lower), frontier(upper), none, writer="test")

    async def each(self, by: Collections) -> dict[str, CollectionStatus]:
        return {name: await by.status(name) for name in NAMES}

    def looked(self) -> int:
        """Looks since the last call."""
        count = self.consensus.looks.total()
        self.consensus.looks.clear()
        return count


async def test_statuses_of_many_are_those_of_each() -> None:
    world = await World().create()
    for number, name in enumerate(NAMES):
        await world.write(world.here, name, 0, number + 1)
    for by in (world.here, world.there):
        found = await by.statuses([*NAMES, *NAMES])
        assert found == await world.each(by)
        one = found[NAMES[0]]
        assert isinstance(one, CollectionStatus)
        assert [holder.owner for holder in one.holders] == [f"view:{NAMES[0]}"]


async def test_statuses_look_at_nothing_that_this_process_has_just_written() -> None:
    world = await World().create()
    world.looked()
    await world.here.statuses(NAMES)
    assert world.looked() == 0
    await world.each(world.here)
    assert world.looked() >= len(NAMES)  # the companion: a status alone looks


async def test_statuses_look_once_at_what_is_old_and_see_what_others_write() -> None:
    world = await World().create()
    await world.write(world.there, NAMES[7], 0, 99)
    await world.clock.advance(0.6)
    world.looked()
    found = await world.here.statuses(NAMES)
    assert world.looked() == len(NAMES)
    seen = found[NAMES[7]]
    assert isinstance(seen, CollectionStatus)
    assert seen.upper == frontier(99)
    await world.here.statuses(NAMES)
    assert world.looked() == 0


async def test_statuses_of_what_rests_look_at_its_pace_alone() -> None:
    world = await World().create()
    await world.here.open_pace(PACE)
    groups: dict[str, dict[str, int]] = {}
    for name in NAMES:
        await world.write(world.here, name, 0, 10)
        number = await world.here.follow(name, (PACE,), frontier(10))
        assert number is not None
        groups[name] = {name: number}
    assert len(await world.here.step_pace(PACE, frontier(10), groups, ())) == len(NAMES)
    await world.clock.advance(0.6)
    world.looked()
    found = await world.here.statuses(NAMES)
    assert world.consensus.looks.keys() == {PACE}
    assert world.looked() == 1
    assert found == await world.each(world.here)


async def test_a_collection_that_cannot_be_read_takes_no_other_one_with_it() -> None:
    world = await World().create()
    world.consensus._logs[NAMES[3]][-1] = Version(0, b"no entry")
    found = await world.there.statuses([*NAMES, "nothing"])
    with pytest.raises(UnknownCollection):
        await world.there.status("nothing")
    assert isinstance(found["nothing"], UnknownCollection)
    assert isinstance(found[NAMES[3]], Corrupt)
    broken = {name for name, each in found.items() if isinstance(each, Exception)}
    assert broken == {"nothing", NAMES[3]}
