"""Looking all the time: frontiers, holds, answers of every process, and how far behind they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from random import Random  # noqa: TID251  seeded

import pyarrow as pa

from tidemill.arrangement.updates import DIFF
from tidemill.errors import (
    BeforeSince,
    DeadlinePassed,
    Indeterminate,
    NotYet,
    Unavailable,
    UnknownCollection,
)
from tidemill.rpc.client import AsyncClient
from tidemill.shard import Collections, CollectionStatus, ReadCapability
from tidemill.testkit.service_faults.cluster import BOOK, CREW, METER, PARTITIONS, Cluster
from tidemill.testkit.service_faults.load import Load
from tidemill.testkit.service_faults.oracle import COLUMNS, Oracle, Rows, bound_by, difference
from tidemill.testkit.service_faults.outcome import Outcome
from tidemill.time import Frontier, sole_time

LOOK_S = 0.4
ASK_S = 0.5
HOLD_S = 15.0
LOOK_BACK_MS, RECENT_MS = 120_000, 5_000
"""Stretches before upper in which answers are asked for."""

AGAIN_SHARE = 0.25
EVENTS = ("flights", "delays/late", "delays/alarm", "delays/busy")
READINGS = ("meter", "meter/remap", "totals/total")
BOOKED = ("book", "book/remap", "seated/big")
CREWED = ("crew", "crew/remap")
ON_SYSTEM = ("flights/raw", "flights/remap", *READINGS, *BOOKED, *CREWED)
ASKED = (EVENTS, READINGS, BOOKED, CREWED)
"""Collections that are asked for together, and compared at one instant."""
AWAY = (Unavailable, Indeterminate, DeadlinePassed)


def rows_of(name: str, table: pa.Table) -> Rows:
    """The rows of a collection with their multiplicities."""
    columns = [table[column].to_pylist() for column in COLUMNS[name]]
    total: Rows = Counter()
    for *row, diff in zip(*columns, table[DIFF].to_pylist(), strict=True):
        total[tuple(row)] += diff
    return total


class Frontiers:
    """Every version's frontiers as the stores have them, past the proxies."""

    def __init__(self, cluster: Cluster, load: Load, outcome: Outcome) -> None:
        self.seen: dict[str, tuple[Frontier, Frontier]] = {}
        self._cluster = cluster
        self._load = load
        self._outcome = outcome
        self._store: Collections = cluster.collections()
        self._held: ReadCapability | None = None
        self._held_s = 0.0
        self._first: Rows | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                with suppress(*AWAY):
                    for name in await self._store.ids():
                        self._look(await self._store.status(name))
                    await self._hold()
                await self._cluster.clock.sleep(LOOK_S)
        finally:
            await self._store.close()

    def upper(self, collection: str) -> int:
        """The newest upper that was seen; 0 if none was."""
        _, upper = self.seen.get(collection, (None, None))
        return 0 if upper is None or upper.empty else sole_time(upper)

    def since(self, collection: str) -> int:
        """The newest since that was seen."""
        since, _ = self.seen[collection]
        return sole_time(since)

    def behind_s(self) -> tuple[float, str]:
        """Seconds by which the slowest collection is behind the time that it could know, and its
        name.
        """
        now_ms = self._cluster.clock.now_ms()
        behind = {name: now_ms - self.upper(name) for name in ON_SYSTEM}
        behind |= {name: self._load.promised - self.upper(name) for name in EVENTS}
        slowest = max(behind, key=lambda name: behind[name])
        return behind[slowest] / 1000, slowest

    def _look(self, status: CollectionStatus) -> None:
        since, upper = self.seen.get(status.id, (status.since, status.upper))
        holds = [h for h in status.holders if not status.since.precedes(h.frontier)]
        good = (
            since.precedes(status.since)
            and upper.precedes(status.upper)
            and status.since.precedes(status.upper)
            and not holds
        )
        self._outcome.expect(good, f"{status.id} went from {since}, {upper} to {status}")
        self._outcome.happened["frontiers audited"] += 1
        self._outcome.happened["since moved"] += since != status.since
        self._outcome.happened["upper moved"] += upper != status.upper
        self.seen[status.id] = status.since, status.upper

    async def _hold(self) -> None:
        """Hold a time of a collection for a while: what is there at it stays the same all the
        while.
        """
        now_s, clock = self._cluster.clock.monotonic_s(), self._cluster.clock
        if METER not in self.seen:
            return
        if self._held is None or now_s - self._held_s > HOLD_S:
            before, self._held, self._first = self._held, None, None
            if before is not None:
                await self._store.drop(before)
            self._held, _ = await self._store.acquire(METER, owner="whoever checks", lease_ms=None)
            self._held_s = clock.monotonic_s()
        held = self._held
        if not held.frontier.precedes(self.seen[METER][0]) or held.frontier == self.seen[METER][0]:
            self._outcome.happened["holds that since stood at"] += 1
        if self.upper(METER) > sole_time(held.frontier):
            rows = rows_of(METER, await self._store.snapshot(held, sole_time(held.frontier)))
            self._first = rows if self._first is None else self._first
            same = rows == self._first
            self._outcome.expect(
                same, f"{held.frontier} of {METER} was held and is not what it was"
            )
            self._outcome.happened["reads at a held time"] += 1


