"""Eager actions: a goal to which more events only add fires what has come, before it is
definite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, update_schema
from tidemill.catalog.record_rows import endless, record_of, row_of
from tidemill.catalog.schemas import OUTBOX_SCHEMA
from tidemill.datalog.presence import Presence
from tidemill.datalog.pushdown import Reading
from tidemill.datalog.records import Record
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, UpperMismatch
from tidemill.shard.offloading import first_of
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.corrections import correction_rows
from tidemill_compute.actions.early import EarlyEvents
from tidemill_compute.actions.outbox import Firing, Sink
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.settings import ComputeSettings

_LAST = 2**63 - 1
"""The progress of an action over a collection that is closed."""


class EagerDriver(ActionDriver):
    """An action whose events fire as soon as they follow from known ones: the same set, earlier.

    A definite event fires by itself; early discovery only comes before it. The outbox and `done`
    stand on the timeline of the system, at the instant at which they were written. The covered
    frontier of the watched collection is a row of the outbox. It is written together with the
    firings, strictly from the outbox's upper, so two processes that saw different parts cannot both
    write. Corrections are those of an action that is not eager.
    """

    def __init__(
        self, target: ActionTarget, sink: Sink, collections: Collections, clock: Clock,
        settings: ComputeSettings, early: EarlyEvents,
    ) -> None:  # fmt: skip
        super().__init__(target, sink, collections, clock, settings)
        self.early = early
        self._row_of = row_of(target.shape)
        self._record_of = record_of(target.shape)
        self._upper = 0
        self._noted: int | None = None
        """The instant up to which the outbox covers the watched collection; None before its first
        note.
        """
        self.foreseen = 0
        """Firings of this process before their events were definite."""

    async def prepare(self) -> None:
        """Hold what is watched, what the view reads below the goal, and the outbox from where it
        begins.
        """
        await super().prepare()
        await self.early.prepare()

    async def fire_forever(self) -> None:
        """Fire what is definite, and what has come, until cancelled or until nothing can follow."""
        await self.prepare()
        await self._resume()
        await self.early.resume(min(await self._read_reached(), _LAST))
        held_at = self._clock.monotonic_s()
        while self.counts.frontier < U64_MAX:
            await self._step()
            if self.counts.frontier == U64_MAX:
                return
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                await self._move_holds(self.counts.frontier)
            await self._more()

    async def _more(self) -> None:
        """Return once there is more that is definite, or more has come."""
        await first_of((self._definite(self.counts.frontier), self.early.wait()))

    async def _read_reached(self) -> int:
        """Up to where what is watched is definite."""
        upper = (await self._collections.status(self._target.watched)).upper
        return U64_MAX if upper.empty else sole_time(upper)

    async def _move_holds(self, upper: int) -> None:
        """Downgrade the holds to the instant that is covered and done; notes below it are
        dropped.
        """
        await super()._move_holds(upper)
        await self._holds.downgrade(self._target.outbox, frontier(max(0, self._upper - 1)))
        await self.early.move_holds(upper)

    async def _recall(self) -> tuple[int, int]:
        """Learn what has fired; the upper of the outbox, and how far it covers what is watched."""
        target = self._target
        status = await self._collections.status(target.outbox)
        self._upper = sole_time(status.upper)
        self._memory.forget()
        notes: dict[str, int] = {}
        if status.since != status.upper:
            read = Reading(columns=("key", "instant", "record"))
            rows = await self._holds.snapshot(target.outbox, self._upper - 1, reading=read)
            is_note = pc.equal(rows["key"], "")
            self._memory.fired.known.add(rows.filter(pc.invert(is_note))["key"].to_pylist())
            noted = rows.filter(is_note)
            notes = dict(
                zip(noted["record"].to_pylist(), noted["instant"].to_pylist(), strict=True)
            )
        self._noted = notes.pop("", None)
        self._memory.fired.ahead = notes
        begins = sole_time((await self._collections.status(target.corrections)).since)
        covered = begins if self._noted is None else self._noted
        async for told in self._memory.pieces(target.corrections, covered):
            self._memory.fired.told.add(told["key"].to_pylist())
        self.early.look_again()
        return self._upper, U64_MAX if covered == _LAST else covered

    async def _step(self) -> None:
        """Put down what is definite and what has come, and let the sink do it."""
        lower, reached = self.counts.frontier, await self._read_reached()
        upper, ahead = lower, dict(self._memory.fired.ahead)
        firings: list[Firing] = []
        if lower < reached:
            upper = await self._step_end(reached)
            firings, corrections = self._news(self._read.between(lower, upper))
            # IMPORTANT: the corrections first: a restart goes on from what the outbox covers.
            await self._correct(correction_rows(corrections, self._target.shape), upper)
        await self.early.advance()
        if upper == reached < U64_MAX:
            # Before the action begins nobody knows whether what has come will begin before it does.
            firings += self._foreseen(await self.early.find(reached), reached)
        if lower == upper and not firings:
            return
        at = max(self._upper + 1, self._clock.now_ms())
        rows = self._rows(firings, ahead, min(upper, _LAST), at - 1)
        outcome = await self._collections.compare_and_append(
            self._target.outbox, frontier(self._upper), frontier(at), rows, writer=self._target.name
        )
        if isinstance(outcome, UpperMismatch):
            # Somebody else goes on with this action: what it has put down counts, and the sink is
            # not asked again.
            _, self.counts.frontier = await self._recall()
            return
        self._upper, self._noted = at, min(upper, _LAST)
        self.counts.fired += len(firings)
        await self._carry_out(at)
        self.counts.frontier = upper

    def _foreseen(self, found: Sequence[Presence], upper: int) -> list[Firing]:
        """Firings from events that have come, that begin at `upper` or later and have not fired.

        A presence just before `upper` began before the action did, or has fired. Definite contents
        alone show when it begins anew.
        """
        there: set[str] = set()
        first: dict[str, tuple[int, Record]] = {}
        for presence in sorted(found, key=lambda each: each.start):
            if (
                not self._memory.fired.matches(presence.record)
                or endless(presence.record) is not None
            ):
                continue
            record = self._record_of(self._row_of(presence.record))
            key = self._memory.fired.key_of(record)
            if presence.start < upper:
                there.add(key)
            elif key not in there:
                first.setdefault(key, (int(presence.start), record))
        for key in self._memory.fired.known.of(first):
            del first[key]
        self._memory.fired.known.put(dict.fromkeys(first, 1))
        self._memory.fired.ahead |= {key: instant for key, (instant, _) in first.items()}
        self.foreseen += len(first)
        return [
            self._memory.fired.firing(key, instant, record)
            for key, (instant, record) in first.items()
        ]

    def _rows(
        self, firings: Sequence[Firing], ahead: dict[str, int], upper: int, at: int
    ) -> pa.Table:
        """The rows for the outbox: firings, the instant they cover, and those of them that are
        still to begin.
        """
        rows = [{**asdict(firing), DIFF: 1} for firing in firings]
        noted = [] if self._noted is None else [("", self._noted, -1)]
        noted.append(("", upper, 1))
        noted += [
            (key, due, -1) for key, due in ahead.items() if key not in self._memory.fired.ahead
        ]
        noted += [
            (key, due, 1) for key, due in self._memory.fired.ahead.items() if key not in ahead
        ]
        name = self._target.name
        for record, instant, diff in noted:
            note = Firing("", name, instant, record, "", None)
            rows.append({**asdict(note), DIFF: diff})
        stamped = [{**row, TIME: at} for row in rows]
        return pa.Table.from_pylist(stamped, schema=update_schema(OUTBOX_SCHEMA))
