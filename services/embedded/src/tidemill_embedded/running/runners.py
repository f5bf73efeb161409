"""The work of each resource, part by part, as it is declared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from weakref import WeakValueDictionary

from tidemill.catalog.apply.plan import watched_by
from tidemill.catalog.entry import columns_of, read_name, row_schema
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
from tidemill_embedded.replicas.roles import item_of, share_of
from tidemill_embedded.running.arrangements import ArrangementRunner
from tidemill_embedded.running.readers import ActionRunner, HoldRunner, TableRunner
from tidemill_embedded.running.runner import Made, Runner
from tidemill_embedded.running.sources import SourceRunner
from tidemill_embedded.running.unmade import Unmade
from tidemill_embedded.running.view_runner import ViewRunner
from tidemill_embedded.world import World

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


class SourcePart:
    """One role's part of the work on a source; for ingest perhaps one share of the partitions."""

    def __init__(self, source: SourceRunner, role: str, share: int | None = None) -> None:
        self.source = source
        self.name = f"{source.name} ({role if share is None else share_of(role, share)})"
        runs: dict[str, Callable[[Callable[[], None]], Awaitable[None]]] = {
            "ingest": partial(source.read, number=share), "remap": source.bind,
            "reclock": source.write, "compute": source.stage,
        }  # fmt: skip
        self._run = runs[role]
        self._again = False

    async def prepare(self) -> None:
        """Make the collections: once for all parts in this process, again after a failure."""
        await self.source.prepare_shared(self._again)

    async def run(self, ready: Callable[[], None]) -> None:
        """The part until it is cancelled."""
        self._again = True
        await self._run(ready)

    async def release(self) -> None:
        """Close everything: the source is deleted."""
        await self.source.release()


class Runners:
    """Makes the work of resources; parts of one source in this process share what they know."""

    def __init__(self, world: World, store: ResourceStore) -> None:
        self._world = world
        self._store = store
        self.decisions = Decisions(world, store)
        self._sources: WeakValueDictionary[str, SourceRunner] = WeakValueDictionary()

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
        if known is None or known.rows != row_schema(columns_of(stored)):
            known = self._source(stored)
        return SourcePart(known, role, share)

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

    def _source(self, stored: Stored) -> SourceRunner:
        made = self._sources[item_of(stored)] = SourceRunner(stored, self._world, self._store)
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
