"""A store that has lost what it acknowledged: an empty server, an older copy, a foreign history.

A process that has seen a version of a log never goes on without it, and goes on once it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import msgspec
import pyarrow as pa
import pytest

from tidemill.errors import Indeterminate, Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Description, MemoryBlob, MemoryConsensus, Version
from tidemill.shard.claims import Claimant
from tidemill.shard.claims.register import Register
from tidemill.shard.claims.tables import Owners
from tidemill.shard.framing import REGISTER, framed
from tidemill.shard.log import ROLLUP_EVERY, WRITE_ATTEMPTS, CollectionLog, Transition
from tidemill.shard.ports import Expected, Seen
from tidemill.shard.state import State
from tidemill.shard.together import commit_together
from tidemill.testkit.faults.groups import MemoryGroups
from tidemill.time import frontier

FIRST = State(Description(pa.schema([("row", pa.string())])), frontier(0), frontier(0))
NAMES = count()
WRITES_MAX = 20

Logs = dict[str, list[Version]]


class Address(MemoryGroups):
    """A store at an address behind which another one may stand from some moment on."""

    def __init__(self, blob: MemoryBlob | None = None) -> None:
        super().__init__()
        self.blob = blob or MemoryBlob()
        self.writes = 0
        self.unanswered = 0
        self.numbers_alone = False

    def leads_to(self, logs: Logs) -> None:
        self._logs, self.writes = logs, 0

    def copied(self) -> Logs:
        return {name: list(versions) for name, versions in self._logs.items()}

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        self.writes += 1
        assert self.writes <= WRITES_MAX, "it writes the same again and again"
        if self.numbers_alone and isinstance(expected, Seen):
            expected = expected.number
        if self.unanswered:
            self.unanswered -= 1
            raise Indeterminate("the connection broke")
        done = await super().compare_and_set(key, expected, version)
        self.writes = 0 if done else self.writes
        return done

    def opened(self) -> CollectionLog:
        return CollectionLog("c", self, self.blob, ManualClock(), lambda: f"n{next(NAMES)}")


def upper_to(time: int) -> Transition[int]:
    return lambda state: (time, replace(state, upper=frontier(time)))


async def as_an_empty_server(store: Address) -> None:
    store.leads_to({})


async def as_an_older_copy(store: Address) -> None:
    store.leads_to({name: versions[:-2] for name, versions in store.copied().items()})


async def as_an_older_copy_that_went_on(store: Address) -> None:
    """Versions of the same numbers, which another process has written behind the copy."""
    await as_an_older_copy(store)
    other = store.opened()
    for time in range(100, 103):
        await other.commit(upper_to(time))


Loss = Callable[[Address], Awaitable[None]]
LOSSES = [as_an_empty_server, as_an_older_copy, as_an_older_copy_that_went_on]


@pytest.mark.parametrize("lose", LOSSES)
async def test_who_has_seen_a_version_goes_on_only_where_it_is(lose: Loss) -> None:
    store = Address()
    reader, writer = store.opened(), store.opened()
    await writer.create(FIRST)
    for time in (1, 2, 3):
        await writer.commit(upper_to(time))
    assert (await reader.refresh()).state.upper == frontier(3)
    right = store.copied()
    await lose(store)
    for _ in range(2):
        with pytest.raises(Unavailable, match="has lost version 3 of c") as lost:
            await reader.refresh()
        assert lost.value.details["reason"] == "LostVersion"
    wrong = store.copied()
    with pytest.raises(Unavailable, match="has lost version 3 of c"):
        await writer.commit(upper_to(4))
    with pytest.raises(Unavailable, match="has lost version 3 of c"):
        await reader.create(FIRST)
    assert store.copied() == wrong
    store.leads_to(right)
    assert await writer.commit(upper_to(4)) == (4, True)
    assert (await reader.refresh()).state.upper == frontier(4)


async def as_a_copy_that_went_on_as_far(store: Address) -> None:
    """Another version of the very number that was the newest here."""
    await as_an_older_copy(store)
    other = store.opened()
    for time in (100, 101):
        await other.commit(upper_to(time))


@pytest.mark.parametrize("together", [False, True])
async def test_who_stands_at_the_number_of_a_foreign_history_appends_nothing_to_it(
    together: bool,
) -> None:
    """Its version would follow what another history had at the same number."""
    store = Address()
    writer = store.opened()
    await writer.create(FIRST)
    for time in (1, 2, 3):
        await writer.commit(upper_to(time))
    right = store.copied()
    await as_a_copy_that_went_on_as_far(store)
    wrong = store.copied()
    assert wrong["c"][-1].number == right["c"][-1].number  # the loss did happen
    assert wrong["c"][-1] != right["c"][-1]
    if together:
        assert not await commit_together(store, [(writer, upper_to(4))])
    with pytest.raises(Unavailable, match=r"has lost version 3 of c, .*has another version 3"):
        await writer.commit(upper_to(4))
    assert store.copied() == wrong
    store.leads_to(right)
    assert await writer.commit(upper_to(4)) == (4, True)


async def test_by_the_number_alone_it_would_append() -> None:
    """The companion: what the store compares beside the number is what refuses it."""
    store = Address()
    writer = store.opened()
    await writer.create(FIRST)
    for time in (1, 2, 3):
        await writer.commit(upper_to(time))
    await as_a_copy_that_went_on_as_far(store)
    store.numbers_alone = True
    assert await writer.commit(upper_to(4)) == (4, True)


async def test_a_claim_is_not_renewed_in_a_foreign_history() -> None:
    store, clock = Address(), ManualClock()
    one = Claimant(store, "role", clock, lambda: f"s{next(NAMES)}", name="one")
    for _ in range(3):
        await one.renew(["a"])
    mine = store.copied()
    (key,) = [name for name in mine if name.endswith("/owners")]
    register = Register(store, key, Owners())
    number, value = await register.read()
    other = framed(REGISTER, msgspec.msgpack.encode(Owners(7)))
    store.leads_to({**mine, key: [*mine[key][:-1], Version(mine[key][-1].number, other)]})
    before = store.copied()
    assert not await register.replace(number, value)
    with pytest.raises(Unavailable, match="has lost version"):
        await register.read()
    assert store.copied() == before


@pytest.mark.parametrize("lose", LOSSES)
async def test_the_loss_did_happen(lose: Loss) -> None:
    """A process that opens the log then finds none, an older one, or other contents."""
    store = Address()
    writer = store.opened()
    await writer.create(FIRST)
    for time in (1, 2, 3):
        await writer.commit(upper_to(time))
    right = store.copied()["c"]
    await lose(store)
    assert store.copied().get("c", [])[:4] != right


async def test_a_loss_behind_a_write_without_an_answer_is_noticed() -> None:
    store = Address()
    log = store.opened()
    await log.create(FIRST)
    await log.commit(upper_to(1))
    store.unanswered = WRITE_ATTEMPTS
    with pytest.raises(Indeterminate):
        await log.commit(upper_to(2))
    right = store.copied()
    await as_an_empty_server(store)
    for ask in (log.refresh, lambda: log.commit(upper_to(2)), lambda: log.create(FIRST)):
        with pytest.raises(Unavailable, match="has lost version 1 of c"):
            await ask()
    assert store.copied() == {}
    store.leads_to(right)
    assert await log.commit(upper_to(2)) == (2, True)


async def test_a_loss_behind_a_truncation_is_noticed() -> None:
    store = Address()
    reader, writer = store.opened(), store.opened()
    await writer.create(FIRST)
    await reader.refresh()
    for time in range(1, ROLLUP_EVERY + 10):
        await writer.commit(upper_to(time))
    older = store.copied()
    assert (await reader.refresh()).number == ROLLUP_EVERY + 9
    for time in range(ROLLUP_EVERY + 10, 2 * ROLLUP_EVERY + 10):
        await writer.commit(upper_to(time))
    assert (await reader.refresh()).number == 2 * ROLLUP_EVERY + 9
    assert store.copied()["c"][0].number > ROLLUP_EVERY
    store.leads_to(older)
    with pytest.raises(Unavailable, match="has lost version"):
        await reader.refresh()


class Refusing(Address):
    """Says that another write was faster, which is nowhere."""

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        if expected is None:
            return await super().compare_and_set(key, expected, version)
        self.writes += 1
        assert self.writes <= WRITES_MAX, "it writes the same again and again"
        return False


async def test_a_store_that_refuses_and_has_nothing_newer_is_not_asked_for_ever() -> None:
    log = Refusing().opened()
    await log.create(FIRST)
    with pytest.raises(Unavailable, match="nothing that follows it"):
        await log.commit(upper_to(1))


async def test_claims_end_where_their_store_has_lost_them() -> None:
    store, clock = Address(), ManualClock()
    one = Claimant(store, "role", clock, lambda: f"s{next(NAMES)}", name="one")
    for _ in range(3):
        await one.renew(["a"])
    claim = one.held()["a"]
    right = store.copied()
    await as_an_empty_server(store)
    with pytest.raises(Unavailable, match="has lost version"):
        await one.renew(["a"])
    assert store.copied() == {}
    clock.move(one.lease_s)
    assert one.held() == {}
    store.leads_to(right)
    await one.renew(["a"])
    assert one.held()["a"] == claim


async def test_owners_that_are_read_during_a_renewal_are_not_taken_for_lost() -> None:
    store, clock = SlowHeads(), ManualClock()
    one = Claimant(store, "role", clock, lambda: f"s{next(NAMES)}", name="one")
    await one.renew(["a"])
    store.slow = True
    asking = asyncio.create_task(one.owners())
    await store.read.wait()
    store.slow = False
    await one.renew(["a", "b"])
    store.answer.set()
    assert {owned.item for owned in await asking} <= {"a", "b"}
    assert set(one.held()) == {"a", "b"}


class SlowHeads(MemoryConsensus):
    """Reads at once, and answers some reads late."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.read, self.answer = asyncio.Event(), asyncio.Event()

    async def head(self, key: str) -> Version | None:
        found = await super().head(key)
        if self.slow:
            self.read.set()
            await self.answer.wait()
        return found
