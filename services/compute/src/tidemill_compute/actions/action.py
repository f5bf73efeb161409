"""Actions: definite events of a goal go to an outbox, and from there to a sink, each exactly
once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, concatenate, stamp, update_schema
from tidemill.catalog.record_rows import PredicateShape, record_of
from tidemill.catalog.schemas import outbox_schema
from tidemill.datalog.goals import Goal
from tidemill.errors import Fenced, NotYet
from tidemill.runtime.clock import Clock
from tidemill.runtime.resources.specs import GroupSpec, RateSpec
from tidemill.shard import Collections
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.actions.corrections import Correction, correction_rows, corrections_told
from tidemill_compute.actions.firings import Firings
from tidemill_compute.actions.grouping import grouping_of
from tidemill_compute.actions.limiting import limiter_of
from tidemill_compute.actions.outbox import (
    Firing,
    Sink,
    firings_of,
    follow_on,
    lasting_in,
    outbox_rows,
)
from tidemill_compute.appending import append_through
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action: its goal, the collection that is watched, its outbox, and what is done of it."""

    name: str
    goal: Goal
    watched: str
    shape: PredicateShape
    outbox: str
    done: str
    corrections: str
    follow: bool = False
    limit: RateSpec | None = None
    group: GroupSpec | None = None


@dataclass(slots=True)
class ActionCounts:
    """For metrics: what was put into the outbox, seen again, carried out, corrected; refused by a
    fence, or passed over by a limit.
    """

    fired: int = 0
    repeated: int = 0
    effects: int = 0
    corrected: int = 0
    fenced: int = 0
    limited: int = 0
    frontier: int = 0


