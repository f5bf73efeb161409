"""The collection of an arrangement."""

from __future__ import annotations

from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.lifetime import close_collection, ensure_collection, release_holds
from tidemill.catalog.store import Stored
from tidemill.runtime.resources import ArrangementSpec
from tidemill.shard import Collections, Description


class ArrangementCollection:
    """A collection once more, by another key; it is retained as the collection is."""

    def __init__(self, stored: Stored, arranged: CatalogEntry, collections: Collections) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, ArrangementSpec)
        self.stored = stored
        self.name = f"Arrangement/{stored.resource.name}"
        self.collection = stored.prefix
        self.arranged = arranged.collection
        self._key = spec.key
        self._collections = collections
        self._owner = f"arrangement:{self.collection}"

    async def prepare(self) -> None:
        """Hold the collection, and create the arrangement where it can be read from on."""
        held = await self._collections.read_hold(self.arranged, owner=self._owner, lease_ms=None)
        of = await self._collections.description(self.arranged)
        description = Description(
            of.schema,
            kind="arrangement",
            timeline=of.timeline,
            key=self._key,
            retain_ms=of.retain_ms,
        )
        await ensure_collection(self._collections, self.collection, description, held.frontier)

    async def release(self) -> None:
        """Close it, give up the hold on the collection."""
        owners = frozenset((self._owner,))
        await close_collection(self._collections, self.collection, owners)
        await release_holds(self._collections, self.arranged, owners)
