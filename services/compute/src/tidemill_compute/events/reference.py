"""Reference data: rows of a source that are present on another timeline from its beginning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, concatenate, update_schema
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA
from tidemill.errors import NotYet
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import frontier, sole_time
from tidemill_compute.appending import append_through
from tidemill_compute.events.progress import STREAM
from tidemill_compute.events.rows import HEARTBEAT
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings

NOTHING_BOUND = 1
"""Distance of the upper from the beginning of a remap collection without bindings."""

TimelineFrontier = Callable[[], Awaitable[int]]
"""Frontier of the furthest event stream of a timeline; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class ReferenceTarget:
    """The collections of reference data: `raw`, `raw_letters`, `remap` are read, the others
    written.

    Those on the timeline of the system were made at `begins`.
    """

    source: str
    raw: str
    raw_letters: str
    remap: str
    event_map: str
    letters: str
    rows: str
    row_schema: pa.Schema
    begins: int = 0


class ReferenceStage:
    """Keeps rows on a timeline whose instants come from others.

    The rows of the first binding are present from instant 0. Later rows are present from the
    instant that the timeline had reached before them. That instant is written to the map before any
    row uses it, so a restart puts them at the same.
    """

    def __init__(
        self,
        target: ReferenceTarget,
        collections: Collections,
        timeline: TimelineFrontier,
        clock: Clock,
        settings: ComputeSettings,
    ) -> None:
        self._target = target
        self._collections = collections
        self._timeline = timeline
        self._clock = clock
        self._settings = settings
        self._holds = Holds(collections, f"reference:{target.source}")
        self._begun = False

    async def prepare(self) -> None:
        """Hold the history that a restart needs; before anybody writes to the raw collection."""
        for collection in self._read():
            await self._holds.take(collection)

    def _read(self) -> tuple[str, ...]:
        target = self._target
        return (target.raw, target.raw_letters, target.remap, target.event_map)

    async def advance_forever(self) -> None:
        """Follow the source and the timeline until cancelled."""
        await self.prepare()
        ended, moved = await self._resume()
        self._begun = ended > 0
        known = await self._holds.history(self._target.event_map)
        held_at = self._clock.monotonic_s()
        while True:
            for reached, instant in _moves_past(known, ended):
                # Raw rows at instants in (moved, instant] begin where the timeline was before.
                await self._write(moved + 1, instant + 1, ended, reached)
                moved, ended = instant, reached
            known = await self._map_next(ended, moved)
            if ended > 0 and self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                for collection in self._read():
                    await self._holds.downgrade(collection, frontier(moved))

    async def _resume(self) -> tuple[int, int]:
        """The upper of the rows, and the system instant at which the map came there.

        That instant is just before all others if the map never came there.
        """
        ended = sole_time((await self._collections.status(self._target.rows)).upper)
        if ended == 0:
            return 0, self._target.begins - 1
        history = await self._holds.history(self._target.event_map)
        return ended, int(
            history.filter(pc.equal(history["frontier"], ended))["instant"][0].as_py()
        )

    async def _map_next(self, ended: int, moved: int) -> pa.Table:
        """Map the next system interval to how far the timeline has come, and read that back."""
        target = self._target
        folded = sole_time((await self._collections.status(target.event_map)).upper)
        until = await self._definite(folded)
        # Rows of the first binding begin where the timeline begins: nothing may move before it.
        if not self._begun:
            first = target.begins + NOTHING_BOUND
            bound = await self._holds.changes(target.remap, first, until)
            self._begun = bound.num_rows > 0
        reached = max(await self._timeline(), ended, 1) if self._begun else ended
        updates = _map_updates(ended, moved, reached, until - 1)
        await self._append(target.event_map, updates, until)
        letters = await self._holds.changes(target.raw_letters, folded, until)
        await self._append(target.letters, letters, until)
        return await self._holds.changes(target.event_map, folded, until)

    async def _definite(self, folded: int) -> int:
        """The upper of the raw rows and letters, once it is past `folded`."""
        uppers = []
        for collection in (self._target.raw, self._target.raw_letters):
            while True:
                try:
                    upper = await self._collections.wait_for_upper(
                        collection, folded, self._settings.poll_timeout_s
                    )
                except NotYet:
                    continue
                break
            uppers.append(sole_time(upper))
        return min(uppers)

    async def _append(self, collection: str, updates: pa.Table, upper: int) -> None:
        await append_through(self._collections, collection, updates, upper, self._target.source)

    async def _write(self, lower: int, upper: int, start: int, reached: int) -> None:
        """Write the raw rows of a system interval at instant `start`, and the upper `reached`."""
        target = self._target
        rows = await self._holds.changes(target.raw, lower, upper)
        if HEARTBEAT in rows.column_names:
            rows = rows.filter(pc.is_null(rows[HEARTBEAT]))
        with self._collections.stages.timed("stage", rows.num_rows):
            times = pa.array([start] * rows.num_rows, pa.uint64())
            data = rows.select(target.row_schema.names)
            updates = data.append_column(TIME, times).append_column(DIFF, rows[DIFF])
            updates = concatenate([update_schema(target.row_schema).empty_table(), updates])
        await self._append(target.rows, updates, reached)


def _moves_past(known: pa.Table, ended: int) -> list[tuple[int, int]]:
    """The moves that the map states beyond `ended`: (instant of the timeline, system instant)."""
    moves = known.filter(pc.and_(pc.greater(known["frontier"], ended), pc.greater(known[DIFF], 0)))
    return sorted({(move["frontier"], move["instant"]) for move in moves.to_pylist()})


def _map_updates(ended: int, moved: int, reached: int, instant: int) -> pa.Table:
    """The change of the map at `instant`, none if the timeline did not move."""
    rows = []
    if reached > ended:
        rows.append((STREAM, reached, instant, instant, 1))
        if ended > 0:
            rows.append((STREAM, ended, moved, instant, -1))
    schema = update_schema(EVENT_MAP_SCHEMA)
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)
