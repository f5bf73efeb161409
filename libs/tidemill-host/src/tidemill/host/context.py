"""The context of every runner: the stores, the log, the clock, the counters, the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.lifetime import close_collection, release_holds
from tidemill.catalog.made.making import Making
from tidemill.catalog.revisions import Revisions
from tidemill.catalog.store import ResourceStore
from tidemill.catalog.timelines import timeline_frontier
from tidemill.errors import Corrupt, UnknownCollection
from tidemill.host.feeds import Feeds
from tidemill.host.last_tried import LastTried
from tidemill.host.readers import Readers
from tidemill.host.settings import ProcessSettings
from tidemill.runtime.breaking import told
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Log
from tidemill.runtime.logs import get_logger
from tidemill.runtime.metrics import Metrics
from tidemill.runtime.places import Places
from tidemill.runtime.resources import KafkaOrigin
from tidemill.shard import Collections
from tidemill.spark.launcher import SparkLauncher
from tidemill.time import frontier

DAMAGED_LOOK_S = 60.0
"""Seconds between two looks at a damaged collection, which somebody may have repaired."""

log = get_logger("collections")


@dataclass(frozen=True, slots=True)
class Context:
    """One process: everything a runner is handed. `open_kafka` gives the log of a broker."""

    collections: Collections
    log: Log
    open_kafka: Callable[[KafkaOrigin], Awaitable[Log]]
    clock: Clock
    metrics: Metrics
    settings: ProcessSettings
    catalog: Catalog
    store: ResourceStore
    revisions: Revisions
    making: Making
    readers: Readers
    feeds: Feeds
    launcher: SparkLauncher
    places: Places
    tried: LastTried
    looked_at: set[str] = field(default_factory=set)
    """The collections of which it is known whether users have created them."""
    damaged: dict[str, float] = field(default_factory=dict)
    """Those that could not be read, and the monotonic seconds from which on to look again."""

    @property
    def root(self) -> Path:
        """The state directory."""
        return self.settings.root

    async def discover(self) -> None:
        """Enter collections that users have created since by their names, and forget deleted ones.

        Raises: as `learn_created`. Cost: a look at each collection that is new, or was created.
        """
        await self.forget_deleted()
        await self.learn_created()

    async def learn_created(self) -> None:
        """Enter collections that users have created since by their names.

        A damaged collection is told once in the log, and has no name until it is repaired.
        Collections that a failure kept from being looked at are looked at the next time. Raises:
        Unavailable. Cost: the ids of all collections, and a look at each one that is new.
        """
        for collection in await self.collections.ids():
            if collection in self.looked_at or self.catalog.knows(collection):
                continue
            if self.damaged.get(collection, 0.0) <= self.clock.monotonic_s():
                await self._look_at(collection)

    async def _look_at(self, collection: str) -> None:
        try:
            status = await self.collections.status(collection)
        except UnknownCollection:
            return
        except Corrupt as error:
            if collection not in self.damaged:
                log.error("damaged", collection=collection, error=told(error))
            self.damaged[collection] = self.clock.monotonic_s() + DAMAGED_LOOK_S
            return
        self.damaged.pop(collection, None)
        self.looked_at.add(collection)
        # NB: what was deleted stays as long as somebody holds it, and has no name.
        if status.description.created and status.retained != frontier():
            self.catalog.learn(collection, status.description)

    async def forget_deleted(self) -> None:
        """Forget the names of created collections that were deleted, here or elsewhere."""
        for name in self.catalog.all_created():
            with suppress(UnknownCollection, Corrupt):
                if (await self.collections.status(name)).retained == frontier():
                    self.catalog.forget(name)

    async def close(self, collection: str, owners: frozenset[str]) -> None:
        """Close the collection for its owners, by `close_collection`."""
        await close_collection(self.collections, collection, owners)

    async def release(self, collection: str, owners: frozenset[str]) -> None:
        """Release the holds of these owners, by `release_holds`."""
        await release_holds(self.collections, collection, owners)

    async def timeline_frontier(self, timeline: str) -> int:
        """The frontier of a timeline, by `timeline_frontier` of the catalog."""
        return await timeline_frontier(self.catalog, self.collections, timeline)
