"""Rest under several paces: followers are as far as the least of them, and no observer ever sees a
frontier go back.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from random import Random
from typing import ClassVar

import pyarrow as pa
import pytest

from tidemill.shard import Collections, Description
from tidemill.shard.capabilities import ReadCapability
from tidemill.shard.encoding import (
    decode_rollup,
    encode_entry,
    encode_rollup,
    first_entry,
    next_entry,
    patch,
)
from tidemill.shard.framing import LISTED, PACED, PLAIN, SEVERAL
from tidemill.shard.pacing import following
from tidemill.shard.state import initial_state
from tidemill.testkit.paced_world import PACE, ROWS, World, updates
from tidemill.time import Frontier, frontier

OTHER = "pace/200/there"


async def two_paces(*collections: str) -> World:
    """A world in which `s` follows a pace and `t` another one, both at 10."""
    world = await World().create("s", "t", *collections)
    await world.processes[1].open_pace(OTHER)
    assert await world.rest("s", "s", at=10)
    assert await world.rest("t", "t", at=10, pace=OTHER)
    return world


async def test_d5_an_output_of_inputs_with_several_paces_is_as_far_as_the_least_of_these() -> None:
    world = await two_paces("v", "w")
    here, there = world.processes
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(10))
    assert await there.follow_under("w", ["w"], ["v"], frontier(10))
    before = world.versions()
    assert await world.step(20) == {"s", "v", "w"}
    assert await world.uppers("v") == await world.uppers("w") == [frontier(10)] * 2
    assert await world.step(15, pace=OTHER) == {"t", "v", "w"}
    assert await world.uppers("v") == await world.uppers("w") == [frontier(15)] * 2
    await world.step(30, pace=OTHER)
    assert await world.uppers("v") == await world.uppers("w") == [frontier(20)] * 2
    assert world.versions() - before == 3


async def test_d5_an_output_that_left_one_pace_comes_as_far_as_it_was_there() -> None:
    world = await two_paces("v")
    here, there = world.processes
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(10))
    await world.step(20)
    assert await world.write("s", 20, 30, 1)
    assert await world.uppers("v") == [frontier(10)] * 2
    assert not await here.rests("v")
    assert not await there.rests("v")
    await world.step(40)
    await world.step(17, pace=OTHER)
    assert await world.uppers("v") == [frontier(17)] * 2
    await world.step(50, pace=OTHER)
    assert await world.uppers("v") == [frontier(20)] * 2
    assert not await world.write("v", 17, 30, 1)
    assert await world.write("v", 20, 30, 1)
    await world.step(60, pace=OTHER)
    assert await world.uppers("v") == [frontier(30)] * 2


async def test_d5_who_writes_an_output_makes_it_leave_all_of_its_paces() -> None:
    world = await two_paces("v")
    assert await world.processes[0].follow_under("v", ["v"], ["s", "t"], frontier(10))
    await world.step(20)
    await world.step(15, pace=OTHER)
    assert await world.write("v", 15, 16, 1)
    await world.step(40)
    await world.step(40, pace=OTHER)
    assert await world.uppers("v") == [frontier(16)] * 2
    assert await world.uppers("s") == await world.uppers("t") == [frontier(40)] * 2
    states = [await world.processes[1].state(pace) for pace in (PACE, OTHER)]
    assert [state.under for state in states] == [{}, {}]


async def test_d5_an_output_that_joined_one_pace_alone_stands() -> None:
    world = await two_paces("v")
    here, there = world.processes
    follow = here.follow

    async def leaves_meanwhile(
        collection: str, paces: tuple[str, ...], expected: Frontier
    ) -> int | None:
        number = await follow(collection, paces, expected)
        await there.rouse("t")
        return number

    here.follow = leaves_meanwhile  # type: ignore[method-assign]
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(10)) is False
    here.follow = follow  # type: ignore[method-assign]
    await world.step(20)
    assert await world.uppers("v") == [frontier(10)] * 2
    assert await world.rest("t", "t", at=10, pace=OTHER)
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(10))
    await world.step(15, pace=OTHER)
    assert await world.uppers("v") == [frontier(15)] * 2
    assert await world.write("v", 15, 30, 1)
    assert await world.uppers("v") == [frontier(30)] * 2


async def test_d5_who_waits_is_woken_by_the_pace_that_is_least_far() -> None:
    world = await two_paces("v")
    here = world.processes[0]
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(10))
    waiting = asyncio.create_task(here.wait_for_upper("v", 15, 1000.0))
    for upper, pace, done in ((20, PACE, False), (14, OTHER, False), (16, OTHER, True)):
        await world.clock.settle()
        await world.step(upper, pace=pace)
        await world.clock.settle()
        assert waiting.done() is done, (upper, pace)


def test_d5_only_versions_that_name_several_paces_need_a_process_that_knows_them() -> None:
    plain = initial_state(Description(ROWS), frontier(5))
    states = [plain]
    for paces in ((PACE,), (PACE, OTHER), (OTHER,), ()):
        before = states[-1]
        _, after = following(before, paces, frontier(5))
        assert patch(before, [next_entry("a", None, before, after)], "there") == after
        states.append(after)
    wanted = (PLAIN, PACED, SEVERAL, PACED, PLAIN)
    assert LISTED < SEVERAL
    for state, number in zip(states, wanted, strict=True):
        for data in (encode_entry(first_entry("a", state)), encode_rollup(state)):
            assert int.from_bytes(data[3:5], "little") == number
        assert decode_rollup(encode_rollup(state), "there") == state
    first, last = states[0], states[2]
    entries = [next_entry("a", None, old, new) for old, new in itertools.pairwise(states[:3])]
    assert patch(first, entries, "there") == last
    assert replace(last, paces=()) == plain


class Acts:
    """Acts of processes with caches of their own, in any order, and the views of each meanwhile."""

    names = ("s/remap", "s", "s/deadletters")
    copied: ClassVar = {"v": ("s",), "w": ("v",), "x": ("s", "t"), "y": ("x", "w")}
    """Collections that say at each instant what others say together, as a view would."""
    paces: ClassVar = {"s": PACE, "t": OTHER}
    groups: ClassVar = {"s": names, "t": ("t",)}

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._seen: dict[tuple[int, str], tuple[Frontier, Frontier]] = {}
        self._said: dict[tuple[str, int], int] = {}
        self._held: dict[str, ReadCapability] = {}
        self.rested = 0
        self.rested_under = 0
        self.under_several = 0

    async def rest(self) -> None:
        await self._rest(self._random.choice([*self.paces]))

    async def _rest(self, group: str) -> None:
        process, names = self._random.choice(self._world.processes), self.groups[group]
        upper, pace = (await process.status(names[0])).upper, self.paces[group]
        numbers = {}
        for each in names:
            number = await process.follow(each, (pace,), upper)
            if number is None:
                return
            numbers[each] = number
            if self._random.random() < 0.2:
                await self.step()
        joined = await process.step_pace(pace, upper, {group: numbers}, ())
        self.rested += group in joined

    async def step(self) -> None:
        process = self._random.choice(self._world.processes)
        group, pace = self._random.choice([*self.paces.items()])
        uppers = [(await process.state(each)).upper.elements[0] for each in self.paces.values()]
        upper = (await process.state(pace)).upper.elements[0]
        # One that is behind comes near the other one, so that what follows both moves, too.
        upper = max(upper, max(uppers) - 10) + self._random.randrange(1, 20)
        leave = (group,) if self._random.random() < 0.1 else ()
        await process.step_pace(pace, frontier(upper), {}, leave)

    async def write(self) -> None:
        """Write bindings first, then their rows, at times that were not definite, as the driver
        does.
        """
        process = self._random.choice(self._world.processes)
        names = self._random.choice((self.names, self.names[:1], self.names, ("t",)))
        upper = (await process.status(names[0])).upper.elements[0]
        new = upper + self._random.randrange(1, 30)
        for each in names:
            lower = (await process.status(each)).upper.elements[0]
            if lower < new:
                rows = updates(max(lower, upper), 1)
                await process.compare_and_append(
                    each, frontier(lower), frontier(new), rows, writer="w"
                )

    async def copy(self) -> None:
        """Bring a copy as far as it is defined."""
        await self._bring(self._random.choice([*self.copied]))

    async def _bring(self, name: str) -> None:
        process, of = self._random.choice(self._world.processes), self.copied[name]
        lower = (await process.status(name)).upper.elements[0]
        for each in of:
            if each not in self._held:  # once, as a view does: each new one ends a rest
                self._held[each], _ = await process.acquire(each)
        upper = min([(await process.status(each)).upper.elements[0] for each in of])
        if lower < upper:
            news = [await process.changes(self._held[each], lower, upper) for each in of]
            await process.compare_and_append(
                name, frontier(lower), frontier(upper), pa.concat_tables(news), writer="v"
            )

    async def rest_under(self) -> None:
        process = self._random.choice(self._world.processes)
        name, of = self._random.choice([*self.copied.items()])
        if self._random.random() < 0.5:  # so that all that is copied rests, and the copy is there
            for each in self.groups:
                await self._rest(each)
            for _ in range(4):
                await self.step()
            await self._bring(name)
        upper = (await process.status(name)).upper
        if await process.follow_under(name, [name], of, upper):
            self.rested_under += 1
            self.under_several += len((await process.state(name)).paces) > 1

    async def hold(self) -> None:
        held, _ = await self._random.choice(self._world.processes).acquire(
            self._random.choice([*self.names, "t", *self.copied])
        )
        await self._random.choice(self._world.processes).drop(held)

    async def look(self) -> None:
        """Neither frontier goes back for a process, and what was definite is the same for all."""
        number = self._random.randrange(3)
        process = self._world.processes[number]
        name = self._random.choice([*self.names, "t", *self.copied])
        status = await process.status(name)
        since, upper = self._seen.get((number, name), (frontier(0), frontier(0)))
        assert since.precedes(status.since)
        assert upper.precedes(status.upper)
        self._seen[number, name] = status.since, status.upper
        last = status.upper.elements[0] - 1
        total = await self._total(process, name, last)
        if name in self.copied:
            of = [await self._total(process, each, last) for each in self.copied[name]]
            assert total == sum(of)
        assert self._said.setdefault((name, last), total) == total
        for (other, at), known in self._said.items():
            if other == name and at <= last and self._random.random() < 0.1:
                assert await self._total(process, name, at) == known

    async def _total(self, process: Collections, name: str, at: int) -> int:
        rows = await process.read_without_hold(name, at)
        assert rows is not None
        return sum(rows.column("_diff").to_pylist())

    async def die(self) -> None:
        number = self._random.randrange(3)
        world = self._world
        world.processes[number] = world.opened()
        if self._random.random() < 0.3:
            await world.processes[number].open_pace(self._random.choice((PACE, OTHER)))


@pytest.mark.parametrize("seed", range(40))
async def test_d5_no_observer_ever_sees_a_frontier_go_back_or_a_definite_answer_change(
    seed: int,
) -> None:
    """Rest, steps, writes, reads and deaths of processes in any order."""
    random = Random(seed)
    world = await World(3).create(*Acts.names, "t", *Acts.copied, retain_ms=2**40)
    await world.processes[0].open_pace(OTHER)
    does = Acts(world, random)
    acts = [does.rest, does.rest, does.step, does.step, does.write, does.hold]
    under = [does.copy] * 4 + [does.rest_under] * 4
    for _ in range(350):
        await random.choice([*acts, *under, does.look, does.look, does.look, does.die])()
    assert does.rested > 2, "nothing ever rested"


async def test_d5_copies_rest_under_what_they_copy_in_these_runs() -> None:
    """The runs above would say nothing of copies at rest if none ever rested."""
    total = several = 0
    for seed in range(10):
        random = Random(seed)
        world = await World(3).create(*Acts.names, "t", *Acts.copied, retain_ms=2**40)
        await world.processes[0].open_pace(OTHER)
        does = Acts(world, random)
        for _ in range(200):
            await random.choice([does.rest, does.step, does.copy, does.copy, does.rest_under])()
        total += does.rested_under
        several += does.under_several
    assert total > 10
    assert several > 10
