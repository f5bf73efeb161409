"""Memory of an action: what has fired, as its outbox and its corrections say it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.shard import Collections
from tidemill.time import sole_time
from tidemill_compute.actions.due import Due
from tidemill_compute.actions.firings import Firings
from tidemill_compute.actions.key_counts import ALL_AT_ONCE
from tidemill_compute.actions.limiting import limiter_of
from tidemill_compute.actions.outbox import Firing, follow_on
from tidemill_compute.actions.taking import Taking
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.holds import Holds

RECALLED_AT_ONCE = 100_000
"""Rows of the outbox that a start reads at a time."""


class Memory:
    """Keys of what has fired, and what a limit and a sink that forgets need of it.

    Memory: see `KeyCounts`; an object for each event that lasts, if the action repeats.
    """

    def __init__(self, target: ActionTarget, collections: Collections, holds: Holds) -> None:
        self._target = target
        self._collections = collections
        self._holds = holds
        self.lasting: dict[str, Firing] = {}
        """Of an action that repeats: what was told last of each event that has not ended."""
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        target = self._target
        names = [name for name, _ in target.shape.argument_columns]
        self._limiter = limiter_of(target.limit, names)
        self.fired = Firings(target.goal, target.follow, self._limiter, target.remember_ms)
        self.taking = Taking(target.shape, self.fired)
        self.lasting = {}

    async def recall(self, upper: int) -> None:
        """Take in all that the outbox and the corrections have before `upper`."""
        target = self._target
        async for put in self.pieces(target.outbox, upper):
            self.fired.known.add(*self._events(put, "event" if target.follow else "key"))
            if target.repeats or self._limiter is not None:
                self._recall_firings(Due.in_outbox(put))
        async for told in self.pieces(target.corrections, upper):
            self.fired.told.add(*self._events(told, "key"))
        self.fired.forget(upper)

    def _events(self, rows: pa.Table, key: str) -> tuple[list[str], Mapping[str, int]]:
        """The keys of rows, and the times of their events where these count."""
        keys: list[str] = rows[key].to_pylist()
        if self._target.remember_ms is None:
            return keys, ALL_AT_ONCE
        times = pc.fill_null(rows["event_time"], 0)  # as firings have it
        return keys, dict(zip(keys, times.to_pylist(), strict=True))

    def _recall_firings(self, due: Due) -> None:
        for firing in due:
            if self._limiter is not None:
                self._limiter.recall(firing)
            if self._target.repeats and not firing.limited:
                follow_on(self.lasting, firing)

    async def pieces(self, collection: str, upper: int) -> AsyncIterator[pa.Table]:
        """The updates of a collection of the action before `upper`, some at a time."""
        lower = sole_time(await self._holds.take(collection))
        while lower < upper:
            until = await self._collections.upper_of_rows(
                collection, lower, upper, RECALLED_AT_ONCE
            )
            yield await self._holds.changes(collection, lower, until)
            lower = until
