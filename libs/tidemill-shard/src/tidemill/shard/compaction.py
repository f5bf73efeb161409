"""Compaction: fewer, larger batches, and times advanced to since; no readable contents change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import pyarrow as pa

from tidemill.arrangement.updates import advance, consolidate
from tidemill.shard import transitions
from tidemill.shard.ports import Blob, Clock
from tidemill.shard.reading import PartCache
from tidemill.shard.state import Batch, Description, Part, State

WritePartsOf = Callable[[str, Description, pa.Table | None], Awaitable[list[Part]]]


class Commit(Protocol):
    """How a transition is committed."""

    async def __call__(
        self, collection: str, transition: Callable[[State], tuple[bool, State]]
    ) -> bool: ...


class Compaction:
    """Merges adjacent batches outside the log and swaps the result in if they are still there."""

    def __init__(
        self, cache: PartCache, blob: Blob, clock: Clock, write_parts: WritePartsOf
    ) -> None:
        self._cache = cache
        self._blob = blob
        self._clock = clock
        self._write_parts = write_parts

    async def run(
        self,
        collection: str,
        state_of: Callable[[str], Awaitable[State]],
        commit: Commit,
        *,
        all_batches: bool = True,
    ) -> bool:
        """Merge batches into one at since: all, or the newest as far as their sizes are alike.

        Returns whether the result was taken. Writers are never blocked: an append that lands
        meanwhile stays beside the merged batch. Cost: one read and one write of what is merged;
        merging only what is alike, each update is rewritten O(log n) times.
        """
        state = await state_of(collection)
        chosen = state.batches if all_batches else newest_alike(state.batches)
        if not worthwhile(chosen, state):
            return False
        merged = await self._merge(collection, state, chosen)
        now_ms = self._clock.now_ms()
        taken = await commit(
            collection, lambda held: transitions.apply_merge(held, chosen, merged, now_ms)
        )
        if not taken:
            for part in merged.parts:
                if part.key is not None:
                    await self._blob.delete(part.key)
        return taken

    async def _merge(self, collection: str, state: State, chosen: Sequence[Batch]) -> Batch:
        schema = state.description.update_schema()
        parts = [part for batch in chosen for part in batch.parts]
        tables = [await self._cache.table(part, schema) for part in parts]
        updates = consolidate(
            advance(pa.concat_tables(tables) if tables else schema.empty_table(), state.since)
        )
        written = await self._write_parts(collection, state.description, updates)
        return Batch(chosen[0].lower, chosen[-1].upper, state.since, tuple(written))


def newest_alike(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The newest batches, going back while the next one has at most twice the rows so far."""
    start, rows = len(batches), 0
    while start and batches[start - 1].rows <= 2 * max(rows, 512):
        start -= 1
        rows += batches[start].rows
    return batches[start:]


def worthwhile(batches: Sequence[Batch], state: State) -> bool:
    """Whether a merge would change anything: several batches, or one that since has moved past."""
    if not batches or state.closed:
        return False
    if len(batches) > 1:
        return True
    only = batches[0]
    stale = only.since != state.since and any(
        not state.since.less_equal(part.time_min) for part in only.parts
    )
    return bool(only.parts) and stale
