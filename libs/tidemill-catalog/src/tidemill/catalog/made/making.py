"""Collections that resources make, kind by kind."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol
from weakref import WeakValueDictionary

from tidemill.catalog.apply.plan import watched_by
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import CatalogEntry, read_name
from tidemill.catalog.made.actions import ActionCollections
from tidemill.catalog.made.arrangements import ArrangementCollection
from tidemill.catalog.made.holds import HeldCollection
from tidemill.catalog.made.sources import SourceCollections
from tidemill.catalog.made.tables import TableCollection
from tidemill.catalog.made.views import ViewCollections
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.catalog.unreadable import Unreadable
from tidemill.catalog.versions import changing, plan_version
from tidemill.errors import UnknownCollection
from tidemill.runtime.clock import Clock
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    SourceSpec,
    TableSpec,
    UnreadableSpec,
    ViewSpec,
)
from tidemill.shard import Collections


class Made(Protocol):
    """Collections and holds of one resource. No process owns them: any number may prepare them."""

    stored: Stored
    name: str

    async def prepare(self) -> None:
        """Create the collections and take the holds; again is fine."""

    async def release(self) -> None:
        """Give up the holds and close the collections: the resource is deleted."""


class Making:
    """The collections of resources, found again by all parts of one resource in this process."""

    def __init__(
        self, collections: Collections, catalog: Catalog, store: ResourceStore, clock: Clock
    ) -> None:
        self._collections = collections
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._known: WeakValueDictionary[tuple[str, str], Made] = WeakValueDictionary()

    def known(self, stored: Stored) -> Made:
        """The collections of a resource, as parts that run now know them; else those of `make`."""
        found = self._known.get((stored.resource.kind, stored.prefix))
        return found if found is not None and found.stored == stored else self.make(stored)

    def forget(self, stored: Stored) -> None:
        """Make `known` build the collections of a resource anew; parts that run keep theirs."""
        self._known.pop((stored.resource.kind, stored.prefix), None)

    def make(self, stored: Stored) -> Made:
        """The collections that a resource makes. Raises: the reason for which they cannot be
        told.
        """
        made = self._make(stored)
        self._known[stored.resource.kind, stored.prefix] = made
        return made

    def _make(self, stored: Stored) -> Made:
        catalog, spec, collections = self._catalog, stored.resource.spec, self._collections
        if isinstance(spec, UnreadableSpec):
            raise Unreadable(spec.why)
        if isinstance(spec, SourceSpec):
            return SourceCollections(stored, collections, self._store)
        if isinstance(spec, TableSpec):
            return TableCollection(stored, collections, catalog, self._clock)
        if isinstance(spec, ViewSpec):
            changed = plan_version(stored, catalog) if changing(stored) else None
            view = catalog.planned(stored.resource.name)
            return ViewCollections(stored, view, changed, collections)
        if isinstance(spec, ActionSpec):
            watched = watched_by(spec, stored.resource, catalog)
            return ActionCollections(stored, watched, catalog, collections, self._clock)
        if isinstance(spec, ArrangementSpec):
            return ArrangementCollection(stored, self._read(stored, spec), collections)
        assert isinstance(spec, HoldSpec)
        return HeldCollection(stored, self._read(stored, spec), collections)

    def _read(self, stored: Stored, spec: ArrangementSpec | HoldSpec) -> CatalogEntry:
        return self._catalog.named(read_name(stored, spec.collection))


def made_by(stored: Stored, catalog: Catalog) -> list[CatalogEntry]:
    """The collections under the name of a resource."""
    name = stored.resource.name
    with suppress(UnknownCollection):  # of a resource that could not be planned
        if isinstance(stored.resource.spec, ViewSpec):
            return list(catalog.planned(name).outputs.values())
        if isinstance(stored.resource.spec, SourceSpec | TableSpec | ArrangementSpec):
            return [catalog.named(name)]
    return []
