"""Looks at every collection now and then: merges, ends leases, deletes what nobody names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import Indeterminate, Unavailable
from tidemill_compaction.settings import CompactionSettings


@dataclass(slots=True)
class CompactionCounts:
    """What this service has done since it started."""

    merges: int = 0
    deleted: int = 0
    orphans: int = 0
    skipped: int = 0
    rewritten: Counter[str] = field(default_factory=Counter)
    """Updates read to be merged, by collection."""


@dataclass(slots=True)
class _Seen:
    """A collection at the last look, and for how many looks it has been so."""

    version: int = -1
    quiet: int = 0
    settled: bool = False


@dataclass(slots=True)
class CompactionDriver:
    """No accumulation at or beyond since ever changes; batches stay few; nothing leaks.

    Merges run outside the log and never block a writer. A step that a store refused is taken again
    at the next look.
    """

    collections: Collections
    clock: Clock
    settings: CompactionSettings
    report: Callable[[str, str], None] = lambda collection, message: None
    counts: CompactionCounts = field(default_factory=CompactionCounts)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _looks: int = 0

    async def compact_forever(self) -> None:
        """Look at all collections every interval, until cancelled."""
        while True:
            await self.clock.sleep(self.settings.interval_s)
            await self.look()

    async def look(self) -> None:
        """One look at every collection."""
        self._looks += 1
        for collection in await self.collections.ids():
            try:
                await self._look_at(collection)
            except (Unavailable, Indeterminate) as error:
                self.counts.skipped += 1
                self.report(collection, str(error))

    async def _look_at(self, collection: str) -> None:
        status = await self.collections.status(collection)
        seen = self._seen.setdefault(collection, _Seen())
        if status.version == seen.version:
            seen.quiet += 1
        else:
            seen.version, seen.quiet, seen.settled = status.version, 0, False
        if status.batches > self.settings.batches_max:
            step = await self.collections.compact_step(collection)
            self.counts.merges += step.taken
            self.counts.rewritten[collection] += step.rows
        elif seen.quiet >= self.settings.idle_looks and not seen.settled:
            await self.collections.compact(collection)
            self.counts.merges += 1
            self.counts.rewritten[collection] += status.updates
            seen.version = (await self.collections.status(collection)).version
            seen.settled = True
        await self._delete(collection)

    async def _delete(self, collection: str) -> None:
        self.counts.deleted += await self.collections.collect_garbage(
            collection, int(self.settings.garbage_grace_s * 1000)
        )
        if self._looks % self.settings.orphan_looks == 0:
            self.counts.orphans += await self.collections.reap_orphans(
                collection, int(self.settings.orphan_age_s * 1000)
            )
