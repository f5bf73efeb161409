"""Claims beside busy work: kept while it is busy, lost when its process stands still or its work is
stuck.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from tidemill.runtime.ids import random_id
from tidemill.shard import Consensus, MemoryConsensus, Version
from tidemill.shard.claims import Claim, Claimant, Keeper, KeptClaimant, work_claimed
from tidemill.shard.claims.keeping import PATIENCE_S
from tidemill.shard.ports import Expected
from tidemill.testkit.faults.claims_replica import LEASE_S, Replica, begin_replica
from tidemill.testkit.faults.network import Network, RemoteConsensus
from tidemill.testkit.faults.virtual_loop import VirtualLoop

SEEDS = range(10)
NOTICED_S = LEASE_S / 4 + 2.0
"""Others look four times a lease, and what they ask takes a while to arrive."""


class Story:
    """One replica with an item, and a second one that would take it."""

    def __init__(self, seed: int, *, kept: bool) -> None:
        self.random = Random(seed)
        self.loop = VirtualLoop(self.random)
        network = Network(self.loop, self.random, share=0.0, delay_s=0.1)
        consensus = RemoteConsensus(MemoryConsensus(), network)

        def begin(name: str) -> Replica:
            return begin_replica(
                self.loop, self.random, name, consensus, self._list_items, self._work, kept=kept
            )

        self.owner, self._begin_other = begin("owner"), lambda: begin("other")
        self.other: Replica | None = None

    async def _list_items(self) -> list[str]:
        return ["a"]

    async def _work(self, claimant: KeptClaimant, claim: Claim) -> None:
        while True:
            claimant.check(claim)
            await asyncio.sleep(0.05)

    def told(self, stop: Callable[[Replica], None], seconds: float) -> tuple[Claim | None, float]:
        """The owner's claim after it was stopped for so long, and the seconds without another
        owner.
        """
        try:
            return self.loop.run_until_complete(self._tell(stop, seconds))
        finally:
            self.loop.close()

    async def _tell(
        self, stop: Callable[[Replica], None], seconds: float
    ) -> tuple[Claim | None, float]:
        while "a" not in self.owner.claimant.held():
            await asyncio.sleep(0.1)
        self.other = self._begin_other()
        await asyncio.sleep(LEASE_S * (1 + self.random.random()))
        work = self.owner.work
        work.stops_at = work.steps + self.random.randrange(1, 30)
        while not work.stopped:
            await asyncio.sleep(0.01)
        stop(self.owner)
        since_s = self.loop.time()
        while self.loop.time() - since_s < seconds and "a" not in self.other.claimant.held():
            await asyncio.sleep(0.01)
        alone_s = self.loop.time() - since_s
        held = self.owner.claimant.held().get("a")
        both = held is not None and "a" in self.other.claimant.held()
        assert not both, f"two have it {alone_s:.1f} s later"
        await self._end()
        return held, alone_s

    async def _end(self) -> None:
        for replica in (self.owner, self.other):
            assert replica is not None
            for process in reversed(replica.processes):
                await self.loop.bury(process)
        await self.loop.end_all()


def busy(_: Replica) -> None:
    """The work stands still; what is beside it goes on."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_busy_owner_keeps_what_it_has_claimed(seed: int) -> None:
    held, alone_s = Story(seed, kept=True).told(busy, 10 * LEASE_S)
    assert held is not None
    assert alone_s >= 10 * LEASE_S


@pytest.mark.parametrize("seed", SEEDS)
def test_a_busy_owner_that_renews_on_the_loop_of_its_work_loses_it(seed: int) -> None:
    held, alone_s = Story(seed, kept=False).told(busy, 10 * LEASE_S)
    assert held is None
    assert alone_s <= LEASE_S + NOTICED_S


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stop", [Replica.stand_still, Replica.kill])
def test_an_owner_that_stands_still_or_is_dead_loses_it_within_the_lease(
    stop: Callable[[Replica], None], seed: int
) -> None:
    held, alone_s = Story(seed, kept=True).told(stop, 10 * LEASE_S)
    assert held is None
    assert alone_s <= LEASE_S + NOTICED_S


def test_work_that_is_stuck_for_good_loses_it_too() -> None:
    held, alone_s = Story(1, kept=True).told(busy, 10 * PATIENCE_S)
    assert held is None
    assert PATIENCE_S / 2 < alone_s <= PATIENCE_S + LEASE_S + NOTICED_S


LOOKED_LEASES = 2.0
REAL_LEASE_S = 2.0
TICK_S = 0.01


class TimeOfThreads:
    """A clock that goes no faster than the threads of this process: a machine that stands still
    ends no lease.
    """

    def __init__(self) -> None:
        self._ticks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick)
        self._thread.start()

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            self._ticks += 1

    def now_ms(self) -> int:
        return int(1000 * self.monotonic_s())

    def monotonic_s(self) -> float:
        return self._ticks * TICK_S

    async def sleep(self, seconds: float) -> None:
        end_s = self.monotonic_s() + seconds
        while self.monotonic_s() < end_s:
            await asyncio.sleep(TICK_S)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class OfTwoThreads(MemoryConsensus):
    """A Consensus for event loops of two threads, which never waits for a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        with self._lock:
            return await super().compare_and_set(key, expected, version)


@pytest.fixture
def clock() -> Iterator[TimeOfThreads]:
    clock = TimeOfThreads()
    yield clock
    clock.end()


async def _list_items() -> list[str]:
    return ["a"]


async def _epoch_that_another_gets(clock: TimeOfThreads, consensus: Consensus) -> int | None:
    """The epoch that a second replica claims after looking for some leases; None without one."""
    other = Claimant(consensus, "role", clock, random_id, name="other", lease_s=REAL_LEASE_S)
    began_s = clock.monotonic_s()
    while clock.monotonic_s() - began_s < LOOKED_LEASES * REAL_LEASE_S and not other.held():
        await other.renew(["a"])
        await clock.sleep(REAL_LEASE_S / 10)
    epoch = next((claim.epoch for claim in other.held().values()), None)
    await other.leave()
    return epoch


async def _live_through_a_busy_loop(clock: TimeOfThreads, *, kept: bool) -> tuple[int, int | None]:
    """Block this event loop while another replica looks: the epoch before, and the one that it
    got.
    """
    consensus = OfTwoThreads()
    plain = Claimant(consensus, "role", clock, random_id, name="busy", lease_s=REAL_LEASE_S)
    keeper = Keeper(clock)
    owner = keeper.kept(plain) if kept else plain
    begun = asyncio.Event()

    async def work(_: Claim) -> None:
        begun.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(work_claimed(owner, _list_items, work, clock))
    await begun.wait()
    before = owner.held()["a"].epoch
    with ThreadPoolExecutor(1) as another:
        # Nobody runs on this event loop meanwhile.
        looked = another.submit(lambda: asyncio.run(_epoch_that_another_gets(clock, consensus)))
        after = looked.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await keeper.close(consensus.close)
    return before, after


async def test_a_thread_keeps_the_claims_of_an_event_loop_that_is_blocked(
    clock: TimeOfThreads,
) -> None:
    _, after = await _live_through_a_busy_loop(clock, kept=True)
    assert after is None


async def test_without_the_thread_they_are_taken_over(clock: TimeOfThreads) -> None:
    before, after = await _live_through_a_busy_loop(clock, kept=False)
    assert after is not None
    assert after > before
