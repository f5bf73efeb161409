"""Statuses of many collections at once: those of each alone, without a look for each of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa
import pytest

from tidemill.errors import Corrupt, Unavailable, UnknownCollection
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


class Telling(Looking):
    """Tells many heads in one look, unless it is away; `between` happens behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.between: Callable[[], Awaitable[None]] | None = None

    async def heads(self, keys: Sequence[str]) -> Sequence[Version | None]:
        self.looks["heads"] += 1
        if self.away:
            raise Unavailable("the store is away")
        found = [await MemoryConsensus.head(self, key) for key in keys]
        if self.between is not None:
            await self.between()
        return found


class World:
    """One store and two processes over it; the first one has made NAMES."""

    def __init__(self, consensus: Looking | None = None) -> None:
        self.clock, self.consensus = ManualClock(), consensus or Looking()
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


async def test_statuses_of_what_has_not_moved_are_one_exchange() -> None:
    world = await World(Telling()).create()
    for number, name in enumerate(NAMES):
        await world.write(world.here, name, 0, number + 1)
    await world.clock.advance(0.6)
    for by, other in ((world.here, world.there), (world.there, world.here)):
        await world.each(by)
        await world.clock.advance(0.6)
        moved = NAMES[5:9]
        for name in moved:
            upper = (await other.status(name)).upper.elements[0]
            await world.write(other, name, upper, upper + 7)
        world.looked()
        found = await by.statuses(NAMES)
        assert world.consensus.looks == Counter({"heads": 1, **dict.fromkeys(moved, 1)})
        assert found == await world.each(by)
        world.looked()
        await by.statuses(NAMES)
        assert world.looked() == 0


async def test_a_version_that_was_made_behind_the_exchange_is_not_taken_for_old() -> None:
    """A process that writes meanwhile, or hears of a version, knows more than the exchange."""
    store = Telling()
    world = await World(store).create()
    await world.clock.advance(0.6)
    heard = world.here._core.versions.log(NAMES[1])

    async def behind() -> None:
        await world.write(world.here, NAMES[0], 0, 5)
        await world.write(world.there, NAMES[1], 0, 6)
        heard.outdated()

    store.between = behind
    found = await world.here.statuses(NAMES)
    store.between = None
    for name, upper in ((NAMES[0], 5), (NAMES[1], 6), (NAMES[2], 0)):
        status = found[name]
        assert isinstance(status, CollectionStatus)
        assert status.upper == frontier(upper)


async def test_an_exchange_that_takes_long_is_not_followed_by_looks() -> None:
    store = Telling()
    world = await World(store).create()
    await world.clock.advance(0.6)

    async def slow() -> None:
        await world.clock.advance(3.0)

    store.between = slow
    world.looked()
    await world.here.statuses(NAMES)
    assert store.looks == Counter({"heads": 1})


async def test_a_store_that_does_not_tell_many_now_is_asked_for_each() -> None:
    store = Telling()
    world = await World(store).create()
    await world.clock.advance(0.6)
    store.away = True
    world.looked()
    found = await world.here.statuses(NAMES)
    assert store.looks["heads"] == 1
    assert world.looked() == 1 + len(NAMES)
    assert found == await world.each(world.here)


async def test_a_history_of_another_store_is_not_confirmed() -> None:
    """A head at the known number with other bytes is of an older copy that went on elsewhere."""
    store = Telling()
    world = await World(store).create()
    await world.clock.advance(0.6)
    other = await World().create()
    store._logs[NAMES[4]] = other.consensus._logs[NAMES[5]]
    found = await world.here.statuses(NAMES)
    assert isinstance(found[NAMES[4]], Unavailable | Corrupt)
    assert sum(isinstance(each, Exception) for each in found.values()) == 1
