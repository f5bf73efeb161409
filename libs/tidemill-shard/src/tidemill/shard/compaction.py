"""Compaction: fewer, larger batches, and times advanced towards since; no readable contents
change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tidemill.arrangement.updates import advance, between, concatenate, consolidate
from tidemill.errors import Corrupt
from tidemill.shard.appending import Merged, apply_merge, put_in_lists
from tidemill.shard.conforming import adding_up, conform
from tidemill.shard.hashing import HASH_MAX, key_hashes
from tidemill.shard.offloading import compute_beside
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import Part
from tidemill.shard.ports import Clock
from tidemill.shard.state import Batch, Description, State, compaction_frontier
from tidemill.shard.versions import Versions
from tidemill.time import frontier

ALIKE_MIN = 4
"""So many batches of like size are merged into one."""
SMALL_ROWS = 512
"""Batches up to this size are alike, whatever the sizes are."""
COMPACT_ATTEMPTS = 8
RANGE_BYTES = 64 * 1024 * 1024
"""So much stored data is merged at a time; in memory it is several times that."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Outcome of one step: rows read, whether a result was taken, whether there is more to do."""

    rows: int
    taken: bool
    more: bool


def plan_merge(state: State) -> tuple[Batch, ...]:
    """The adjacent batches that are due to become one; none if nothing is.

    They are the newest ones that are alike: back from the last of them to the first batch that is
    more than twice all between. So sizes double every few batches, and there are O(log n) batches.
    Each update is rewritten O(log n) times. One batch alone is due once since is past all its
    times.
    """
    batches = state.batches
    for stop in range(len(batches), 0, -1):
        alike = _alike(batches[:stop])
        if sum(batch.runs for batch in alike) >= ALIKE_MIN:
            return alike
    reached = compaction_frontier(state.since)
    passed = len(batches) == 1 and batches[0].time_max <= reached
    return batches if passed and _shrinks(batches[0], reached) else ()


