"""The second reclocking as a pure fold: rows at instants in, event frontiers and letters out.

An event is late by the frontier of the instant before it arrived. It is too far ahead by its own
instant. Neither depends on how the fold was cut into steps, so a resumed fold decides alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, update_schema
from tidemill.catalog.late_events import late_reason, raw_rows
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.time import heartbeat
from tidemill_compute.events.buffer import EventBuffer
from tidemill_compute.events.progress import (
    NOTHING_SEEN,
    EventProgress,
    Policy,
    decided_at,
    idle_steps,
    observe,
)
from tidemill_compute.events.rows import (
    HEARTBEAT,
    OFFSET,
    PARTITION,
    EventColumns,
    Events,
    Flags,
    Refused,
    timed,
)

MOVERS = ("rows", "heartbeat", "idleTimeout", "silence")
"""Causes that move the frontier of a stream."""
AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class EventPolicy:
    """Rules by which a source becomes an event stream; all durations in milliseconds."""

    columns: EventColumns
    progress: Policy
    corrections: bool = False
    max_ahead_ms: int | None = None


@dataclass(slots=True)
class EventFold:
    """The state of the fold at one system instant: progress of the stream and the events held.

    `map_updates` and `letters` collect what the steps since the last `take` produced, each at its
    own system instant.
    """

    policy: EventPolicy
    buffer: EventBuffer
    progress: EventProgress
    map_updates: list[tuple[tuple[int, int | None, int], int, int]] = field(default_factory=list)
    letters: list[pa.Table] = field(default_factory=list)
    moved_by: str = ""
    """Last cause that moved the frontier, as resources call it; empty before the first move."""
    moves: Counter[str] = field(default_factory=Counter)
    """Moves by each cause since the last `take`."""

    def step(
        self,
        rows: pa.Table,
        counts: Sequence[tuple[int, int]],
        upper: int,
        decided: Mapping[int, int] | None = None,
    ) -> None:
        """Fold in the rows of one system interval that ends at `upper`.

        `rows` are updates of the raw collection. `counts` are (instant, number of known
        partitions). `decided` maps an instant to the frontier to which silence brought it.
        """
        known, decisions = dict(counts), decided or {}
        times = np.asarray(rows.column(TIME).to_numpy(), dtype=np.uint64)
        if bool((times[1:] < times[:-1]).any()):
            order = np.argsort(times, kind="stable")
            times, rows = times[order], rows.take(pa.array(order))
        for instant in sorted({*map(int, np.unique(times)), *known, *decisions}):
            first, last = np.searchsorted(times, [instant, instant + 1])
            self._idle(instant)
            self._arrive(instant, rows.slice(first, last - first), known.get(instant))
            if instant in decisions:
                self.decide(instant, decisions[instant])
        self._idle(upper)

    def decide(self, instant: int, reached: int) -> None:
        """Bring the frontier to `reached` by silence at `instant`, after all rows until then."""
        self._record(instant, decided_at(self.progress, instant, reached), "silence")

    def readmit(self, rows: pa.Table, letters: pa.Table, upper: int) -> None:
        """Hold again what `rows`, known so far, had waiting at or beyond the event `upper`.

        `letters` are the dead letters of the stream: what was too far ahead stays refused.
        """
        if HEARTBEAT in rows.column_names:
            rows = rows.filter(pc.is_null(rows[HEARTBEAT]))
        events, _ = timed(rows, self.policy.columns)
        events = events.where(events.times >= upper)
        if self.policy.max_ahead_ms is not None:
            refused = letters.filter(pc.starts_with(letters["reason"], AHEAD))
            taken = set(_positions(refused, "partition", "offset"))
            kept = [at not in taken for at in _positions(events.rows, PARTITION, OFFSET)]
            events = events.where(np.asarray(kept, dtype=np.bool_))
        self.buffer.admit(events, upper)

    def take(self) -> tuple[pa.Table, pa.Table]:
        """The updates of the event map and of the dead letters produced since the last call."""
        rows = [(*row, time, diff) for row, time, diff in self.map_updates]
        schema = update_schema(EVENT_MAP_SCHEMA)
        columns = [pa.array([r[i] for r in rows], f.type) for i, f in enumerate(schema)]
        changes = pa.Table.from_arrays(columns, schema=schema)
        letters = pa.concat_tables([update_schema(LETTER_SCHEMA).empty_table(), *self.letters])
        self.map_updates, self.letters = [], []
        self.moves.clear()
        return changes, letters

    def _idle(self, until: int) -> None:
        for instant, progress in idle_steps(self.progress, until, self.policy.progress):
            self._record(instant, progress, "idleTimeout")

    def _arrive(self, instant: int, rows: pa.Table, count: int | None) -> None:
        heartbeats: dict[int, int] = {}
        if HEARTBEAT in rows.column_names:
            beats = pc.is_valid(rows[HEARTBEAT])
            heartbeats = self._heartbeats(instant, rows.filter(beats))
            rows = rows.filter(pc.invert(beats))
        events, refused = timed(rows, self.policy.columns)
        self._refuse(instant, refused)
        accepted = self._not_ahead(instant, events)
        self.buffer.admit(self._not_late(instant, accepted), self.progress.frontier)
        latest: dict[int, int] = {}
        partitions = np.asarray(accepted.rows.column(PARTITION).to_numpy(), dtype=np.int64)
        for partition in np.unique(partitions):
            latest[int(partition)] = int(accepted.times[partitions == partition].max())
        known = len(self.progress.promises) if count is None else count
        policy = self.policy.progress
        moved = observe(self.progress, instant, latest, heartbeats, known, policy)
        self._record(instant, moved, "heartbeat" if heartbeats else "rows")

    def _heartbeats(self, instant: int, beats: pa.Table) -> dict[int, int]:
        """The instants that heartbeats promise, by partition; one too far ahead is refused, as an
        event is.
        """
        if self.policy.max_ahead_ms is not None:
            bound = instant + self.policy.max_ahead_ms
            ahead = pc.greater(beats[HEARTBEAT], bound)
            refused = beats.filter(ahead)
            named = refused[HEARTBEAT].to_pylist()
            reasons = [f"{AHEAD}: the heartbeat until {t} is past {bound}" for t in named]
            self._write(instant, refused, reasons, [heartbeat(t) for t in named])
            beats = beats.filter(pc.invert(ahead))
        found: dict[int, int] = {}
        for beat in beats.select([PARTITION, HEARTBEAT]).to_pylist():
            partition, time = beat[PARTITION], beat[HEARTBEAT]
            found[partition] = max(time, found.get(partition, time))
        return found

    def _not_ahead(self, instant: int, events: Events) -> Events:
        if self.policy.max_ahead_ms is None:
            return events
        bound = instant + self.policy.max_ahead_ms
        ahead = events.times > bound
        self._letter(instant, events, ahead, lambda t: f"{AHEAD}: time {t} is past {bound}")
        return events.where(~ahead)

    def _not_late(self, instant: int, events: Events) -> Events:
        if self.policy.corrections:
            return events
        frontier = self.progress.frontier
        late = events.times < frontier
        self._letter(instant, events, late, lambda t: late_reason(t, frontier))
        return events.where(~late)

    def _letter(self, instant: int, events: Events, wrong: Flags, reason: object) -> None:
        if bool(wrong.any()):
            assert callable(reason)
            bad = events.where(wrong)
            self._refuse(instant, [Refused(bad.rows, [reason(int(t)) for t in bad.times])])

    def _refuse(self, instant: int, refused: Sequence[Refused]) -> None:
        for some in refused:
            data = self.buffer.schema.names[:-2]
            self._write(instant, some.rows, some.reasons, raw_rows(some.rows.select(data)))

    def _write(
        self, instant: int, rows: pa.Table, reasons: Sequence[str], raws: Sequence[str]
    ) -> None:
        """A letter for each row."""
        columns = {
            "partition": rows[PARTITION],
            "offset": rows[OFFSET],
            "reason": pa.array(reasons, pa.string()),
            "raw": pa.array(raws, pa.string()),
            TIME: pa.array(np.full(len(raws), instant, dtype=np.uint64)),
            DIFF: pa.array(np.ones(len(raws), dtype=np.int64)),
        }
        self.letters.append(pa.table(columns, schema=update_schema(LETTER_SCHEMA)))

    def _record(self, instant: int, progress: EventProgress, moved_by: str) -> None:
        if progress.frontier != self.progress.frontier:
            self.moved_by = moved_by
            self.moves[moved_by] += 1
        # Before the first instant the map is empty; afterwards it has a row for the stream.
        before = set() if self.progress is NOTHING_SEEN else set(self.progress.rows())
        after = set(progress.rows())
        if progress is not self.progress:
            self.map_updates += [(row, instant, -1) for row in sorted(before - after, key=str)]
            self.map_updates += [(row, instant, 1) for row in sorted(after - before, key=str)]
        self.progress = progress


def _positions(rows: pa.Table, partition: str, offset: str) -> list[tuple[int, int]]:
    columns = (rows[name].to_pylist() for name in (partition, offset))
    return list(zip(*columns, strict=True))
