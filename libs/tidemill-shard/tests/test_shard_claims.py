"""Claims: every item at one replica, about as many at each, by epochs that only grow."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import Corrupt, Fenced, Indeterminate, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import MemoryConsensus
from tidemill.shard.claims import Claim, Claimant, claimant, end_task, tables, work_claimed
from tidemill.shard.claims.claimant import LEASE_S
from tidemill.shard.claims.tables import Member, Members, Owners, settled, to_claim, to_give_up
from tidemill.shard.claims.working import _Tasks
from tidemill.shard.stores import open_claims, open_consensus
from tidemill.testkit.faults.claims_simulation import ClaimsSimulation
from tidemill.testkit.faults.network import OUTCOMES
from tidemill.testkit.faults.virtual_loop import LoopClock, VirtualLoop

SEEDS = range(12)
SECONDS = 90


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """Counts of events in all runs; a broken promise fails here, with its seed."""
    total: Counter[str] = Counter()
    for seed in SEEDS:
        run = ClaimsSimulation(seed)
        total += run.run(SECONDS)
        assert run.violations == [], f"seed {seed}"
    return total


def test_an_item_is_claimed_by_one_replica_and_done_once_whatever_fails_when(
    happened: Counter[str],
) -> None:
    assert happened["effects"] > 1_000


@pytest.mark.parametrize(
    "name",
    [
        *OUTCOMES, "claimed", "given up", "evicted", "lost", "stopped", "deaths", "pauses past the lease",
        "busy past the lease", "blackouts", "clocks set", "items changed", "effects refused",
    ],
)  # fmt: skip
def test_it_did_happen(name: str, happened: Counter[str]) -> None:
    assert happened[name] > 0


def first_violations(*, fenced: bool = True) -> list[str]:
    """Violations of the first run that breaks a promise."""
    for seed in SEEDS:
        run = ClaimsSimulation(seed, fenced=fenced)
        run.run(SECONDS)
        if run.violations:
            return run.violations
    return []


def test_without_the_fence_a_paused_replica_does_it_twice() -> None:
    found = first_violations(fenced=False)
    assert found
    assert all("happened in place" in each for each in found)


def test_who_counts_on_its_claims_for_too_long_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimant, "HELD_SHARE", 1.5)
    assert any("count on" in each for each in first_violations())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 9), st.randoms(use_true_random=False))
def test_items_spread_evenly_and_then_nothing_moves(
    replicas: int, items: int, order: Random
) -> None:
    wanted = [f"i{number}" for number in range(items)]
    members = Members({f"s{n}": Member(f"n{n}", "", 1000) for n in range(replicas)})
    owners, held = Owners(), {session: dict[str, int]() for session in members.sessions}
    for round_number in itertools.count():
        before = owners
        for session in order.sample(sorted(held), len(held)):
            gained = to_claim(owners, members, wanted, session, held[session])
            owners = settled(owners, members, session, held[session], gained)
            held[session].update({item: owners.items[item].epoch for item in gained})
            for item in to_give_up(owners, members, wanted, session, held[session]):
                owners = tables.given_up(owners, {item: held[session].pop(item)})
        if owners is before:
            break
        assert round_number < 4
    assert sorted(item for mine in held.values() for item in mine) == wanted
    counts = [len(mine) for mine in held.values()]
    assert max(counts) - min(counts) <= 1
    # One replica goes: only what it had moves.
    gone = members.sessions.keys() - {"s0"}
    if gone:
        fewer = tables.without(members, {"s0"})
        for session in sorted(gone):
            assert to_give_up(owners, fewer, wanted, session, held[session]) == []


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5), st.integers(0, 6), st.lists(st.integers(2, 6), max_size=3),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_shares_of_one_work_spread_evenly_whatever_else_there_is(
    replicas: int, items: int, works: list[int], order: Random
) -> None:
    kinds = [[f"i{number}" for number in range(items)]]
    kinds += [[f"w{at}#{number}" for number in range(count)] for at, count in enumerate(works)]
    wanted = [item for kind in kinds for item in kind]
    order.shuffle(wanted)
    members = Members({f"s{n}": Member(f"n{n}", "", 1000) for n in range(replicas)})
    owners, held = Owners(), {session: dict[str, int]() for session in members.sessions}
    for round_number in itertools.count():
        before = owners
        for session in order.sample(sorted(held), len(held)):
            gained = to_claim(owners, members, wanted, session, held[session])
            owners = settled(owners, members, session, held[session], gained)
            held[session].update({item: owners.items[item].epoch for item in gained})
            for item in to_give_up(owners, members, wanted, session, held[session]):
                owners = tables.given_up(owners, {item: held[session].pop(item)})
        if owners is before:
            break
        assert round_number < 4
    for kind in kinds:
        counts = [sum(item in mine for item in kind) for mine in held.values()]
        assert sum(counts) == len(kind)
        assert max(counts) - min(counts) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=20))
def test_epochs_of_an_item_only_grow_also_when_it_was_forgotten(
    steps: list[tuple[int, int, bool]],
) -> None:
    members = Members({f"s{n}": Member(f"n{n}", "", 1000) for n in range(3)})
    owners, seen = Owners(), dict[str, int]()
    for session, number, taken in steps:
        item = f"i{number}"
        if not taken:
            owners = tables.given_up(owners, {item: tables.epoch_of(owners, item) or 0})
            continue
        held = {i: o.epoch for i, o in owners.items.items() if o.session == f"s{session}"}
        owners = settled(owners, members, f"s{session}", held, [item])
        assert owners.items[item].epoch > max(seen.values(), default=0)
        seen[item] = owners.items[item].epoch


class World:
    """Replicas on one store, in virtual time and without faults."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(Random(1))
        self.clock = LoopClock(self.loop, 0)
        self.consensus = MemoryConsensus()
        self._numbers = itertools.count()

    def claimant(self, name: str, **options: Any) -> Claimant:
        return Claimant(
            self.consensus, "role", self.clock, lambda: f"s{next(self._numbers)}",
            name=name, details=f"{name}:7070", **options,
        )  # fmt: skip


