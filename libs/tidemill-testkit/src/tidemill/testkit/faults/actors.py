"""The work of the processes of a simulation: write, read, follow, tidy up, begin again after a
crash.

An actor is the record of its process: an attribute of it outlives the process. Each run of it is
one start of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random  # noqa: TID251  seeded, so that a failure repeats
from typing import Protocol

import pyarrow as pa

from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    Fenced,
    Indeterminate,
    NotYet,
    Unavailable,
    UnknownCapability,
    UsageError,
)
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    Progress,
    ReadCapability,
    Updates,
    WriteCapability,
)
from tidemill.testkit.faults.auditors import Audit, Row, Unit, rows_of, table_of, updates_of
from tidemill.testkit.faults.virtual_loop import LoopClock
from tidemill.time import Frontier, frontier, sole_time

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("amount", pa.int64())])
LEDGER, TABLE, VIEW = "ledger", "table", "view"
LEASE_MS = 8_000
GAVE_UP = (Unavailable, Indeterminate)


@dataclass(slots=True)
class Stage:
    """The things that actors share: chance, the auditors, and counts of events."""

    random: Random
    audit: Audit
    happened: Counter[str]
    rows: int = 0

    def unit(self, times: list[int], retracted: list[tuple[Row, int]] | None = None) -> Unit:
        """A new unit: at each time two rows that cancel; rows written before are retracted
        again.
        """
        updates: list[tuple[int, Row, int]] = []
        for time in times:
            amount = self.random.randrange(1, 100)
            updates += [(time, (self.rows, amount), 1), (time, (self.rows + 1, -amount), 1)]
            self.rows += 2
        updates += [(time, row, -1) for row, time in retracted or ()]
        unit = Unit(f"{self.random.getrandbits(64):016x}", tuple(updates))
        self.audit.begun(unit)
        return unit

    def times(self, lower: int, new: int, counts: tuple[int, ...]) -> list[int]:
        """Times in [lower, new)."""
        return [self.random.randrange(lower, new) for _ in range(self.random.choice(counts))]


class Actor(Protocol):
    """One process, from life to life."""

    async def run(self, store: Collections, clock: LoopClock) -> None:
        """One life."""
        ...


class LedgerWriter:
    """Appends by compare-and-append, each append with a token, repeated until its outcome is
    known.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._pending: tuple[Unit, Frontier, Frontier] | None = None
        self._alive: list[list[Row]] = []

    async def run(self, store: Collections, clock: LoopClock) -> None:
        stage = self._stage
        stage.happened["resumed appends"] += self._pending is not None
        while True:
            await clock.sleep(stage.random.random())
            try:
                if self._pending is None:
                    self._pending = self._drawn((await store.status(LEDGER)).upper)
                await self._append(store, *self._pending)
            except GAVE_UP:
                stage.happened["repeated appends"] += self._pending is not None

    def _drawn(self, upper: Frontier) -> tuple[Unit, Frontier, Frontier]:
        stage, lower = self._stage, sole_time(upper)
        new = lower + stage.random.randrange(1, 30)
        retracted = []
        if self._alive and stage.random.random() < 0.3:
            at = stage.random.randrange(lower, new)
            pair = self._alive.pop(stage.random.randrange(len(self._alive)))
            retracted = [(row, at) for row in pair]
        return (
            stage.unit(stage.times(lower, new, (0, 1, 1, 3, 40)), retracted),
            upper,
            frontier(new),
        )

    async def _append(self, store: Collections, unit: Unit, lower: Frontier, new: Frontier) -> None:
        stage = self._stage
        outcome = await store.compare_and_append(
            LEDGER, lower, new, table_of(unit), writer=self._name, token=unit.token
        )
        if isinstance(outcome, Appended):
            stage.audit.acknowledged(LEDGER, unit, outcome.upper)
            written = [row for _, row, diff in unit.updates if diff > 0]
            self._alive += [written[at : at + 2] for at in range(0, len(written), 2)]
        else:
            stage.happened["lost races"] += 1
            stage.audit.refused(LEDGER, unit, "lost race")
            retracted = [row for _, row, diff in unit.updates if diff < 0]
            self._alive += [retracted] if retracted else []
        self._pending = None


