"""The collection of a table."""

from __future__ import annotations

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import SYSTEM, row_schema
from tidemill.catalog.lifetime import close_collection, ensure_collection
from tidemill.catalog.store import Stored
from tidemill.catalog.table_writer import TableWriter
from tidemill.catalog.timelines import timeline_frontier
from tidemill.runtime.clock import Clock
from tidemill.runtime.resources import TableSpec, retained_ms
from tidemill.shard import Collections, Description
from tidemill.time import frontier


class TableCollection:
    """A table that users write; it has a write capability for good."""

    def __init__(
        self, stored: Stored, collections: Collections, catalog: Catalog, clock: Clock
    ) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, TableSpec)
        self.stored = stored
        self.spec = spec
        self.name = f"Table/{stored.resource.name}"
        self.collection = stored.prefix
        self.begins = stored.begins if spec.timeline == SYSTEM else 0
        self._collections = collections
        timeline = spec.timeline
        self.writer = TableWriter(
            self.collection, collections, clock,
            None
            if timeline == SYSTEM
            else lambda: timeline_frontier(catalog, collections, timeline),
        )  # fmt: skip

    async def prepare(self) -> None:
        """Create the collection, or give it the columns that the table has gained."""
        schema = row_schema(self.spec.columns)
        description = Description(
            schema, timeline=self.spec.timeline, retain_ms=retained_ms(self.spec)
        )
        begins = frontier(self.begins)
        await ensure_collection(self._collections, self.collection, description, begins)
        await self._collections.extend_schema(self.collection, schema)
        await self.writer.writer()

    async def release(self) -> None:
        """Close it."""
        await close_collection(self._collections, self.collection, frozenset())