class Answers:
    """Asks the processes that answer users, at random instants, and keeps what they said."""

    def __init__(
        self, cluster: Cluster, frontiers: Frontiers, random: Random, outcome: Outcome
    ) -> None:
        self._cluster = cluster
        self._frontiers = frontiers
        self._random = random
        self._outcome = outcome
        self._unchecked: list[tuple[tuple[str, ...], int, dict[str, Rows]]] = []
        self._told: dict[tuple[str, int], Rows] = {}
        self._shown: dict[tuple[str, str], tuple[Frontier, Frontier]] = {}

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            for name, client in self._cluster.fronts():
                try:
                    await self._ask(client, self._random.choice(ASKED))
                    await self._list(f"{name} {self._cluster.member(name).pid}", client)
                except (BeforeSince, NotYet):
                    self._outcome.happened["answers refused as not definite"] += 1
                except UnknownCollection:
                    self._outcome.happened["answers refused as unknown yet"] += 1
                except AWAY as error:
                    self._outcome.happened[f"felt: an answer was {type(error).__name__}"] += 1
            await self._cluster.clock.sleep(ASK_S)

    async def _ask(self, client: AsyncClient, names: tuple[str, ...]) -> None:
        at = self._instant(names)
        if at is None:
            return
        tables = await client.tables(names, at)
        told = {name: rows_of(name, answer.table) for name, answer in tables.items()}
        self._outcome.happened["answers"] += 1
        for name, rows in told.items():
            known = self._told.setdefault((name, at), rows)
            self._outcome.expect(known == rows, f"two answers of {name} at {at} differ: {difference(rows, known)}")  # fmt: skip
        self._unchecked.append((names, at, told))

    def _instant(self, names: tuple[str, ...]) -> int | None:
        """An instant at which all of them are exact, now and then one that was asked for before."""
        if not set(names) <= self._frontiers.seen.keys():
            return None
        upper = min(self._frontiers.upper(name) for name in names)
        since = max(self._frontiers.since(name) for name in names)
        since = max(since, upper - LOOK_BACK_MS)
        before = [at for name, at in self._told if name == names[0] and since <= at < upper]
        if before and self._random.random() < AGAIN_SHARE:
            self._outcome.happened["answers asked for twice"] += 1
            return self._random.choice(before)
        # A short storm has rows at its end alone.
        since = max(since, upper - self._random.choice((RECENT_MS, RECENT_MS, LOOK_BACK_MS)))
        return self._random.randrange(since, upper) if since < upper else None

    async def _list(self, process: str, client: AsyncClient) -> None:
        """The frontiers that one process reports never go back."""
        for shown in await client.collections():
            since, upper = self._shown.get((process, shown.id), (shown.since, shown.upper))
            good = since.precedes(shown.since) and upper.precedes(shown.upper)
            self._outcome.expect(good, f"{process} said {since}, {upper} of {shown.id}, then {shown.since}, {shown.upper}")  # fmt: skip
            self._shown[process, shown.id] = shown.since, shown.upper
            self._outcome.happened["frontiers asked for"] += 1

    def check(self, oracle: Oracle) -> None:
        """Every answer since the last check against the definitions. The oracle has caught up."""
        for names, at, told in self._unchecked:
            wanted = _wanted(oracle, names, at, told)
            for name, rows in wanted.items():
                self._outcome.happened["answers checked"] += 1
                self._outcome.happened["rows in them"] += rows.total()
                self._outcome.expect(told[name] == rows, f"{name} at {at} {difference(told[name], rows)}")  # fmt: skip
        self._unchecked.clear()


def _wanted(
    oracle: Oracle, names: tuple[str, ...], at: int, told: Mapping[str, Rows]
) -> dict[str, Rows]:
    """The rows that the definitions require, under the bindings that were told."""
    if names == EVENTS:
        return oracle.events_at(at)
    by_offsets = {
        READINGS: (METER, oracle.readings_at),
        BOOKED: (BOOK, oracle.book_at),
        CREWED: (CREW, oracle.crew_at),
    }
    source, rows_at = by_offsets[names]
    return rows_at(bound_by(told[f"{source}/remap"], PARTITIONS[source]))
