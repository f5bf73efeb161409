"""The history of an event stream, folded anew from where its frontier came to an event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.reclock import bindings_of_rows
from tidemill.shard.offloading import compute_beside
from tidemill.time import U64_MAX
from tidemill_compute.events.buffer import EventBuffer
from tidemill_compute.events.fold import AHEAD, EventFold, EventPolicy
from tidemill_compute.events.progress import DECIDED, NOTHING_SEEN, STREAM, progress_of
from tidemill_compute.events.rows import HEARTBEAT, POSITION
from tidemill_compute.holds import Holds


@dataclass(frozen=True, slots=True)
class EventTarget:
    """The collections of an event stream: `raw`, `raw_letters`, `remap` are read, the others
    written.

    Those on the timeline of the system were made at `begins`.
    """

    source: str
    raw: str
    raw_letters: str
    remap: str
    event_map: str
    letters: str
    events: str
    event_schema: pa.Schema
    begins: int = 0


@dataclass(frozen=True, slots=True)
class EventHistory:
    """Folds the past of a stream again, as far as the holds of a reader keep it.

    `holds` are on all collections of the target but the raw letters. A repeated fold of an interval
    decides alike: decisions about silence, which no row states, are read back from the map.
    """

    target: EventTarget
    policy: EventPolicy
    holds: Holds

    async def fold_at(self, ended: int) -> tuple[EventFold, int]:
        """The fold as it was when the frontier came to `ended`, and the instant behind it.

        `ended` is an upper of the events. The fold holds the events that begin at `ended` or later,
        and none that has begun. Cost: O(kept rows of the stream).
        """
        target = self.target
        buffer = EventBuffer.empty(target.event_schema, corrections=self.policy.corrections)
        fold = EventFold(self.policy, buffer, NOTHING_SEEN)
        if ended == 0:
            return fold, target.begins
        instant = await self.instant_of(ended)
        progress = await self.holds.snapshot(target.event_map, instant)
        columns = (progress[name].to_pylist() for name in ("partition", "frontier", "instant"))
        fold.progress = progress_of(list(zip(*columns, strict=True)))
        refused = await self.holds.snapshot(target.letters, instant)
        refused = refused.filter(pc.starts_with(refused["reason"], AHEAD))
        time = self.policy.columns.time
        waiting = None
        if pa.types.is_integer(target.event_schema.field(time).type):
            waiting = pc.field(time) >= ended
        known = await self.holds.snapshot(target.raw, instant, where=waiting)
        fold.readmit(known, refused, ended)
        return fold, instant + 1

    async def fold_in(
        self, fold: EventFold, lower: int, upper: int, decided: Mapping[int, int]
    ) -> None:
        """Fold in what came in [lower, upper), with what was `decided` about the silence in it."""
        # No two raw rows have one place: there is nothing to add up, and their order is no matter.
        raw = await self.holds.changes(self.target.raw, lower, upper, added_up=False)
        rows = self._known(raw)
        bindings = bindings_of_rows(await self.holds.changes(self.target.remap, lower, upper))
        counts = [(time, s.lo) for s, time, diff in bindings if diff > 0 and s.hi == U64_MAX]
        with self.holds.stages.timed("stage", rows.num_rows):
            await compute_beside(rows.num_rows, partial(fold.step, rows, counts, upper, decided))

    async def read_decided(self, lower: int, upper: int) -> dict[int, int]:
        """Instant → frontier to which silence brought it, from the map of an interval."""
        changes = await self.holds.changes(self.target.event_map, lower, upper)
        made = pc.and_(pc.equal(changes["partition"], DECIDED), pc.greater(changes[DIFF], 0))
        found = changes.filter(made).select(["instant", "frontier"]).to_pylist()
        return {each["instant"]: each["frontier"] for each in found}

    def _known(self, rows: pa.Table) -> pa.Table:
        """The rows without columns that the source has gained since this began: another process
        knows them.
        """
        own = {*self.policy.columns.data, *POSITION, HEARTBEAT, TIME, DIFF}
        return rows.select([name for name in rows.column_names if name in own])

    async def instant_of(self, ended: int) -> int:
        """The system instant at which the stream's frontier came to `ended`, which is past 0."""
        content = await self.holds.history(self.target.event_map)
        moves = content.filter(
            pc.and_(pc.equal(content["partition"], STREAM), pc.equal(content["frontier"], ended))
        )
        return int(moves["instant"][0].as_py())
