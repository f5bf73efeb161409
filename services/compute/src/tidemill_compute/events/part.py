"""The part of compute in the work on a source: its rows are reclocked to another timeline."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tidemill.catalog.entry import SYSTEM
from tidemill.catalog.made.sources import SourceCollections, SourcePart
from tidemill.runtime.clock import Clock
from tidemill.runtime.metrics import EVENT_TIME_MOVES, LATE_EVENTS, Metrics
from tidemill.shard import Collections
from tidemill_compute.events.fold import MOVERS
from tidemill_compute.events.reference import ReferenceStage, ReferenceTarget
from tidemill_compute.events.source_streams import stream_of
from tidemill_compute.events.stage import EventStage
from tidemill_compute.settings import ComputeSettings

COUNT_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class StageContext:
    """Dependencies of a stage. `timeline_frontier` is the furthest stream's."""

    collections: Collections
    clock: Clock
    metrics: Metrics
    settings: ComputeSettings
    timeline_frontier: Callable[[str], Awaitable[int]]


class StagePart(SourcePart):
    """Reclocks a source to its events' time, or to the timeline that it refers to."""

    def __init__(self, made: SourceCollections, part: str, context: StageContext) -> None:
        super().__init__(made, part)
        self._context = context
        self._stage = self._make_stage()

    def _make_stage(self) -> EventStage | ReferenceStage:
        made, context = self.made, self._context
        event = made.spec.event_time
        if event is not None:
            target, policy = stream_of(made.stored)
            return EventStage(
                target, policy, context.collections, context.clock, context.settings,
                lambda: context.timeline_frontier(event.timeline),
            )  # fmt: skip
        timeline = made.spec.timeline or SYSTEM
        reference = ReferenceTarget(
            made.source,
            made.raw,
            made.raw_letters,
            made.remap,
            made.event_map,
            made.letters,
            made.collection,
            made.rows,
            made.stored.begins,
        )  # fmt: skip
        return ReferenceStage(
            reference, context.collections, lambda: context.timeline_frontier(timeline),
            context.clock, context.settings,
        )  # fmt: skip

    async def work(self, ready: Callable[[], None]) -> None:
        """Reclock until cancelled; counters are there from 0 on."""
        self._context.metrics.increment(LATE_EVENTS, 0, source=self.made.source)
        if isinstance(self._stage, EventStage):
            self._count_moves(dict.fromkeys(MOVERS, 0))
        await self._stage.prepare()
        ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stage.advance_forever())
            if isinstance(self._stage, EventStage):
                tasks.create_task(self._count_forever(self._stage))

    def details(self) -> dict[str, object]:
        """The event frontier, and the last mover of it."""
        stage = self._stage
        if not isinstance(stage, EventStage) or not stage.moved_by:
            return {}
        return {"eventFrontier": stage.reached, "movedBy": stage.moved_by}

    async def _count_forever(self, stage: EventStage) -> None:
        """Count late events and moves of the event frontier."""
        known, moved = 0, Counter[str]()
        while True:
            await self._context.clock.sleep(COUNT_INTERVAL_S)
            if stage.late > known:
                late = stage.late - known
                self._context.metrics.increment(LATE_EVENTS, late, source=self.made.source)
                known = stage.late
            self._count_moves(stage.moves - moved)
            moved = Counter(stage.moves)

    def _count_moves(self, moves: Mapping[str, int]) -> None:
        for mover, count in moves.items():
            self._context.metrics.increment(
                EVENT_TIME_MOVES, count, source=self.made.source, mover=mover
            )
