"""One run: load and watching all the time, storms and rests in turn, everything checked at the
end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251  seeded
from typing import Any

from tidemill.client.rows import table_of
from tidemill.errors import (
    BeforeSince,
    DeadlinePassed,
    Indeterminate,
    NotYet,
    Unavailable,
    UnknownCollection,
)
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.shard.fsck import StoreCheck
from tidemill.testkit.service_faults.cluster import (
    BOOK,
    CREW,
    FLIGHTS,
    GRAIN,
    HEAP,
    LEDGER,
    METER,
    PARTITIONS,
    PROCESSES,
    TICK_MS,
    VIPS,
    Cluster,
    cluster,
)
from tidemill.testkit.service_faults.effects import check_effects, effects
from tidemill.testkit.service_faults.fault_injector import FaultInjector
from tidemill.testkit.service_faults.load import Ledger, Load
from tidemill.testkit.service_faults.machine import Machine, Patience
from tidemill.testkit.service_faults.oracle import Oracle, Topic
from tidemill.testkit.service_faults.outcome import Outcome
from tidemill.testkit.service_faults.poison import Poison, prepare_files
from tidemill.testkit.service_faults.watching import Answers, Frontiers, rows_of

STORM_S = 30.0
GIVEN_UP_S = 180.0
"""Seconds of the machine after which a recovery has failed, or nothing comes nearer any more."""
TOLD_S = 10.0
STEADY_LOOKS = 5
FAILOVER_ROLES = ("ingest", "remap", "reclock", "compute")
TRIED_AGAIN = (
    Unavailable, Indeterminate, DeadlinePassed, NotYet, UnknownCollection, BeforeSince
)  # fmt: skip
"""The last one of a process that stood still for longer than history is kept, and chose the instant
before.
"""


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """The definition of a recovery, and the number of measurements.

    After a recovery no collection is `lag_s_max` behind; one of more than `recovery_s_max` is a
    violation. Both are seconds of the machine (`machine.py`): time that other processes take of it
    is left out. At each rest every role fails over `failovers` times, to measure it.
    """

    lag_s_max: float = 3 * TICK_MS / 1000
    recovery_s_max: float = 30.0
    failovers: int = 1


class Run:
    """A run on a cluster; `outcome` holds what came of it."""

    def __init__(
        self, place: Cluster, seed: int, limits: RecoveryLimits, say: Callable[[str], None]
    ) -> None:
        self.outcome = Outcome()
        self._limits = limits
        self._cluster = place
        self._say = say
        self._clock = place.clock
        self._log: KafkaLog = place.log()
        self._topics = {
            name: Topic(self._log, name, count, place.clock) for name, count in PARTITIONS.items()
        }
        # Each part has its own numbers: what one of them draws changes nothing for the others.
        self._load = Load(self._log, Random(f"{seed} load"), place.clock, self.outcome)
        self._ledgers = (
            Ledger(LEDGER, place, Random(f"{seed} ledger"), self.outcome),
            Ledger(HEAP, place, Random(f"{seed} heap"), self.outcome, wide=True),
        )
        self._oracle = Oracle(*(self._topics[name] for name in (FLIGHTS, METER, BOOK, CREW)))
        self._frontiers = Frontiers(place, self._load, self.outcome)
        self._answers = Answers(place, self._frontiers, Random(f"{seed} answers"), self.outcome)
        self._fault_injector = FaultInjector(place, Random(f"{seed} trouble"), self.outcome)
        place.endpoints.random, place.endpoints.outcome = Random(f"{seed} endpoints"), self.outcome
        self._poison = Poison(
            place, self._log, self._load, Random(f"{seed} poison"), self.outcome, self._patience
        )
        self._machine = Machine(place.clock, place.marks)
        self._marks = 1_000

    async def play(self, seconds: float) -> None:
        """Storms and rests until `seconds` are over, at least one of each; then the end."""
        begin_s = self._clock.monotonic_s()
        await self._prepare()
        watching = [
            asyncio.create_task(each.follow()) for each in self._topics.values()
        ] + self._tasks(self._frontiers.run(), self._answers.run(), self._fault_injector.revive())
        inserts = (ledger.run() for ledger in self._ledgers)
        load = self._tasks(self._load.run(), self._poison.run(), *inserts)
        try:
            await self._recover()
            storm_s = STORM_S if seconds >= 2 * STORM_S else seconds
            while True:
                await self._fault_injector.storm(storm_s)
                await self._recover(after_faults=True)
                for _ in range(self._limits.failovers):
                    await self._fail_over()
                await self._check()
                self._tell(begin_s, seconds)
                if self._clock.monotonic_s() - begin_s >= seconds:
                    break
            await self._cancel(load)
            await self._end()
            _still_there([*watching])
        finally:
            await self._cancel([*load, *watching])
            await self._log.close()
            self._fault_injector.let_go_on()

    def _tasks(self, *work: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(each) for each in work]

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        _still_there(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare(self) -> None:
        """Topics, processes and resources, before anything goes wrong."""
        for name, partitions in PARTITIONS.items():
            await self._log.create_topic(name, partitions)
        prepare_files(self._cluster.folder)
        for name in PROCESSES:
            self._cluster.begin(name)
        text = (self._cluster.folder / "resources.yaml").read_text()
        await self._ask(lambda client: client.apply([ResourceDocument(text, "resources.yaml")]))
        rows = table_of([{"plane": vip} for vip in VIPS])
        await self._ask(lambda client: client.insert("vip", rows))

    async def _ask(self, ask: Callable[[Any], Any]) -> Any:
        """The first answer of any process."""
        while True:
            for _, client in self._cluster.fronts():
                try:
                    return await ask(client)
                except TRIED_AGAIN:
                    continue
            await self._clock.sleep(0.1)

    async def _recover(self, *, after_faults: bool = False) -> None:
        """Wait until nothing is too far behind any more; after faults that is measured."""
        self._machine.look()
        began_s, had_s, steady = self._clock.monotonic_s(), self._machine.had_s, 0
        since_s = told_s = began_s
        since_had_s = had_s
        while steady < STEADY_LOOKS:
            behind_s, slowest = self._frontiers.behind_s()
            now_s = self._clock.monotonic_s()
            self._machine.look()
            if behind_s * self._machine.share >= self._limits.lag_s_max:
                steady, since_s, since_had_s = 0, now_s, self._machine.had_s
            else:
                steady += 1
            if now_s - told_s > TOLD_S:
                told_s = now_s
                self._say(
                    f"  {slowest} is {behind_s:.1f} s behind, {now_s - began_s:.0f} s after the last fault, "
                    f"with {self._machine.share:.0%} of the machine"
                )
            if self._machine.had_s - had_s > GIVEN_UP_S or now_s - began_s > 10 * GIVEN_UP_S:
                self.outcome.expect(
                    not after_faults, f"{slowest} is {behind_s:.1f} s behind and stays so"
                )
                break
            await self._clock.sleep(0.2)
        took_s, used_s = since_s - began_s, since_had_s - had_s
        if after_faults:
            lag_s, limit_s = self._limits.lag_s_max, self._limits.recovery_s_max
            what = f"from the last fault until nothing is {lag_s:g} s behind"
            self.outcome.measure(what, took_s)
            self.outcome.measure(f"{what}, of the machine", used_s)
            self.outcome.measure("not seconds: share of the machine", self._machine.share)
            self.outcome.expect(
                used_s <= limit_s,
                f"recovered after {took_s:.1f} s only, {used_s:.1f} of them of the machine",
            )

    async def _fail_over(self) -> None:
        """Kill who writes, in each role, and measure until an answer has a row that came
        afterwards.
        """
        self.outcome.measure("a new row in an answer, nothing wrong", await self._mark())
        for role in FAILOVER_ROLES:
            item = "View/totals" if role == "compute" else f"Source/{METER}"
            owner = (await self._cluster.owners(role)).get(item)
            if owner is None:
                continue
            await self._fault_injector.kill(owner.name)
            self.outcome.measure(
                f"a new row in an answer, {role} killed before", await self._mark()
            )
            await self._recover()

    def _patience(self) -> Patience:
        return Patience(self._machine, self._clock, GIVEN_UP_S)

    async def _mark(self) -> float:
        """Write a row that nothing else is like; the seconds until an answer has what follows from
        it.
        """
        self._marks += 1
        mark, began_s = self._marks, self._clock.monotonic_s()
        await self._load.mark(mark)
        patience = self._patience()
        while True:
            answer = await self._ask(lambda client: client.snapshot("totals/total"))
            if any(row[0] == mark for row in rows_of("totals/total", answer.table)):
                return self._clock.monotonic_s() - began_s
            if not patience.lasts(None):  # instants come whether or not the row does
                raise StuckError("a new row", self._cluster.fleet.logs())
            await self._clock.sleep(0.05)

    async def _check(self) -> None:
        """Check answers and effects so far, while the load goes on."""
        for name in (FLIGHTS, METER, BOOK, CREW, GRAIN):
            await self._topics[name].catch_up()
        self._oracle.take()
        self._answers.check(self._oracle)
        done = await effects(self._cluster, self._topics["alarms"])
        # The topic had the events of the targets before them.
        await self._topics[FLIGHTS].catch_up()
        self._oracle.take()
        check_effects(done, self._oracle.alarms(2**63), self.outcome, all_done=False)

    async def _end(self) -> None:
        """Everything is definite; all of it is what it has to be."""
        end = await self._load.end()
        await self._check()
        wanted = self._oracle.alarms(end)
        patience = self._patience()
        while True:
            done = await effects(self._cluster, self._topics["alarms"])
            found = [events.total() for events in done.values()]
            if min(found) >= wanted.total() or not patience.lasts(found):
                break
            await self._clock.sleep(0.2)
        check_effects(done, wanted, self.outcome, all_done=True)
        disordered = self._oracle.disordered
        self.outcome.expect(
            not disordered, f"the generator wrote {disordered[:3]} behind its promise"
        )
        self._load.check(self._topics)
        await self._check_letters(FLIGHTS, self._oracle.bad)
        await self._check_letters(BOOK, self._oracle.bad_in_the_book())
        await self._check_letters(CREW, self._oracle.broken())
        for ledger in self._ledgers:
            await self._check_ledger(ledger)
        await self._check_letters(METER, self._oracle.bad_readings())
        await self._poison.check(self._ask, self._topics[GRAIN])
        await self._fault_injector.check_work()
        await self._check_store()

    async def _check_ledger(self, ledger: Ledger) -> None:
        """Each row of a table is there as often as was said of its insert."""
        answer = await self._ask(lambda client: client.snapshot(ledger.table))
        found: Counter[int] = Counter()
        for row, count in rows_of(ledger.table, answer.table).items():
            found[int(str(row[0]))] += count
        ledger.check(found)

    async def _check_letters(self, source: str, wanted: Counter[tuple[int, int]]) -> None:
        """Each record that was no row, or no change of what was there, is one letter, soon after
        the last.
        """
        name, patience = f"{source}/deadletters", self._patience()
        while True:
            letters = await self._ask(lambda client: client.snapshot(name))
            found = rows_of(name, letters.table)
            if found.total() >= wanted.total() or not patience.lasts(found.total()):
                break
            await self._clock.sleep(0.2)
        self.outcome.happened[f"dead letters of {source}"] = found.total()
        self.outcome.expect(
            found == Counter(wanted), f"dead letters of {source} are {found}, not {wanted}"
        )

    async def _check_store(self) -> None:
        """Every byte of every object, and what the versions say of them; a store that is away is
        asked again.
        """
        consensus, blob = self._cluster.stores()
        began_s = self._clock.monotonic_s()
        while True:
            check = StoreCheck(consensus, blob, self._clock)
            try:
                found = [finding async for finding in check.findings()]
                break
            except (Unavailable, Indeterminate):
                if self._clock.monotonic_s() - began_s > GIVEN_UP_S:
                    raise
                await self._clock.sleep(0.2)
        for finding in found:
            self.outcome.happened["objects left behind"] += finding.harmless
            self.outcome.expect(finding.harmless, f"the check of the store found {finding}")
        self.outcome.happened["objects of the store checked"] += check.checked.total()
        await consensus.close()
        await blob.close()

    def _tell(self, begin_s: float, seconds: float) -> None:
        passed_s = self._clock.monotonic_s() - begin_s
        faults = sum(count for _, count in self.outcome.counted("fault: "))
        self._say(
            f"[{passed_s:.0f} of {seconds:.0f} s] {faults} faults, "
            f"{self.outcome.happened['answers checked']} answers checked, "
            f"violations so far: {len(self.outcome.violations) or 'none'}"
        )


RECOVERY_LIMITS = RecoveryLimits()


class StuckError(Exception):
    """The system does not recover: there is nothing more to be learned from the run."""


def _still_there(tasks: list[asyncio.Task[None]]) -> None:
    """Raises: what a task raised that was to run all the time."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def run(
    folder: Path,
    seed: int,
    seconds: float,
    *,
    limits: RecoveryLimits = RECOVERY_LIMITS,
    say: Callable[[str], None] = print,
) -> Outcome:
    """A run from nothing to its end, on servers of its own; takes about 40 seconds more than
    `seconds`.
    """
    async with cluster(folder) as place:
        played = Run(place, seed, limits, say)
        try:
            await played.play(seconds)
        except StuckError as stuck:
            played.outcome.violations.append(f"the logs say {stuck}")
        return played.outcome
