"""Running an arrangement: a collection once more, found by other columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.store import Stored
from tidemill.runtime.resources import ArrangementSpec
from tidemill.shard import Description
from tidemill_compaction.arranging import SparkArrange
from tidemill_compute.arrangements import ArrangementDriver
from tidemill_embedded.world import World


class ArrangementRunner:
    """An arrangement of one collection; it is retained as the collection is."""

    def __init__(self, stored: Stored, arranged: CatalogEntry, world: World) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, ArrangementSpec)
        self.name = f"Arrangement/{stored.resource.name}"
        self.collection = stored.prefix
        self._arranged = arranged
        self._key = spec.key
        self._world = world
        self.driver = ArrangementDriver(
            arranged.collection, self.collection, world.collections,
            SparkArrange(world.launcher, world.collections), world.clock, world.settings.compute,
        )  # fmt: skip

    def details(self) -> dict[str, Any]:
        """How many updates this process has written, and how many its jobs have."""
        return {"written": self.driver.written, "builtByJobs": self.driver.built}

    async def prepare(self) -> None:
        """Hold the collection, and create the arrangement where it can be read from on."""
        start = await self.driver.hold()
        of = await self._world.collections.description(self._arranged.collection)
        description = Description(
            of.schema,
            kind="arrangement",
            timeline=of.timeline,
            key=self._key,
            retain_ms=of.retain_ms,
        )
        await self._world.ensure(self.collection, description, start)

    async def run(self, ready: Callable[[], None]) -> None:
        """Follow the collection."""
        ready()
        await self.driver.advance_forever()

    async def release(self) -> None:
        """Close it, let go of the collection."""
        owners = frozenset((f"arrangement:{self.collection}",))
        await self._world.close(self.collection, owners)
        await self._world.release(self._arranged.collection, owners)