class TableWriter:
    """Writes with a capability of its own, whose lease runs out when the process stands still."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._held: WriteCapability | None = None
        self._pending: tuple[Unit, Frontier] | None = None
        self._tries = 0

    async def run(self, store: Collections, clock: LoopClock) -> None:
        stage = self._stage
        while True:
            await clock.sleep(stage.random.random() * 2)
            try:
                held = self._held = self._held or await self._acquire(store)
                await self._step(store, held)
            except GAVE_UP:
                continue
            except (Fenced, UnknownCapability):
                stage.happened["expired writers"] += 1
                self._gone()

    async def _acquire(self, store: Collections) -> WriteCapability:
        read, write = await store.acquire(TABLE, owner="table writer", lease_ms=LEASE_MS)
        assert write is not None
        self._stage.audit.confirmed(write)
        with suppress(*GAVE_UP):
            await store.drop(read)
        return write

    def _gone(self) -> None:
        """The capability ended; only a first try surely did nothing."""
        if self._held is not None:
            self._stage.audit.released(self._held)
        if self._pending is not None and self._tries == 1:
            self._stage.audit.refused(TABLE, self._pending[0], "expired")
        self._held, self._pending, self._tries = None, None, 0

    async def _step(self, store: Collections, held: WriteCapability) -> None:
        stage = self._stage
        if self._pending is None and stage.random.random() < 0.05:
            await self._exchange(store, held)
            return
        if self._pending is None:
            lower = sole_time(held.frontier)
            new = lower + stage.random.randrange(1, 25)
            self._pending = stage.unit(stage.times(lower, new, (0, 1, 2, 30))), frontier(new)
        unit, new_frontier = self._pending
        self._tries += 1
        outcome = await store.update_and_downgrade(
            held, table_of(unit), new_frontier, token=unit.token
        )
        if isinstance(outcome, Appended):
            stage.audit.acknowledged(TABLE, unit, outcome.upper)
            self._held = held.at(outcome.upper)
        else:
            stage.audit.found(f"{unit.token}: nobody else holds this, and it is at {outcome}")
            self._held = held.at(outcome.current)
        self._pending, self._tries = None, 0
        stage.audit.confirmed(self._held)

    async def _exchange(self, store: Collections, held: WriteCapability) -> None:
        """Go on with a clone, drop the first, and be refused for using it again (K6, K9, K10)."""
        stage = self._stage
        clone = await store.clone(held)
        stage.audit.confirmed(clone)
        stage.audit.released(held)
        self._held = clone
        await store.drop(held)
        try:
            await store.update_and_downgrade(held, None, frontier(sole_time(held.frontier) + 9))
            stage.audit.found("a dropped capability was used")
        except UnknownCapability:
            stage.happened["uses after drop refused"] += 1


class Replica:
    """One of two that write the same view with the same capability: the loser adopts the winner
    (MV4).
    """

    def __init__(self, stage: Stage, shared: WriteCapability) -> None:
        self._stage = stage
        self._held = shared

    async def run(self, store: Collections, clock: LoopClock) -> None:
        stage = self._stage
        while True:
            await clock.sleep(stage.random.random() * 2)
            lower = sole_time(self._held.frontier)
            new = lower + stage.random.randrange(1, 10)
            unit = self._computed(lower, new)
            tried = False
            while True:
                try:
                    outcome = await store.update_and_downgrade(
                        self._held, table_of(unit), frontier(new), token=unit.token
                    )
                except GAVE_UP:
                    tried = True
                    continue
                break
            if isinstance(outcome, Appended):
                stage.audit.acknowledged(VIEW, unit, outcome.upper)
                self._held = self._held.at(outcome.upper)
            else:
                stage.happened["winners adopted"] += 1
                if not tried:
                    stage.audit.refused(VIEW, unit, "adopted")
                self._held = self._held.at(outcome.current)

    def _computed(self, lower: int, new: int) -> Unit:
        """The rows of the view for [lower, new), the same in every process that computes them."""
        updates: list[tuple[int, Row, int]] = []
        for time in range(lower, new):
            if time % 3 == 0:
                updates += [(time, (2 * time, time), 1), (time, (2 * time + 1, -time), 1)]
            if time % 3 == 2 and time > 6:
                gone = time - 5
                updates += [(time, (2 * gone, gone), -1), (time, (2 * gone + 1, -gone), -1)]
        unit = Unit(f"{self._stage.random.getrandbits(64):016x}", tuple(updates))
        self._stage.audit.begun(unit)
        return unit


class Reader:
    """Reads at every time that its hold promises, moves the hold, and loses its lease now and
    then.
    """

    def __init__(self, stage: Stage, collection: str) -> None:
        self._stage = stage
        self._collection = collection
        self._held: ReadCapability | None = None
        self._least = 0

    async def run(self, store: Collections, clock: LoopClock) -> None:
        stage = self._stage
        while True:
            await clock.sleep(stage.random.random() * 2)
            try:
                held = self._held = self._held or await self._acquire(store)
                await self._step(store, held)
            except GAVE_UP:
                continue
            except (Fenced, UnknownCapability):
                stage.happened["expired readers"] += 1
                if self._held is not None:
                    stage.audit.released(self._held)
                self._held = None

    async def _acquire(self, store: Collections) -> ReadCapability:
        held = await store.read_hold(self._collection, owner="reader", lease_ms=LEASE_MS)
        self._stage.audit.confirmed(held)
        self._least = sole_time(held.frontier)
        return held

    async def _step(self, store: Collections, held: ReadCapability) -> None:
        stage = self._stage
        upper = sole_time((await store.status(self._collection)).upper)
        choice = stage.random.random()
        if choice < 0.1:
            await self._look_back(store, held)
        elif choice < 0.2 and sole_time(held.frontier) > 0:
            try:
                await store.downgrade(held, frontier(sole_time(held.frontier) - 1))
                stage.audit.found("a hold went back")
            except UsageError:
                stage.happened["downgrades back refused"] += 1
        elif choice < 0.4 and self._least < upper:
            await self._move(store, held, stage.random.randrange(self._least, upper + 3))
        elif choice < 0.45:
            await self._drop(store, held)
        elif self._least < upper:
            await self._read(store, held, stage.random.randrange(self._least, upper), upper)

    async def _read(self, store: Collections, held: ReadCapability, as_of: int, upper: int) -> None:
        """The contents under a live hold are readable (K1): the written ones, for every form of
        question.
        """
        stage, collection = self._stage, self._collection
        try:
            if stage.random.random() < 0.7:
                rows = rows_of(await store.snapshot(held, as_of))
                stage.audit.read(collection, as_of, rows)
                if rows:
                    await self._look_up(store, held, as_of, stage.random.choice(sorted(rows)))
            else:
                found = updates_of(await store.changes(held, as_of, upper))
                expected = stage.audit.updates(collection, as_of, upper)
                stage.audit.expect(found == expected, f"changes [{as_of}, {upper}) are {found}")
        except (BeforeSince, NotYet) as error:
            stage.audit.found(f"{collection} was held from {self._least} to {upper}: {error}")

    async def _look_up(
        self, store: Collections, held: ReadCapability, as_of: int, row: Row
    ) -> None:
        found = rows_of(await store.snapshot(held, as_of, equal={"id": row[0]}))
        alone = found == Counter({row: 1})
        self._stage.audit.expect(alone, f"the row {row} is looked up as {dict(found)} at {as_of}")
        self._stage.happened["look-ups"] += 1

    async def _move(self, store: Collections, held: ReadCapability, to: int) -> None:
        self._least = max(self._least, to)  # from now on it may have happened
        self._held = await store.downgrade(held, frontier(to))
        self._stage.audit.confirmed(self._held)
        self._stage.happened["downgrades"] += 1

    async def _drop(self, store: Collections, held: ReadCapability) -> None:
        self._stage.audit.released(held)
        self._held = None
        await store.drop(held)
        try:
            await store.snapshot(held, self._least)
            self._stage.audit.found("a dropped capability was used")
        except UnknownCapability:
            self._stage.happened["uses after drop refused"] += 1

    async def _look_back(self, store: Collections, held: ReadCapability) -> None:
        """Before the hold an answer is right or refused (F12)."""
        if not self._least:
            return
        as_of = self._stage.random.randrange(self._least)
        try:
            rows = rows_of(await store.snapshot(held, as_of))
            self._stage.audit.read(self._collection, as_of, rows)
        except BeforeSince:
            self._stage.happened["reads before since refused"] += 1
        except NotYet:
            self._stage.happened["reads past upper refused"] += 1


class Subscriber:
    """Follows a collection over all its lives; what it adds up is what is there (SU1, SU5, P7)."""

    def __init__(self, stage: Stage, collection: str) -> None:
        self._stage = stage
        self._collection = collection
        self._held: ReadCapability | None = None
        self._upper: int | None = None
        self._total: Counter[Row] = Counter()

    async def run(self, store: Collections, clock: LoopClock) -> None:
        while True:
            with suppress(*GAVE_UP):
                await self._follow(store)
            await clock.sleep(1)

    async def _follow(self, store: Collections) -> None:
        owner = f"follower of {self._collection}"
        held = await store.read_hold(self._collection, owner=owner, lease_ms=None)
        self._stage.audit.confirmed(held)
        begin = sole_time(held.frontier) if self._upper is None else self._upper - 1
        self._stage.happened["resumed subscriptions"] += self._upper is not None
        news: Counter[Row] = Counter()
        stream = store.subscribe(held, begin, snapshot=self._upper is None)
        try:
            async for event in stream:
                match event:
                    case Updates(table):
                        for (_, row), diff in updates_of(table).items():
                            news[row] += diff
                    case Progress(upper):
                        if sole_time(upper) > begin:
                            held = await self._record(store, held, news, sole_time(upper))
                            news = Counter()
        finally:
            await stream.aclose()

    async def _record(
        self, store: Collections, held: ReadCapability, news: Counter[Row], upper: int
    ) -> ReadCapability:
        """Put on record what came, at once with how far it goes; only then let go of it."""
        total = Counter(self._total)
        for row, diff in news.items():
            total[row] += diff
        self._total, self._upper = Counter({row: n for row, n in total.items() if n}), upper
        self._stage.audit.read(self._collection, upper - 1, self._total)
        self._stage.happened["followed"] += 1
        if sole_time(held.frontier) < upper - 1 and self._stage.random.random() < 0.5:
            held = await store.downgrade(held, frontier(upper - 1))
            self._stage.audit.confirmed(held)
        return held


class Compactor:
    """Merges, collects garbage and reaps orphans, at moments that suit nobody."""

    def __init__(self, stage: Stage, age_ms: int) -> None:
        self._stage = stage
        self._age_ms = age_ms

    async def run(self, store: Collections, clock: LoopClock) -> None:
        stage = self._stage
        while True:
            await clock.sleep(stage.random.random() * 3)
            collection = stage.random.choice((LEDGER, TABLE, VIEW))
            try:
                match stage.random.randrange(6):
                    case 0:
                        await store.compact(collection)
                        stage.happened["whole compactions"] += 1
                    case 1 | 2 | 3:
                        stage.happened["merges"] += (await store.compact_step(collection, 1)).taken
                    case 4:
                        grace_ms = stage.random.choice((0, 2_000))
                        stage.happened["collected objects"] += await store.collect_garbage(
                            collection, grace_ms
                        )
                    case _:
                        stage.happened["reaped objects"] += await store.reap_orphans(
                            collection, self._age_ms
                        )
            except GAVE_UP:
                continue


class Founder:
    """Binds ids, closes what it made, and never gets an id twice (L3, L4, CR4)."""

    def __init__(self, stage: Stage, unique: Callable[[], str]) -> None:
        self._stage = stage
        self._unique = unique
        self._read: ReadCapability | None = None

    async def run(self, store: Collections, clock: LoopClock) -> None:
        self._read = None
        while True:
            await clock.sleep(self._stage.random.random() * 10)
            name = f"brief {self._unique()}"
            try:
                await self._live(store, name)
            except GAVE_UP:
                continue

    async def _live(self, store: Collections, name: str) -> None:
        stage = self._stage
        read, _ = await store.create(name, Description(ROWS), lease_ms=None)
        unit = stage.unit([0, 1])
        while True:
            try:
                outcome = await store.compare_and_append(
                    name, frontier(0), frontier(2), table_of(unit), writer="f", token=unit.token
                )
            except GAVE_UP:
                continue
            break
        stage.audit.expect(outcome == Appended(frontier(2)), f"{name} answered {outcome}")
        stage.audit.read(name, 1, rows_of(await store.snapshot(read, 1)))
        await store.close_collection(name)
        await store.downgrade(read, frontier())
        status = await store.status(name)
        stage.audit.expect(status.since.empty and status.upper.empty, f"{name} is not closed")
        try:
            await store.create(name, Description(ROWS), lease_ms=None)
            stage.audit.found(f"{name} was bound twice")
        except AlreadyUsed:
            stage.happened["ids refused"] += 1
