"""Replicas that claim work under one virtual clock and one seed, and a place where their effects
happen.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from random import Random  # noqa: TID251  seeded, so that a failure repeats
from typing import TypeVar

from tidemill.errors import Fenced
from tidemill.shard import MemoryConsensus
from tidemill.shard.claims import Claim, KeptClaimant
from tidemill.testkit.faults.claims_replica import LEASE_S, Replica, begin_replica
from tidemill.testkit.faults.network import Network, RemoteConsensus
from tidemill.testkit.faults.virtual_loop import LoopClock, VirtualLoop

T = TypeVar("T")

REPLICAS = 4
ITEMS = tuple(f"item {number}" for number in range(7))
BUSY_SHARE = 0.4
"""Of all pauses: the work alone stands still, and signs of life go on."""
RECOVERED_S_MAX = 60.0
"""Without faults everything is worked on again after so long: an old request may still arrive until
then.
"""


class Sink:
    """Effects of each item, by number, as they happened.

    Only a fence guards it: nobody is asked twice.
    """

    def __init__(self, happened: Counter[str], *, fenced: bool) -> None:
        self.effects: dict[str, list[int]] = defaultdict(list)
        self._epochs: dict[str, int] = {}
        self._happened = happened
        self._fenced = fenced

    def open(self, claim: Claim) -> int:
        """The last number that has happened; smaller epochs have no effect from now on."""
        self._admit(claim)
        return max(self.effects[claim.item], default=0)

    def do(self, claim: Claim, number: int) -> None:
        """The effect of this number happens."""
        self._admit(claim)
        self.effects[claim.item].append(number)
        self._happened["effects"] += 1

    def _admit(self, claim: Claim) -> None:
        known = self._epochs.get(claim.item, 0)
        if claim.epoch < known:
            self._happened["effects refused"] += 1
            if self._fenced:
                raise Fenced("a later epoch was here", item=claim.item, epoch=claim.epoch)
        self._epochs[claim.item] = max(known, claim.epoch)


class ClaimsSimulation:
    """One run; everything follows from the seed.

    `fenced` False takes the fence away, to show its worth.

    Replicas die, pause and are busy at any step, and their wall clocks are set. Consensus has all
    outcomes of `network` and is away for a while. Items come and go.
    """

    def __init__(self, seed: int, *, fenced: bool = True) -> None:
        self.random = Random(seed)
        self.loop = VirtualLoop(self.random)
        self.happened: Counter[str] = Counter()
        self.violations: list[str] = []
        self.network = Network(self.loop, self.random, share=0.06, delay_s=0.1)
        self.sink = Sink(self.happened, fenced=fenced)
        self._consensus = MemoryConsensus()
        self._clock = LoopClock(self.loop, 0)
        self._wanted = set(ITEMS)
        self._living: dict[str, Replica] = {}
        self._dead: list[Replica] = []
        self._epochs: dict[str, int] = {}

    def run(self, seconds: float) -> Counter[str]:
        """Run virtual `seconds` with faults, then some without; counts of events, by name.

        Broken promises are in `violations`.
        """
        try:
            self.loop.run_until_complete(self._run(seconds))
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()
        for item, numbers in self.sink.effects.items():
            for at, number in enumerate(numbers, 1):
                if number != at:
                    self.violations.append(f"effect {number} of {item} happened in place {at}")
                    break
        return self.happened + self.network.happened

    async def _run(self, seconds: float) -> None:
        for number in range(REPLICAS):
            self._begin(f"replica {number}")
        watching = asyncio.ensure_future(self._watch())
        troubles = [
            asyncio.ensure_future(trouble())
            for trouble in (self._kill, self._stop, self._darken, self._set_clocks, self._want)
        ]
        await self._clock.sleep(seconds)
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        self.network.dark, self.network.share = False, 0.0
        for name, replica in list(self._living.items()):
            for process in replica.processes:
                process.stops_at = process.dies_at = None
            replica.go_on(self.loop)
            if replica.dead:
                replica.kill()
                self._dead.append(replica)
                self._begin(name)
        await self._clock.sleep(RECOVERED_S_MAX)
        watching.cancel()
        self._check_recovered()

    def _begin(self, name: str) -> None:
        consensus = RemoteConsensus(self._consensus, self.network)
        replica = begin_replica(self.loop, self.random, name, consensus, self._ask, self._work)
        replica.main.add_done_callback(lambda ended: self._ended(name, ended))
        self._living[name] = replica

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.violations.append(f"{name} met {task.exception()!r}")

    async def _ask(self) -> Iterable[str]:
        return sorted(self._wanted)

    async def _work(self, claimant: KeptClaimant, claim: Claim) -> None:
        """One effect after the other, each on its way for a while; stopping takes a while, too."""
        if claim.epoch < self._epochs.get(claim.item, 0):
            self.happened["begun too late"] += 1
        self._epochs[claim.item] = max(claim.epoch, self._epochs.get(claim.item, 0))
        try:
            number = await self._send(lambda: self.sink.open(claim))
            while True:
                claimant.check(claim)
                number += 1
                # Between any look at a claim and the effect there is room to stand still.
                await self._clock.sleep(self.random.random())
                await self._send(lambda: self.sink.do(claim, number))  # noqa: B023  awaited here
        except asyncio.CancelledError:
            self.happened["stopped"] += 1
            await self._clock.sleep(self.random.random())
            raise

    async def _send(self, effect: Callable[[], T]) -> T:
        """Send a request to the sink: it arrives once, later, also if the sender dies."""

        async def arrives() -> T:
            await self._clock.sleep(self.random.random())
            return effect()

        served = self.loop.serve(arrives())
        served.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(served)

    async def _watch(self) -> None:
        """At no instant do two replicas count on one item, those that stand still included."""
        while True:
            holders: dict[str, list[str]] = defaultdict(list)
            for name, replica in self._living.items():
                for item in () if replica.dead else replica.claimant.held():
                    holders[item].append(name)
            for item, names in holders.items():
                if len(names) > 1:
                    self.violations.append(f"{names} count on {item} at {self.loop.time():.1f}")
            await self._clock.sleep(0.05)

    def _check_recovered(self) -> None:
        claimants = [replica.claimant for replica in self._living.values()]
        held = [len(claimant.held()) for claimant in claimants]
        if sum(held) != len(self._wanted) or max(held) - min(held) > 1:
            self.violations.append(f"of {len(self._wanted)} items {held} are held in the end")
        for claimant in claimants:
            for name, count in claimant.happened.items():
                self.happened[name] += count

    async def _kill(self) -> None:
        """A replica dies at one of its next steps; another one of its name begins."""
        while True:
            await self._clock.sleep(self.random.random() * 20)
            name = self.random.choice(sorted(self._living))
            replica = self._living[name]
            process = self.random.choice(replica.processes)
            process.dies_at = process.steps + self.random.randrange(1, 30)
            while not replica.dead:
                await self._clock.sleep(0.2)
            replica.kill()
            self.happened["deaths"] += 1
            self._dead.append(replica)
            await self._clock.sleep(self.random.random() * 10)
            self._begin(name)

    async def _stop(self) -> None:
        """A replica stands still or is busy, often past its lease, and goes on as if nothing had
        been.
        """
        while True:
            await self._clock.sleep(self.random.random() * 10)
            replica = self._living[self.random.choice(sorted(self._living))]
            busy = self.random.random() < BUSY_SHARE
            pause_s = self.random.choice((1.0, LEASE_S, 3 * LEASE_S))
            process = replica.work if busy else self.random.choice(replica.processes)
            process.stops_at = process.steps + self.random.randrange(1, 30)
            while not process.stopped:
                await self._clock.sleep(0.1)
            if not busy:
                replica.stand_still()
            self.happened[f"{'busy' if busy else 'pauses'} past the lease"] += pause_s > LEASE_S
            await self._clock.sleep(pause_s)
            replica.go_on(self.loop)

    async def _darken(self) -> None:
        """Consensus does not answer for a while, sometimes for longer than a lease."""
        while True:
            await self._clock.sleep(20 + self.random.random() * 40)
            self.network.dark = True
            self.happened["blackouts"] += 1
            await self._clock.sleep(self.random.random() * 2 * LEASE_S)
            self.network.dark = False

    async def _set_clocks(self) -> None:
        """Wall clocks jump, by hours and back: no claim may notice."""
        while True:
            await self._clock.sleep(self.random.random() * 10)
            name = self.random.choice(sorted(self._living))
            self._living[name].clock.skew_ms = self.random.randrange(-(10**7), 10**7)
            self.happened["clocks set"] += 1

    async def _want(self) -> None:
        """Items come and go."""
        while True:
            await self._clock.sleep(self.random.random() * 20)
            self._wanted ^= {self.random.choice(ITEMS)}
            self.happened["items changed"] += 1

    async def _end(self) -> None:
        for replica in [*self._dead, *self._living.values()]:
            # The keeper of claims comes first: from then on it gives the last answer that the work
            # asks for.
            for process in reversed(replica.processes):
                await self.loop.bury(process)
        await self.loop.end_all()
