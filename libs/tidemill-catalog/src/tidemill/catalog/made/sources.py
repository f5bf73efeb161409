"""The collections of one source, which four services write and read: names, schemas, holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property

import pyarrow as pa

from tidemill.catalog.entry import SYSTEM, columns_of, row_schema
from tidemill.catalog.lifetime import close_collection, ensure_collection, release_holds
from tidemill.catalog.record_shape import shape_of
from tidemill.catalog.records.decisions import DECISIONS_SCHEMA
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA, FILES_SCHEMA, event_schema
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.reclock import CHANGE_SCHEMA, REMAP_SCHEMA
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.runtime.formats.rows import HEARTBEAT
from tidemill.runtime.places.files import names_many
from tidemill.runtime.resources import SourceSpec, retained_ms
from tidemill.shard import Collections, Description
from tidemill.time import frontier

HEARTBEAT_FIELD = pa.field(HEARTBEAT, pa.int64())


class SourceCollections:
    """All that one source makes. No process holds it: any number of them may prepare it."""

    def __init__(self, stored: Stored, collections: Collections, store: ResourceStore) -> None:
        """The `store` knows which sources share bindings."""
        spec = stored.resource.spec
        assert isinstance(spec, SourceSpec)
        self.stored = stored
        self.spec = spec
        self.source = stored.resource.name
        self.name = f"Source/{self.source}"
        self.rows = row_schema(columns_of(stored))
        self.shape = shape_of(stored)
        self.staged = spec.event_time is not None or spec.timeline not in (None, SYSTEM)
        prefix = stored.prefix
        self.collection = prefix
        self.raw = f"{prefix}/raw" if self.staged else prefix
        self.letters = f"{prefix}/deadletters"
        self.raw_letters = f"{prefix}/raw/deadletters" if self.staged else self.letters
        self.remap = stored.remap
        self.event_map = f"{prefix}/eventmap"
        self.files = f"{prefix}/files"
        self.decided = f"{prefix}/decided"
        self._collections = collections
        self._store = store
        self._prepared = False
        self._preparing = asyncio.Lock()

    @cached_property
    def raw_schema(self) -> pa.Schema:
        """The schema of decoded rows: those of an event stream keep their place and heartbeats."""
        if self.spec.envelope.key:
            return CHANGE_SCHEMA
        if not self.staged:
            return self.rows
        placed = self.rows.append(pa.field("_partition", pa.int64())).append(
            pa.field("_offset", pa.uint64())
        )
        return placed.append(HEARTBEAT_FIELD) if self.shape.heartbeats else placed

    def made(self) -> dict[str, Description]:
        """Every collection of this source."""
        retain = retained_ms(self.spec)
        found = {
            # NB: with one reclocking, the writer of the rows holds the bindings of all that can be
            # read.
            self.remap: Description(
                REMAP_SCHEMA, kind="remap", retain_ms=retain if self.staged else 0
            ),
            self.letters: Description(LETTER_SCHEMA, kind="deadletters"),
        }
        if self.spec.kafka is not None:
            found[self.decided] = Description(DECISIONS_SCHEMA, kind="catalog", retain_ms=1)
        if self.spec.file is not None and names_many(self.spec.file.path):
            found[self.files] = Description(FILES_SCHEMA, kind="catalog", retain_ms=1)
        if not self.staged:
            return {**found, self.raw: Description(self.rows, kind="source", retain_ms=retain)}
        event = self.spec.event_time
        rows = self.rows if event is None else event_schema(self.rows)
        timeline = (event.timeline if event is not None else self.spec.timeline) or SYSTEM
        return {
            **found,
            self.raw: Description(self.raw_schema, kind="source", retain_ms=0),
            self.raw_letters: Description(LETTER_SCHEMA, kind="deadletters", retain_ms=0),
            self.event_map: Description(EVENT_MAP_SCHEMA, kind="eventmap", retain_ms=retain),
            self.collection: Description(rows, kind="source", timeline=timeline, retain_ms=retain),
        }

    def held(self) -> dict[str, tuple[str, ...]]:
        """Owner of a hold → the collections that a restart of its service reads again."""
        found: dict[str, tuple[str, ...]] = {f"reclock:{self.source}": (self.remap,)}
        read = (self.raw, self.raw_letters, self.remap, self.event_map)
        if self.spec.event_time is not None:
            found[f"events:{self.source}"] = (*read, self.letters, self.collection)
        elif self.staged:
            found[f"reference:{self.source}"] = read
        return found

    async def prepare(self) -> None:
        """Create the collections, and hold the history for a restart before anything is written."""
        collections = self._collections
        for collection, description in self.made().items():
            # NB: a new event stream says anew what was at an instant of its own timeline; notes
            # are counted, not timed.
            timed = description.timeline == SYSTEM and description.kind != "catalog"
            begins = self.stored.begins if timed else 0
            if collection == self.remap:
                begins = self.stored.bound_from
            await ensure_collection(collections, collection, description, frontier(begins))
            if collection in (self.collection, self.raw):
                # A source may have gained columns since it was created.
                await collections.extend_schema(collection, description.schema)
        for owner, held in self.held().items():
            for collection in held:
                await collections.read_hold(collection, owner=owner, lease_ms=None)
        self._prepared = True

    async def prepare_shared(self, again: bool) -> None:
        """Prepare once for the parts that begin together; `again` after a failure."""
        async with self._preparing:
            if again or not self._prepared:
                self._prepared = False
                await self.prepare()

    async def release(self) -> None:
        """Close all collections but shared bindings: the source is deleted."""
        shared = self._store.bound_by_others(self.stored)
        kinds = ("reclock", "events", "reference", "remap")
        owners = frozenset(f"{kind}:{self.source}" for kind in kinds)
        for collection in self.made():
            if collection in shared:
                await release_holds(self._collections, collection, owners)
            else:
                await close_collection(self._collections, collection, owners)


class SourcePart:
    """The part of one service in the work on a source, or of one share of its partitions."""

    def __init__(self, made: SourceCollections, part: str) -> None:
        self.name = f"{made.name} ({part})"
        self.made = made
        self._ran = False

    async def prepare(self) -> None:
        """Make the collections: once for all parts in this process, again after a failure."""
        await self.made.prepare_shared(self._ran)

    async def run(self, ready: Callable[[], None]) -> None:
        """Do the work of the part until cancelled."""
        self._ran = True
        await self.work(ready)

    async def work(self, ready: Callable[[], None]) -> None:
        """The same as `run`, for the service that has the part."""
        raise NotImplementedError

    async def release(self) -> None:
        """Close everything: the source is deleted."""
        await self.made.release()

    def details(self) -> dict[str, object]:
        """Status of the part, for `tidemill describe`."""
        return {}


def kept_with(stored: Stored) -> list[str]:
    """Collections of the origin of rows, which the clock of the system keeps as long as the
    rows.
    """
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if spec.event_time is None and spec.timeline in (None, SYSTEM):
        return []
    return [f"{stored.prefix}/{aside}" for aside in ("remap", "eventmap")]
