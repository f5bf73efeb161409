"""Actions: definite events of a goal go to an outbox, and from there to a sink, each exactly
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, concatenate, stamp, update_schema
from tidemill.catalog.schemas import outbox_schema
from tidemill.errors import Fenced, NotYet
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.actions.corrections import Correction, correction_rows
from tidemill_compute.actions.due import Due
from tidemill_compute.actions.grouping import grouping_of
from tidemill_compute.actions.memory import Memory
from tidemill_compute.actions.outbox import (
    Firing,
    Sink,
    firing_updates,
    follow_on,
)
from tidemill_compute.actions.taking import NOTHING_READ, Read
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.appending import append_through
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings

STEPS_READ_AHEAD = 20
"""Steps of a backlog whose changes are read together, as columns."""


@dataclass(slots=True)
class ActionCounts:
    """For metrics: what was put into the outbox, seen again, carried out, corrected; refused by a
    fence, or passed over by a limit. Outdated events begin when their time is too long ago.
    """

    fired: int = 0
    repeated: int = 0
    effects: int = 0
    corrected: int = 0
    fenced: int = 0
    limited: int = 0
    outdated: int = 0
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
        self._grouping = grouping_of(
            target.group, [name for name, _ in target.shape.argument_columns]
        )
        self._memory = Memory(target, collections, self._holds)
        self._read = NOTHING_READ
        self._telling = asyncio.Lock()
        self._carried: set[str] = set()
        """Keys whose effects have happened, of firings that are not marked as done."""
        self._told = 0, 0
        """An instant from which on nothing is done, and the number of firings from there on whose
        effects have happened: these are not in `_carried`.
        """
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
            reached = await self._definite(self.counts.frontier)
            upper = await self._step_end(reached)
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
                await self._sink.fire(list(self._memory.lasting.values()))

    async def _resume(self) -> None:
        """Read the fired events and the effects done from the outbox, and go on behind them."""
        upper, covered = await self._recall()
        self._read = NOTHING_READ
        done = await self._read_done()
        doubtful = await self._due(done, self._told_until(upper))
        self._carried |= await self._sink.recover(doubtful)
        await self._carry_out(upper)
        self.counts.frontier = covered

    async def _recall(self) -> tuple[int, int]:
        """Learn what has fired; the upper of the outbox, and how far it covers what is watched."""
        status = await self._collections.status(self._target.outbox)
        upper = sole_time(status.upper)
        self._memory.forget()
        if status.since != status.upper:
            await self._memory.recall(upper)
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

    async def _step_end(self, reached: int) -> int:
        """The end of the next step: all that is definite, or as much as is taken at once.

        Its changes are at hand then: parts that hold the history of a backlog are read once for
        many steps.
        """
        lower, rows_max = self.counts.frontier, self._settings.action_changes_max
        if not self._read.covers(lower):
            watched = self._target.watched
            until = await self._collections.upper_of_rows(
                watched, lower, reached, STEPS_READ_AHEAD * rows_max
            )
            self._read = Read(lower, until, await self._read_changes(lower, until))
        return self._read.step_end(lower, rows_max)

    async def _put(self, lower: int, upper: int) -> None:
        """Put every event into the outbox whose presence begins in [lower, upper) and did not
        before.
        """
        changes, target = self._read.between(lower, upper), self._target
        schema = outbox_schema(target.follow, limited=target.limit is not None)
        put, corrected = [update_schema(schema).empty_table()], []
        for piece in self._memory.taking.pieces(changes, self._settings.action_changes_max):
            firings, corrections = self._news(piece)
            put.append(firing_updates(firings, schema))
            corrected.append(correction_rows(corrections, target.shape))
            await self._clock.sleep(0)  # others have a turn
        # IMPORTANT: the corrections first: a restart goes on from the upper of the outbox.
        await self._correct(concatenate(corrected), upper)
        rows = concatenate(put)
        await append_through(self._collections, target.outbox, rows, upper, target.name)
        self.counts.fired += rows.num_rows
        if target.limit is not None:
            self.counts.limited += pc.sum(rows["limited"]).as_py() or 0

    def _news(self, changes: pa.Table) -> tuple[list[Firing], list[Correction]]:
        """First firings, and corrections of earlier ones, by instant."""
        news = self._memory.fired.take(self._memory.taking.changes(changes))
        self.counts.repeated = self._memory.fired.repeated
        self.counts.outdated = self._memory.fired.outdated
        return news

    async def _correct(self, corrected: pa.Table, upper: int) -> None:
        """Write down what became, before `upper`, of what has fired."""
        target = self._target
        await append_through(self._collections, target.corrections, corrected, upper, target.name)
        self.counts.corrected += corrected.num_rows

    async def _read_changes(self, lower: int, upper: int) -> pa.Table:
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

    async def _due(self, lower: int, upper: int) -> Due:
        """The effects that the outbox asks for from [lower, upper), each with the instant behind
        which it is done, in their order.
        """
        if lower >= upper:
            return Due.of([])
        due = Due.in_outbox(await self._holds.changes(self._target.outbox, lower, upper))
        if self._grouping is None:
            return due
        return Due.of(
            [(self._grouping.end_of(each), each) for each in self._grouping.messages(due)]
        )

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
            for instant, start, stop in due.instants():
                if await self._mark_done(due.marks.slice(start, stop - start), instant + 1):
                    await self._tell(due, start, stop)
        else:
            await self._tell(due, self._told[1] if self._told[0] == lower else 0, len(due), lower)
        if lower < upper:
            await self._mark_done(due.marks, upper)

    async def _tell(self, due: Due, start: int, stop: int, lower: int | None = None) -> None:
        """Call the sink for the effects at these places, some at a time.

        With `lower`, the instant of the first one that is not done, those that happen are noted.
        """
        for at in range(start, stop, self._settings.action_changes_max):
            some = due[at : min(at + self._settings.action_changes_max, stop)]
            told = [each for each in some if not each.limited and each.key not in self._carried]
            await self._fire(told)
            if lower is not None:
                self._told = lower, at + len(some)
                self._carried.difference_update(each.key for each in some)

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
        if self._target.repeats:
            for firing in firings:
                follow_on(self._memory.lasting, firing)
        if not self._sink.at_most_once:
            self._carried.update(firing.key for firing in firings)

    async def _mark_done(self, marks: pa.Table, upper: int) -> int:
        """Write marks for these firings; the number of them that had no mark before."""
        ones = pa.array(np.ones(marks.num_rows, np.int64))
        return await append_through(
            self._collections, self._target.done, marks.append_column(DIFF, ones), upper,
            self._target.name,
        )  # fmt: skip

    async def _move_holds(self, upper: int) -> None:
        """Downgrade the holds to the instant up to which the outbox has every firing."""
        await self._holds.downgrade(self._target.watched, frontier(max(0, upper - 1)))
