"""The role compaction in a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tidemill.errors import TidemillError
from tidemill.host.observing import by_collection
from tidemill.host.service import Ports, Process, Run, Service
from tidemill.host.settings import ProcessSettings
from tidemill.runtime.lifecycle import Scope
from tidemill.runtime.logs import get_logger
from tidemill.runtime.metrics import (
    BROKEN,
    COMPACTION_FUEL,
    COMPACTION_REFUSALS,
    ORPHANS_DELETED,
    Reading,
)
from tidemill_compaction.bulk_spark import SparkMerge
from tidemill_compaction.driver import CompactionCounts, CompactionDriver
from tidemill_compaction.settings import CompactionSettings

ROLE = "compaction"
FRESH_S = 1.0
"""Age of known frontiers in the metrics of a process that compacts them, in seconds."""

log = get_logger("up")


class CompactionProcess(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a process with this role alone."""

    role: tuple[str, ...] = (ROLE,)

    compaction: CompactionSettings = CompactionSettings()


class Compaction:
    """Keeps the collections small whose slots this process has claimed."""

    def __init__(self, settings: CompactionSettings, process: Process) -> None:
        context = process.context
        self._process = process
        self.driver = CompactionDriver(
            context.collections, context.clock, settings,
            lambda collection, message: log.warning(
                "compaction", collection=collection, error=message
            ),
            process.work.has_slot_of,
            SparkMerge(context.launcher, context.collections),
        )  # fmt: skip
        self._watch()

    def _watch(self) -> None:
        metrics, counts = self._process.context.metrics, self.driver.counts
        collections = self._process.context.collections
        metrics.watch(BROKEN, lambda: list(_broken(counts)))
        metrics.watch(COMPACTION_REFUSALS, lambda: [({}, counts.skipped)])
        metrics.watch(ORPHANS_DELETED, lambda: [({}, counts.orphans)])
        metrics.watch(COMPACTION_FUEL, lambda: by_collection(collections, counts.rewritten))

    async def begin(self, files: Sequence[Path]) -> None:
        """Files are applied by another service."""

    def components(self, ports: Ports) -> list[tuple[str, Run]]:
        """Compaction."""
        return [(ROLE, self._run)]

    async def _run(self, scope: Scope) -> None:
        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.driver.compact_forever())
                if self._process.internal is not None:
                    tasks.create_task(self.look_forever())

        task = asyncio.create_task(work())
        scope.ready()
        await scope.until_stopping_or(task)

    async def look_forever(self) -> None:
        """Learn the frontiers of the compacted collections for metrics, and names that are gone."""
        context = self._process.context
        while True:
            await context.clock.sleep(FRESH_S)
            collections: Sequence[str] = ()
            with suppress(TidemillError):
                collections = await context.collections.ids()
            with suppress(TidemillError):
                await context.forget_deleted()
            seen = context.collections.known()
            for collection in filter(self.driver.mine, collections):
                if collection in seen and seen[collection].closed:
                    continue
                # One that cannot be looked at has no fresh metrics; compaction tells of it.
                with suppress(Exception):
                    await context.collections.newest(collection)


def _broken(counts: CompactionCounts) -> Iterator[Reading]:
    for collection, count in counts.broken.items():
        yield {"kind": "Collection", "name": collection}, count


def service(settings: CompactionSettings) -> Service:
    """The role as a process takes it on."""
    return Service(ROLE, join=partial(Compaction, settings))
