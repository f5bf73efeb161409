"""The running system of one process: resources become work, and say how they do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidemill.rpc.identity import PROCESS, Principal
from tidemill.rpc.messages import (
    Applied,
    Inserted,
    Json,
    Outcome,
    Pushed,
    ResourceDocument,
    ResourceStatus,
)
from tidemill.runtime.breaking import told
from tidemill.runtime.log import Entry
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    SourceSpec,
    TableSpec,
    ViewSpec,
    retained_ms,
)
from tidemill.time import (
    Corrupt,
    Frontier,
    Indeterminate,
    TidemillError,
    Unavailable,
    UnknownCollection,
    UsageError,
    sole_time,
)
from tidemill_compute.table_rows import fitted
from tidemill_embedded.applying.permitting import refuse_foreign_push, refuse_used
from tidemill_embedded.applying.planning import Plan, plan_apply, watched_by
from tidemill_embedded.replicas.roles import parts_for
from tidemill_embedded.resources.resource_store import CatalogMoved, ResourceStore, Stored
from tidemill_embedded.resources.shapes import (
    CREATED,
    SYSTEM,
    Named,
    columns_of,
    read_name,
    row_schema,
)
from tidemill_embedded.resources.versions import changing, plan_version, served
from tidemill_embedded.resources.written import yaml_of
from tidemill_embedded.running.arrangements import ArrangementRunner
from tidemill_embedded.running.details import details_of
from tidemill_embedded.running.held_back import why_kept
from tidemill_embedded.running.readers import (
    ActionRunner,
    HoldRunner,
    TableRunner,
)
from tidemill_embedded.running.runner import Health, Runner, Supervised, refuse_stalled
from tidemill_embedded.running.sources import SourceRunner, in_own_log, kept_with, topic_of
from tidemill_embedded.running.unmade import Unmade
from tidemill_embedded.running.view_runner import ViewRunner
from tidemill_embedded.sharing import Said, Shared, SourcePart, combined
from tidemill_embedded.world import World
from tidemill_query.driver import NOTHING_BOUND

Key = tuple[str, str]
log = get_logger("resources")
_KINDS = ("Source", "Table", "View", "Action", "Arrangement", "Hold")


class System:
    """Guarantees of CatalogHandlers. What was applied is durable first, then it runs.

    Alone, this process does all work. With `shared` it does what it has claimed, and says of the rest
    what the processes say that have claimed it.
    """

    def __init__(self, world: World, store: ResourceStore, shared: Shared | None = None) -> None:
        self._world = world
        self._store = store
        self._shared = shared
        self._running: dict[Key, Supervised] = {}
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Run everything that was applied before, or let it be claimed."""
        await self._store.open()
        self._world.tried.open()
        if self._shared is not None:
            await self._shared.work.refresh()
            return
        await self._world.discover()
        live = self._store.live()
        for stored in live:
            self._plan(stored)
        for stored in live:
            await self._begin(stored)

    def _plan(self, stored: Stored) -> None:
        """Let what a resource makes be known by name, if that can be told: else it says why not."""
        try:
            self._world.shapes.plan(served(stored))
        except Exception as error:  # a resource that cannot be planned is one that does not run
            log.error("not planned", resource=str(stored.resource), error=told(error))

    async def stop(self) -> None:
        """Stop all work; nothing durable changes."""
        await asyncio.gather(*(each.stop() for each in reversed(self._running.values())))
        self._running.clear()
        self._world.tried.close()

    async def _begin(self, stored: Stored, *, applied: bool = False) -> Exception | None:
        """Prepare and start the work of one resource; what fails is told of and tried again: why it failed.

        Raises: why it cannot be, if it is `applied` just now and not only a store that is away.
        """
        runner = self._new(stored) if applied else self.runner(stored)
        failed: Exception | None = None
        tried, waits = self._world.tried, None
        if self._shared is None and not applied:
            waits = tried.waits(str(stored.resource))
        try:
            if waits is None:
                if self._shared is None:
                    tried.begun(str(stored.resource))
                await runner.prepare()
        except Exception as error:  # one resource that does not begin holds up no other one
            if applied and not isinstance(error, Unavailable | Indeterminate):
                raise
            failed = error
        if self._shared is None:
            supervised = Supervised(runner, self._world.clock, self._world.settings, turns=tried)
            self._running[stored.resource.kind, stored.resource.name] = supervised
            supervised.start(failed, prepare=waits is not None)
        return failed

    def runner(self, stored: Stored) -> Runner:
        """All the work of one resource; one that cannot be made says why when it is prepared."""
        try:
            return self._new(stored)
        except Exception as error:  # what nobody foresaw while it is made is told as if it ran
            log.error("not made", resource=str(stored.resource), error=told(error))
            return Unmade(stored, lambda: self._made_anew(stored), self._world)

    def _made_anew(self, stored: Stored) -> Runner:
        """Raises: why the resource cannot be planned, or its work not be made."""
        self._world.shapes.plan(served(stored))
        return self._new(stored)

    def _new(self, stored: Stored) -> Runner:
        shapes, spec = self._world.shapes, stored.resource.spec
        if isinstance(spec, SourceSpec):
            return SourceRunner(stored, self._world)
        if isinstance(spec, TableSpec):
            return TableRunner(stored, self._world)
        if isinstance(spec, ViewSpec):
            changed = plan_version(stored, shapes) if changing(stored) else None
            view = shapes.planned(stored.resource.name)
            return ViewRunner(stored, view, changed, self._world, self)
        if isinstance(spec, ActionSpec):
            return ActionRunner(stored, watched_by(spec, stored.resource, shapes), self._world)
        if isinstance(spec, ArrangementSpec):
            read = shapes.named(read_name(stored, spec.collection))
            return ArrangementRunner(stored, read, self._world)
        return HoldRunner(stored, shapes.named(read_name(stored, spec.collection)), self._world)

    # -- catalog ------------------------------------------------------------------------------

    async def apply(
        self, documents: Sequence[ResourceDocument], by: Principal = PROCESS
    ) -> Sequence[Applied]:
        """Make all resources so, or none of them if one is refused, in the name of `by`.

        Raises: Unavailable or Indeterminate also where all are recorded and one begins once the stores are back.
        """
        async with self._changing:
            before = {(s.resource.kind, s.resource.name): s for s in self._store.live()}
            plan = await self._written(documents, by)
            try:
                away = [await self._begin(stored, applied=True) for stored in plan.created]
                for stored in plan.configured:
                    await self._reconfigure(stored)
            except Exception as error:  # whatever it was: what is refused leaves nothing behind
                try:
                    await self._taken_back(plan, before)
                except Exception as left:
                    log.error("not taken back", error=told(left))
                raise error from None
        for failed in filter(None, away):
            raise failed
        return [
            *(_applied(each, Outcome.CREATED) for each in plan.created),
            *(_applied(each, Outcome.CONFIGURED) for each in plan.configured),
            *(Applied(r.kind, r.name, Outcome.UNCHANGED) for r in plan.unchanged),
        ]

    async def _taken_back(self, plan: Plan, before: Mapping[Key, Stored]) -> None:
        """Let everything be as it was before a plan that was refused while it was carried out."""
        for stored in reversed(plan.created):
            await self._end(stored)
        await self._put([before[s.resource.kind, s.resource.name] for s in plan.configured])
        for stored in plan.configured:
            known = before[stored.resource.kind, stored.resource.name]
            self._plan(known)
            running = self._running.pop((known.resource.kind, known.resource.name), None)
            if running is not None:
                await running.stop()
            await self._begin(known)

    async def _put(self, resources: Sequence[Stored]) -> None:
        """Write the catalog, also if another process has written it meanwhile."""
        written = not resources
        while not written:
            try:
                await self._store.put(resources)
                written = True
            except CatalogMoved:
                await self._store.refresh()

    async def _written(self, documents: Sequence[ResourceDocument], by: Principal) -> Plan:
        """The plan, durable: made, and permitted, again if another process was faster, whatever that has written."""
        while True:
            if self._shared is not None:
                await self._shared.work.refresh()
            await self._world.discover()
            if self._shared is not None and self._shared.work.named_at != self._store.upper:
                continue  # read anew meanwhile: names are of an older catalog
            now_ms = self._world.clock.now_ms()
            plan = await plan_apply(documents, self._store, self._world, now_ms, by)
            if not plan.created and not plan.configured:
                return plan
            try:
                await self._store.put([*plan.created, *plan.configured], plan.planned_at)
            except CatalogMoved:
                for stored in plan.created:
                    self._world.shapes.forget(stored.resource.name)
                continue
            if self._shared is not None:
                self._shared.work.planned(plan.created)
            return plan

    async def _reconfigure(self, stored: Stored) -> None:
        """Let a changed retention, or a hold that moved, take effect."""
        spec = stored.resource.spec
        if isinstance(spec, HoldSpec):
            await self.runner(stored).prepare()
        elif isinstance(spec, SourceSpec | TableSpec | ViewSpec):
            retain = retained_ms(spec)
            if isinstance(spec, TableSpec):
                self._world.shapes.plan(stored)
                await self.runner(stored).prepare()
            elif isinstance(spec, SourceSpec):
                await self._regrow(stored)
            for named in self._made(stored):
                for each in (named.collection, *self._world.shapes.arranged(named.name).values()):
                    await self._world.collections.retain(each, retain)
            for each in kept_with(stored) if isinstance(spec, SourceSpec) else ():
                await self._world.collections.retain(each, retain)
            if isinstance(spec, ViewSpec):
                await self._begin_again(stored)

    async def _begin_again(self, stored: Stored) -> None:
        """Let a view run as it is declared now; where work is claimed, its process sees the change."""
        running = self._running.pop((stored.resource.kind, stored.resource.name), None)
        if running is not None:
            await running.stop()
        self._world.shapes.plan(served(stored))
        await self._begin(stored, applied=True)

    async def revise(self, known: Stored, revised: Stored) -> bool:
        """Guarantees of Records."""
        async with self._changing:
            while self._store.get(known.resource.kind, known.resource.name) == known:
                try:
                    await self._store.put([revised])
                except CatalogMoved:
                    await self._store.refresh()
                    continue
                self._world.shapes.plan(served(revised))
                return True
            return False

    async def _regrow(self, stored: Stored) -> None:
        """Begin a source again that has gained columns: what is not written yet is decoded anew.

        Where work is claimed its collections gain them now: a process that does not know them yet writes nothing more.
        """
        if self._shared is not None:
            self._world.shapes.plan(stored)
            await self.runner(stored).prepare()
            return
        key = (stored.resource.kind, stored.resource.name)
        running = self._running.get(key)
        runner = None if running is None else running.runner
        if isinstance(runner, SourceRunner) and runner.rows != row_schema(columns_of(stored)):
            assert running is not None
            await running.stop()
            self._world.shapes.plan(stored)
            await self._begin(stored)

    def _made(self, stored: Stored) -> list[Named]:
        """The collections under the name of a resource."""
        shapes, name = self._world.shapes, stored.resource.name
        with suppress(UnknownCollection):  # of a resource that could not be planned
            if isinstance(stored.resource.spec, ViewSpec):
                return list(shapes.planned(name).outputs.values())
            if isinstance(stored.resource.spec, SourceSpec | TableSpec | ArrangementSpec):
                return [shapes.named(name)]
        return []

    def _live(self, kind: str, name: str) -> Stored:
        wanted = _kind(kind)
        stored = self._store.get(wanted, name)
        if stored is None:
            raise UnknownCollection(f"there is no {wanted} {name}", kind=wanted, name=name)
        return stored

    async def delete(self, kind: str, name: str, by: Principal = PROCESS) -> None:
        """Remove the resource and close its collections; refused while another one reads them.

        What reads them and `by` may not see is counted, not named.
        """
        async with self._changing:
            if self._shared is not None:
                await self._shared.work.refresh()
            if kind.lower() in (CREATED.lower(), f"{CREATED.lower()}s"):
                await self._delete_created(name, by)
                return
            stored = self._live(kind, name)
            refuse_used(str(stored.resource), self._users(stored.resource.kind, name), by)
            await self._end(stored)

    async def _end(self, stored: Stored) -> None:
        """Stop the work of a resource, mark it as deleted, close its collections."""
        key = (stored.resource.kind, stored.resource.name)
        running = self._running.pop(key, None)
        runner = self.runner(stored) if running is None else running.runner
        if running is not None:
            await running.stop()
        await self.forget(stored)
        await runner.release()
        if self._shared is not None:
            await self._shared.work.refresh()
        elif not isinstance(stored.resource.spec, ActionSpec | HoldSpec):
            self._world.shapes.forget(stored.resource.name)

    async def _delete_created(self, name: str, by: Principal) -> None:
        """Close a collection that users have created; its data goes once nobody holds it."""
        collection = self._world.shapes.created_as(name)
        refuse_used(f"{CREATED}/{name}", self._users(CREATED, name), by)
        await self._world.collections.retire(collection)
        self._world.shapes.forget(name)

    async def forget(self, stored: Stored) -> None:
        """Mark a resource as deleted; it may be that another process has done so."""
        kind, name = stored.resource.kind, stored.resource.name
        self._world.tried.forgive(str(stored.resource))
        while self._store.get(kind, name) is not None:
            try:
                await self._store.delete(kind, name)
            except CatalogMoved:
                await self._store.refresh()

    def _users(self, kind: str, name: str) -> list[str]:
        """What reads the collections under a name."""
        users = [f"View/{view}" for view in self._world.shapes.readers_of(name) if view != name]
        for other in self._store.live():
            spec = other.resource.spec
            if isinstance(spec, ActionSpec) and kind == "View" and spec.view == name:
                users.append(str(other.resource))
            reads = ""
            if isinstance(spec, ArrangementSpec | HoldSpec):
                reads = read_name(other, spec.collection)
            if reads and (reads == name or self._world.shapes.belongs(reads, name)):
                users.append(str(other.resource))
            if changing(other) and self._will_read(other, name):
                users.append(str(other.resource))
        return list(dict.fromkeys(users))

    def _will_read(self, view: Stored, name: str) -> bool:
        """Whether a version that has not taken over yet reads what a resource makes."""
        try:
            inputs = plan_version(view, self._world.shapes).inputs.values()
        except TidemillError:  # a version that cannot be planned takes over from none
            return False
        return any(each.name.partition("/")[0] == name for each in inputs)

    async def get(self, kind: str | None, name: str | None) -> Sequence[ResourceStatus]:
        """Resources of a kind and name; without them all."""
        wanted = None if kind is None else _kind(kind)
        found = [
            stored
            for stored in self._store.live()
            if wanted in (None, stored.resource.kind) and name in (None, stored.resource.name)
        ]
        said = await self._said()
        return [await self._status(stored, said) for stored in found]

    async def describe(self, kind: str, name: str) -> ResourceStatus:
        """One resource with its details, and who keeps the history of its collections."""
        stored = self._live(kind, name)
        status = await self._status(stored, await self._said())
        try:
            kept: list[Json] = [
                line
                for named in self._made(stored)
                for line in why_kept(await self._world.collections.status(named.collection))
            ]
            failed = await self._failed(stored)
        except (UnknownCollection, Corrupt):  # its status says why
            return status
        return replace(status, details={**status.details, **failed, "heldBack": kept})

    async def _failed(self, stored: Stored) -> dict[str, Json]:
        """How many failed solutions a view has now, how many dead letters a source has kept."""
        spec, collections = stored.resource.spec, self._world.collections
        what = "errors" if isinstance(spec, ViewSpec) else "deadletters"
        if not isinstance(spec, SourceSpec | ViewSpec):
            return {}
        collection = f"{stored.prefix}/{what}"
        upper = (await collections.status(collection)).upper
        if upper.empty or sole_time(upper) == 0:
            return {what: 0}
        held, _ = await collections.acquire(collection, owner="describe")
        try:
            last = sole_time(upper) - 1
            if not held.frontier.less_equal(last):
                return {what: 0}
            return {what: (await collections.snapshot(held, last)).num_rows}
        finally:
            await collections.drop(held)

    async def _said(self) -> Said:
        """What other processes say of their work; nothing where there are none."""
        return {} if self._shared is None else await self._shared.said()

    def _health(self, stored: Stored, said: Said) -> tuple[Health, dict[str, Any]]:
        """How the work on a resource does, and its details."""
        resource = stored.resource
        if self._shared is not None:
            found = said.get((resource.kind, resource.name), {})
            parts = {role: found.get(role) for role in parts_for(resource)}
            details = [dict(work.details) for work in parts.values() if work is not None]
            return combined(parts), dict(pair for each in details for pair in each.items())
        supervised = self._running.get((resource.kind, resource.name))
        if supervised is None:
            return Health(False, "Stopped", ""), {}
        return supervised.health, details_of(_inner(supervised.runner))

    async def _status(self, stored: Stored, said: Said) -> ResourceStatus:
        resource = stored.resource
        health, details = self._health(stored, said)
        since = upper = lag_ms = None
        try:
            since, upper, timeline = await self._frontiers(stored)
            lag_ms = await self._lag(upper, timeline)
        except (Unavailable, Indeterminate):
            raise
        except Exception as error:  # of one resource no more is known; the others are told of
            health = _unknown(health, error)
        return ResourceStatus(
            kind=resource.kind,
            name=resource.name,
            ready=health.ready,
            reason=health.reason,
            message=health.message,
            since=since,
            upper=upper,
            lag_ms=lag_ms,
            age_ms=max(0, self._world.clock.now_ms() - stored.created_ms),
            document_yaml=yaml_of(resource.to_document()),
            details=details,
        )

    async def _frontiers(self, stored: Stored) -> tuple[Frontier | None, Frontier | None, str]:
        """The least since and upper of what a resource makes, and the timeline."""
        collections = [named.collection for named in self._made(stored)]
        if isinstance(stored.resource.spec, ActionSpec):
            collections = [f"{stored.prefix}/outbox"]
        elif isinstance(stored.resource.spec, HoldSpec):
            read = read_name(stored, stored.resource.spec.collection)
            collections = [self._world.shapes.named(read).collection]
        since: Frontier | None = None
        upper: Frontier | None = None
        timeline = SYSTEM
        for collection in collections:
            status = await self._world.collections.status(collection)
            timeline = status.timeline
            since = status.since if since is None else since.meet(status.since)
            upper = status.upper if upper is None else upper.meet(status.upper)
        return since, upper, timeline

    async def _lag(self, upper: Frontier | None, timeline: str) -> int | None:
        """How far upper is behind the clock, or behind the furthest stream of its timeline."""
        if upper is None or upper.empty or sole_time(upper) <= NOTHING_BOUND:
            return None
        if timeline == SYSTEM:
            return max(0, self._world.clock.now_ms() - sole_time(upper))
        return max(0, await self._world.timeline_frontier(timeline) - sole_time(upper))

    async def _found(self, kind: str, name: str) -> Stored | None:
        """A live resource; the catalog is read anew before it is said that there is none."""
        if self._store.get(kind, name) is None and self._shared is not None:
            await self._shared.work.refresh()
        return self._store.get(kind, name)

    # -- rows from users ----------------------------------------------------------------------

    async def insert(self, table: str, rows: pa.Table, token: str | None = None) -> Inserted:
        """Write rows durably to a table; `_diff` of −1 removes what is there.

        Raises: UsageError for rows that do not fit; nothing is written then. A repeated token writes nothing.
        """
        stored = await self._found("Table", table)
        if stored is None:
            raise UnknownCollection(f"there is no Table {table}", name=table)
        running = self._running.get(("Table", table))
        runner = self.runner(stored) if running is None else _inner(running.runner)
        if not isinstance(runner, TableRunner):
            raise Unavailable(f"Table/{table} is broken: tidemill describe table {table} says why")
        schema = (await self._world.collections.description(stored.prefix)).schema
        data, diffs = fitted(rows, schema, table)
        at = await runner.driver.insert(data, diffs, token)
        return Inserted(at, data.num_rows)

    async def push(self, source: str, rows: Sequence[bytes]) -> Pushed:
        """Write rows ahead to the log of a source; durable on return."""
        stored = await self._found("Source", source) or self._live("Source", source)
        spec = stored.resource.spec
        assert isinstance(spec, SourceSpec)
        if not in_own_log(spec):
            raise UsageError(
                f"Source/{source} does not read the log of this process: write to its broker or file"
            )
        refuse_foreign_push(stored.resource, topic_of(stored))
        if spec.kafka is not None:
            self._world.places.topics_written.check(topic_of(stored))
        if self._shared is None:
            refuse_stalled(str(stored.resource), self._health(stored, {})[0])
        if rows:
            await self._world.log.append(topic_of(stored), [Entry(None, row) for row in rows])
        return Pushed(len(rows))

    def made(self) -> dict[str, str]:
        """Collection → the resource by whose name users know it, for metrics."""
        return {
            named.collection: str(stored.resource)
            for stored in self._store.live()
            for named in self._made(stored)
        }

    def each(self) -> Iterator[tuple[Key, Supervised, Runner]]:
        """The work of this process, for metrics; parts of one source share its runner."""
        for key, supervised in self._running.items():
            yield key, supervised, _inner(supervised.runner)
        for held in [] if self._shared is None else self._shared.work.held():
            resource, runner = held.stored.resource, held.supervised.runner
            inner = runner.source if isinstance(runner, SourcePart) else runner
            yield (resource.kind, resource.name), held.supervised, _inner(inner)


def _inner(runner: Runner) -> Runner:
    """The work itself, if it could be made after all."""
    return runner.made or runner if isinstance(runner, Unmade) else runner


def _unknown(health: Health, error: Exception) -> Health:
    """How a resource does whose collections cannot be looked at."""
    if not health.ready:
        return health
    if isinstance(error, TidemillError):
        return Health(False, "Stalled", str(error))
    return Health(False, "Broken", told(error))


def _applied(stored: Stored, outcome: Outcome) -> Applied:
    return Applied(stored.resource.kind, stored.resource.name, outcome)


def _kind(name: str) -> str:
    """A kind as users write it: any case, singular or plural."""
    for kind in _KINDS:
        if name.lower() in (kind.lower(), f"{kind.lower()}s"):
            return kind
    raise UsageError(f"there is no kind {name}; kinds are {', '.join(_KINDS)}")
