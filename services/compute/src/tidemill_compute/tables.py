"""Tables: collections that users write to, with an upper that moves on by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, UpperMismatch
from tidemill.time import frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.table_rows import like, refuse_absent, taken_away

WRITER = "table"
"""The writer of a table, whose last token is known."""

TimelineFrontier = Callable[[], Awaitable[int]]


class TableDriver:
    """Writes what users insert, each insert at one instant, and keeps the table readable.

    A table on the system timeline follows the clock. A table on another timeline waits at its
    beginning for its first rows, which are present from instant 0; later rows are present from
    the instant that the timeline has reached, and the table follows it.
    """

    def __init__(
        self,
        collection: str,
        collections: Collections,
        clock: Clock,
        timeline: TimelineFrontier | None,
        settings: ComputeSettings,
    ) -> None:
        self._collection = collection
        self._collections = collections
        self._clock = clock
        self._timeline = timeline
        self._settings = settings

    async def insert(self, rows: pa.Table, diffs: pa.Array, token: str | None = None) -> int:
        """Add `rows`, all at one instant; durable on return, which names the instant.

        A repeated `token` changes nothing and names the same instant. Raises: UsageError (NotThere)
        for a row that is taken away and not there. Cost: with rows that are taken away a read of what
        may be these.
        """
        gone = taken_away(rows, diffs)
        while True:
            state = await self._collections.state(self._collection)
            upper, last = sole_time(state.upper), state.last_writes.get(WRITER)
            if token is not None and last is not None and last.token == token:
                return sole_time(last.upper) - 1
            if gone.num_rows and not await self._there(gone, upper):
                continue
            at = max(upper, await self._now()) if upper or self._timeline is None else 0
            updates = rows.append_column(TIME, pa.array([at] * rows.num_rows, pa.uint64()))
            updates = updates.append_column(DIFF, diffs)
            outcome = await self._collections.compare_and_append(
                self._collection,
                frontier(upper),
                frontier(at + 1),
                updates,
                writer=WRITER,
                token=token,
            )
            if not isinstance(outcome, UpperMismatch):
                return sole_time(outcome.upper) - 1

    async def _there(self, gone: pa.Table, upper: int) -> bool:
        """Look whether rows can be taken away at an upper; False if it has to be looked again.

        Raises: UsageError if they cannot.
        """
        held: pa.Table | None = gone.slice(0, 0)
        if upper:
            held = await self._collections.glance(self._collection, upper - 1, where=like(gone))
        if held is None:
            return False
        refuse_absent(self._collection, gone, held)
        return True

    async def advance_forever(self) -> None:
        """Move the upper on while nobody writes, until cancelled."""
        while True:
            await self._clock.sleep(self._settings.table_interval_ms / 1000)
            upper = (await self._collections.status(self._collection)).upper
            if self._timeline is not None and sole_time(upper) == 0:
                continue
            reached = frontier(await self._now() + (1 if self._timeline is None else 0))
            if upper.precedes(reached) and upper != reached:
                await self._collections.compare_and_append(
                    self._collection, upper, reached, None, writer=WRITER
                )

    async def _now(self) -> int:
        """The instant at which an insert would be present."""
        return self._clock.now_ms() if self._timeline is None else await self._timeline()
