"""One story, told again and again with one fault in it: at every await, and in every call of a
store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random  # noqa: TID251  seeded, so that a failure repeats

from tidemill.errors import (
    AlreadyUsed,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCapability,
)
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    Limits,
    ReadCapability,
    WriteCapability,
)
from tidemill.shard.fsck import StoreCheck
from tidemill.testkit.faults.actors import ROWS, Stage
from tidemill.testkit.faults.auditors import (
    Audit,
    AuditedBlob,
    AuditedConsensus,
    Unit,
    rows_of,
    table_of,
)
from tidemill.testkit.faults.network import ANSWERED, OUTCOMES, Network, RemoteBlob, RemoteConsensus
from tidemill.testkit.faults.virtual_loop import LoopClock, Process, VirtualLoop
from tidemill.time import frontier

NAME, TABLE = "story", "table of the story"
LEASE_MS = 20_000
REAP_AGE_MS = 30_000
PAUSE_S = 40.0
"""Longer than a lease, and than orphans live with the reaper's rounds."""
LIMITS = Limits(inline_bytes_max=300, part_bytes_max=2_000, listed_parts=1)


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one telling: the process dies or stops at a step, or one call goes wrong."""

    dies_at: int | None = None
    stops_at: int | None = None
    call: int | None = None
    outcome: str = ANSWERED

    def of_call(self, number: int) -> str:
        """The outcome of a call."""
        return self.outcome if number == self.call else ANSWERED


@dataclass(frozen=True, slots=True)
class Telling:
    """The length of a telling, and the findings of the auditors."""

    steps: int
    calls: int
    happened: Counter[str]
    violations: tuple[str, ...]


class Story:
    """A process that lives through every command once; what it assigns to itself outlives it.

    Each chapter may be begun again; the next one begins when it is known that the last one ended.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chapter = 0
        self._read: ReadCapability | None = None
        self._write: WriteCapability | None = None
        self._units = [
            stage.unit([time] * size) for time, size in ((0, 1), (1, 12), (2, 1), (3, 14))
        ]
        self._row = stage.unit([0] * 9)
        self.done = False

    async def run(self, store: Collections, clock: LoopClock) -> None:
        """Go on where the last life ended."""
        chapters: list[Callable[[Collections], Awaitable[None]]] = [
            self._find,
            *(self._appended(unit, at) for at, unit in enumerate(self._units)),
            self._look,
            self._compact,
            self._move,
            self._collect,
            self._look,
            self._clone,
            self._close,
            self._find_table,
            self._write_table,
            self._hand_over,
        ]
        while self._chapter < len(chapters):
            try:
                if self._read is None and self._chapter:
                    await self._hold(store)
                await chapters[self._chapter](store)
            except (Unavailable, Indeterminate):
                self._stage.happened["repeated chapters"] += 1
                await clock.sleep(0.5)
                continue
            except NotYet:
                # A capability that nobody was told of holds upper until its lease ends.
                self._stage.happened["waited for a lease"] += 1
                await clock.sleep(LEASE_MS / 4000)
                continue
            except (Fenced, UnknownCapability):
                self._stage.happened["lost capabilities"] += 1
                self._read = self._write = None
                continue
            self._chapter += 1
        self.done = True

    async def _find(self, store: Collections) -> None:
        try:
            await store.create(NAME, Description(ROWS, key=("id",)), lease_ms=LEASE_MS)
        except AlreadyUsed:
            self._stage.happened["found again"] += 1

    async def _hold(self, store: Collections) -> None:
        self._read = await store.read_hold(NAME, owner="story", lease_ms=LEASE_MS)
        self._stage.audit.confirmed(self._read)

    def _appended(self, unit: Unit, at: int) -> Callable[[Collections], Awaitable[None]]:
        async def append(store: Collections) -> None:
            outcome = await store.compare_and_append(
                NAME, frontier(at), frontier(at + 1), table_of(unit), writer="w", token=unit.token
            )
            self._stage.audit.expect(
                outcome == Appended(frontier(at + 1)), f"append {at}: {outcome}"
            )
            self._stage.audit.acknowledged(NAME, unit, frontier(at + 1))

        return append

    async def _look(self, store: Collections) -> None:
        assert self._read is not None
        upper = len(self._units)
        for as_of in range(self._read.frontier.elements[0], upper):
            self._stage.audit.read(NAME, as_of, rows_of(await store.snapshot(self._read, as_of)))

    async def _compact(self, store: Collections) -> None:
        await store.compact(NAME)

    async def _move(self, store: Collections) -> None:
        assert self._read is not None
        self._read = await store.downgrade(self._read, frontier(2))
        self._stage.audit.confirmed(self._read)

    async def _collect(self, store: Collections) -> None:
        await store.compact(NAME)
        await store.collect_garbage(NAME, 0)
        await store.reap_orphans(NAME, REAP_AGE_MS)

    async def _clone(self, store: Collections) -> None:
        assert self._read is not None
        copy = await store.clone(self._read)
        self._stage.audit.released(self._read)
        held, self._read = self._read, copy
        self._stage.audit.confirmed(copy)
        await store.drop(held)

    async def _close(self, store: Collections) -> None:
        await store.close_collection(NAME)

    async def _find_table(self, store: Collections) -> None:
        description = Description(ROWS, user_writable=True)
        try:
            _, self._write = await store.create(TABLE, description, lease_ms=LEASE_MS)
        except AlreadyUsed:
            self._stage.happened["found again"] += 1

    async def _write_table(self, store: Collections) -> None:
        """Write once, whatever happens to the capability meanwhile: upper tells whether it was
        done.
        """
        if self._write is None:
            _, self._write = await store.acquire(TABLE, lease_ms=LEASE_MS)
        assert self._write is not None
        if self._write.frontier == frontier(0):
            outcome = await store.update_and_downgrade(
                self._write, table_of(self._row), frontier(1), token=self._row.token
            )
            self._stage.audit.expect(outcome == Appended(frontier(1)), f"the table: {outcome}")
            self._write = self._write.at(frontier(1))
        self._stage.audit.acknowledged(TABLE, self._row, frontier(1))
        self._stage.audit.confirmed(self._write)

    async def _hand_over(self, store: Collections) -> None:
        if self._write is None:
            _, self._write = await store.acquire(TABLE, lease_ms=LEASE_MS)
        assert self._write is not None
        await store.renew(self._write)
        await store.transfer(self._write, "somebody else")
        await store.retain(TABLE, 5)
        read = await store.read_hold(TABLE, owner="last", lease_ms=LEASE_MS)
        self._stage.audit.read(TABLE, 0, rows_of(await store.snapshot(read, 0)))


