"""The second reclocking: rows of a source on the system timeline become events on their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import pyarrow as pa

from tidemill.arrangement.updates import concatenate
from tidemill.errors import NotYet
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, UpperMismatch
from tidemill.shard.offloading import compute_beside
from tidemill.time import U64_MAX, frontier, sole_time
from tidemill_compute.appending import append_through
from tidemill_compute.events.fold import EventFold, EventPolicy
from tidemill_compute.events.history import EventHistory, EventTarget
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings

STEP_ROWS = 125_000
"""Raw rows that one step folds, as far as instants differ: a backlog is not held whole."""


class EventStage:
    """Keeps the events of a source, their frontier at each system instant, and the refused ones.

    The map from system instants to event frontiers is written first, then the dead letters, then
    the events up to the frontier. In a backlog events are written while the next step is folded,
    whose map and letters may be there before them. A restart goes back to the system instant whose
    frontier is the end of the written events. From there on it decides everything again, alike:
    decisions about silence, which no row states, are read back from the map.

    `timeline` gives the frontier of the furthest stream of the timeline; a source with idle
    partitions only follows it. Without a bound on silence, map and letters may rest with the
    source: no row has no consequence, at each instant.
    """

    def __init__(
        self,
        target: EventTarget,
        policy: EventPolicy,
        collections: Collections,
        clock: Clock,
        settings: ComputeSettings,
        timeline: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._target = target
        self._timeline = timeline
        self._policy = policy
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._holds = Holds(collections, f"events:{target.source}")
        self._history = EventHistory(target, policy, self._holds)
        self.folded = 0
        """The system instant below which all that came is written."""
        self._taken = 0
        """The one below which all that came is folded."""
        self.late = 0
        self.moves: Counter[str] = Counter()
        """Moves of the event frontier in this process, by cause."""
        self.reached = 0
        self.moved_by = ""
        self._mapped = 0
        """The upper of the map at the last look: nothing before it is left to decide."""
        self._writing: asyncio.Task[None] | None = None
        """The append of the events of the last step, while the next one is folded."""
        self._behind = 0, 0, ""
        """The instant, the frontier and its mover that are written once that append has ended."""
        self._watched_from: int | None = None
        """The first instant at which this stage saw the source by itself: silence counts from there
        on.
        """

    @property
    def follows_rows_alone(self) -> bool:
        """Whether the map, the letters and the events change only where rows and bindings do."""
        return self._policy.progress.follows_rows_alone

    @property
    def _read(self) -> tuple[str, str, str]:
        return self._target.raw, self._target.raw_letters, self._target.remap

    async def prepare(self) -> None:
        """Hold the history that a restart needs; before anybody writes to the raw collection."""
        target = self._target
        for collection in (*self._read, target.event_map, target.letters, target.events):
            await self._holds.take(collection)

    async def advance_forever(self) -> None:
        """Take in each system interval as it becomes definite, until cancelled."""
        try:
            await self._advance_forever()
        finally:
            if self._writing is not None:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)
                self._writing = None

    async def _advance_forever(self) -> None:
        await self.prepare()
        self._watched_from = None
        fold = await self._resume()
        held_at = self._clock.monotonic_s()
        while True:
            upper = await self._definite(self._taken)
            if upper is None:
                return
            upper = await self._collections.upper_of_rows(
                self._target.raw, self._taken, upper, STEP_ROWS
            )
            # NB: the map of a source at rest ends where its pace does, and nobody writes it.
            self._mapped = sole_time((await self._collections.status(self._target.event_map)).upper)
            if not await self._advance(fold, upper):
                await self._settle()
                fold = await self._resume()
            # In a backlog the next interval is definite already, and is folded meanwhile.
            if not all(self._collections.known_past(each, self._taken) for each in self._read):
                await self._settle()
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                await self._settle()
                await self._move_holds(fold)
            await self._collections.rest_over(self._target.remap, self._settings.hold_interval_s)

    async def _definite(self, lower: int) -> int | None:
        """The upper of everything that is read, once it is past `lower`; None if the raw rows
        ended.
        """
        uppers = []
        for collection in self._read:
            while True:
                try:
                    upper = await self._collections.wait_for_upper(
                        collection, lower, self._settings.poll_timeout_s
                    )
                except NotYet:
                    continue
                break
            uppers.append(U64_MAX if upper.empty else sole_time(upper))
        return None if uppers[0] == U64_MAX else min(uppers)

    async def _advance(self, fold: EventFold, upper: int) -> bool:
        """Fold [folded, upper) in and write what it gives, in the order that a restart relies on.

        Up to where the map has come, if it is further; whether nobody else wrote the map meanwhile.
        """
        target, lower = self._target, self._taken
        fresh = self._mapped <= lower
        upper = upper if fresh else min(upper, self._mapped)
        decided = {} if fresh else await self._history.read_decided(lower, upper)
        await self._history.fold_in(fold, lower, upper, decided)
        if fresh:
            await self._decide(fold, upper - 1)
        moves = Counter(fold.moves)
        event_map, refused = fold.take()
        # IMPORTANT: the map, then the letters, then the events: a restart counts on this order.
        # Another process may have decided differently about a silence: this one starts anew from
        # its decision.
        if fresh and not await self._append_map(event_map, lower, upper):
            return False
        self.late += refused.num_rows
        if fresh:  # what a process before this one mapped is counted there
            self.moves += moves
        undecodable = await self._holds.changes(target.raw_letters, lower, upper)
        await self._append(target.letters, concatenate([undecodable, refused]), upper)
        reached = fold.progress.frontier
        with self._holds.stages.timed("stage", 0):
            released = await compute_beside(fold.buffer.rows, partial(fold.buffer.release, reached))
        await self._settle()
        self._writing = asyncio.create_task(self._append(target.events, released, reached))
        self._behind = upper, reached, fold.moved_by or self.moved_by
        self._taken = upper
        return True

    async def _settle(self) -> None:
        """Return once the events of all steps are written. Raises: what kept them from it."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
            self.folded, self.reached, self.moved_by = self._behind

    async def _append_map(self, updates: pa.Table, lower: int, upper: int) -> bool:
        """Whether the map went from `lower` to `upper` with `updates`."""
        target = self._target
        outcome = await self._collections.compare_and_append(
            target.event_map, frontier(lower), frontier(upper), updates, writer=target.source
        )
        self._mapped = upper
        return not isinstance(outcome, UpperMismatch)

    async def _decide(self, fold: EventFold, instant: int) -> None:
        """Move the event frontier if the source has been silent for long enough at `instant`.

        Silence counts while this stage watches. Time without a watching stage is not silence.
        """
        if self._watched_from is None:
            self._watched_from = instant
        heard, policy = fold.progress.heard, self._policy.progress
        if heard is None:
            return
        silent_ms = instant - max(heard, self._watched_from)
        reached = fold.progress.frontier
        idle_ms = policy.idle_timeout_ms
        if idle_ms is not None and silent_ms >= idle_ms and self._timeline is not None:
            reached = max(reached, await self._timeline())
        if policy.silence_ms is not None and silent_ms >= policy.silence_ms:
            reached = max(reached, instant - policy.silence_ms - policy.skew_ms)
        fold.decide(instant, reached)

    async def _append(self, collection: str, updates: pa.Table, upper: int) -> None:
        await append_through(self._collections, collection, updates, upper, self._target.source)

    async def _resume(self) -> EventFold:
        """The fold as it was when the frontier came to where the events end."""
        event_map = self._target.event_map
        self._mapped = sole_time((await self._collections.status(event_map)).upper)
        ended = sole_time((await self._collections.status(self._target.events)).upper)
        fold, self._taken = await self._history.fold_at(ended)
        self.folded = self._taken
        if ended:
            fold.buffer.restore(await self._holds.snapshot(self._target.events, ended - 1))
        return fold

    async def _move_holds(self, fold: EventFold) -> None:
        """Downgrade the holds to the history that a restart from the upper of the events needs."""
        target = self._target
        if fold.progress.frontier == 0:
            return
        moved = fold.progress.moved
        for collection in (
            target.raw,
            target.raw_letters,
            target.remap,
            target.event_map,
            target.letters,
        ):
            await self._holds.downgrade(collection, frontier(moved))
        await self._holds.downgrade(target.events, frontier(fold.progress.frontier - 1))
