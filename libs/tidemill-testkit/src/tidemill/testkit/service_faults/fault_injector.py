"""The fault injector: processes and servers die or pause, connections to stores fail in each
way.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random  # noqa: TID251  seeded
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.claims import Owned
from tidemill.testkit.faults.proxy import Mode
from tidemill.testkit.service_faults.cluster import (
    BROKERS,
    PARTITIONS,
    PROCESSES,
    Cluster,
)
from tidemill.testkit.service_faults.outcome import FAULT, FELT, Outcome

PAUSE_S = 0.4
CUT_OFF_S = 2.0
AWAY_S = 4.0
STOPPED_LEASES = 1.3
NOTICED_S_MAX = 60.0
TRIES_MAX = 5
"""Strikes of one kind in a storm that nobody meets: the report of the run lacks the kind then."""

SERVICES = ("kill", "pause", "kill both")
REDIS = ("silent", "refusing", "slow", "cut", "restart")
BUCKET = ("silent", "refusing", "slow", "cut")


CLAIMED = "claimed"
_WORK = re.compile(r"(claimed|let go)\b.* epoch=(\d+) item=(\S+) role=(\S+)$", re.MULTILINE)


def said_of_work(log: str) -> dict[tuple[str, str, int], str]:
    """The last word of a log about each role, item and epoch: `claimed` or `let go`."""
    return {(role, item, int(epoch)): said for said, epoch, item, role in _WORK.findall(log)}


def _has(
    claims: Mapping[tuple[str, str], Owned], role: str, item: str, name: str, epoch: int
) -> bool:
    owned = claims.get((role, item))
    return owned is not None and (owned.name, owned.epoch) == (name, epoch)


@dataclass(frozen=True, slots=True)
class Parts:
    """The claims of a process, with their epochs."""

    claims: Mapping[tuple[str, str], int]


class FaultInjector:
    """Storms of faults: each holds every kind of fault, and ends with all servers running again."""

    def __init__(self, cluster: Cluster, random: Random, outcome: Outcome) -> None:
        self._cluster = cluster
        self._random = random
        self._outcome = outcome
        self._away: set[str] = set()
        self._killed: set[str] = set()

    async def storm(self, seconds: float) -> None:
        """Inject faults of all kinds at once for so long, and until somebody met each kind."""
        end_s = self._cluster.clock.monotonic_s() + seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(SERVICES, self._service, end_s))
            tasks.create_task(self._again(("kill",), self._broker, end_s))
            tasks.create_task(self._again(REDIS, self._redis, end_s))
            tasks.create_task(self._again(BUCKET, self._bucket, end_s))

    async def _again(
        self, kinds: tuple[str, ...], strike: Callable[[str], Awaitable[bool]], end_s: float
    ) -> None:
        """Strike with each kind in a random order; a kind that nobody met is due again."""
        due, passes = list(kinds), 0
        missed: Counter[str] = Counter()
        while passes == 0 or self._cluster.clock.monotonic_s() < end_s:
            await self._pause(PAUSE_S)
            kind = due.pop(self._random.randrange(len(due)))
            if not await strike(kind):
                missed[kind] += 1
                if missed[kind] < TRIES_MAX:
                    due.append(kind)
            if not due:
                due, passes = list(kinds), passes + 1

    async def _pause(self, seconds: float) -> None:
        await self._cluster.clock.sleep(seconds * (0.5 + self._random.random()))

    def _done(self, kind: str) -> None:
        self._outcome.happened[FAULT + kind] += 1

    # -- services -------------------------------------------------------------------------------

    async def _service(self, kind: str) -> bool:
        """A process dies or stands still, or both of one role die at once; whether any did."""
        name = self._random.choice(sorted(set(PROCESSES) - self._away))
        role = name.partition("-")[0]
        names = (
            [each for each in PROCESSES if each.startswith(role)] if kind == "kill both" else [name]
        )
        self._away |= set(names)
        try:
            parts = [await self._parts_of(each) for each in names]
            if kind == "pause":
                return await self._stand_still(name, parts[0])
            for each in names:
                await self.kill(each)
            self._done(f"kill {role}" if kind == "kill" else f"kill both of {role}")
            if kind == "kill":
                await self._await_move(name, parts[0])
            else:
                await self._pause(2.0)
            for each in names:
                self._killed.discard(each)
                self._cluster.begin(each)
            return True
        finally:
            self._away -= set(names)

    async def kill(self, name: str) -> None:
        """SIGKILL; the process is gone when this returns."""
        member = self._cluster.member(name)
        self._killed.add(name)
        with suppress(ProcessLookupError):  # it did not begin, since its stores are away
            member.signalled(signal.SIGKILL)
        while member.running:
            await self._cluster.clock.sleep(0.005)

    async def _stand_still(self, name: str, parts: Parts) -> bool:
        """Stop a process until others have its work, then let it go on; whether it ran."""
        member = self._cluster.member(name)
        if not member.running:
            return False
        member.signalled(signal.SIGSTOP)
        self._done(f"pause {name.partition('-')[0]}")
        try:
            await self._cluster.clock.sleep(STOPPED_LEASES * self._cluster.lease_s)
            moved = await self._await_move(name, parts)
        finally:
            member.signalled(signal.SIGCONT)
        if moved:
            await self._let_go(name, parts)
        return True

    async def _let_go(self, name: str, parts: Parts) -> None:
        """Wait until a process that woke has let go of the parts that others have taken, by its
        log.

        It may not know of a part that it claimed and had not begun. The claim was made as it
        stopped, or a store did not answer, or a process of its name made the claim and was killed.
        `check_work` sees a part that begins late and stays.
        """
        member, woke_s = self._cluster.member(name), self._cluster.clock.monotonic_s()
        for (role, item), epoch in parts.claims.items():
            while role != "compaction" and member.running:
                last = said_of_work(self._cluster.said(name)).get((role, item, epoch))
                if last != CLAIMED:
                    known = "let go" if last else "had not begun"
                    self._outcome.happened[
                        f"{FELT}a process woke and {known} what others had taken"
                    ] += 1
                    break
                if self._cluster.clock.monotonic_s() - woke_s > NOTICED_S_MAX:
                    self._outcome.violations.append(
                        f"{name} woke and kept {item}, which others have"
                    )
                    break
                await self._cluster.clock.sleep(0.1)

    async def check_work(self) -> None:
        """Wait until each process works on what it has claimed, and on nothing else, by what it
        wrote to its log.
        """
        began_s = self._cluster.clock.monotonic_s()
        while True:
            claims, works = await self._claims(), self._works()
            wrong = [
                f"{name} works on {item} of {role} by epoch {epoch}, and {claims.get((role, item))} has it"
                for name, role, item, epoch in works
                if not _has(claims, role, item, name, epoch)
            ]
            if not wrong or self._cluster.clock.monotonic_s() - began_s > NOTICED_S_MAX:
                break
            await self._cluster.clock.sleep(0.2)
        self._outcome.happened["parts that one process works on"] += len(works)
        self._outcome.violations.extend(wrong)

    def _works(self) -> list[tuple[str, str, str, int]]:
        """Which process works on what, and by which epoch."""
        return [
            (name, role, item, epoch)
            for name, member in self._cluster.fleet.members.items()
            if member.running
            for (role, item, epoch), last in said_of_work(self._cluster.said(name)).items()
            if last == CLAIMED
        ]

    async def _await_move(self, name: str, parts: Parts) -> bool:
        """Wait until everything that a process had is with another one; whether it had anything."""
        began_s = self._cluster.clock.monotonic_s()
        left = dict(parts.claims)
        while left and self._cluster.clock.monotonic_s() - began_s < NOTICED_S_MAX:
            now = await self._claims()
            for key, epoch in list(left.items()):
                if key in now and now[key].epoch > epoch and now[key].name != name:
                    del left[key]
                    self._outcome.happened[FELT + f"work of {key[0]} moved"] += 1
            await self._cluster.clock.sleep(0.1)
        for role, item in left:
            self._outcome.violations.append(f"{item} of {role} stayed with {name}, which was away")
        return bool(parts.claims) and not left

    async def _parts_of(self, name: str) -> Parts:
        claims = await self._claims()
        return Parts({key: owned.epoch for key, owned in claims.items() if owned.name == name})

    async def _claims(self) -> dict[tuple[str, str], Owned]:
        found: dict[tuple[str, str], Owned] = {}
        while True:
            try:
                for role in ("ingest", "remap", "reclock", "compute", "compaction"):
                    owners = await self._cluster.owners(role)
                    found |= {(role, item): owned for item, owned in owners.items()}
                return found
            except (Unavailable, Indeterminate):
                await self._cluster.clock.sleep(0.1)

    # -- brokers --------------------------------------------------------------------------------

    async def _broker(self, _: str) -> bool:
        """A broker dies for a while; what it led is led by the others."""
        number = self._random.randint(1, BROKERS)
        led = await self._find_led_by(number)
        await self._cluster.control_broker("kill", number)
        self._done("kill a broker")
        try:
            await self._pause(AWAY_S)
            async with asyncio.timeout(NOTICED_S_MAX):
                while led and led & await self._find_led_by(number):
                    await self._cluster.clock.sleep(0.2)
            self._outcome.happened[FELT + "partitions got another leader"] += len(led)
            return True
        finally:
            await self._cluster.control_broker("start", number)

    async def _find_led_by(self, number: int) -> set[tuple[str, int]]:
        """The partitions of our topics that a broker leads, as the others say."""
        while True:
            admin: Any = AIOKafkaAdminClient(bootstrap_servers=self._cluster.kafka.address)
            try:
                await admin.start()
                topics = await admin.describe_topics()
                return {
                    (topic["topic"], partition["partition"])
                    for topic in topics
                    if topic["topic"] in PARTITIONS
                    for partition in topic["partitions"]
                    if partition["leader"] == number
                }
            except KafkaError:
                await self._cluster.clock.sleep(0.2)
            finally:
                await admin.close()

    # -- stores ---------------------------------------------------------------------------------

    async def _redis(self, kind: str) -> bool:
        if kind != "restart":
            return await self._connection("redis", kind)
        before = await self._run_of_redis()
        await asyncio.to_thread(self._cluster.redis.control, "kill")
        self._done("kill Redis")
        await self._pause(1.0)
        await asyncio.to_thread(self._cluster.redis.control, "up")
        another = await self._run_of_redis() != before
        self._outcome.happened[FELT + "Redis came back as another run"] += another
        return another

    async def _run_of_redis(self) -> str:
        client = Redis.from_url(self._cluster.redis.address)
        while True:  # on a machine with too much work the library gives up before Redis answers
            try:
                return str((await client.info("server"))["run_id"])
            except RedisError:
                await self._cluster.clock.sleep(0.2)
            finally:
                await client.aclose()

    async def _bucket(self, kind: str) -> bool:
        return await self._connection("s3", kind)

    async def _connection(self, end: str, kind: str) -> bool:
        """Make a store silent, refusing or slow to its clients for a while, or cut them off.

        Returns whether a client met that.
        """
        proxies = self._cluster.proxies
        self._done(f"{kind} {end}")
        cut = await proxies.cut(end) if kind == "cut" else 0
        if cut:
            self._outcome.happened[FELT + f"connections to {end} cut"] += cut
            return True
        mode: Mode = "cutting" if kind == "cut" else kind  # type: ignore[assignment]  # one of its
        before = await proxies.set_mode(end, mode)
        try:
            if kind != "cut":
                await self._pause(CUT_OFF_S)
            # Not before somebody has come: a fault that nobody met was none.
            end_s = self._cluster.clock.monotonic_s() + NOTICED_S_MAX
            while (met := await proxies.count_met(end, mode)) == before:
                if self._cluster.clock.monotonic_s() > end_s:
                    break
                await self._cluster.clock.sleep(0.05)
            met_as = f"connections to {end} cut" if kind == "cut" else f"{end} was met {mode}"
            self._outcome.happened[FELT + met_as] += met - before
            return met > before
        finally:
            await proxies.set_mode(end, "open")

    # -- processes that end ---------------------------------------------------------------------

    async def revive(self) -> None:
        """Begin again what has ended, as a cluster does, until cancelled."""
        while True:
            for name in sorted(set(PROCESSES) - self._away):
                if not self._cluster.member(name).running:
                    self._judge(name)
                    self._cluster.begin(name)
            await self._cluster.clock.sleep(0.5)

    def _judge(self, name: str) -> None:
        """A process that was killed has ended, and one whose stores are away does not begin; no
        other ends.
        """
        if name in self._killed:
            self._killed.discard(name)
            return
        said = self._cluster.said(name)
        self._outcome.happened[FELT + "a process found its stores away and did not begin"] += 1
        if "component=ready" in said:
            failed = [
                line for line in said.splitlines() if "failed" in line or "tidemill up:" in line
            ]
            self._outcome.violations.append(f"{name} ended by itself: {failed[:1]}")

    def let_go_on(self) -> None:
        """No process stands still any more."""
        for member in self._cluster.fleet.members.values():
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGCONT)