@pytest.fixture
def world() -> Iterable[World]:
    world = World()
    yield world
    world.loop.close()


def test_who_falls_silent_is_fenced_and_comes_back_by_another_epoch(world: World) -> None:
    async def story() -> None:
        one, two = world.claimant("one"), world.claimant("two")
        await one.renew(["a"])
        claim = one.held()["a"]
        await one.confirm(claim)
        await two.renew(["a"])
        assert two.held() == {}
        assert [(o.item, o.name, o.details) for o in await two.owners()] == [("a", "one", "one:7070")]  # fmt: skip
        await world.clock.sleep(0.9 * one.lease_s)
        with pytest.raises(Fenced):
            one.check(claim)
        await two.renew(["a"])
        assert two.held() == {}  # not yet: one may have been heard a little later by others
        await world.clock.sleep(0.2 * one.lease_s)
        await two.renew(["a"])
        assert two.held()["a"].epoch > claim.epoch
        assert await one.renew(["a"]) == []
        assert one.held() == {}
        with pytest.raises(Fenced):
            await one.confirm(claim)
        assert (one.happened["lost"], two.happened["evicted"]) == (1, 1)
        assert (one.happened["lapsed"], two.happened["taken over"]) == (1, 1)
        assert two.silence_s == pytest.approx(1.1 * one.lease_s)

    world.loop.run_until_complete(story())


def test_a_session_that_is_known_to_be_dead_is_not_waited_for_and_the_others_are(
    world: World,
) -> None:
    async def story() -> None:
        noted: list[str] = []
        killed, slow = world.claimant("one", noted=noted.append), world.claimant("two")
        await killed.renew(["a", "b"])
        await slow.renew(["a", "b"])
        await killed.give_up(await killed.renew(["a", "b"]))
        await slow.renew(["a", "b"])
        assert noted == ["s0"]
        again = world.claimant("one", dead=frozenset(noted))
        await again.renew(["a", "b"])
        assert set(again.held()) | set(slow.held()) == {"a", "b"}
        assert len(slow.held()) == 1, "a session was ended that nobody knows to be dead"
        assert again.happened["evicted"] == 1

    world.loop.run_until_complete(story())


def test_who_leaves_hands_over_at_once(world: World) -> None:
    async def story() -> None:
        one, two = world.claimant("one"), world.claimant("two")
        await one.renew(["a", "b"])
        await two.renew(["a", "b"])
        (surplus,) = await one.renew(["a", "b"])
        await one.give_up([surplus])
        await two.renew(["a", "b"])
        assert set(two.held()) == {surplus.item}
        await one.leave()
        await two.renew(["a", "b"])
        assert set(two.held()) == {"a", "b"}
        assert two.happened["taken over"] == 0
        assert await two.renew(["b"]) == [two.held()["a"]]

    world.loop.run_until_complete(story())