class ActionDriver:
    """Each distinct event of the goal fires once: key = (action, predicate, arguments, time).

    The outbox is written first, with its upper as the progress: its content is a function of the
    watched collection. The sink is asked afterwards. Its own memory of keys decides what a crash
    left undone, and the collection `done` bounds the look back. An event that fired and is
    withdrawn, changes or comes back never fires again; it becomes a row of `corrections`. An event
    from before the outbox does not fire when it changes.

    An action that follows its events also fires for each change, end and return of one that has
    fired. Its keys are the event, and how many were before.
    """

    def __init__(
        self,
        target: ActionTarget,
        sink: Sink,
        collections: Collections,
        clock: Clock,
        settings: ComputeSettings,
    ) -> None:
        self._target = target
        self._sink = sink
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._holds = Holds(collections, f"action:{target.name}")
        self._record_of = record_of(target.shape)
        names = [name for name, _ in target.shape.argument_columns]
        self._limiter = limiter_of(target.limit, names)
        self._grouping = grouping_of(target.group, names)
        self._fired = Firings(target.goal, target.follow, self._limiter)
        self.lasting: dict[str, Firing] = {}
        """Of an action that follows its events: what was told last of each that has not ended."""
        self._telling = asyncio.Lock()
        self._carried: set[str] = set()
        """Keys whose effects have happened, of firings that are not marked as done."""
        self.counts = ActionCounts()

    async def prepare(self) -> None:
        """Hold what is watched, and the outbox from where it begins."""
        target = self._target
        for collection in (target.watched, target.outbox, target.done, target.corrections):
            await self._holds.take(collection)

    async def fire_forever(self) -> None:
        """Fire definite events until cancelled; return once the watched collection is closed."""
        await self.prepare()
        await self._resume()
        held_at = self._clock.monotonic_s()
        while self.counts.frontier < U64_MAX:
            upper = await self._definite(self.counts.frontier)
            await self._put(self.counts.frontier, upper)
            await self._carry_out(upper)
            self.counts.frontier = upper
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                await self._move_holds(upper)

    async def repeat_forever(self, repeat_s: float) -> None:
        """Tell of each event that lasts again and again, until cancelled.

        For a sink that forgets. Nothing is told again after its end was told.
        """
        while True:
            await self._clock.sleep(repeat_s)
            async with self._telling:
                await self._sink.fire(list(self.lasting.values()))

    async def _resume(self) -> None:
        """Read the fired events and the effects done from the outbox, and go on behind them."""
        upper, covered = await self._recall()
        done = await self._read_done()
        doubtful = [firing for _, firing in await self._due(done, self._told_until(upper))]
        self._carried |= await self._sink.recover(doubtful)
        await self._carry_out(upper)
        self.counts.frontier = covered

    async def _recall(self) -> tuple[int, int]:
        """Learn what has fired; the upper of the outbox, and how far it covers what is watched."""
        target = self._target
        status = await self._collections.status(target.outbox)
        upper = sole_time(status.upper)
        if status.since != status.upper:
            put = await self._holds.snapshot(target.outbox, upper - 1)
            self._fired.known = Counter(put["event" if target.follow else "key"].to_pylist())
            self.lasting = lasting_in(put) if target.follow else {}
            if self._limiter is not None:
                rows = put.drop_columns([DIFF]).to_pylist()
                self._limiter.recall(Firing(**row) for row in rows)
            told = await self._holds.snapshot(target.corrections, upper - 1)
            self._fired.told = corrections_told(told)
        return upper, upper

    async def _definite(self, lower: int) -> int:
        """The upper of what is watched, once it is past `lower`."""
        while True:
            try:
                upper = await self._collections.wait_for_upper(
                    self._target.watched, lower, self._settings.poll_timeout_s
                )
            except NotYet:
                continue
            return U64_MAX if upper.empty else sole_time(upper)

    async def _put(self, lower: int, upper: int) -> None:
        """Put every event into the outbox whose presence begins in [lower, upper) and did not
        before.
        """
        firings, corrections = self._news(await self._changes(lower, upper))
        target, name = self._target, self._target.name
        stamps = [pa.array([f.instant for f in firings], pa.uint64())]
        stamps.append(pa.array([1] * len(firings), pa.int64()))
        schema = outbox_schema(target.follow, limited=target.limit is not None)
        table = outbox_rows(firings, schema)
        table = table.append_column(TIME, stamps[0]).append_column(DIFF, stamps[1])
        table = concatenate([update_schema(schema).empty_table(), table])
        # IMPORTANT: the corrections first: a restart goes on from the upper of the outbox.
        await self._correct(corrections, upper)
        await append_through(self._collections, target.outbox, table, upper, name)
        self.counts.fired += len(firings)
        self.counts.limited += sum(firing.limited for firing in firings)

    async def _correct(self, corrections: Sequence[Correction], upper: int) -> None:
        """Write down what became, before `upper`, of what has fired."""
        target = self._target
        changed = correction_rows(corrections, target.shape)
        await append_through(self._collections, target.corrections, changed, upper, target.name)
        self.counts.corrected += len(corrections)

    def _news(self, changes: pa.Table) -> tuple[list[Firing], list[Correction]]:
        """First firings, and corrections of earlier ones, by instant."""
        names = self._target.shape.schema.names
        rows = list(zip(*(changes[name].to_pylist() for name in names), strict=True))
        times, diffs = changes[TIME].to_pylist(), changes[DIFF].to_pylist()
        news = self._fired.take(
            (self._record_of(row), int(time), diff)
            for row, time, diff in zip(rows or [()] * len(times), times, diffs, strict=True)
        )
        self.counts.repeated = self._fired.repeated
        return news

    async def _changes(self, lower: int, upper: int) -> pa.Table:
        """The changes of the watched collection in [lower, upper); its first contents count as
        changes.
        """
        watched = self._target.watched
        if lower == 0 or await self._holds.take(watched) != frontier(lower):
            return await self._holds.changes(watched, lower, upper)
        present = await self._holds.snapshot(watched, lower)
        first = stamp(present.drop_columns([DIFF]), lower)
        if lower + 1 == upper:
            return first
        return concatenate([first, await self._holds.changes(watched, lower + 1, upper)])

    async def _due(self, lower: int, upper: int) -> list[tuple[int, Firing]]:
        """The effects that the outbox asks for from [lower, upper), each with the instant behind
        which it is done, in their order.
        """
        if lower >= upper:
            return []
        due = firings_of(await self._holds.changes(self._target.outbox, lower, upper))
        if self._grouping is None:
            return due
        messages = self._grouping.messages(firing for _, firing in due)
        return [(self._grouping.end_of(each), each) for each in messages]

    def _told_until(self, upper: int) -> int:
        """The instant before which effects are complete, if the outbox is up to `upper`."""
        return upper if self._grouping is None else self._grouping.whole(upper)

    async def _carry_out(self, upper: int) -> None:
        """Call the sink for each firing of the outbox that is not done, then mark it as done.

        A sink of `at_most_once` has the mark written first, instant by instant.
        """
        lower, upper = await self._read_done(), self._told_until(upper)
        due = await self._due(lower, upper)
        if self._sink.at_most_once:
            for instant, firings in groupby(due, lambda each: each[0]):
                together = list(firings)
                if await self._mark_done(together, instant + 1):
                    await self._fire([firing for _, firing in together if not firing.limited])
        else:
            told = (firing for _, firing in due if not firing.limited)
            await self._fire([firing for firing in told if firing.key not in self._carried])
        if lower < upper:
            await self._mark_done(due, upper)
            self._carried.difference_update(firing.key for _, firing in due)

    async def _read_done(self) -> int:
        return sole_time((await self._collections.status(self._target.done)).upper)

    async def _fire(self, firings: list[Firing]) -> None:
        try:
            async with self._telling:
                await self._sink.fire(firings, self._took)
        except Fenced:
            self.counts.fenced += 1
            raise

    def _took(self, firings: Sequence[Firing]) -> None:
        self.counts.effects += len(firings)
        if self._target.follow and self._grouping is None:
            for firing in firings:
                follow_on(self.lasting, firing)
        if not self._sink.at_most_once:
            self._carried.update(firing.key for firing in firings)

    async def _mark_done(self, due: Sequence[tuple[int, Firing]], upper: int) -> int:
        """Write marks for these firings; the number of them that had no mark before."""
        keys = pa.table(
            {
                "key": pa.array([firing.key for _, firing in due], pa.string()),
                TIME: pa.array([instant for instant, _ in due], pa.uint64()),
                DIFF: pa.array([1] * len(due), pa.int64()),
            }
        )
        return await append_through(
            self._collections, self._target.done, keys, upper, self._target.name
        )

    async def _move_holds(self, upper: int) -> None:
        """Downgrade the holds to the instant up to which the outbox has every firing."""
        await self._holds.downgrade(self._target.watched, frontier(max(0, upper - 1)))