class _Reaper:
    """The rest of the world while the story is told: tidies up, and appends nothing."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self, store: Collections, clock: LoopClock) -> None:
        while True:
            await clock.sleep(5)
            try:
                self._stage.happened["reaped"] += await store.reap_orphans(NAME, REAP_AGE_MS)
                await store.collect_garbage(NAME, 10_000)
            except TidemillError:
                continue


def tell(fault: Fault) -> Telling:
    """The story with one fault in it, to its end and checked."""
    random = Random(1)
    loop = VirtualLoop(random)
    try:
        return loop.run_until_complete(_tell(loop, random, fault))
    finally:
        loop.run_until_complete(loop.end_all())
        loop.close()


async def _tell(loop: VirtualLoop, random: Random, fault: Fault) -> Telling:
    clock = LoopClock(loop, 1_000_000)
    consensus, blob = AuditedConsensus(), AuditedBlob(clock.now_ms)
    audit = consensus.audit = blob.audit = Audit(consensus, blob, clock)
    stage = Stage(random, audit, Counter())
    network = Network(loop, random, delay_s=0.1, plan=fault.of_call)
    quiet = Network(loop, random, delay_s=0.1)

    def opened(through: Network) -> Collections:
        return Collections(
            RemoteConsensus(consensus, through),
            RemoteBlob(blob, through),
            clock,
            lambda: f"{random.getrandbits(128):032x}",
            limits=LIMITS,
        )

    story, reaper = Story(stage), Process("reaper")
    lives = [Process("story", dies_at=fault.dies_at, stops_at=fault.stops_at)]
    mains = [loop.begin(lives[0], story.run(opened(network), clock))]
    loop.begin(reaper, _Reaper(stage).run(opened(quiet), clock))
    while not story.done:
        await clock.sleep(0.2)
        if lives[-1].dead:
            stage.happened["deaths"] += 1
            lives.append(Process("story"))
            mains.append(loop.begin(lives[-1], story.run(opened(network), clock)))
        elif lives[-1].stopped:
            stage.happened["pauses"] += 1
            await clock.sleep(PAUSE_S)
            loop.resume(lives[-1])
        elif mains[-1].done() and mains[-1].exception() is not None:
            audit.found(f"the story met what it did not expect: {mains[-1].exception()!r}")
            break
    await clock.sleep(PAUSE_S)
    reaper.kill()
    for process in (*lives, reaper):
        await loop.bury(process)
    await clock.sleep(PAUSE_S)
    async for finding in StoreCheck(consensus, blob, clock).findings():
        audit.expect(finding.harmless, f"the check of the store found {finding}")
    happened = stage.happened + network.happened + audit.checked
    return Telling(lives[0].steps, network.calls, happened, tuple(audit.violations))


def faults_of_every_step(steps: int) -> list[Fault]:
    """The process dies, or stands still past its lease and past the age of orphans, at each
    step.
    """
    dying = [Fault(dies_at=step) for step in range(1, steps + 1)]
    return [*dying, *(Fault(stops_at=step) for step in range(1, steps + 1))]


def faults_of_every_call(calls: int) -> list[Fault]:
    """Each call has each outcome but the good one."""
    return [Fault(call=call, outcome=how) for call in range(1, calls + 1) for how in OUTCOMES[1:]]
