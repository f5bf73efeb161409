"""Tables: collections that users write to, with an upper that moves on by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.runtime.clock import Clock
from tidemill.shard import AppendOutcome, Collections, UpperMismatch, WriteCapability
from tidemill.shard.hashing import fingerprint
from tidemill.time import Frontier, frontier, sole_time

TimelineFrontier = Callable[[], Awaitable[int]]

Rest = Callable[[bool], Awaitable[bool]]
"""Told after each advance whether there was news: whether the table has rested, and does no more.
"""


async def _never(news: bool) -> bool:
    return False


class TableWriter:
    """Writes inserts of users, each insert at one instant, and keeps the table readable.

    It writes by a write capability that the table has for good, as every process does that runs it.
    Other writers have capabilities of their own beside it; upper is the least of all their
    frontiers (K2).

    A table on the system timeline follows the clock. A table on another timeline waits at its
    beginning for its first rows, which are present from instant 0. Later rows are present from the
    instant that the timeline has reached, and the table follows it.
    """

    def __init__(
        self,
        collection: str,
        collections: Collections,
        clock: Clock,
        timeline: TimelineFrontier | None,
    ) -> None:
        self._collection = collection
        self._collections = collections
        self._clock = clock
        self._timeline = timeline
        self._held: WriteCapability | None = None
        self._advanced: Frontier | None = None
        """The upper after the last advance."""

    async def writer(self) -> WriteCapability:
        """The write capability of the table, as this process knows it."""
        if self._held is None:
            owner = f"table:{self._collection}"
            self._held = await self._collections.write_hold(self._collection, owner=owner)
        return self._held

    async def insert(self, rows: pa.Table, diffs: pa.Array, token: str | None = None) -> int:
        """Add `rows`, all at one instant; durable on return, which names the instant.

        A repeated `token` changes nothing and names the same instant. Raises: UsageError (NotThere)
        for a row that is taken away and not there, (TokenUsed) for a token that came with other
        rows. Cost: with rows that are taken away a read of what may be these.
        """
        body = "" if token is None else fingerprint(rows.append_column(DIFF, diffs))
        while True:
            held = await self.writer()
            known = await self._collections.find_answer(held, token, body)
            if known is not None:
                return sole_time(known.upper) - 1
            lower = sole_time(held.frontier)
            at = max(lower, await self._now()) if lower or self._timeline is None else 0
            updates = rows.append_column(TIME, pa.repeat(pa.scalar(at, pa.uint64()), rows.num_rows))
            updates = updates.append_column(DIFF, diffs)
            outcome = await self._write(updates, frontier(at + 1), token, body)
            if not isinstance(outcome, UpperMismatch):
                return sole_time(outcome.upper) - 1

    async def advance_forever(self, interval_s: float, rest: Rest = _never) -> None:
        """Move the upper on while nobody writes, each interval, until cancelled.

        After each advance `rest` has its turn; what comes from a rest is moved on at once.
        """
        await self._clock.sleep(interval_s)
        while True:
            if not await rest(await self.advance()):
                await self._clock.sleep(interval_s)

    async def advance(self) -> bool:
        """Move the upper on; whether the table has been written since the last time."""
        news = False
        while True:
            held = (await self.writer()).frontier
            if self._timeline is not None and sole_time(held) == 0:
                # Another process may write the first rows: where the table stands is asked for
                # anew.
                self._held = None
                return news
            news |= held != self._advanced
            reached = frontier(await self._now() + (1 if self._timeline is None else 0))
            if reached.precedes(held):
                self._advanced = held
                return news
            outcome = await self._write(None, reached, None)
            if not isinstance(outcome, UpperMismatch):
                self._advanced = outcome.upper
                return news

    async def stands_at(self) -> WriteCapability:
        """The write capability of the table as it stands now, whoever has moved it."""
        self._held = None
        return await self.writer()

    async def _write(
        self, updates: pa.Table | None, to: Frontier, token: str | None, body: str = ""
    ) -> AppendOutcome:
        """Write from where the table stands; another process may have moved it, which is known
        then.
        """
        held = await self.writer()
        outcome = await self._collections.update_and_downgrade(
            held, updates, to, token=token, body=body, there=True
        )
        came = outcome.current if isinstance(outcome, UpperMismatch) else outcome.upper
        # NB: a repeated token is answered with what it came to then.
        if self._held is not None and self._held.frontier.precedes(came):
            self._held = held.at(came)
        return outcome

    async def _now(self) -> int:
        """The instant at which an insert would be present."""
        return self._clock.now_ms() if self._timeline is None else await self._timeline()
