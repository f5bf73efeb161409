"""Events before they are definite: those that have come so far, and their consequences."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property, partial

import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.record_rows import PredicateShape, record_of
from tidemill.catalog.schemas import STATE_SCHEMA
from tidemill.datalog.allowance import Allowance, match_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan, plan_below
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.state import StateRow
from tidemill.errors import Exhausted, NotYet
from tidemill.rpc.turns import until_ended
from tidemill.runtime.logs import get_logger
from tidemill.shard import Collections
from tidemill.shard.offloading import first_of
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.events.buffer import START
from tidemill_compute.events.fold import EventFold, EventPolicy
from tidemill_compute.events.history import EventHistory, EventTarget
from tidemill_compute.events.rows import NEVER
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.input_rows import rows_of

log = get_logger("actions")

INSTANT_MAX = 1 << 53
"""Instants of an early evaluation are below this one."""


@dataclass(frozen=True, slots=True)
class EarlyTarget:
    """A predicate that is derived early: from the program of its view, its inputs and its state.

    `inputs` are those below the predicate: the stream that each is, and its shape under the
    program's name.
    """

    predicate: str
    program: CheckedProgram
    inputs: Mapping[str, tuple[EventTarget, EventPolicy, PredicateShape]]
    state: str
    limits: Limits = field(default_factory=Limits)
    allowance: Allowance = field(default_factory=Allowance, compare=False)


class _Feed:
    """The events of one input that have been admitted and have not ended, definite or not.

    They are admitted as the source's own stage admits them. An event that is late or too far ahead
    is refused when it arrives, and decisions about silence are read from the map. So each of them
    will be definite.
    """

    def __init__(
        self, target: EventTarget, policy: EventPolicy, shape: PredicateShape, holds: Holds,
        collections: Collections, settings: ComputeSettings,
    ) -> None:  # fmt: skip
        self.target = target
        self.presences: list[Presence] = []
        self._shape = shape
        self._record_of = record_of(shape)
        self._holds = holds
        self._history = EventHistory(target, policy, holds)
        self._collections = collections
        self._settings = settings
        self._fold: EventFold | None = None
        self._folded = 0

    @property
    def read(self) -> tuple[str, ...]:
        """The collections that are read, from the first one on which the rest rests."""
        target = self.target
        return target.raw, target.remap, target.event_map, target.letters, target.events

    async def resume(self, upper: int) -> None:
        """Know what is alive just before `upper`, and all that has come since and will begin."""
        events = self.target.events
        self.presences = []
        held = sole_time(await self._holds.take(events))
        ends = (await self._collections.status(events)).upper
        if ends.empty:
            return  # nothing follows
        ended, at = sole_time(ends), max(held, upper - 1)
        self._fold, self._folded = await self._history.fold_at(ended)
        if at < ended:
            self._admit(rows_of(await self._holds.snapshot(events, at), self._names), at)
        if at + 1 < ended:
            later = await self._holds.changes(events, at + 1, ended)
            later = later.filter(pc.greater(later[DIFF], 0))
            starts = later[TIME].to_pylist()
            for start, row in zip(starts, rows_of(later, self._names), strict=True):
                self._admit([row], start)
        self._drain()

    async def advance(self) -> bool:
        """Take in what has come; whether any of it is an event."""
        uppers = [await self._upper(collection) for collection in self.read[:3]]
        upper, fold = min(uppers), self._fold
        if fold is None or upper <= self._folded:
            return False
        if upper == U64_MAX:
            self._fold = None  # all is closed, and what is left of it is definite soon
            return False
        decided = await self._history.read_decided(self._folded, upper)
        await self._history.fold_in(fold, self._folded, upper, decided)
        fold.take()  # the map and the letters are written by the stage
        self._folded = upper
        return self._drain()

    async def wait(self) -> None:
        """Return once more may have come."""
        if self._fold is None:
            await asyncio.Event().wait()
        await self._collections.rest_over(self.target.remap, self._settings.hold_interval_s)
        for collection in self.read[:3]:
            while True:
                try:
                    await self._collections.wait_for_upper(
                        collection, self._folded, self._settings.poll_timeout_s
                    )
                except NotYet:
                    continue
                break

    def forget(self, before: int) -> None:
        """Drop the events that have ended at `before`."""
        self.presences = [each for each in self.presences if each.end > before]

    async def move_holds(self, upper: int) -> None:
        """Downgrade the holds to the history that a restart behind `upper` needs."""
        target = self.target
        await self._holds.downgrade(target.events, frontier(max(0, upper - 1)))
        ends = (await self._collections.status(target.events)).upper
        if ends.empty or ends == frontier(0):
            return
        moved = min(await self._history.instant_of(sole_time(ends)), max(0, self._folded - 1))
        for collection in self.read[:4]:
            await self._holds.downgrade(collection, frontier(moved))

    @property
    def _names(self) -> list[str]:
        return list(self._shape.schema.names)

    async def _upper(self, collection: str) -> int:
        upper = (await self._collections.status(collection)).upper
        return U64_MAX if upper.empty else sole_time(upper)

    def _drain(self) -> bool:
        """Take what the fold has admitted; whether there was any of it."""
        assert self._fold is not None
        admitted, self._fold.buffer.pending = self._fold.buffer.pending, []
        before = len(self.presences)
        for table in admitted:
            alive = table.filter(pc.greater(table["expires"], table[START]))
            starts = alive[START].to_pylist()
            for start, row in zip(starts, rows_of(alive, self._names), strict=True):
                self._admit([row], start)
        return len(self.presences) > before

    def _admit(self, rows: Sequence[tuple[object, ...]], start: int) -> None:
        for row in rows:
            *values, expires = row
            endless = expires is None or expires == NEVER
            record = self._record_of((*values, None if endless else expires))
            self.presences.append(Presence(record, start, END if endless else int(str(expires))))


class EarlyEvents:
    """Derives a view's facts from the events that have come, as far as they follow already.

    The derived facts are a part of the definite ones, where `eager_refusal` refuses nothing. Work
    beyond the view's limits is abandoned: then nothing is found early, until the action begins
    again.

    Cost: one evaluation of the predicate over what is alive, for each look after which events have
    come. Memory: all that is alive or waits.
    """

    def __init__(
        self, target: EarlyTarget, action: str, collections: Collections,
        settings: ComputeSettings, threads: Executor,
    ) -> None:  # fmt: skip
        self._target = target
        self._collections = collections
        self._threads = threads
        self._holds = Holds(collections, f"action:{action}")
        self._allowance = target.allowance.apart()
        self._feeds = {
            predicate: _Feed(
                events, policy, shape, self._holds, collections, settings
            )
            for predicate, (events, policy, shape) in target.inputs.items()
        }  # fmt: skip
        self._looked = False
        self.given_up = ""
        """Why nothing is found early any more; empty while it is."""

    @property
    def read(self) -> list[str]:
        """The collections that are read and held beside what the action watches."""
        found = {name for feed in self._feeds.values() for name in feed.read}
        return sorted({*found, self._target.state})

    async def prepare(self) -> None:
        """Hold what a restart needs."""
        for collection in self.read:
            await self._holds.take(collection)

    async def resume(self, upper: int) -> None:
        """Begin with what has come, where what is watched is definite up to `upper`."""
        self.given_up, self._looked = "", False
        self._allowance = self._target.allowance.apart()
        for feed in self._feeds.values():
            await feed.resume(upper)

    def look_again(self) -> None:
        """Find at the next look also what was found before: nobody has put it down."""
        self._looked = False

    async def wait(self) -> None:
        """Return once more may have come."""
        if self.given_up or not self._feeds:
            await asyncio.Event().wait()
        await first_of([feed.wait() for feed in self._feeds.values()])

    async def advance(self) -> None:
        """Take in what has come."""
        for feed in () if self.given_up else self._feeds.values():
            if await feed.advance():
                self._looked = False

    async def find(self, upper: int) -> list[Presence]:
        """Presences of derived facts from just before `upper` on; nothing if nothing new has come.

        The watched collection is definite up to `upper`. A presence that begins just before it may
        have begun earlier.
        """
        if self.given_up:
            return []
        for feed in self._feeds.values():
            feed.forget(upper - 1)
        if self._looked or upper >= INSTANT_MAX - 1:
            return []
        state = await self._state(upper)
        try:
            found = await self._evaluate(state, upper)
        except (LimitPassed, Exhausted) as error:
            self.given_up = str(error)
            for feed in self._feeds.values():
                feed.presences = []
            log.warning(
                "nothing fires early any more", action=self._target.predicate, error=str(error)
            )
            return []
        self._looked = True
        return found

    async def move_holds(self, upper: int) -> None:
        """Release history that a restart behind `upper` does not need."""
        for feed in self._feeds.values():
            await feed.move_holds(upper)
        await self._holds.downgrade(self._target.state, frontier(max(0, upper - 1)))

    async def _state(self, upper: int) -> list[StateRow]:
        """The view's state just before `upper`; none of a view that has not written any."""
        state = self._target.state
        if upper == 0 or sole_time(await self._holds.take(state)) >= upper:
            return []
        rows = await self._holds.snapshot(state, upper - 1)
        return rows_of(rows, STATE_SCHEMA.names)  # type: ignore[return-value]

    async def _evaluate(self, state: Sequence[StateRow], upper: int) -> list[Presence]:
        target = self._target
        inputs = {predicate: feed.presences for predicate, feed in self._feeds.items()}
        sizes = (
            len(rows) * match_bytes(len(target.program.columns[p])) for p, rows in inputs.items()
        )
        self._allowance.beside = sum(sizes)
        derive = partial(self._derive, inputs, state, upper, self._allowance)
        working = asyncio.get_running_loop().run_in_executor(self._threads, derive)
        return await until_ended(working, self._allowance.call_off)

    @cached_property
    def _plan(self) -> LogicalPlan:
        """The part of the program below the predicate. Cost: O(text)."""
        return plan_below(logical_plan(self._target.program), [self._target.predicate])

    def _derive(
        self, inputs: Mapping[str, Sequence[Presence]], state: Sequence[StateRow], upper: int,
        allowance: Allowance,
    ) -> list[Presence]:  # fmt: skip
        """The presences that follow from the inputs; on a thread. Cost: the import of loops."""
        from tidemill.datalog.dataflow import evaluate_plan

        predicate = self._target.predicate
        found, _ = evaluate_plan(
            self._plan, inputs, upper=INSTANT_MAX - 1,
            told=[predicate], limits=self._target.limits, allowance=allowance,
            lower=upper - 1 if upper else None, state=state,
        )  # fmt: skip
        return found.get(predicate, [])
