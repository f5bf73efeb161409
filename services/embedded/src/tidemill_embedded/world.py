"""What every runner shares: the stores, the log, the clock, the counters, the settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.lifetime import close_collection, ensure_collection, release_holds
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Log
from tidemill.runtime.metrics import Metrics
from tidemill.runtime.places import Places
from tidemill.runtime.resources import KafkaOrigin
from tidemill.shard import Collections, Description
from tidemill.spark.launcher import SparkLauncher
from tidemill.time import (
    Frontier,
    UnknownCollection,
    frontier,
    sole_time,
)
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_embedded.last_tried import LastTried
from tidemill_embedded.replicas.feeds import Feeds
from tidemill_embedded.settings import EmbeddedSettings
from tidemill_ingest.edge import Readers
from tidemill_remap.pace import Paces


@dataclass(frozen=True, slots=True)
class World:
    """One process: everything a runner is handed. `open_kafka` gives the log of a broker."""

    collections: Collections
    log: Log
    open_kafka: Callable[[KafkaOrigin], Awaitable[Log]]
    clock: Clock
    metrics: Metrics
    settings: EmbeddedSettings
    catalog: Catalog
    readers: Readers
    feeds: Feeds
    launcher: SparkLauncher
    places: Places
    tried: LastTried
    paces: Paces
    shared: SharedInputs = field(default_factory=SharedInputs)
    """What the views of this process hold in common."""

    looked_at: set[str] = field(default_factory=set)
    """The collections of which it is known whether users have created them."""

    @property
    def root(self) -> Path:
        """The state directory."""
        return self.settings.root

    async def ensure(
        self, collection: str, description: Description, start: Frontier | None = None
    ) -> None:
        """As `ensure_collection`."""
        await ensure_collection(self.collections, collection, description, start)

    async def discover(self) -> None:
        """Let what users have created since be read by its name, and what was deleted be forgotten.

        Cost: a look at each collection that is new, or was created.
        """
        await self.forget_deleted()
        for collection in await self.collections.ids():
            if collection in self.looked_at or self.catalog.knows(collection):
                continue
            self.looked_at.add(collection)
            with suppress(UnknownCollection):
                status = await self.collections.status(collection)
                # NB: what was deleted stays as long as somebody holds it, and has no name.
                if status.description.created and status.retained != frontier():
                    self.catalog.learn(collection, status.description)

    async def forget_deleted(self) -> None:
        """Let the names of created collections that were deleted, here or elsewhere, mean nothing any more."""
        for name in self.catalog.all_created():
            with suppress(UnknownCollection):
                if (await self.collections.status(name)).retained == frontier():
                    self.catalog.forget(name)

    async def close(self, collection: str, owners: frozenset[str]) -> None:
        """As `close_collection`."""
        await close_collection(self.collections, collection, owners)

    async def release(self, collection: str, owners: frozenset[str]) -> None:
        """As `release_holds`."""
        await release_holds(self.collections, collection, owners)

    async def timeline_frontier(self, timeline: str) -> int:
        """How far the furthest event stream of a timeline has come; 0 if there is none."""
        uppers = [0]
        for collection in self.catalog.timeline_of(timeline):
            with suppress(UnknownCollection):
                upper = (await self.collections.status(collection)).upper
                uppers.append(0 if upper.empty else sole_time(upper))
        return max(uppers)
