"""Real processes on real stores, killed, stopped and cut off; their histories are checked when all
is over.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251  seeded
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import Indeterminate, Unavailable
from tidemill.runtime.clock import SystemClock
from tidemill.shard import CollectionStatus, Description
from tidemill.shard.fsck import StoreCheck
from tidemill.testkit.faults.chaos_client import (
    KEYS,
    LEASE_MS,
    LIST_ROWS,
    LISTS,
    TABLE,
    TABLE_ROWS,
    Life,
    open_collections,
    open_stores,
)
from tidemill.testkit.faults.forked_processes import ForkedProcesses
from tidemill.testkit.faults.histories import Operation, read_history
from tidemill.testkit.faults.linearizability import first_impossible, upper_after
from tidemill.testkit.faults.list_append import FAILED, Transaction, anomalies
from tidemill.testkit.faults.proxy import Proxy
from tidemill.testkit.servers import Server
from tidemill.time import Frontier

PARTS = ("transactor-1", "transactor-2", "transactor-3", "writer-4", "writer-5", "compactor-6")
STOPPED_S_MAX = 180.0
FELT_S_MAX = 120.0
PATIENT_S = 60.0
"""Seconds that a check waits for an answer."""


Felt = frozenset[str]
"""Marks that processes write down when they meet a fault; one of them is enough."""


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses of the stores of a round, and the servers behind them, if there are any."""

    kind: str
    consensus: str
    blob: str
    redis: Server | None = None


@dataclass(slots=True)
class Outcome:
    """The outcome of a round."""

    happened: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    schedule: list[str] = field(default_factory=list)