def _alike(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The last batches, as far back as none is more than twice all behind it."""
    start, rows = len(batches) - 1, batches[-1].rows
    while start and batches[start - 1].rows <= 2 * max(rows, SMALL_ROWS):
        start -= 1
        rows += batches[start].rows
    return batches[start:]


def plan_all(state: State) -> tuple[Batch, ...]:
    """All batches, if one batch at since would be less than what there is."""
    batches = state.batches
    due = sum(batch.runs for batch in batches) > 1 or any(
        _shrinks(batch, compaction_frontier(state.since)) for batch in batches
    )
    return batches if due else ()


def _in_runs(state: State) -> bool:
    """Whether the updates are in several runs, which a merge makes one."""
    return sum(batch.runs for batch in state.batches) > 1


def _shrinks(batch: Batch, reached: int) -> bool:
    """Whether times that compaction may add up now are still apart."""
    apart = any(part.time_min < reached and part.time_min < part.time_max for part in batch.parts)
    return apart or any(e.apart_min is not None and e.apart_min < reached for e in batch.lists)


@dataclass(frozen=True, slots=True)
class RangeMerge:
    """A merge of parts, a hash range of keys at a time: whoever does a range, anywhere, writes the
    same.

    Times are advanced to `reached`. Nobody sees what is written before it is committed.
    """

    collection: str
    description: Description
    inputs: tuple[Part, ...]
    reached: int

    @property
    def rows(self) -> int:
        """Updates to read."""
        return sum(part.rows for part in self.inputs)

    def ranges(self) -> list[tuple[int, int]]:
        """Hash ranges of about RANGE_BYTES of stored data each."""
        bits = 0
        while sum(part.size for part in self.inputs) >> bits > RANGE_BYTES:
            bits += 1
        width = (HASH_MAX + 1) >> bits
        return [(at * width, (at + 1) * width - 1) for at in range(1 << bits)]

    async def write(self, parts: PartStore, low: int, high: int) -> tuple[int, list[Part]]:
        """(rows read, parts written) of one range.

        Raises: PartGone if an input has been collected.
        """
        tables = [table async for table in self._rows(parts, low, high)]
        rows: int = sum(table.num_rows for table in tables)
        if not rows:
            return 0, []
        merged = await compute_beside(rows, lambda: self._merged(tables))
        written = await parts.write(self.collection, self.description, merged)
        return rows, [
            replace(part, hash_min=max(part.hash_min, low), hash_max=min(part.hash_max, high))
            for part in written
        ]

    async def _rows(self, parts: PartStore, low: int, high: int) -> AsyncIterator[pa.Table]:
        key = self.description.key
        for part in self.inputs:
            if part.hash_max < low or part.hash_min > high:
                continue
            table = await parts.table(part, self.description, keep=False)
            if part.lower or part.upper is not None:
                table = between(table, part.lower, part.upper)
            if part.hash_min < low or part.hash_max > high:
                table = await compute_beside(
                    table.num_rows, partial(_in_range, table, key, low, high)
                )
            yield table

    def _merged(self, tables: list[pa.Table]) -> pa.Table:
        updates = conform(concatenate(tables), self.description.update_schema())
        with adding_up():
            if self.reached:
                return advance(updates, frontier(self.reached))
            return consolidate(updates)


class Merge:
    """One merge of adjacent batches: what is chosen, what of it is written, what is left to do."""

    def __init__(
        self, collection: str, state: State, chosen: tuple[Batch, ...], inputs: tuple[Part, ...]
    ) -> None:
        """`inputs` are the parts of the chosen batches, listed ones included."""
        self.collection = collection
        self.chosen = chosen
        self.written: list[Part] = []
        reached = compaction_frontier(state.since)
        self.work = RangeMerge(collection, state.description, inputs, reached)
        self._ranges = self.work.ranges()

    @property
    def done(self) -> bool:
        """Whether every range is written."""
        return not self._ranges

    def result(self) -> Merged:
        """The batch that stands for the chosen ones."""
        compacted = max(self.work.reached, *(batch.compacted for batch in self.chosen))
        return Merged(self.chosen, Batch(self.chosen[0].lower, compacted, tuple(self.written)))

    async def step(self, parts: PartStore) -> int:
        """Merge the next range; how many rows were read. Raises: PartGone if it is out of date."""
        rows, written = await self.work.write(parts, *self._ranges[0])
        self.written += written
        self._ranges.pop(0)
        return rows

    def take(self, written: Iterable[Part]) -> None:
        """Somebody else has written all ranges."""
        self.written = list(written)
        self._ranges = []


def _in_range(table: pa.Table, key: tuple[str, ...], low: int, high: int) -> pa.Table:
    hashes = key_hashes(table, key)
    return table.filter(pa.array((hashes >= np.uint64(low)) & (hashes <= np.uint64(high))))


class Compaction:
    """Merges outside the log and swaps results in if what they replace is still there.

    Writers are never blocked: what is appended meanwhile stays beside the merged batch. A merge
    that a crash interrupts leaves objects for the reaper, and no trace in the log.
    """

    def __init__(
        self,
        parts: PartStore,
        clock: Clock,
        versions: Versions,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._versions = versions
        self._running: dict[str, Merge] = {}

    async def step(self, collection: str, fuel_rows: int) -> Compacted:
        """Go on with the collection's due merge for about `fuel_rows` rows, at least one hash
        range.
        """
        merge = self._running.pop(collection, None)
        if merge is None:
            state = await self._versions.state(collection)
            chosen = plan_merge(state)
            if not chosen:
                return Compacted(0, False, False)
            made = await self._merge(collection, state, chosen)
            if made is None:
                return Compacted(0, False, True)
            merge = made
        rows = await self._advance(merge, fuel_rows)
        if rows is None:
            return Compacted(0, False, True)
        if not merge.done:
            self._running[collection] = merge
            return Compacted(rows, False, True)
        taken = await self._commit_merge(merge)
        return Compacted(rows, taken, bool(plan_merge(await self._versions.state(collection))))

    async def due(self, collection: str, *, quiet: bool) -> Merge | None:
        """The merge that is due, or of everything if the collection is `quiet`; not begun yet.

        None if there is none, or if one is under way.
        """
        if collection in self._running:
            return None
        state = await self._versions.state(collection)
        chosen = plan_merge(state)
        if quiet and (chosen or _in_runs(state)):
            chosen = plan_all(state)
        return await self._merge(collection, state, chosen) if chosen else None

    async def commit(self, merge: Merge) -> bool:
        """Put a merge that somebody else has done in place of what it replaces; whether it was
        taken.
        """
        return await self._commit_merge(merge)

    async def compact_quiet(self, collection: str) -> int:
        """Merge all batches of a collection that nobody writes to; its times once since is past
        them all.

        So each update is rewritten at most twice, however often since moves. Returns how many
        updates there were to merge, 0 if there was nothing to do.
        """
        state = await self._versions.state(collection)
        if not _in_runs(state) and not plan_merge(state):
            return 0
        await self.compact(collection)
        return sum(batch.rows for batch in state.batches)

    async def compact(self, collection: str) -> None:
        """Merge everything into one batch, times advanced as far as since allows.

        Concurrent merges and appends are taken in by another attempt, a few times.
        """
        for _ in range(COMPACT_ATTEMPTS):
            state = await self._versions.state(collection)
            chosen = plan_all(state)
            if not chosen:
                return
            merge = await self._merge(collection, state, chosen)
            if merge is None:
                continue
            while not merge.done:
                if await self._advance(merge, 0) is None:
                    break
            if merge.done and await self._commit_merge(merge):
                return

    async def _advance(self, merge: Merge, fuel_rows: int) -> int | None:
        """Rows read; None if the merge is out of date, and given up.

        Raises: Corrupt if an object that is still named is missing or damaged.
        """
        rows = 0
        try:
            while not merge.done:
                rows += await merge.step(self._parts)
                if rows >= fuel_rows:
                    break
        except PartGone as gone:
            await self._parts.discard(merge.written)
            await self._check_gone(merge.collection, gone)
            return None
        except Corrupt:
            await self._parts.discard(merge.written)
            raise
        return rows

    async def _merge(
        self, collection: str, state: State, chosen: tuple[Batch, ...]
    ) -> Merge | None:
        """The merge of some batches of a version; None if their lists were merged meanwhile.

        Raises: Corrupt if a list that is still named is missing or damaged.
        """
        try:
            lists = [await self._parts.parts_of(batch.lists) for batch in chosen]
        except PartGone as gone:
            await self._check_gone(collection, gone)
            return None
        named = zip(chosen, lists, strict=True)
        inputs = tuple(part for batch, listed in named for part in (*batch.parts, *listed))
        return Merge(collection, state, chosen, inputs)

    async def _check_gone(self, collection: str, gone: PartGone) -> None:
        """Raises: Corrupt if the newest version still names what is gone."""
        state = await self._versions.state(collection)
        missing = str(gone) in state.objects()
        if not missing and any(batch.lists for batch in state.batches):
            with suppress(PartGone):  # lists of a version that is not the newest any more
                missing = str(gone) in (await self._parts.whole(state)).objects()
        if missing:
            raise Corrupt(
                f"the object {gone} of {collection} is missing", object=str(gone)
            ) from gone

    async def list_parts(self, collection: str) -> bool:
        """Name the parts of batches with many by lists; whether a batch was changed.

        Cost: no look at the store if this process has seen a version, and no such batch in it.
        Batches that a merge of `step` is to replace stay: its result would be refused otherwise.
        """
        changed, running = False, self._running.get(collection)
        known = self._versions.cached(collection)
        state = known.state if known else await self._versions.state(collection)
        for batch in state.batches:
            if running is not None and batch in running.chosen:
                continue
            listed = await self._parts.in_lists(collection, batch)
            if listed is batch:
                continue
            put = await self._versions.commit(
                collection, partial(put_in_lists, batch=batch, listed=listed)
            )
            if not put:
                await self._parts.discard(listed.lists)
            changed = changed or put
        return changed

    async def _commit_merge(self, merge: Merge) -> bool:
        merged, now_ms = merge.result(), self._clock.now_ms()
        listed = await self._parts.in_lists(merge.collection, merged.batch)
        merged = replace(merged, batch=listed)
        taken = await self._versions.commit(
            merge.collection, lambda state: apply_merge(state, merged, now_ms)
        )
        if not taken:
            await self._parts.discard([*merge.written, *listed.lists])
        return taken
