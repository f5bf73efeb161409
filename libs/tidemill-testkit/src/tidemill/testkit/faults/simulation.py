"""Many processes on one store under one virtual clock and one seed, with auditors that see
everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random  # noqa: TID251  seeded, so that a failure repeats

from tidemill.shard import Collections, Description, Limits
from tidemill.shard.fsck import StoreCheck
from tidemill.testkit.faults.actors import (
    LEASE_MS,
    LEDGER,
    ROWS,
    TABLE,
    VIEW,
    Actor,
    Compactor,
    Founder,
    LedgerWriter,
    Reader,
    Replica,
    Stage,
    Subscriber,
    TableWriter,
)
from tidemill.testkit.faults.auditors import Audit, AuditedBlob, AuditedConsensus, rows_of
from tidemill.testkit.faults.network import Network, RemoteBlob, RemoteConsensus
from tidemill.testkit.faults.virtual_loop import LoopClock, Process, VirtualLoop

START_MS = 1_000_000
REAP_AGE_MS = 15_000
"""Shorter than many a pause: what was under way meanwhile must notice."""
SKEW_MS = 4_000
"""Wall clocks of processes are up to so much off."""
LATE_S_MAX = 200.0
"""The last request that somebody gave up has arrived by then."""
LIMITS = Limits(inline_bytes_max=500, part_bytes_max=4_000, cache_bytes_max=20_000, listed_parts=1)


class Violation(AssertionError):
    """A promise was broken; the message names the seed, which repeats it."""


class Simulation:
    """One run. Everything that happens follows from the seed.

    Processes die at any of their steps, pause for longer than their leases, and have clocks that
    are seconds off. Calls have all outcomes of `network`. Sometimes no store answers, or slowly.
    """

    def __init__(self, seed: int, *, share: float = 0.06, delay_s: float = 0.3) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = VirtualLoop(self.random)
        self.clock = LoopClock(self.loop, START_MS)
        self.network = Network(self.loop, self.random, share=share, delay_s=delay_s)
        self.happened: Counter[str] = Counter()
        self._usual = share, delay_s
        self._consensus = AuditedConsensus()
        self._blob = AuditedBlob(self.clock.now_ms)
        self.audit = Audit(self._consensus, self._blob, self.clock)
        self._consensus.audit = self._blob.audit = self.audit
        self._actors: dict[str, Actor] = {}
        self._living: dict[str, tuple[Process, LoopClock]] = {}
        self._dead: list[Process] = []

    def run(self, seconds: float, *, to_first: bool = False) -> Counter[str]:
        """Run virtual `seconds`; counts of events, by name. Raises: Violation.

        With `to_first`, the run ends within a virtual second of the first violation.
        """
        try:
            self.loop.run_until_complete(self._run(seconds, to_first))
        except Exception as error:
            raise Violation(f"seed {self.seed}: {type(error).__name__}: {error}") from error
        finally:
            self.loop.run_until_complete(self._end_all())
            self.loop.close()
        if self.audit.violations:
            first = "\n  ".join(self.audit.violations[:5])
            raise Violation(f"seed {self.seed}: {len(self.audit.violations)} violations\n  {first}")
        return self.happened + self.network.happened + self.audit.checked

    async def _run(self, seconds: float, to_first: bool) -> None:
        await self._prepare()
        for name in self._actors:
            self._begin(name)
        nemesis = [
            asyncio.ensure_future(trouble())
            for trouble in (self._kill, self._stop, self._darken, self._slow, self._skew)
        ]
        if to_first:
            await self._await_violation(seconds)
        else:
            await self.clock.sleep(seconds)
        for trouble in nemesis:
            trouble.cancel()
        await asyncio.gather(*nemesis, return_exceptions=True)
        if to_first and self.audit.violations:
            return
        await self._settle()
        await self._close_books()

    async def _await_violation(self, seconds: float) -> None:
        """Wait until `seconds` are over, or an auditor has found a violation."""
        end_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < end_s and not self.audit.violations:
            await self.clock.sleep(1.0)

    async def _prepare(self) -> None:
        world = self._opened(None)
        keyed = Description(ROWS, key=("id",), retain_ms=200)
        await world.create(LEDGER, keyed, lease_ms=None)
        await world.create(TABLE, Description(ROWS, user_writable=True), lease_ms=LEASE_MS)
        _, shared = await world.create(VIEW, Description(ROWS, user_writable=True), lease_ms=None)
        assert shared is not None
        stage = Stage(self.random, self.audit, self.happened)
        self._actors = {
            "ledger one": LedgerWriter(stage, "one"),
            "ledger two": LedgerWriter(stage, "two"),
            "table one": TableWriter(stage),
            "table two": TableWriter(stage),
            "replica one": Replica(stage, shared),
            "replica two": Replica(stage, shared),
            "ledger reader": Reader(stage, LEDGER),
            "table reader": Reader(stage, TABLE),
            "view reader": Reader(stage, VIEW),
            "ledger follower": Subscriber(stage, LEDGER),
            "table follower": Subscriber(stage, TABLE),
            "compactor": Compactor(stage, REAP_AGE_MS),
            "founder": Founder(stage, self._unique),
        }

    def _unique(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def _opened(self, clock: LoopClock | None) -> Collections:
        """The collections as a process with this clock uses them, or as they are."""
        return Collections(
            self._consensus if clock is None else RemoteConsensus(self._consensus, self.network),
            self._blob if clock is None else RemoteBlob(self._blob, self.network),
            clock or self.clock,
            self._unique,
            poll_interval_s=2.0,
            limits=LIMITS,
        )

    def _begin(self, name: str) -> None:
        """A new life of a process."""
        process = Process(name)
        clock = LoopClock(self.loop, START_MS, self.random.randrange(-SKEW_MS, SKEW_MS))
        task = self.loop.begin(process, self._actors[name].run(self._opened(clock), clock))
        task.add_done_callback(lambda ended: self._ended(name, ended))
        self._living[name] = process, clock

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """Nothing ends a process but its death."""
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            self.audit.found(f"{name} met what it did not expect: {type(error).__name__}: {error}")

    async def _kill(self) -> None:
        """Processes die just before one of their next steps, wherever that is, and begin again."""
        while True:
            await self.clock.sleep(self.random.random() * 2)
            name = self.random.choice(sorted(self._living))
            process = self._living[name][0]
            process.dies_at = process.steps + self.random.randrange(1, 30)
            while not process.dead:
                await self.clock.sleep(0.2)
                if process.stopped and not process.dead:
                    process.kill()
            self.happened["crashes"] += 1
            self._dead.append(process)
            await self.clock.sleep(self.random.random())
            self._begin(name)

    async def _stop(self) -> None:
        """Processes stand still, some for longer than their leases, and go on as if nothing had
        been.
        """
        while True:
            await self.clock.sleep(self.random.random() * 8)
            process = self._living[self.random.choice(sorted(self._living))][0]
            pause_s = self.random.choice((1.0, 5.0, 2.0 * LEASE_MS / 1000))
            process.stops_at = process.steps + self.random.randrange(1, 30)
            while not process.stopped:
                await self.clock.sleep(0.1)
            self.happened["pauses"] += 1
            self.happened["pauses past the lease"] += pause_s * 1000 > LEASE_MS
            await self.clock.sleep(pause_s)
            self.loop.resume(process)

    async def _darken(self) -> None:
        """Nothing answers for a while."""
        while True:
            await self.clock.sleep(10 + self.random.random() * 40)
            self.network.dark = True
            self.happened["blackouts"] += 1
            await self.clock.sleep(self.random.random() * 10)
            self.network.dark = False

    async def _slow(self) -> None:
        """Everything takes seconds for a while."""
        while True:
            await self.clock.sleep(10 + self.random.random() * 40)
            self.network.delay_s = 4.0
            self.happened["slow spells"] += 1
            await self.clock.sleep(self.random.random() * 10)
            self.network.delay_s = self._usual[1]

    async def _skew(self) -> None:
        """Wall clocks are set, forward and back."""
        while True:
            await self.clock.sleep(self.random.random() * 20)
            _, clock = self._living[self.random.choice(sorted(self._living))]
            clock.skew_ms = self.random.randrange(-SKEW_MS, SKEW_MS)
            self.happened["clocks set"] += 1

    async def _settle(self) -> None:
        """No more faults; whoever stands still goes on, and everybody comes to rest."""
        self.network.share, self.network.delay_s = 0.0, 0.01
        self.network.dark = False
        for process, _ in self._living.values():
            if not process.dead:
                self.loop.resume(process)
        await self.clock.sleep(40)

    async def _bury_all(self) -> None:
        """Every process dies, and every death is seen to."""
        for process, _ in self._living.values():
            process.kill()
            self._dead.append(process)
        self._living.clear()
        while self._dead:
            await self.loop.bury(self._dead.pop())

    async def _end_all(self) -> None:
        """Nothing is left under way, however the run ended."""
        await self._bury_all()
        await self.loop.end_all()

    async def _close_books(self) -> None:
        await self._bury_all()
        await self.clock.sleep(LATE_S_MAX)
        check = StoreCheck(self._consensus, self._blob, self.clock)
        async for finding in check.findings():
            self.audit.expect(finding.harmless, f"the check of the store found {finding}")
        world = self._opened(None)
        for collection in (LEDGER, TABLE, VIEW):
            status = await world.status(collection)
            held = await world.read_hold(collection, owner="audit")
            last = status.upper.elements[0] - 1
            self.audit.read(collection, last, rows_of(await world.snapshot(held, last)))