class Round:
    """One round of faults, then rest, then the check of everything that was written down.

    The faults last `seconds`, and until each kind of fault has happened and the processes have
    written down each of `felt`, but at most FELT_S_MAX. Their schedule follows from the seed. The
    reactions of real processes do not.
    """

    def __init__(
        self,
        place: Place,
        seed: int,
        folder: Path,
        processes: ForkedProcesses,
        felt: Collection[Felt] = (),
    ) -> None:
        self.outcome = Outcome()
        self._felt = felt
        self._place = place
        self._seed = seed
        self._random = Random(seed)
        self._folder = folder
        self._clock = SystemClock()
        self._processes = processes
        self._pids: dict[str, int] = {}
        self._begun = 0
        self._ends: dict[str, Proxy] = {}
        self._seen: dict[str, tuple[Frontier, Frontier]] = {}
        self._stopped: dict[str, asyncio.Task[None]] = {}

    async def run(self, seconds: float) -> Outcome:
        """The round to its end."""
        self._folder.mkdir(parents=True)
        async with self._through_proxies() as addresses:
            await self._prepare()
            for name in PARTS:
                self._begin(name, *addresses)
            await self._until_all_speak()
            auditing = asyncio.create_task(self._audit())
            try:
                await self._trouble(self._clock.monotonic_s() + seconds, addresses)
            finally:
                await self._rest()
                auditing.cancel()
            await self._check()
        return self.outcome

    @asynccontextmanager
    async def _through_proxies(self) -> AsyncIterator[tuple[str, str]]:
        """The addresses that processes are given: a proxy stands before every server."""
        consensus, blob = self._place.consensus, self._place.blob
        for name, address in (("redis", consensus), ("s3", blob)):
            url = urlsplit(address)
            if name not in (url.scheme, url.scheme[:2]):
                continue
            target = urlsplit(address.split("endpoint=")[1]).port if name == "s3" else url.port
            assert target is not None
            proxy = self._ends[name] = Proxy(target)
            await proxy.start()
            consensus = (
                consensus.replace(f":{target}", f":{proxy.port}") if name == "redis" else consensus
            )
            blob = blob.replace(f":{target}", f":{proxy.port}") if name == "s3" else blob
        try:
            yield consensus, blob
        finally:
            for proxy in self._ends.values():
                await proxy.stop()

    async def _prepare(self) -> None:
        store = open_collections(self._place.consensus, self._place.blob, PATIENT_S)
        read, _ = await store.create(LISTS, Description(LIST_ROWS), lease_ms=None)
        await store.drop(read)  # since follows the processes
        await store.create(TABLE, Description(TABLE_ROWS, user_writable=True), lease_ms=LEASE_MS)
        for name in await store.ids():
            status = await store.status(name)
            self._seen[name] = status.since, status.upper
        await store.close()

    def _begin(self, name: str, consensus: str, blob: str) -> None:
        self._begun += 1
        history = self._folder / f"{name}.{self._begun}.history"
        life = Life(
            name=f"{name}.{self._begun}", part=name.split("-")[0], seed=self._seed + self._begun,
            consensus=consensus, blob=blob, history=str(history), stop=str(self._folder / "stop"),
        )  # fmt: skip
        self._pids[name] = self._processes.begin(msgspec.json.encode(life))

    async def _until_all_speak(self) -> None:
        """Faults begin when every process has begun to ask."""
        while len([file for file in self._histories() if file.stat().st_size]) < len(PARTS):
            await self._clock.sleep(0.05)

    def _histories(self) -> list[Path]:
        return sorted(self._folder.glob("*.history"))

    async def _trouble(self, end_s: float, addresses: tuple[str, str]) -> None:
        kinds = ["kill", "kill", "stop", "stop", "pause"]
        kinds += [
            f"{kind} {end}" for end in self._ends for kind in ("silent", "refusing", "slow", "cut")
        ]
        kinds += ["restart redis"] if self._place.redis else []
        due, passes = list(kinds), 0
        while passes == 0 or self._clock.monotonic_s() < end_s or self._unfelt(end_s):
            await self._clock.sleep(0.1 + self._random.random() * 0.4)
            kind = due.pop(self._random.randrange(len(due)))
            if not due:
                due, passes = list(kinds), passes + 1
            standing = [name for name, task in self._stopped.items() if not task.done()]
            name = self._random.choice(
                [name for name in PARTS[:-1] if name not in standing] or PARTS
            )
            if kind == "kill" and self._random.random() < 0.3:
                name = PARTS[-1]
            self.outcome.schedule.append(f"{kind} {name}")
            self.outcome.happened[f"fault: {kind}"] += 1
            match kind.split():
                case ["kill"]:
                    await self._kill(name)
                    self._begin(name, *addresses)
                case ["stop" | "pause"]:
                    self._stop(name, LEASE_MS * 1.4 / 1000 if kind == "stop" else 0.2)
                case ["restart", _]:
                    await self._restart_redis()
                case ["cut", end]:
                    self._ends[end].cut()
                case [mode, end]:
                    self._ends[end].set_mode(mode)  # type: ignore[arg-type]  # one of its modes
                    await self._clock.sleep(0.3 + self._random.random() * 1.2)
                    self._ends[end].set_mode("open")

    def _unfelt(self, end_s: float) -> bool:
        """Whether the processes have not met everything yet that they are to meet."""
        if not self._felt or self._clock.monotonic_s() > end_s + FELT_S_MAX:
            return False
        written = b"".join(file.read_bytes() for file in self._histories())
        return not all(
            any(msgspec.json.encode(way) in written for way in ways) for ways in self._felt
        )

    async def _kill(self, name: str) -> None:
        self._processes.signal(self._pids[name], signal.SIGKILL)
        while self._processes.alive(self._pids[name]):
            await self._clock.sleep(0.005)

    def _stop(self, name: str, seconds: float) -> None:
        """Stop a process for a while, unless it is stopped already."""
        if name in self._stopped and not self._stopped[name].done():
            return
        self._stopped[name] = asyncio.create_task(self._stand_still(self._pids[name], seconds))

    async def _stand_still(self, pid: int, seconds: float) -> None:
        self._processes.signal(pid, signal.SIGSTOP)
        await self._clock.sleep(seconds)
        self._processes.signal(pid, signal.SIGCONT)

    async def _restart_redis(self) -> None:
        server = self._place.redis
        assert server is not None
        await asyncio.to_thread(server.control, "kill")
        await self._clock.sleep(self._random.random() * 0.3)
        await asyncio.to_thread(server.control, "up")

    async def _rest(self) -> None:
        """All is well again: everybody goes on for a moment, then ends by itself."""
        for proxy in self._ends.values():
            proxy.set_mode("open")
        await asyncio.gather(*self._stopped.values())
        await self._clock.sleep(0.3)
        (self._folder / "stop").touch()
        end_s = self._clock.monotonic_s() + STOPPED_S_MAX
        while any(self._processes.alive(pid) for pid in self._pids.values()):
            if self._clock.monotonic_s() > end_s:
                break
            await self._clock.sleep(0.05)
        for name, pid in self._pids.items():
            if self._processes.alive(pid):
                self.outcome.violations.append(f"{name} did not come to an end")
            await self._kill(name)

    async def _audit(self) -> None:
        """Look at the frontiers all the time, past the proxies (F14, L2c, K1)."""
        store = open_collections(self._place.consensus, self._place.blob, PATIENT_S)
        try:
            while True:
                for name in (LISTS, TABLE):
                    try:
                        self._look(await store.status(name))
                    except (Unavailable, Indeterminate):
                        continue
                await self._clock.sleep(0.02)
        finally:
            await store.close()

    def _look(self, status: CollectionStatus) -> None:
        since, upper = self._seen[status.id]
        good = (
            since.precedes(status.since)
            and upper.precedes(status.upper)
            and status.since.precedes(status.upper)
            and all(status.since.precedes(holder.frontier) for holder in status.holders)
        )
        if not good:
            self.outcome.violations.append(f"{status.id} went from {since}, {upper} to {status}")
        self.outcome.happened["frontiers audited"] += 1
        self.outcome.happened["since moved"] += since != status.since
        self._seen[status.id] = status.since, status.upper

    async def _check(self) -> None:
        """Everything that was written down against what is there."""
        history = read_history(self._histories())
        for operation in history:
            if operation.call == "note":
                what, detail = operation.arguments
                self.outcome.happened[what] += 1
                if what == "violation":
                    self.outcome.violations.append(f"{operation.process}: {detail}")
        lists, written = await self._contents()
        self._check_transactions(history, lists)
        self._check_upper(history)
        self._check_writes(history, written)
        consensus, blob = open_stores(self._place.consensus, self._place.blob, PATIENT_S)
        check = StoreCheck(consensus, blob, self._clock)
        async for finding in check.findings():
            self.outcome.happened["left behind"] += finding.harmless
            if not finding.harmless and finding.collection in (LISTS, TABLE):
                self.outcome.violations.append(f"the check of the store found {finding}")
        await consensus.close()
        await blob.close()

    async def _contents(self) -> tuple[dict[str, list[int]], Counter[tuple[str, int]]]:
        """The contents at the end: the lists, and the rows of the table."""
        store = open_collections(self._place.consensus, self._place.blob, PATIENT_S)
        rows = (await store.read_updates(LISTS)).to_pylist()
        lists: dict[str, list[int]] = {key: [] for key in KEYS}
        for row in sorted(rows, key=lambda row: (row["at"], row["place"])):
            lists[row["list"]] += [row["element"]] * row["_diff"]
        written: Counter[tuple[str, int]] = Counter()
        _, closing = await store.acquire(TABLE, lease_ms=None)
        await self._clock.sleep(1.2 * LEASE_MS / 1000)
        assert closing is not None
        status = await store.status(TABLE)
        if status.writers > 1:
            self.outcome.violations.append(f"{status.writers - 1} leases of the dead did not end")
        await store.drop(closing)
        for row in (await store.read_updates(TABLE)).to_pylist():
            written[row["writer"], row["number"]] += row["_diff"]
        await store.close()
        return lists, written

    def _check_transactions(
        self, history: Sequence[Operation], lists: dict[str, list[int]]
    ) -> None:
        transactions = []
        for number, operation in enumerate(history):
            if operation.call != "transaction":
                continue
            keys, appends = operation.arguments
            failed = operation.answer == FAILED
            known = operation.answer is not None and not failed
            self.outcome.happened["transactions"] += known
            self.outcome.happened["transactions that nobody was told of"] += operation.ended is None
            transactions.append(
                Transaction(
                    f"{operation.process}/{number}", operation.began, operation.ended,
                    {key: operation.answer[key] for key in keys} if known else {},
                    [(key, element) for key, element in appends], failed,
                )
            )  # fmt: skip
        self.outcome.happened["elements"] += sum(len(elements) for elements in lists.values())
        self.outcome.violations += anomalies(transactions, lists)

    def _check_upper(self, history: Sequence[Operation]) -> None:
        register = [operation for operation in history if operation.call in ("read", "append")]
        for operation in register:
            self.outcome.happened["reads of upper"] += operation.call == "read"
            if operation.call == "append" and operation.answer is not None:
                self.outcome.happened[f"appends: {operation.answer[0]}"] += 1
        impossible = first_impossible(register, 0, upper_after)
        if impossible is not None:
            self.outcome.violations.append(f"upper is not linearizable at {impossible}")

    def _check_writes(
        self, history: Sequence[Operation], written: Counter[tuple[str, int]]
    ) -> None:
        """Acknowledged writes are there once, refused ones are not, and each is there whole or not
        at all.
        """
        for operation in history:
            if operation.call != "write":
                continue
            writer, number, copies = operation.arguments
            there = {written[writer, number * 100 + copy] for copy in range(copies)}
            self.outcome.happened[f"writes: {operation.answer or 'unknown'}"] += 1
            expected = {"written": ({1},), "refused": ({0},), None: ({0}, {1})}
            if there not in expected.get(operation.answer, ()):
                self.outcome.violations.append(f"{operation} is there {sorted(there)} times")