def test_what_became_of_a_lost_call_is_settled_by_the_next_renewal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose_answer(*_: object) -> bool:
        raise Indeterminate("no answer came in time")

    async def story() -> None:
        one, two = world.claimant("one"), world.claimant("two")
        await one.renew(["a", "b"])
        epochs = {claim.epoch for claim in one.held().values()}
        await two.renew(["a", "b"])
        (surplus,) = await one.renew(["a", "b"])
        with monkeypatch.context() as patch:
            patch.setattr(world.consensus, "compare_and_set", lose_answer)
            with pytest.raises(Indeterminate):
                await one.give_up([surplus])
        assert set(one.held()) == {"a", "b"} - {surplus.item}
        await one.renew(["a", "b"])  # it has its share, and what it let go is free now
        await two.renew(["a", "b"])
        assert set(two.held()) == {surplus.item}
        # A lost call that had its effect: the item is had by nobody until it is claimed anew.
        await two.leave()
        done = world.consensus.compare_and_set

        async def untold(key: str, *rest: Any) -> bool:
            answer = await done(key, *rest)
            if key == "role/owners":
                raise Indeterminate("no answer came in time")
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(world.consensus, "compare_and_set", untold)
            with pytest.raises(Indeterminate):
                await one.renew(["a", "b"])
        assert surplus.item not in one.held()
        (had,) = [owned for owned in await one.owners() if owned.item == surplus.item]
        await one.renew(["a", "b"])
        assert one.held()[surplus.item].epoch > had.epoch > max(epochs)

    world.loop.run_until_complete(story())


def test_work_begins_with_a_claim_and_ends_before_another_begins(world: World) -> None:
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def work(claim: Claim) -> None:
        busy[claim.item] += 1
        most[claim.item] = max(most[claim.item], busy[claim.item])
        try:
            await asyncio.Event().wait()
        finally:
            await world.clock.sleep(1)
            busy[claim.item] -= 1

    async def list_items() -> list[str]:
        return ["a", "b", "c"]

    async def story() -> None:
        first = world.loop.create_task(
            work_claimed(world.claimant("one"), list_items, work, world.clock)
        )
        await world.clock.sleep(5)
        assert busy == {"a": 1, "b": 1, "c": 1}
        second = world.loop.create_task(
            work_claimed(world.claimant("two"), list_items, work, world.clock)
        )
        await world.clock.sleep(20)
        assert busy == {"a": 1, "b": 1, "c": 1}
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await world.clock.sleep(5)
        assert busy == {"a": 1, "b": 1, "c": 1}
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert busy == {"a": 0, "b": 0, "c": 0}
        assert most == {"a": 1, "b": 1, "c": 1}

    world.loop.run_until_complete(story())


async def test_work_begins_again_when_its_claim_lapsed_and_is_confirmed_as_it_was() -> None:
    """A process that stood still finds its lease over, and its session alive: nobody has
    noticed.
    """
    claim = Claim("role", "a", 7)
    held = {"a": claim}

    class Holder:
        lease_s = 4.0

        def held(self) -> dict[str, Claim]:
            return dict(held)

    begun = 0

    async def work(claim: Claim) -> None:
        nonlocal begun
        begun += 1
        await asyncio.get_running_loop().create_future()

    tasks = _Tasks(Holder(), work, ManualClock())  # type: ignore[arg-type]  # all of a claimant that is asked for
    tasks.begin()
    await asyncio.sleep(0)
    held.clear()
    tasks.stop_lost()
    await asyncio.sleep(0)
    held["a"] = claim
    tasks.begin()
    await asyncio.sleep(0)
    assert begun == 2
    # A claim that is to be given up does not begin again before it is.
    tasks.stop([claim])
    await asyncio.sleep(0)
    tasks.begin()
    await asyncio.sleep(0)
    assert begun == 2
    assert tasks.stop([claim]) == [claim]
    await tasks.end()


