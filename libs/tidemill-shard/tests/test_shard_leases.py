"""Leases end by what is heard of their holders, and what a lost answer has handed out is found
again.
"""

from __future__ import annotations

import asyncio
from itertools import count

import pyarrow as pa
import pytest

from tidemill.errors import AlreadyUsed, CapabilityExpired, UnknownCapability, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    MemoryBlob,
    MemoryConsensus,
    Progress,
    ReadCapability,
    Version,
    WriteCapability,
)
from tidemill.shard.ports import Expected
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string())])
TABLE = Description(ROWS, user_writable=True)
TOKEN = "a token that nobody guesses"
rule = pytest.mark.rule


class DyingConsensus(MemoryConsensus):
    """Writes what it is told to, and never answers: as for a process that dies in between."""

    dying = False
    deaths = 0

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        won = await super().compare_and_set(key, expected, version)
        if self.dying:
            self.deaths += won
            raise asyncio.CancelledError
        return won


class World:
    """Stores that last; processes on them, each with a clock of its own."""

    def __init__(self) -> None:
        self.consensus, self.blob, self.names = DyingConsensus(), MemoryBlob(), count()

    def process(self, clock: ManualClock) -> Collections:
        return Collections(self.consensus, self.blob, clock, lambda: f"{next(self.names):032x}")


def writer(pair: tuple[ReadCapability, WriteCapability | None]) -> WriteCapability:
    assert pair[1] is not None
    return pair[1]


@rule("K12")
async def test_v9_a_process_whose_clock_is_ahead_ends_nobodys_lease() -> None:
    world = World()
    here, ahead = ManualClock(1_000_000), ManualClock(1_000_000 + 600_000)
    ours, theirs = world.process(here), world.process(ahead)
    read, _ = await ours.create("t", TABLE, lease_ms=60_000)
    # Ten minutes ahead, and looking for a second.
    for _ in range(5):
        assert len((await theirs.status("t")).holders) == 1
        await ahead.advance(0.2)
    await ours.renew(read)
    # It ends what it has heard nothing of for the whole lease, by its own monotonic clock.
    await theirs.status("t")
    await ahead.advance(60.1)
    assert (await theirs.status("t")).holders == ()
    with pytest.raises(CapabilityExpired):
        await ours.renew(read)


@rule("K12")
async def test_v9_a_lease_is_renewed_for_who_looks_whatever_the_clocks_say() -> None:
    world = World()
    here, behind = ManualClock(1_000_000), ManualClock(1_000_000 - 40_000)
    ours, theirs = world.process(here), world.process(behind)
    read, _ = await ours.create("t", TABLE, lease_ms=60_000)
    ends = (await ours.status("t")).holders[0].lease_end_ms
    await theirs.renew(read)
    await theirs.transfer(read, "taker")
    assert (await ours.status("t")).holders[0].lease_end_ms == ends
    for _ in range(6):
        await asyncio.gather(here.advance(30), behind.advance(30))
        await theirs.renew(read)
        assert len((await ours.status("t")).holders) == 1


@rule("K11", "K12", "K8", "UP4")
@pytest.mark.parametrize("sign", ["renew", "downgrade", "update"])
async def test_v9_every_sign_of_life_renews_also_one_that_moves_nothing(sign: str) -> None:
    world, clock = World(), ManualClock(1_000)
    store = world.process(clock)
    read, write = await store.create("t", TABLE, lease_ms=3_000)
    assert write is not None
    for _ in range(10):
        await clock.advance(2)
        if sign == "renew":
            await store.renew(read)
            await store.renew(write)
        elif sign == "downgrade":
            await store.downgrade(read, read.frontier)
        else:
            outcome = await store.update_and_downgrade(write, None, write.frontier)
            assert outcome == Appended(write.frontier)
    alive, gone = (read, write) if sign == "downgrade" else (write, read)
    await store.renew(alive)
    if sign != "renew":
        with pytest.raises(CapabilityExpired):
            await store.renew(gone)


@rule("SU7", "K12")
async def test_v9_a_subscriber_whose_lease_ended_hears_so_at_once() -> None:
    world, clock = World(), ManualClock(1_000)
    store = world.process(clock)
    read, write = await store.create("t", TABLE, lease_ms=1_500)
    assert write is not None
    await store.update_and_downgrade(write, None, frontier(5))
    stream = store.subscribe(read, 1)
    assert await anext(stream) == Progress(frontier(5))
    listening = asyncio.ensure_future(anext(stream))
    await clock.advance(1)
    assert not listening.done()
    # Nobody writes, nothing moves: the end of the lease is news enough.
    await clock.advance(2)
    assert listening.done()
    with pytest.raises(CapabilityExpired):
        await listening


@rule("D1", "CR1")
async def test_v9_create_with_a_token_finds_what_a_lost_answer_handed_out() -> None:
    world, clock = World(), ManualClock(1_000)
    world.consensus.dying = True
    with pytest.raises(asyncio.CancelledError):
        await world.process(clock).create("t", TABLE, lease_ms=None, token=TOKEN)
    assert world.consensus.deaths == 1
    world.consensus.dying = False
    store = world.process(clock)
    pair = await store.create("t", TABLE, lease_ms=None, token=TOKEN)
    assert pair == await store.create("t", TABLE, lease_ms=None, token=TOKEN)
    outcome = await store.update_and_downgrade(writer(pair), None, frontier(5))
    assert outcome == Appended(frontier(5))
    # Nobody unknown holds upper, so what was written can be read.
    status = await store.status("t")
    assert (len(status.holders), len(status.writing), status.upper) == (1, 1, frontier(5))
    for other in (None, "another token that nobody guesses"):
        with pytest.raises(AlreadyUsed):
            await store.create("t", TABLE, token=other)


