"""History of a view's inputs, and of its ticks, over a stretch of time: the basis of reasons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from tidemill.arrangement.looks import let_go, with_looks
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.directory import Readable, TicksOf, ViewOf
from tidemill.datalog.allowance import Allowance, match_bytes
from tidemill.datalog.logical.scans import Scan
from tidemill.datalog.presence import Presence
from tidemill.datalog.pushdown import EVERYTHING, Reading, reading_of
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow
from tidemill.datalog.ticking import TickHistory, TickStart, recorded
from tidemill.errors import BeforeSince, CapabilityExpired, TidemillError, UnknownCapability
from tidemill.host.questions.working import Workers
from tidemill.rpc.turns import let_go_beside
from tidemill.shard import Collections, ReadCapability
from tidemill.time import sole_time

T = TypeVar("T")

ROWS_A_LOOK = 500
"""Rows that become records between two looks at an allowance: one or two milliseconds."""

Hold: TypeAlias = "Callable[[str, str], AbstractAsyncContextManager[ReadCapability]]"
"""Holds a collection for an owner."""
Move: TypeAlias = "tuple[Record, int, int]"
"""A record, the instant at which it comes or goes, and ±1."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The records of an input at `begins`, and how they come and go after it; `moving` are those
    that do.
    """

    begins: int
    present: list[Record] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    moving: set[Record] = field(default_factory=set)

    def named(self, predicate: str) -> Stretch:
        """The same as facts of the predicate by which a program knows the input."""
        return Stretch(
            self.begins,
            [replace(r, predicate=predicate) for r in with_looks(self.present)],
            [(replace(record, predicate=predicate), at, diff) for record, at, diff in self.moves],
        )

    def presences(self) -> list[Presence]:
        """Each record from when to when it was there; a fact without a time that was there at 0
        always was.
        """
        # NB: the garbage collector goes through a container that is young twice, and at once. These
        # are old soon: each presence that is made for them counts for its next look.
        stayed: list[Presence] = []
        ended: list[Presence] = []
        there: dict[Record, Presence] = {}
        try:
            for record in with_looks(self.present):
                since = Presence(record, self._from(record), math.inf)
                if record in self.moving:
                    there[record] = since
                else:
                    stayed.append(since)
            for record, at, diff in with_looks(self.moves):
                if diff > 0:
                    there[record] = Presence(record, at, math.inf)
                else:
                    ended.append(Presence(record, there.pop(record).start, at))
            for rest in (stayed, there.values()):
                ended.extend(with_looks(rest))
        except TidemillError:
            let_go(ended)
            raise
        finally:
            let_go(stayed)
            let_go(there)
        return ended

    def let_go(self) -> None:
        """Free all of it, on this thread and not at once."""
        for things in (self.present, self.moves, self.moving):
            let_go(things)

    def _from(self, record: Record) -> float:
        """Since when a record is there that is there at the beginning."""
        return -math.inf if self.begins == 0 and record.time is None else self.begins


@dataclass(frozen=True, slots=True)
class Columns:
    """The rows of an input: its contents at `begins`, and its changes after that.

    A question that waits for its turn holds columns, which the collector of garbage never looks at.
    """

    readable: Readable
    begins: int
    present: pa.Table
    news: pa.Table

    def presences(self, allowance: Allowance) -> list[Presence]:
        """The presences of its records. Raises: Exhausted. Cost: some 10 µs for each row."""
        return self._made(Stretch.presences, allowance)

    def named(self, predicate: str, allowance: Allowance) -> Stretch:
        """Its records as facts of a predicate. Raises, cost: as for presences."""
        return self._made(partial(Stretch.named, predicate=predicate), allowance)

    def _made(self, make: Callable[[Stretch], T], allowance: Allowance) -> T:
        stretch = _stretched(self, allowance)
        try:
            return make(stretch)
        finally:
            stretch.let_go()


@contextmanager
def presences_of(
    inputs: Mapping[str, Columns], allowance: Allowance
) -> Iterator[dict[str, list[Presence]]]:
    """Presences of inputs for the time of the body, on whatever thread it runs.

    They are freed there at its end, however it ends, and not at once. Raises: Exhausted.
    """
    found: dict[str, list[Presence]] = {}
    try:
        for name, read in inputs.items():
            found[name] = read.presences(allowance)
        yield found
    finally:
        for each in found.values():
            let_go(each)


def holding(collections: Collections, lease_ms: int) -> Hold:
    """Holds of collections, each for the length of a body, or until its process is gone."""

    @asynccontextmanager
    async def held(collection: str, owner: str) -> AsyncIterator[ReadCapability]:
        taken = await collections.read_hold(collection, owner=owner, lease_ms=lease_ms)
        try:
            yield taken
        finally:
            with suppress(UnknownCapability, CapabilityExpired):
                await collections.drop(taken)

    return held


class Histories:
    """Reads what collections held; nothing of it is kept."""

    def __init__(self, collections: Collections, hold: Hold, workers: Workers) -> None:
        self._collections = collections
        self._workers = workers
        self._reading = hold

    async def read(
        self,
        inputs: Mapping[str, Readable],
        begins: int,
        at: int,
        scans: Mapping[str, Scan],
        allowance: Allowance,
    ) -> dict[str, Columns]:
        """Inputs at instants in [begins, at], as far back as since allows.

        Of an input with a scan what passes it. Raises: Exhausted, and BeforeSince for an `at` that
        the history of an input does not reach.
        """
        found: dict[str, Columns] = {}
        for name, readable in inputs.items():
            reading = EVERYTHING
            if name in scans:
                schema = (await self._collections.description(readable.collection)).schema
                reading = reading_of(scans[name], schema, readable.arguments, columns=False)
            since = await self._since(readable.collection)
            found[name] = await self._read(readable, max(begins, since), at, allowance, reading)
        return found

    @asynccontextmanager
    async def of_ticks(
        self, view: ViewOf, ticks: TicksOf, begins: int, at: int, allowance: Allowance
    ) -> AsyncIterator[TickHistory]:
        """The ticks of a view in [begins, at], as far back as since allows. Raises: Exhausted.

        It begins where the view began, or with what a step of it handed on: the first one from
        `begins` on. It is freed at the end of the body, beside the event loop.
        """
        stretches: dict[str, Stretch] = {}
        try:
            found = await self._ticks(view, ticks, begins, at, stretches, allowance)
        finally:
            for stretch in stretches.values():
                await let_go_beside(stretch.present, stretch.moves)
        try:
            yield found
        finally:
            await let_go_beside(*found.parts())

    async def _ticks(
        self,
        view: ViewOf,
        ticks: TicksOf,
        begins: int,
        at: int,
        stretches: dict[str, Stretch],
        allowance: Allowance,
    ) -> TickHistory:
        readables = view.inputs.values()
        for collection in (ticks.state, *(each.collection for each in readables)):
            begins = max(begins, await self._since(collection))
        state, begun, fresh = frozenset[StateRow](), begins, True
        if (
            begins != ticks.begin
        ):  # a first step of one instant leaves its state at the beginning itself
            state, begun, fresh = await self._read_handed(ticks.state, begins, at)
        for name, readable in view.inputs.items():
            read = await self._read(readable, min(begun, at), at, allowance)
            stretches[name] = await self._workers.run(allowance, read.named, name, allowance)
        lower = begun if fresh else begun + 1
        start = TickStart(lower, fresh, {n: s.present for n, s in stretches.items()}, state)
        moves = {name: stretch.moves for name, stretch in stretches.items()}
        return await self._workers.run(
            allowance, recorded, view.program, ticks.plan, start, moves, at + 1, None, allowance
        )

    async def _since(self, collection: str) -> int:
        since = (await self._collections.status(collection)).since
        return 0 if since.empty else sole_time(since)

    async def _read_handed(
        self, collection: str, begins: int, at: int
    ) -> tuple[frozenset[StateRow], int, bool]:
        """A state that ticks left, the instant for which it is exact, and whether there were none
        before.

        A step writes its state for its last instant: one that is read in between is that of the
        step before.
        """
        async with self._reading(collection, "why") as held:
            rows = Counter(_rows(await self._collections.snapshot(held, begins)))
            if not rows:
                return frozenset(), begins, True
            news = await self._collections.changes(held, begins + 1, at + 1)
        times = news[TIME].to_pylist()
        if not times:
            return frozenset(rows), at, False
        first = min(times)
        for time, diff, row in zip(times, news[DIFF].to_pylist(), _rows(news), strict=True):
            if time == first:
                rows[row] += diff
        return frozenset(row for row, count in rows.items() if count), first, False

    async def _read(
        self,
        readable: Readable,
        begins: int,
        at: int,
        allowance: Allowance,
        reading: Reading = EVERYTHING,
    ) -> Columns:
        """The contents of an input at `begins`, and its changes up to `at`."""
        status = await self._collections.status(readable.collection)
        if at < begins:
            raise BeforeSince(
                f"{readable.collection} has no history at {at} any more: since is {status.since}",
                requested=at, since=status.since, holder=status.moved_by,
            )  # fmt: skip
        async with self._reading(readable.collection, "why") as held:
            present = await self._collections.snapshot(
                held, begins, equal=reading.equal, where=reading.where, told=allowance.take
            )
            news = await self._collections.changes(
                held, begins + 1, at + 1, where=reading.where, told=allowance.take
            )
        allowance.take((present.num_rows + news.num_rows) * match_bytes(len(news.column_names)))
        return Columns(readable, begins, present, news)


def _stretched(read: Columns, allowance: Allowance) -> Stretch:
    """The rows as records, and their changes in order; a row there twice is there once."""
    stretch, readable = Stretch(read.begins), read.readable
    copies: Counter[Record] = Counter()
    try:
        for piece in _pieces(read.present, allowance):
            for record, diff in zip(readable.records(piece), piece[DIFF].to_pylist(), strict=True):
                if record not in copies:  # grows with the records: the collector knows it by then
                    stretch.present.append(record)
                copies[record] += diff
        if any(count <= 0 for count in with_looks(copies.values())):
            there = [record for record in with_looks(stretch.present) if copies[record] > 0]
            stretch.present[:] = there
        ordered = read.news.sort_by([(TIME, "ascending"), (DIFF, "ascending")])
        for piece in _pieces(ordered, allowance):
            times, diffs = piece[TIME].to_pylist(), piece[DIFF].to_pylist()
            for time, diff, record in zip(times, diffs, readable.records(piece), strict=True):
                before, after = copies[record], copies[record] + diff
                copies[record] = after
                if (before > 0) != (after > 0):
                    stretch.moves.append((record, time, 1 if after > 0 else -1))
                    stretch.moving.add(record)
    except TidemillError:
        stretch.let_go()
        raise
    finally:
        let_go(copies)
    return stretch


def _pieces(table: pa.Table, allowance: Allowance) -> Iterator[pa.Table]:
    """The rows in their order, with a look at the allowance every few milliseconds."""
    for start in range(0, table.num_rows, ROWS_A_LOOK):
        allowance.take(0)
        yield table.slice(start, ROWS_A_LOOK)


def _rows(table: pa.Table) -> list[StateRow]:
    """Rows of a state."""
    columns = [table[name].to_pylist() for name in ("rule", "kind", "solution")]
    return list(zip(*columns, strict=True))
