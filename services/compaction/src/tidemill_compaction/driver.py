"""Looks at every collection now and then: merges, ends leases, deletes what nobody names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import Corrupt, Indeterminate, Unavailable
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
    """What a collection held at the last look, and for how many looks it has held it.

    Progress without updates, as an idle source makes every second, changes nothing here.
    """

    held: tuple[int, int, int] = (-1, -1, -1)
    quiet: int = 0


@dataclass(slots=True)
class CompactionDriver:
    """No accumulation at or beyond since ever changes; batches stay few; nothing leaks.

    Merges run outside the log and never block a writer. A step that a store refused is taken again
    at the next look; a collection that is damaged is told of at every look, and does not stop the others.
    """

    collections: Collections
    clock: Clock
    settings: CompactionSettings
    report: Callable[[str, str], None] = lambda collection, message: None
    mine: Callable[[str], bool] = lambda collection: True
    """Which collections this process looks at; two that look at one waste work, and harm nothing."""

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
        try:
            collections = await self.collections.ids()
        except (Unavailable, Indeterminate) as error:
            self.counts.skipped += 1
            self.report("every", str(error))
            return
        for collection in collections:
            if not self.mine(collection):
                continue
            try:
                await self._look_at(collection)
            except (Unavailable, Indeterminate, Corrupt) as error:
                self.counts.skipped += 1
                self.report(collection, str(error))

    async def _look_at(self, collection: str) -> None:
        status = await self.collections.status(collection)
        seen = self._seen.setdefault(collection, _Seen())
        held = status.updates, status.staged, status.bytes
        seen.quiet = seen.quiet + 1 if held == seen.held else 0
        seen.held = held
        if status.batches > self.settings.batches_max:
            for _ in range(self.settings.steps_max):
                step = await self.collections.compact_step(collection)
                self.counts.merges += step.taken
                self.counts.rewritten[collection] += step.rows
                if not step.more:
                    break
        elif seen.quiet >= self.settings.idle_looks:
            rows = await self.collections.compact_quiet(collection)
            self.counts.merges += rows > 0
            self.counts.rewritten[collection] += rows
        await self._delete(collection)

    async def _delete(self, collection: str) -> None:
        self.counts.deleted += await self.collections.collect_garbage(
            collection, int(self.settings.garbage_grace_s * 1000)
        )
        if self._looks % self.settings.orphan_looks == 0:
            self.counts.orphans += await self.collections.reap_orphans(
                collection, int(self.settings.orphan_age_s * 1000)
            )
