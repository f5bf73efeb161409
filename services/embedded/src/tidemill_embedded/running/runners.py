"""The work of each resource, part by part, as it is declared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

from tidemill.catalog.apply.plan import watched_by
from tidemill.catalog.entry import read_name
from tidemill.catalog.source_collections import SourceCollections, SourcePart
from tidemill.catalog.store import CatalogMoved, ResourceStore, Stored
from tidemill.catalog.unreadable import Unreadable
from tidemill.catalog.versions import changing, plan_version, served
from tidemill.runtime.breaking import told
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    SourceSpec,
    TableSpec,
    UnreadableSpec,
    ViewSpec,
)
from tidemill_compute.events.part import StageContext, StagePart
from tidemill_embedded.replicas.roles import item_of, share_of, shares_of
from tidemill_embedded.running.arrangements import ArrangementRunner
from tidemill_embedded.running.readers import ActionRunner, HoldRunner, TableRunner
from tidemill_embedded.running.runner import Made, Runner
from tidemill_embedded.running.unmade import Unmade
from tidemill_embedded.running.view_runner import ViewRunner
from tidemill_embedded.world import World
from tidemill_ingest.driver import WHOLE, Share
from tidemill_ingest.part import ReadContext, ReadPart
from tidemill_reclock.part import WriteContext, WritePart
from tidemill_remap.part import BindContext, BindPart

log = get_logger("resources")


class Decisions:
    """Guarantees of Records, over the catalog; changes by this process wait for one another."""

    def __init__(self, world: World, store: ResourceStore) -> None:
        self._world = world
        self._store = store
        self.changing = asyncio.Lock()

    async def revise(self, known: Stored, revised: Stored) -> bool:
        """Guarantees of Records."""
        async with self.changing:
            while self._store.get(known.resource.kind, known.resource.name) == known:
                try:
                    await self._store.put([revised])
                except CatalogMoved:
                    await self._store.refresh()
                    continue
                self._world.catalog.plan(served(revised))
                return True
            return False


class Runners:
    """Makes the work of resources; parts of one source in this process share what they know."""

    def __init__(self, world: World, store: ResourceStore) -> None:
        self._world = world
        self._store = store
        self.decisions = Decisions(world, store)
        self._sources: WeakValueDictionary[str, SourceCollections] = WeakValueDictionary()

    def part(self, stored: Stored, role: str, share: int | None = None) -> Runner:
        """The work of a role on a resource; work that cannot be made says why when prepared."""
        make = partial(self._part, stored, role, share)
        try:
            return make()
        except Exception as error:  # what nobody foresaw while it is made is told as if it ran
            log.error("not made", resource=str(stored.resource), error=told(error))
            return Unmade(stored, partial(self._make_anew, stored, make), self._world, self._store)

    def _make_anew(self, stored: Stored, make: Callable[[], Runner]) -> Runner:
        """Raises: why the resource cannot be planned, or its work not be made."""
        self._world.catalog.plan(served(stored))
        return make()

    def _part(self, stored: Stored, role: str, share: int | None) -> Runner:
        if not isinstance(stored.resource.spec, SourceSpec):
            return self._undivided(stored)
        known = self._sources.get(item_of(stored))
        if known is None or known.stored != stored:
            known = self._source(stored)
        return self._source_part(known, role, share)

    def _source_part(self, made: SourceCollections, role: str, number: int | None) -> SourcePart:
        """The part of one service in the work on a source."""
        world, stored = self._world, made.stored
        item, shares = item_of(stored), shares_of(stored.resource)
        chosen = world.settings
        if role == "ingest":
            reading = ReadContext(
                world.collections, world.log, world.open_kafka, world.clock, world.metrics,
                world.places, world.readers, chosen.ingest, chosen.limits.parquet_cells_max,
            )  # fmt: skip
            if number is None:
                return ReadPart(made, role, item, WHOLE, reading)
            share = Share(number, shares)
            return ReadPart(made, share_of(role, number), share_of(item, number), share, reading)
        if role == "remap":
            binding = BindContext(world.collections, world.clock, world.paces)
            return BindPart(made, role, world.feeds.of(item, shares).probe, binding)
        if role == "reclock":
            writing = WriteContext(
                world.collections, world.clock, world.metrics, world.places, world.launcher,
                chosen.reclock, world.root / "log", chosen.log.partition(":")[2], chosen.log_kafka,
            )  # fmt: skip
            return WritePart(made, role, world.feeds.of(item, shares), writing)
        staging = StageContext(
            world.collections, world.clock, world.metrics, chosen.compute, world.timeline_frontier
        )
        return StagePart(made, role, staging)

    def make(self, stored: Stored) -> Made:
        """All that a resource makes. Raises: why its work cannot be made."""
        if isinstance(stored.resource.spec, SourceSpec):
            return self._source(stored)
        return self._undivided(stored)

    def whole(self, stored: Stored) -> Made:
        """As `make`; if that fails, a stand-in that knows the collections by their names."""
        try:
            return self.make(stored)
        except Exception as error:  # what cannot be made can be deleted all the same
            log.error("not made", resource=str(stored.resource), error=told(error))
            make = partial(self._make_anew, stored, partial(self._undivided, stored))
            return Unmade(stored, make, self._world, self._store)

    def _source(self, stored: Stored) -> SourceCollections:
        made = SourceCollections(stored, self._world.collections, self._store)
        self._sources[item_of(stored)] = made
        return made

    def _undivided(self, stored: Stored) -> Runner:
        """The work of a resource that has one part."""
        catalog, spec = self._world.catalog, stored.resource.spec
        if isinstance(spec, UnreadableSpec):
            raise Unreadable(spec.why)
        if isinstance(spec, TableSpec):
            return TableRunner(stored, self._world)
        if isinstance(spec, ViewSpec):
            changed = plan_version(stored, catalog) if changing(stored) else None
            view = catalog.planned(stored.resource.name)
            return ViewRunner(stored, view, changed, self._world, self.decisions)
        if isinstance(spec, ActionSpec):
            return ActionRunner(stored, watched_by(spec, stored.resource, catalog), self._world)
        if isinstance(spec, ArrangementSpec):
            read = catalog.named(read_name(stored, spec.collection))
            return ArrangementRunner(stored, read, self._world)
        assert isinstance(spec, HoldSpec)
        return HoldRunner(stored, catalog.named(read_name(stored, spec.collection)), self._world)
