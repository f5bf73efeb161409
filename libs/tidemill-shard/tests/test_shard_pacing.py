"""Rest: collections that follow a pace move by one commit, together, and never go back for
anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from tidemill.errors import BeforeSince, NotYet, UnknownCapability, UsageError
from tidemill.shard import (
    Appended,
    CapabilityId,
    Collections,
    Description,
    UpperMismatch,
    WriteCapability,
)
from tidemill.shard.encoding import (
    decode_rollup,
    encode_entry,
    encode_rollup,
    first_entry,
    next_entry,
    patch,
)
from tidemill.shard.framing import CARRIED, PACED, PLAIN, UNDER
from tidemill.shard.pacing import following
from tidemill.shard.ports import Version
from tidemill.shard.state import initial_state
from tidemill.shard.transitions import hold_named_write
from tidemill.testkit.paced_world import PACE, ROWS, World, updates
from tidemill.time import Frontier, frontier


@pytest.mark.parametrize("resting", [1, 30])
async def test_d5_a_step_is_one_commit_however_many_rest(resting: int) -> None:
    names = [f"c{n}" for n in range(resting)]
    world = await World().create(*names)
    for name in names:
        assert await world.rest(name, name, at=10)
    before = world.versions()
    for step in range(1, 8):
        assert len(await world.step(10 + step)) == resting
        for name in names:
            assert await world.uppers(name) == [frontier(10 + step)] * 2
    assert world.versions() - before == 7


async def test_d5_who_writes_one_of_a_group_stops_all_at_one_instant() -> None:
    world = await World().create("s/remap", "s")
    here, there = world.processes
    assert await world.rest("s", "s/remap", "s", at=10)
    await world.step(20)
    assert not await world.write("s/remap", 10, 30, 1)
    assert await world.write("s/remap", 20, 30, 1)
    await world.step(40)
    assert await world.uppers("s/remap") == [frontier(30)] * 2
    assert await world.uppers("s") == [frontier(20)] * 2
    assert not await here.rests("s/remap")
    assert await world.write("s", 20, 30, 7)
    held, _ = await there.acquire("s")
    assert (await there.snapshot(held, 29)).to_pydict() == {"n": [7], "_diff": [1]}


async def test_d5_what_does_not_move_a_collection_does_not_end_its_rest() -> None:
    world = await World().create("s")
    held, _ = await world.processes[0].acquire("s", lease_ms=None)
    assert await world.rest("s", "s", at=10)
    assert not await world.write("s", 3, 4)
    with pytest.raises(NotYet):
        await world.processes[1].snapshot(held, 15)
    assert await world.step(20) == {"s"}
    assert (await world.processes[1].snapshot(held, 15)).num_rows == 0


async def test_d5_a_version_that_was_written_again_does_not_join_any_more() -> None:
    world = await World().create("s/remap", "s")
    here, there = world.processes
    numbers = {}
    for each in ("s/remap", "s"):
        number = await here.follow(each, (PACE,), frontier(10))
        assert number is not None
        numbers[each] = number
    await there.acquire("s/remap")
    assert await here.step_pace(PACE, frontier(20), {"s": numbers}, ()) == frozenset()
    assert await world.uppers("s") == await world.uppers("s/remap") == [frontier(10)] * 2


async def test_d5_nothing_joins_a_pace_that_a_wrong_clock_took_ahead() -> None:
    world = await World().create("s", "t")
    assert await world.rest("s", "s", at=10)
    await world.step(86_400_000)
    number = await world.processes[0].follow("t", (PACE,), frontier(10))
    assert number is not None
    joining = {"t": {"t": number}}
    assert await world.processes[0].step_pace(PACE, frontier(20), joining, ()) == {"s"}
    assert await world.uppers("t") == [frontier(10)] * 2


async def test_d5_only_what_is_where_it_was_expected_follows() -> None:
    world = await World().create("s")
    assert await world.processes[0].follow("s", (PACE,), frontier(9)) is None
    assert not await world.processes[0].rests("s")
    description = Description(ROWS, user_writable=True)
    with pytest.raises(UsageError, match="rest refused"):
        following(initial_state(description, frontier(5)), (PACE,), frontier(5))


async def test_d5_since_follows_the_retention_at_rest_and_no_hold_is_passed() -> None:
    world = await World().create("s", retain_ms=5)
    here, there = world.processes
    assert await world.rest("s", "s", at=10)
    await world.step(100)
    assert (await there.status("s")).since == frontier(95)
    held, _ = await there.acquire("s", lease_ms=None)
    assert held.frontier == frontier(95)
    assert await world.rest("s", "s", at=100)
    await world.step(200)
    assert [(await each.status("s")).since for each in world.processes] == [frontier(95)] * 2
    with pytest.raises(BeforeSince):
        await here.snapshot(held, 94)
    assert (await here.snapshot(held, 199)).num_rows == 0


async def test_d5_who_waits_is_woken_by_the_step_and_who_writes_by_the_end_of_rest() -> None:
    world = await World(1).create("s")
    (here,) = world.processes
    assert await world.rest("s", "s", at=10)
    waiting = asyncio.create_task(here.wait_for_upper("s", 15, 1000.0))
    working = asyncio.create_task(here.rest_over("s", 1000.0))
    await world.clock.settle()
    await world.step(20)
    await world.clock.settle()
    assert waiting.done()
    assert not working.done()
    await here.rouse("s")
    assert await world.write("s", 20, 21)
    await world.clock.settle()
    assert working.done()
    assert await here.rest_over("s", 1000.0)


async def test_d5_a_new_life_of_who_steps_moves_nothing_that_it_does_not_watch() -> None:
    world = await World().create("s")
    assert await world.rest("s", "s", at=10)
    await world.step(20)
    await world.processes[1].open_pace(PACE)
    assert await world.step(30) == frozenset()
    assert await world.uppers("s") == [frontier(20)] * 2


async def test_d5_what_is_said_of_a_collection_ends_with_it() -> None:
    world = await World(1).create("s")
    (here,) = world.processes
    for round_ in range(5):
        upper = 10 + 10 * round_
        assert await world.rest("s", "s", at=upper)
        await world.step(upper + 5)
        assert await world.write("s", upper + 5, upper + 10)
    assert len((await here.state(PACE)).paced) == 1
    await here.retire("s")
    await here.state("s")
    await world.step(1000)
    assert not (await here.state(PACE)).paced
    assert await world.uppers("s") == [frontier()]


async def test_d5_a_late_request_to_join_never_splits_a_group() -> None:
    world = await World().create("s/remap", "s")
    here, there = world.processes
    numbers = {}
    for each in ("s/remap", "s"):
        number = await here.follow(each, (PACE,), frontier(10))
        assert number is not None
        numbers[each] = number
    held, _ = await there.acquire("s/remap")
    await there.drop(held)
    await world.step(15)
    assert await here.step_pace(PACE, frontier(20), {"s": numbers}, ()) == frozenset()
    assert await world.uppers("s") == [frontier(10)] * 2


def test_d5_only_versions_that_name_a_pace_need_a_process_that_knows_them() -> None:
    plain = initial_state(Description(ROWS), frontier(5))
    _, paced = following(plain, (PACE,), frontier(5))
    (writer, _), table = hold_named_write(plain, "w", owner="table")
    _, carried = following(table, (PACE,), frontier(5), writer)
    for state, wanted in ((plain, PLAIN), (paced, PACED), (carried, CARRIED)):
        for data in (encode_entry(first_entry("a", state)), encode_rollup(state)):
            assert int.from_bytes(data[3:5], "little") == wanted
        assert decode_rollup(encode_rollup(state), "there") == state


async def table_at_rest() -> tuple[World, WriteCapability]:
    """A table whose own write capability goes with the pace, now at 20, as it stood before."""
    world = await World().create("t")
    here = world.processes[0]
    held = await here.write_hold("t", owner="table")
    number = await here.follow("t", (PACE,), frontier(10), held.id)
    assert number is not None
    assert "t" in await here.step_pace(PACE, frontier(10), {"t": {"t": number}}, ())
    await world.step(20)
    return world, held


@pytest.mark.rule("K2")
async def test_d5_who_knows_of_a_newer_version_reads_it_whatever_the_pace_was() -> None:
    world = await World().create("s")
    there = world.processes[1]
    assert await world.rest("s", "s", at=10)
    assert (await there.status("s")).upper == frontier(10)
    assert await world.write("s", 10, 15, 7)
    there.on_remote_commit("s")
    assert (await there.state("s", 1_000.0)).upper == frontier(15)


def test_d5_a_tombstone_has_no_writers() -> None:
    gone = replace(
        initial_state(Description(ROWS), frontier(0)), since=frontier(), upper=frontier()
    )
    with pytest.raises(UnknownCapability):
        hold_named_write(gone, "w", owner="table")


async def test_d5_the_write_capability_of_a_table_goes_with_the_pace() -> None:
    world, held = await table_at_rest()
    for each in world.processes:
        status = await each.status("t")
        assert status.upper == frontier(20)
        assert [holder.frontier for holder in status.writing] == [frontier(20)]
    there = world.processes[1]
    answer = await there.update_and_downgrade(held, updates(12, 7), frontier(13))
    assert answer == UpperMismatch(frontier(20))
    with pytest.raises(UsageError):
        await there.update_and_downgrade(held.at(frontier(20)), updates(19, 7), frontier(21))
    written = await there.update_and_downgrade(held.at(frontier(20)), updates(20, 7), frontier(21))
    assert isinstance(written, Appended)
    await world.step(30)
    assert await world.uppers("t") == [frontier(21)] * 2
    assert not await there.rests("t")
    read, _ = await there.acquire("t")
    assert (await there.snapshot(read, 20)).to_pydict() == {"n": [7], "_diff": [1]}


@pytest.mark.rule("K6")
async def test_d5_a_writer_beside_the_one_of_a_table_ends_its_rest_and_keeps_it_from_another() -> (
    None
):
    world, held = await table_at_rest()
    here, there = world.processes
    beside = await there.write_hold("t", owner="a user")
    assert beside.frontier == frontier(20)
    await world.step(30)
    assert await world.uppers("t") == [frontier(20)] * 2
    assert await here.follow("t", (PACE,), frontier(20), held.id) is None
    await there.drop(beside)
    assert await here.follow("t", (PACE,), frontier(20), held.id) is not None


@pytest.mark.rule("K3")
async def test_d5_only_a_live_write_capability_without_a_lease_goes_with_a_pace() -> None:
    world = await World().create("t")
    here = world.processes[0]
    await here.write_hold("t", owner="table")
    with pytest.raises(UsageError, match="rest refused"):
        await here.follow("t", (PACE,), frontier(10))
    with pytest.raises(UnknownCapability):
        await here.follow("t", (PACE,), frontier(10), CapabilityId("guessed"))
    leased = Description(ROWS, user_writable=True)
    _, writer = await here.create("u", leased, start=frontier(10), lease_ms=1000)
    assert writer is not None
    assert await here.follow("u", (PACE,), frontier(10), writer.id) is None


@pytest.mark.parametrize("seed", range(12))
async def test_d5_a_table_that_rests_and_is_written_by_any_process_loses_nothing(
    seed: int,
) -> None:
    """Rest, steps, inserts, holds and deaths in any order: frontiers rise, rows are there once."""
    random = Random(seed)
    world, held = await table_at_rest()
    wrote, rested, seen = 0, 0, [0, 0]
    for _ in range(150):
        number = random.randrange(2)
        process = world.processes[number]
        upper = (await process.status("t")).upper.elements[0]
        assert upper >= seen[number]
        seen[number] = upper
        act = random.choice(("rest", "step", "write", "hold", "die"))
        if act == "rest":
            follows = await world.processes[0].follow("t", (PACE,), frontier(upper), held.id)
            if follows is not None:
                rested += "t" in await world.processes[0].step_pace(
                    PACE, frontier(upper + random.randrange(3)), {"t": {"t": follows}}, ()
                )
        elif act == "step":
            await world.step(upper + random.randrange(1, 9))
        elif act == "write":
            stated = held.at(frontier(random.choice((upper, seen[1 - number]))))
            end = frontier(upper + 3)
            answer = await process.update_and_downgrade(stated, updates(upper + 1, 7), end)
            wrote += isinstance(answer, Appended)
        elif act == "hold":
            await process.drop((await process.acquire("t", rights="read"))[0])
        elif random.random() < 0.3:
            world.processes[number] = Collections(
                world.consensus, world.blob, world.clock, lambda: f"{next(world.names):032x}"
            )
    assert rested > 3
    assert wrote > 3
    found = await world.processes[0].read_updates("t")
    assert sum(found["_diff"].to_pylist()) == wrote


async def test_d5_who_looks_at_what_rests_reads_its_pace_alone() -> None:
    names = [f"c{n}" for n in range(10)]
    world = await World().create(*names)
    for name in names:
        assert await world.rest(name, name, at=10)
    there, scanned = world.processes[1], list[str]()
    await asyncio.gather(*(there.status(name) for name in names))
    scan = world.consensus.scan

    async def count(key: str, first: int) -> Sequence[Version]:
        scanned.append(key)
        await asyncio.sleep(0)  # a store takes its time, and who asks meanwhile shares the answer
        return await scan(key, first)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.consensus, "scan", count)
        found = await asyncio.gather(*(there.status(name) for name in names))
    assert {each.upper for each in found} == {frontier(10)}
    assert set(scanned) == {PACE}
    assert len(scanned) <= 2
    assert await world.write("c3", 10, 15, 1)
    assert (await there.status("c3")).upper == frontier(15)


async def test_d5_a_group_leaves_with_any_of_those_that_it_follows_under() -> None:
    world = await World().create("s", "t", "u", "v", "w")
    here, there = world.processes
    for name in "stu":
        assert await world.rest(name, name, at=10)
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(10))
    assert await there.follow_under("w", ["w"], ["v"], frontier(10))
    assert await world.step(20) == {"s", "t", "u", "v", "w"}
    assert not await world.write("t", 10, 30, 1)
    assert await world.write("t", 20, 30, 1)
    assert await world.step(40) == {"s", "u"}
    for name, upper in {"s": 40, "t": 30, "u": 40, "v": 20, "w": 20}.items():
        assert await world.uppers(name) == [frontier(upper)] * 2
    assert (await here.state(PACE)).under == {}


async def test_d5_a_group_follows_only_under_what_rests_and_with_all_that_it_wrote() -> None:
    world = await World().create("s", "t", "v")
    (here, _), before = world.processes, world.versions()
    assert await here.follow_under("v", ["v"], ["s"], frontier(10)) is None
    assert await world.write("s", 10, 15, 1)
    assert await world.rest("s", "s", at=15)
    assert await here.follow_under("v", ["v"], ["s"], frontier(10)) is None
    assert await here.follow_under("v", ["v"], ["s", "t"], frontier(15)) is None
    assert world.versions() - before == 3
    assert await here.follow_under("v", ["v"], ["s"], frontier(15)) is False
    assert await world.write("v", 10, 15, 1)
    assert await here.follow_under("v", ["v"], ["s"], frontier(15))


async def test_d5_an_input_that_leaves_meanwhile_is_not_followed() -> None:
    world = await World().create("s", "v")
    here, there = world.processes
    assert await world.rest("s", "s", at=10)
    follow = here.follow

    async def leaves_meanwhile(
        collection: str, paces: tuple[str, ...], expected: Frontier
    ) -> int | None:
        await there.rouse("s")
        return await follow(collection, paces, expected)

    here.follow = leaves_meanwhile  # type: ignore[method-assign]
    assert await here.follow_under("v", ["v"], ["s"], frontier(10)) is False
    assert await world.step(20) == frozenset()
    assert await world.uppers("v") == [frontier(10)] * 2


def test_d5_a_pace_with_groups_under_others_needs_a_process_that_knows_them() -> None:
    state = replace(initial_state(Description(ROWS), frontier(5)), under={"v": ("s", "t")})
    for data in (encode_entry(first_entry("a", state)), encode_rollup(state)):
        assert int.from_bytes(data[3:5], "little") == UNDER
    assert decode_rollup(encode_rollup(state), "a pace").under == state.under
    entry = next_entry("b", None, state, replace(state, under={}))
    assert patch(state, [entry], "a pace").under == {}
