"""Actions: definite events of a goal go to an outbox, and from there to a sink, each exactly once."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, concatenate, stamp, update_schema
from tidemill.datalog.goals import Goal, action_key
from tidemill.datalog.records import Record, format_record
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import U64_MAX, NotYet, frontier, sole_time
from tidemill_compute.appending import append_through
from tidemill_compute.holds import Holds
from tidemill_compute.outbox import OUTBOX_SCHEMA, Firing, Sink, firings_of, outbox_rows
from tidemill_compute.record_rows import PredicateShape, record_of
from tidemill_compute.settings import ComputeSettings

DONE_SCHEMA = pa.schema([pa.field("key", pa.string())])


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action: its goal, the collection that is watched, its outbox, and what is done of it."""

    name: str
    goal: Goal
    watched: str
    shape: PredicateShape
    outbox: str
    done: str


@dataclass(slots=True)
class ActionCounts:
    """For metrics: what was put into the outbox, seen again, and carried out."""

    fired: int = 0
    repeated: int = 0
    effects: int = 0
    frontier: int = 0


class ActionDriver:
    """Each distinct event that matches the goal fires once: key = (action, predicate, arguments, time).

    The outbox is written first, with its upper as the progress: what it will hold is a function of the
    watched collection. The sink is asked afterwards; its own memory of keys decides what a crash left
    undone, and the collection `done` bounds how far back that memory is asked.
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
        self._known: set[str] = set()
        self._carried: frozenset[str] = frozenset()
        self.counts = ActionCounts()

    async def hold_watched(self) -> None:
        """Hold the history of what is watched, now and over restarts; before the outbox is created."""
        await self._holds.take(self._target.watched)

    async def prepare(self) -> None:
        """Hold what is watched, and the outbox from where it begins."""
        for collection in (self._target.watched, self._target.outbox, self._target.done):
            await self._holds.take(collection)

    async def fire_forever(self) -> None:
        """Fire what becomes definite until cancelled."""
        await self.prepare()
        await self._resume()
        held_at = self._clock.monotonic_s()
        while True:
            upper = await self._definite(self.counts.frontier)
            await self._put(self.counts.frontier, upper)
            await self._carry_out(upper)
            self.counts.frontier = upper
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                await self._move_holds(upper)

    async def _resume(self) -> None:
        """What has fired, what of it the sink has done, and where to go on."""
        target = self._target
        status = await self._collections.status(target.outbox)
        upper = sole_time(status.upper)
        if status.since != status.upper:
            put = await self._holds.snapshot(target.outbox, upper - 1)
            self._known = set(put["key"].to_pylist())
        self._carried = await self._sink.recover()
        await self._carry_out(upper)
        self.counts.frontier = upper

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
        """Put every event into the outbox whose presence begins in [lower, upper) and did not before."""
        changes = await self._changes(lower, upper)
        begun = changes.filter(pc.greater(changes[DIFF], 0)).sort_by(TIME)
        times = begun[TIME].to_pylist()
        names = self._target.shape.schema.names
        rows = zip(*(begun[name].to_pylist() for name in names), strict=True) if names else []
        firings = []
        for time, row in zip(times, rows if names else [()] * len(times), strict=True):
            firing = self._firing(int(time), self._record_of(row))
            if firing is not None:
                firings.append(firing)
        stamps = [pa.array([f.instant for f in firings], pa.uint64())]
        stamps.append(pa.array([1] * len(firings), pa.int64()))
        table = outbox_rows(firings).append_column(TIME, stamps[0]).append_column(DIFF, stamps[1])
        table = concatenate([update_schema(OUTBOX_SCHEMA).empty_table(), table])
        await append_through(
            self._collections, self._target.outbox, table, upper, self._target.name
        )
        self.counts.fired += len(firings)

    async def _changes(self, lower: int, upper: int) -> pa.Table:
        """What the watched collection changes in [lower, upper); what it begins with begins there."""
        watched = self._target.watched
        if lower == 0 or await self._holds.take(watched) != frontier(lower):
            return await self._holds.changes(watched, lower, upper)
        present = await self._holds.snapshot(watched, lower)
        first = stamp(present.drop_columns([DIFF]), lower)
        if lower + 1 == upper:
            return first
        return concatenate([first, await self._holds.changes(watched, lower + 1, upper)])

    def _firing(self, instant: int, record: Record) -> Firing | None:
        """The firing of a record, None if it does not match or has fired."""
        if self._target.goal.bindings(record) is None:
            return None
        key = action_key(self._target.name, record)
        if key in self._known:
            self.counts.repeated += 1
            return None
        self._known.add(key)
        arguments = json.dumps(list(record.arguments), ensure_ascii=False, default=sorted)
        return Firing(
            key, self._target.name, instant, format_record(record), arguments, record.time
        )

    async def _carry_out(self, upper: int) -> None:
        """Let the sink do what the outbox holds and is not done, then write down that it is."""
        target = self._target
        lower = sole_time((await self._collections.status(target.done)).upper)
        if lower >= upper:
            return
        due = await self._holds.changes(target.outbox, lower, upper)
        firings = [f for f in firings_of(due) if f.key not in self._carried]
        await self._sink.fire(firings)
        self.counts.effects += len(firings)
        self._carried |= {firing.key for firing in firings}
        keys = pa.table({"key": due["key"], TIME: due[TIME], DIFF: due[DIFF]})
        await append_through(self._collections, target.done, keys, upper, target.name)

    async def _move_holds(self, upper: int) -> None:
        """Let go of what has been put into the outbox."""
        await self._holds.downgrade(self._target.watched, frontier(max(0, upper - 1)))
