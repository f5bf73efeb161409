"""The hold of a resource of that kind."""

from __future__ import annotations

from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.lifetime import release_holds
from tidemill.catalog.store import Stored
from tidemill.runtime.resources import HoldSpec
from tidemill.shard import Collections
from tidemill.time import frontier


class HeldCollection:
    """A hold that keeps the history of one collection."""

    def __init__(self, stored: Stored, held: CatalogEntry, collections: Collections) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, HoldSpec)
        self.stored = stored
        self.name = f"Hold/{stored.resource.name}"
        self.collection = held.collection
        self._spec = spec
        self._collections = collections
        self._owner = f"hold:{stored.prefix}"

    async def prepare(self) -> None:
        """Take the hold, or move it forward to where the document says."""
        wanted = None if self._spec.frontier is None else frontier(self._spec.frontier)
        held = await self._collections.read_hold(
            self.collection, at=wanted, owner=self._owner, lease_ms=None
        )
        if wanted is not None and held.frontier != wanted and held.frontier.precedes(wanted):
            await self._collections.downgrade(held, wanted)

    async def release(self) -> None:
        """Give the hold up."""
        await release_holds(self._collections, self.collection, frozenset((self._owner,)))
