"""Decisions about a resource while its work runs, written to the catalog."""

from __future__ import annotations

import asyncio

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.store import CatalogMoved, ResourceStore, Stored
from tidemill.catalog.versions import served


class Revisions:
    """Writes revised resources; changes of the catalog by this process wait for one another."""

    def __init__(self, catalog: Catalog, store: ResourceStore) -> None:
        self._catalog = catalog
        self._store = store
        self.changing = asyncio.Lock()
        """Held by each change of the catalog."""

    async def revise(self, known: Stored, revised: Stored) -> bool:
        """Write `revised`, unless something else was applied since `known`; whether it is
        written.
        """
        async with self.changing:
            while self._store.get(known.resource.kind, known.resource.name) == known:
                try:
                    await self._store.put([revised])
                except CatalogMoved:
                    await self._store.refresh()
                    continue
                self._catalog.plan(served(revised))
                return True
            return False