@rule("D1", "AC1", "K6")
@pytest.mark.parametrize("command", ["acquire", "clone", "hand over"])
async def test_v9_what_a_token_was_answered_with_is_answered_again(command: str) -> None:
    world, clock = World(), ManualClock(1_000)
    store = world.process(clock)
    read, _ = await store.create("t", TABLE, lease_ms=None)

    async def ask(there: Collections) -> object:
        if command == "acquire":
            return await there.acquire("t", lease_ms=None, rights="both", token=TOKEN)
        if command == "clone":
            return await there.clone(read, token=TOKEN)
        return await there.hand_over(read, "taker", token=TOKEN)

    world.consensus.dying = True
    with pytest.raises(asyncio.CancelledError):
        await ask(store)
    assert world.consensus.deaths == 1
    world.consensus.dying = False
    first = await ask(world.process(clock))
    held = (await store.status("t")).holders
    assert await ask(world.process(clock)) == first
    assert (await store.status("t")).holders == held
    assert len(held) == (1 if command == "hand over" else 2)


async def test_v9_a_token_that_could_be_guessed_is_refused() -> None:
    store = World().process(ManualClock(1_000))
    with pytest.raises(UsageError, match="can be guessed"):
        await store.create("t", TABLE, token="1")


@rule("K2", "K12", "K15")
async def test_v9_an_administrator_sees_and_ends_who_holds_upper() -> None:
    world, clock = World(), ManualClock(1_000)
    store = world.process(clock)
    read, _ = await store.create("t", TABLE, owner="forgotten", lease_ms=None)
    _, write = await store.acquire("t", owner="me", lease_ms=None)
    assert write is not None
    await store.update_and_downgrade(write, None, frontier(9))
    status = await store.status("t")
    assert (status.upper, [h.owner for h in status.writing]) == (frontier(0), ["forgotten", "me"])
    (stuck,) = (h for h in status.writing if h.frontier == status.upper)
    assert (await store.expire_holder("t", stuck.key)).owner == "forgotten"
    assert (await store.status("t")).upper == frontier(9)
    assert stuck.key not in read.id
    with pytest.raises(UnknownCapability):
        await store.expire_holder("t", stuck.key)


async def test_v9_what_a_resource_holds_for_good_is_not_expired() -> None:
    world, clock = World(), ManualClock(1_000)
    store = world.process(clock)
    await store.create("t", Description(ROWS))
    await store.read_hold("t", owner="view:v", lease_ms=None)
    (held,) = (h for h in (await store.status("t")).holders if h.owner == "view:v")
    with pytest.raises(UsageError, match="view:v holds t for good"):
        await store.expire_holder("t", held.key)


@rule("AC1", "K15", "K14")
async def test_v14_9_who_only_wants_to_read_neither_holds_upper_nor_closes_anything() -> None:
    world, clock = World(), ManualClock(1_000)
    store = world.process(clock)
    _, write = await store.create("t", TABLE, lease_ms=5_000)
    assert write is not None
    read, none = await store.acquire("t", rights="read")
    assert read is not None
    assert none is None
    await store.update_and_downgrade(write, None, frontier(20))
    assert (await store.status("t")).upper == frontier(20)
    await store.status("t")
    await clock.advance(6)
    with pytest.raises(CapabilityExpired):
        await store.drop(write)
    await store.drop(read)
    assert (await store.status("t")).upper == frontier(20)
    nothing, again = await store.acquire("t", rights="write")
    assert nothing is None
    assert again is not None
    assert again.frontier == frontier(20)
    await store.create("s", Description(ROWS))
    with pytest.raises(UsageError, match="users cannot write s"):
        await store.acquire("s", rights="write")


@rule("K4")
@pytest.mark.parametrize("command", ["clone", "hand_over", "downgrade", "drop", "renew", "stated"])
@pytest.mark.parametrize("wrong", ["frontier", "kind", "id", "collection"])
async def test_v11_a_capability_is_honoured_as_stated_or_refused(command: str, wrong: str) -> None:
    store = World().process(ManualClock(1_000))
    read, write = await store.create("t", TABLE)
    await store.create("other", TABLE)
    assert write is not None
    await store.update_and_downgrade(write, None, frontier(9))
    read = await store.downgrade(read, frontier(5))
    presented = {
        "frontier": read.at(frontier(3)),
        "kind": ReadCapability(write.id, "t", frontier(9)),
        "id": ReadCapability(type(read.id)("nobody's"), "t", read.frontier),
        "collection": ReadCapability(read.id, "other", read.frontier),
    }[wrong]

    async def ask(capability: ReadCapability) -> object:
        if command == "hand_over":
            return await store.hand_over(capability, "me", exact=True)
        if command == "downgrade":
            return await store.downgrade(capability, frontier(6), exact=True)
        if command == "stated":
            return await store.check_stated(capability)
        asked = {"clone": store.clone, "drop": store.drop, "renew": store.renew}[command]
        return await asked(capability, exact=True)  # type: ignore[operator]  # of three types

    before = await store.state("t"), await store.state("other")
    with pytest.raises(UsageError if wrong in ("frontier", "kind") else UnknownCapability):
        await ask(presented)
    assert (await store.state("t"), await store.state("other")) == before
    await ask(read)


@rule("K4", "K8")
async def test_v11_a_downgrade_whose_answer_was_lost_may_be_made_again() -> None:
    store = World().process(ManualClock(1_000))
    read, _ = await store.create("t", TABLE)
    await store.downgrade(read, frontier(5), exact=True)
    assert (await store.downgrade(read, frontier(5), exact=True)).frontier == frontier(5)
    with pytest.raises(UsageError, match="states"):
        await store.downgrade(read, frontier(6), exact=True)
