"""Ranges of a view as writers of its outputs, some of which die, sleep or stall.

They say together what one process says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from tidemill.catalog.made.views import writer_of_range
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.placement.apart import InTheWay, places_apart
from tidemill.shard import Collections, Description, MemoryConsensus
from tidemill.shard.ports import Expected, Version
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.faults.groups import MemoryGroups
from tidemill.testkit.mortal_views import END, PROGRAMS, World, checked, expected, follow
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import RangeOf

APART = {n: text for n, text in PROGRAMS.items() if n in (
    "join and absence", "solutions that outlive what established them", "aggregates and clocks",
    "solutions that outlive one of their facts", "errors",
)}  # fmt: skip


class RangedWorld(World):
    """A view of several ranges, each with a state and with write capabilities of its own."""

    def __init__(
        self, text: str, seed: int, ranges: int, groups: MemoryGroups | None = None
    ) -> None:
        super().__init__(text, seed, groups=groups)
        places = places_apart(self.program)
        assert not isinstance(places, InTheWay), places
        self.targets = [
            replace(
                self.target, name=f"v/{k}", state=f"v/{k}/state", part=RangeOf(k, ranges, places)
            )
            for k in range(ranges)
        ]

    def range(self, number: int, collections: Collections, changes_max: int = 5) -> ViewDriver:
        settings = ComputeSettings(step_changes_max=changes_max, hold_interval_s=0.0)
        return ViewDriver(self.targets[number], collections, self.clock, settings)

    @property
    def shared(self) -> list[str]:
        return self.target.written[1:]

    async def create(self, fed: int = 0) -> int:
        for name, (_, shape) in self.target.inputs.items():
            await self._create(name, Description(shape.schema, retain_ms=0), 0)
        if fed:
            await self.feed(0, fed)
        begins = [await self.range(k, self.now).hold_inputs() for k in range(len(self.targets))]
        start = max(map(sole_time, begins))
        written = {name: shape.schema for name, shape in self.target.outputs.values()}
        for name, schema in (written | {"v/errors": ERROR_SCHEMA}).items():
            await self._create(name, Description(schema), start)
            for target in self.targets:
                await self.now.write_hold(name, owner=writer_of_range(target.name), users=False)
        for number, target in enumerate(self.targets):
            await self._create(target.state, Description(STATE_SCHEMA, retain_ms=0), start)
            await self.range(number, self.now).prepare()
        return start

    async def frontier_of(self, number: int, collection: str) -> int:
        """The frontier that a range holds of a collection."""
        owner = writer_of_range(self.targets[number].name)
        held = await self.now.write_hold(collection, owner=owner, users=False)
        return sole_time(held.frontier)


@pytest.mark.rule("C1", "K2", "K7", "UP5")
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("seed", range(4))
async def test_ranges_that_die_at_any_write_say_what_the_twin_says(name: str, seed: int) -> None:
    await live_and_die(name, seed)


@pytest.mark.rule("C1", "K2", "K7", "UP5")
@pytest.mark.parametrize("name", APART)
async def test_ranges_that_write_a_step_at_once_and_die_say_the_same(name: str) -> None:
    groups = MemoryGroups()
    await live_and_die(name, 9, groups)
    assert groups.landed > 3


async def live_and_die(name: str, seed: int, groups: MemoryGroups | None = None) -> None:
    """Lives of processes that keep ranges, in any order, most of which end at a write."""
    random = Random(f"{name} {seed}")
    world = RangedWorld(APART[name], seed, random.choice((2, 3, 5)), groups)
    await world.create()
    fed = deaths = ahead = 0
    while fed < END:
        upper = min(END, fed + random.randrange(1, 15))
        await world.feed(fed, upper)
        fed = upper
        count = len(world.targets)
        for number in random.sample(range(count), random.randrange(1, count + 1)):
            fuse = Fuse(random.randrange(1, 6), after=random.random() < 0.5)
            await follow(
                world, world.range(number, world.process(fuse), random.randrange(1, 9)), fed
            )
            deaths += fuse.blown
        for collection in world.shared:
            held = [await world.frontier_of(k, collection) for k in range(len(world.targets))]
            status = await world.now.status(collection)
            assert status.upper == frontier(min(held))
            ahead += status.staged > 0
    for number in range(len(world.targets)):
        await follow(world, world.range(number, world.process(Fuse(None))), END)
    assert await world.contents() == expected(world.program, world.history)
    assert deaths > 0
    assert ahead or name == "errors", "no range was ahead of another"


class Paused(MemoryConsensus):
    """A process over the stores of others whose n-th write waits until it is let on."""

    def __init__(self, inner: MemoryConsensus, writes: int) -> None:
        super().__init__()
        self._inner = inner
        self._left = writes
        self.waits, self.on = asyncio.Event(), asyncio.Event()

    async def head(self, key: str) -> Version | None:
        return await self._inner.head(key)

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        return await self._inner.scan(key, start)

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        self._left -= 1
        if not self._left:
            self.waits.set()
            await self.on.wait()
        return await self._inner.compare_and_set(key, expected, version)

    async def truncate(self, key: str, before: int) -> None:
        await self._inner.truncate(key, before)


@pytest.mark.rule("UP5", "MV4", "C1")
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("writes", range(1, 9))
async def test_of_two_owners_of_one_range_the_paused_one_writes_nothing_twice(
    name: str, writes: int
) -> None:
    world = RangedWorld(APART[name], writes, 2)
    await world.create()
    await world.feed(0, END)
    consensus = Paused(world.stores[0], writes)
    sleeper = Collections(consensus, world.stores[1], world.clock, world.ids.__next__)
    asleep = asyncio.create_task(follow(world, world.range(0, sleeper, 3), END))
    await consensus.waits.wait()
    await follow(world, world.range(0, world.process(Fuse(None)), 5), END)
    assert not asleep.done(), "the first owner sleeps in the middle of a write"
    consensus.on.set()
    # It goes on where the other one is, or finds that its holds have been moved past it.
    (ended,) = await asyncio.gather(asleep, return_exceptions=True)
    cause = None if ended is None else ended.__cause__
    assert ended is None or "is not beyond the held frontier" in str(cause), cause
    await follow(world, world.range(1, world.process(Fuse(None))), END)
    assert await world.contents() == expected(world.program, world.history)


async def test_a_range_that_stalls_holds_upper_and_is_told_by_name() -> None:
    world = RangedWorld(APART["aggregates and clocks"], 2, 3)
    await world.create()
    await world.feed(0, 20)
    for number in range(3):
        await follow(world, world.range(number, world.process(Fuse(None))), 20)
    await world.feed(20, END)
    for number in (0, 2):
        await follow(world, world.range(number, world.process(Fuse(None))), END)
    for collection in world.shared:
        status = await world.now.status(collection)
        assert status.upper == frontier(20)
        behind = [each.owner for each in status.writing if each.frontier == status.upper]
        assert behind == ["range:v/1"]
    assert any([(await world.now.status(each)).staged for each in world.shared])
    whole = expected(world.program, world.history)
    for name, rows in (await world.contents()).items():
        early = whole[name].filter(pa.array(whole[name]["_time"].to_numpy() < 20))
        assert rows == early, "of what is ahead nobody reads a part"
    await follow(world, world.range(1, world.process(Fuse(None))), END)
    assert await world.contents() == expected(world.program, world.history)


async def test_ranges_that_are_divided_by_other_columns_than_the_analysis_says_are_seen() -> None:
    world = RangedWorld(APART["join and absence"], 4, 2)
    places = {"host": (1,), "ping": (2,)}
    world.targets = [
        replace(each, part=replace(each.part, places=places)) for each in world.targets if each.part
    ]
    await world.create()
    await world.feed(0, END)
    for number in range(2):
        await follow(world, world.range(number, world.process(Fuse(None))), END)
    assert await world.contents() != expected(world.program, world.history)


@pytest.mark.parametrize("name", [each for each in PROGRAMS if each not in APART])
def test_programs_whose_ranges_need_each_other_are_refused_with_a_reason(name: str) -> None:
    found = places_apart(checked(PROGRAMS[name]))
    assert isinstance(found, InTheWay)
    assert found.reason


@pytest.mark.parametrize("seed", range(3))
async def test_all_ranges_at_once_in_one_process_and_twice(seed: int) -> None:
    """Each range has two owners, who run at the same time; so do all ranges."""
    world = RangedWorld(APART["join and absence"], seed, 3)
    await world.create()
    for fed in range(10, END + 1, 10):
        await world.feed(fed - 10, fed)
        one, two = world.process(Fuse(None)), world.process(Fuse(None))
        views = [world.range(k, each) for each in (one, two) for k in range(3)]
        await asyncio.gather(*(follow(world, view, fed) for view in views))
    assert await world.contents() == expected(world.program, world.history)


@pytest.mark.rule("K2")
@pytest.mark.parametrize("name", ["join and absence", "solutions that outlive one of their facts"])
async def test_a_range_that_is_complete_begins_again_and_ends(name: str) -> None:
    world = RangedWorld(APART[name], 3, 3)
    await world.create()
    await world.feed(0, END)
    for name in world.target.inputs:
        await world.now.close_collection(name)
    for number in (0, 1, 0, 2, 0, 1, 2):
        await world.range(number, world.process(Fuse(None))).maintain_forever()
        assert {await world.frontier_of(number, each) for each in world.shared} == {U64_MAX}
    found = await world.contents()
    assert found == expected(world.program, world.history)
