"""Looks at every collection now and then: merges, ends leases, deletes what nobody names."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.errors import Corrupt, Indeterminate, Unavailable
from tidemill.runtime.breaking import told, unforeseen
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.shard.compaction import Merge
from tidemill_compaction.settings import CompactionSettings


class BulkMerge(Protocol):
    """Does merges that are too big for this process."""

    async def merge(self, merge: Merge) -> bool:
        """Do it and put it in place; whether it was taken.

        A merge whose inputs have changed meanwhile is not taken, and changes nothing. Raises:
        Unavailable if it could not be done.
        """


@dataclass(slots=True)
class CompactionCounts:
    """Counts of this service since it started."""

    merges: int = 0
    deleted: int = 0
    orphans: int = 0
    skipped: int = 0
    rewritten: Counter[str] = field(default_factory=Counter)
    """Updates read to be merged, by collection."""

    broken: Counter[str] = field(default_factory=Counter)
    """Looks that ended neither by a store's absence nor by damage, by collection."""


@dataclass(slots=True)
class _Seen:
    """The contents of a collection at the last look, and the number of looks since they changed.

    Progress without updates, as an idle source makes every second, changes nothing here.
    """

    held: tuple[int, int, int] = (-1, -1, -1)
    quiet: int = 0
    failures: int = 0
    """Looks in a row that failed."""

    due: int = 0
    """The look at which it is looked at again."""


@dataclass(slots=True)
class CompactionDriver:
    """No accumulation at or beyond since ever changes; batches stay few; nothing leaks.

    Merges run outside the log and never block a writer. A step that a store refused is taken again
    at the next look; a collection that is damaged is told of at every look. One that breaks a look
    in another way is told of, counted, and looked at again after twice as many looks each time.
    Neither stops the others.
    """

    collections: Collections
    clock: Clock
    settings: CompactionSettings
    report: Callable[[str, str], None] = lambda collection, message: None
    mine: Callable[[str], bool] = lambda collection: True
    """Which collections this process looks at; two that look at one waste work, and harm nothing.
    """

    bulk: BulkMerge | None = None
    """Executor of merges of `spark_rows` and more; without it, they are made here as all others."""

    counts: CompactionCounts = field(default_factory=CompactionCounts)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _looks: int = 0
    _big: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _tombstones: dict[str, float] = field(default_factory=dict)
    """When each is looked at again, by the monotonic clock: never once nothing of it is left."""

    async def compact_forever(self) -> None:
        """Look at all collections every interval, until cancelled; big merges go on between
        looks.
        """
        try:
            while True:
                await self.clock.sleep(self.settings.interval_s)
                await self.look()
        finally:
            for task in self._big.values():
                task.cancel()
            await asyncio.gather(*self._big.values(), return_exceptions=True)

    async def look(self) -> None:
        """One look at every collection."""
        self._looks += 1
        try:
            collections = await self.collections.ids()
        except Exception as error:  # nothing is looked at now; the next look is as good
            self._failed_at("every", error)
            return
        for gone in self._seen.keys() - set(collections):
            del self._seen[gone]
        for collection in collections:
            rests = self._tombstones.get(collection, 0.0) > self.clock.monotonic_s()
            if rests or not self.mine(collection):
                continue
            seen = self._seen.setdefault(collection, _Seen())
            if seen.due > self._looks:
                continue
            try:
                await self._look_at(collection, seen)
                seen.failures = 0
            except Exception as error:  # one collection, whatever it was: the others are looked at
                self._failed_at(collection, error)

    def _failed_at(self, collection: str, error: Exception) -> None:
        """Tell of a look that failed, and when the next one is."""
        self.counts.skipped += 1
        self.report(collection, told(error) if unforeseen(error) else str(error))
        if isinstance(error, Unavailable | Indeterminate | Corrupt):
            return
        self.counts.broken[collection] += 1
        seen = self._seen.setdefault(collection, _Seen())
        pause_looks = min(1 << min(seen.failures, 30), self.settings.broken_looks_max)
        seen.failures += 1
        seen.due = self._looks + pause_looks

    async def _look_at(self, collection: str, seen: _Seen) -> None:
        status = await self.collections.status(collection)
        if status.closed:
            await self._look_at_tombstone(collection, status.garbage)
            return
        held = status.updates, status.staged, status.bytes
        seen.quiet = seen.quiet + 1 if held == seen.held else 0
        seen.held = held
        crowded = status.batches > self.settings.batches_max
        quiet = seen.quiet >= self.settings.idle_looks
        here = not (crowded or quiet) or not await self._give_away(
            collection, status.updates, quiet
        )
        if crowded and here:
            for _ in range(self.settings.steps_max):
                step = await self.collections.compact_step(collection)
                self.counts.merges += step.taken
                self.counts.rewritten[collection] += step.rows
                if not step.more:
                    break
        elif quiet and here:
            rows = await self.collections.compact_quiet(collection)
            self.counts.merges += rows > 0
            self.counts.rewritten[collection] += rows
        if not self._is_given_away(collection):
            await self.collections.list_parts(collection)
        await self._delete(collection)

    async def _look_at_tombstone(self, collection: str, garbage: int) -> None:
        """Delete what is left of it, much later uploads that broke off; then never look at it
        again.
        """
        if garbage:
            await self._delete(collection)
        elif collection not in self._tombstones:
            await self.collections.shorten(collection)
            self._seen.pop(collection, None)
            self._tombstones[collection] = self.clock.monotonic_s() + self.settings.orphan_age_s
        else:
            age_ms = int(self.settings.orphan_age_s * 1000)
            self.counts.orphans += await self.collections.reap_orphans(collection, age_ms)
            self._tombstones[collection] = math.inf

    def _is_given_away(self, collection: str) -> bool:
        """Whether a merge of the collection is under way elsewhere."""
        running = self._big.get(collection)
        return running is not None and not running.done()

    async def _give_away(self, collection: str, updates: int, quiet: bool) -> bool:
        """Whether a merge of the collection is, or becomes, somebody else's work."""
        if self._is_given_away(collection):
            return True
        if self.bulk is None or updates < self.settings.spark_rows:
            return False
        if collection in self._failed:
            # Work that a job could not do is done here, once; the next big merge is a job again.
            self._failed.discard(collection)
            return False
        merge = await self.collections.due_merge(collection, quiet=quiet)
        if merge is None or merge.work.rows < self.settings.spark_rows:
            return False
        self._big[collection] = asyncio.create_task(self._merge_elsewhere(self.bulk, merge))
        return True

    async def _merge_elsewhere(self, bulk: BulkMerge, merge: Merge) -> None:
        try:
            taken = await bulk.merge(merge)
        except Exception as error:  # what a job cannot do is done here, once
            self._failed.add(merge.collection)
            self._failed_at(merge.collection, error)
            return
        self.counts.merges += taken
        self.counts.rewritten[merge.collection] += merge.work.rows

    async def settle(self) -> None:
        """Return once the big merges that have begun have ended."""
        await asyncio.gather(*self._big.values())

    async def _delete(self, collection: str) -> None:
        self.counts.deleted += await self.collections.collect_garbage(
            collection, int(self.settings.garbage_grace_s * 1000)
        )
        if self._looks % self.settings.orphan_looks == 0:
            self.counts.orphans += await self.collections.reap_orphans(
                collection, int(self.settings.orphan_age_s * 1000)
            )
