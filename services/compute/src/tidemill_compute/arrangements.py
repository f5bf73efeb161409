"""Arrangements: a collection once more, by a key of its own, up to date at every instant."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, concatenate
from tidemill.errors import NotYet
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.shard.state import State
from tidemill.time import Frontier, frontier, sole_time
from tidemill_compute.appending import append_through
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings


class BulkArrange(Protocol):
    """The port to whoever arranges many updates at once."""

    async def build(self, collection: str, arrangement: str) -> int:
        """Append to the arrangement what the collection says from its upper on; how many updates.

        An arrangement without updates begins with what the collection holds at its upper.
        """


class ArrangementDriver:
    """Keeps an arrangement equal to its collection at every instant from its beginning on.

    It holds the history that the next step needs, so that a restart goes on where the arrangement
    ends. A step that another process has taken is not taken again.
    """

    def __init__(
        self, collection: str, arrangement: str, collections: Collections, bulk: BulkArrange,
        clock: Clock, settings: ComputeSettings,
    ) -> None:  # fmt: skip
        self._collection = collection
        self._arrangement = arrangement
        self._collections = collections
        self._bulk = bulk
        self._clock = clock
        self._settings = settings
        self._holds = Holds(collections, f"arrangement:{arrangement}")
        self.built = 0
        self.written = 0

    async def hold(self) -> Frontier:
        """Hold the collection; where the arrangement can begin."""
        return await self._holds.take(self._collection)

    async def advance_forever(self) -> None:
        """Follow the collection until cancelled; return once it, or the arrangement, is closed."""
        await self.hold()
        held_at = self._clock.monotonic_s()
        while (lower := await self._lower()) is not None:
            if not await self._is_behind(lower):
                continue
            source = await self._collections.newest(self._collection)
            if source.upper.empty:
                return
            await self._keep_columns()
            fresh = not (await self._collections.newest(self._arrangement)).batches
            if await self._is_much(source, 0 if fresh else lower):
                self.built += await self._bulk.build(self._collection, self._arrangement)
                continue
            await self._write(lower, sole_time(source.upper), fresh)
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                # The next step reads the updates from `lower` on: those of the hold itself are told
                # apart no more.
                await self._holds.downgrade(self._collection, frontier(max(lower - 1, 0)))

    async def _is_much(self, source: State, lower: int) -> bool:
        """Whether the parts with updates from `lower` on have rows for a job.

        Cost: lists of parts are read only if together they have.
        """
        least = self._settings.arrange_spark_rows
        pieces = [each for each in source.pieces_from(lower) if each.meets(lower, None)]
        if sum(each.rows for each in pieces) < least:
            return False
        whole = await self._collections.state(self._collection)
        return sum(part.rows for part in whole.parts() if part.meets(lower, None)) >= least

    async def _lower(self) -> int | None:
        """The upper of the arrangement as an instant; None if it is closed."""
        upper = (await self._collections.status(self._arrangement)).upper
        return None if upper.empty else sole_time(upper)

    async def _is_behind(self, lower: int) -> bool:
        """Whether the collection has come past `lower`, once it has or some time has passed."""
        try:
            await self._collections.wait_for_upper(
                self._collection, lower, self._settings.poll_timeout_s
            )
        except NotYet:
            return False
        return True

    async def _keep_columns(self) -> None:
        """Give the arrangement the columns that the collection has gained."""
        schema = (await self._collections.description(self._collection)).schema
        if (await self._collections.description(self._arrangement)).schema != schema:
            await self._collections.extend_schema(self._arrangement, schema)

    async def _write(self, lower: int, upper: int, fresh: bool) -> None:
        """Write what the collection says of [lower, upper), in a fresh arrangement with what it
        held at `lower`.
        """
        collection = self._collection
        if fresh:
            pieces = [_at(await self._holds.snapshot(collection, lower), lower)]
            if lower + 1 < upper:
                pieces.append(await self._holds.changes(collection, lower + 1, upper))
            updates: pa.Table = concatenate(pieces)
        else:
            updates = await self._holds.changes(collection, lower, upper)
        self.written += await append_through(
            self._collections, self._arrangement, updates, upper, f"arrange:{collection}"
        )


def _at(content: pa.Table, time: int) -> pa.Table:
    """The contents of a collection as updates at one instant."""
    times = pa.array([time] * content.num_rows, pa.uint64())
    data = content.drop_columns([DIFF])
    return data.append_column(TIME, times).append_column(DIFF, content[DIFF])