def test_work_that_forgets_a_cancellation_is_cancelled_again(world: World) -> None:
    """Before Python 3.12 `asyncio.wait_for` forgets it: the replica would keep an item to give
    up.
    """
    forgotten: list[str] = []
    busy: Counter[str] = Counter()

    def replica(name: str) -> asyncio.Task[None]:
        async def work(claim: Claim) -> None:
            busy[name] += 1
            try:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    forgotten.append(name)
                await asyncio.get_running_loop().create_future()
            finally:
                busy[name] -= 1

        return world.loop.create_task(
            work_claimed(world.claimant(name), list_items, work, world.clock), name=name
        )

    async def list_items() -> list[str]:
        return ["a", "b"]

    async def story() -> None:
        one = replica("one")
        await world.clock.sleep(5)
        assert busy == {"one": 2}
        two = replica("two")
        await world.clock.sleep(60)
        assert forgotten == ["one"]
        assert busy == {"one": 1, "two": 1}
        one.cancel()
        two.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        assert sorted(forgotten) == ["one", "one", "two"]
        assert busy == {"one": 0, "two": 0}

    world.loop.run_until_complete(story())


async def test_who_ends_work_waits_until_it_has_ended_also_when_cancelled() -> None:
    clearing, cleared = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            clearing.set()
            await cleared.wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_task(task, ManualClock()))
    await clearing.wait()
    ending.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not ending.done()
    cleared.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.cancelled()


def test_an_error_of_the_work_ends_it_all_and_a_lost_claim_does_not(world: World) -> None:
    async def work(claim: Claim) -> None:
        if claim.item == "fenced":
            raise Fenced("somebody else has it")
        await world.clock.sleep(30)
        raise Corrupt("a byte is wrong")

    async def list_items() -> list[str]:
        return ["fenced", "wrong"]

    async def story() -> None:
        one = world.claimant("one")
        with pytest.raises(Corrupt):
            await work_claimed(one, list_items, work, world.clock)
        assert world.clock.monotonic_s() >= 30
        assert await one.owners() == ()

    world.loop.run_until_complete(story())


def test_sessions_that_count_shares_otherwise_leave_no_item_without_an_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two versions at once, one deals out each work's shares and one all items together."""
    beyond = sum(_mixed(seed, monkeypatch) for seed in range(40))
    assert beyond > 5  # so many fleets had items that nobody's share has


def _mixed(seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether an item is claimed beyond a share in a fleet in which nothing moves in the end."""
    order, world = Random(seed), World()
    count = order.randrange(2, 5)
    each = [world.claimant(f"n{n}") for n in range(count)]
    older = order.randrange(1, count)
    wanted = [f"i{n}" for n in range(order.randrange(7))]
    wanted += [f"w{w}#{n}" for w in range(order.randrange(4)) for n in range(order.randrange(2, 6))]

    async def renew() -> None:
        await asyncio.sleep(LEASE_S / 4)
        for at in order.sample(range(count), count):
            with monkeypatch.context() as patched:
                if at < older:
                    patched.setattr(tables, "_whole_of", lambda item: "")
                await each[at].give_up(await each[at].renew(wanted))

    async def story() -> bool:
        for _ in range(60):
            await renew()
        before = [claimant.held() for claimant in each]
        assert sorted(item for mine in before for item in mine) == sorted(wanted)
        for _ in range(10):
            await renew()
        assert [claimant.held() for claimant in each] == before
        return any(claimant._beside for claimant in each)

    found = world.loop.run_until_complete(story())
    world.loop.close()
    return found


async def test_claims_stand_beside_the_collections_and_not_among_them(tmp_path: Path) -> None:
    beside = open_consensus(f"sqlite:{tmp_path}/state")
    claims = open_claims(f"sqlite:{tmp_path}/state")
    one = Claimant(claims, "role", ManualClock(), lambda: "s", name="one")
    for _ in range(150):
        await one.renew(["a"])
    assert list(await claims.keys()) == ["role/members", "role/owners"]
    assert len(await claims.scan("role/members", 0)) <= 64
    assert list(await beside.keys()) == []
    await claims.close()
    await beside.close()


def test_a_wrong_byte_in_what_a_group_keeps_is_corrupt(world: World) -> None:
    async def story() -> None:
        await world.claimant("one").renew(["a"])
        for key in ("role/members", "role/owners"):
            good = await world.consensus.head(key)
            assert good is not None
            for place in range(len(good.data)):
                wrong = bytearray(good.data)
                wrong[place] ^= 1 << place % 8
                world.consensus._logs[key][-1] = good._replace(data=bytes(wrong))
                with pytest.raises(Corrupt):
                    await world.claimant("two").renew(["a"])
            world.consensus._logs[key][-1] = good
        assert [owned.item for owned in await world.claimant("two").owners()] == ["a"]

    world.loop.run_until_complete(story())


def test_a_group_needs_a_name_and_a_lease(world: World) -> None:
    with pytest.raises(UsageError):
        world.claimant("one", lease_s=0)
