"""The running system of one process: resources become work, and say how they do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from tidemill.catalog.apply.documents import read_bounded
from tidemill.catalog.apply.permissions import refuse_foreign_push, refuse_used
from tidemill.catalog.apply.plan import Plan, plan_apply, watched_by
from tidemill.catalog.entry import CREATED, columns_of, read_name, row_schema
from tidemill.catalog.own_log import in_own_log, topic_of
from tidemill.catalog.store import CatalogMoved, Key, ResourceStore, Stored
from tidemill.catalog.unreadable import Unreadable
from tidemill.catalog.versions import changing, plan_version, served
from tidemill.rpc.audited import touch
from tidemill.rpc.identity import PROCESS, Principal
from tidemill.rpc.messages import (
    Applied,
    Inserted,
    Outcome,
    Pushed,
    ResourceDocument,
    ResourceStatus,
)
from tidemill.runtime.breaking import told
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    Resource,
    SourceSpec,
    TableSpec,
    UnreadableSpec,
    ViewSpec,
    retained_ms,
)
from tidemill.shard.conforming import refuse_long_rows
from tidemill.shard.offloading import all_of
from tidemill.time import (
    Indeterminate,
    TidemillError,
    Unavailable,
    UnknownCollection,
    UsageError,
)
from tidemill_compute.table_rows import fitted
from tidemill_embedded.push_tokens import PushTokens, refuse_keyed, refuse_many_rows
from tidemill_embedded.running.arrangements import ArrangementRunner
from tidemill_embedded.running.origins import apply_context
from tidemill_embedded.running.readers import (
    ActionRunner,
    HoldRunner,
    TableRunner,
)
from tidemill_embedded.running.runner import Runner, Supervised, refuse_stalled
from tidemill_embedded.running.sources import (
    SourceRunner,
    entries_of,
    kept_with,
)
from tidemill_embedded.running.unmade import Unmade, erase
from tidemill_embedded.running.view_runner import ViewRunner
from tidemill_embedded.running.write_back import written_into
from tidemill_embedded.sharing import Shared, SourcePart
from tidemill_embedded.telling import Telling, inner, live, made_by
from tidemill_embedded.world import World
from tidemill_query.storage import looked_at

BEGINNING_MAX = 64
"""So many resources begin at the same time: their flushes are shared, and none waits for long behind others."""

log = get_logger("resources")


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
        self._tokens = PushTokens(world.log, world.settings.limits.push_rows_known)
        self._telling = Telling(world, store, shared, self._running)

    async def start(self) -> None:
        """Run everything that was applied before, or let it be claimed."""
        await self._store.open()
        self._world.tried.open()
        await self._finish_deleting()
        if self._shared is not None:
            await self._shared.work.refresh()
            return
        await self._world.discover()
        live = self._store.live()
        for stored in live:
            self._plan(stored)
        await self._begin_all(live)

    def _plan(self, stored: Stored) -> None:
        """Let what a resource makes be known by name, if that can be told: else it says why not."""
        try:
            if isinstance(stored.resource.spec, UnreadableSpec) and _makes(stored):
                self._world.catalog.forget(stored.resource.name)
            self._world.catalog.plan(served(stored))
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
            return Unmade(stored, lambda: self._made_anew(stored), self._world, self._store)

    def _made_anew(self, stored: Stored) -> Runner:
        """Raises: why the resource cannot be planned, or its work not be made."""
        self._world.catalog.plan(served(stored))
        return self._new(stored)

    def _new(self, stored: Stored) -> Runner:
        catalog, spec = self._world.catalog, stored.resource.spec
        if isinstance(spec, UnreadableSpec):
            raise Unreadable(spec.why)
        if isinstance(spec, SourceSpec):
            return SourceRunner(stored, self._world, self._store)
        if isinstance(spec, TableSpec):
            return TableRunner(stored, self._world)
        if isinstance(spec, ViewSpec):
            changed = plan_version(stored, catalog) if changing(stored) else None
            view = catalog.planned(stored.resource.name)
            return ViewRunner(stored, view, changed, self._world, self)
        if isinstance(spec, ActionSpec):
            return ActionRunner(stored, watched_by(spec, stored.resource, catalog), self._world)
        if isinstance(spec, ArrangementSpec):
            read = catalog.named(read_name(stored, spec.collection))
            return ArrangementRunner(stored, read, self._world)
        return HoldRunner(stored, catalog.named(read_name(stored, spec.collection)), self._world)

    # -- catalog ------------------------------------------------------------------------------

    async def apply(
        self, documents: Sequence[ResourceDocument], by: Principal = PROCESS
    ) -> Sequence[Applied]:
        """Make all resources so, or none of them if one is refused, in the name of `by`.

        Raises: Unavailable or Indeterminate also where all are recorded and one begins once the stores are back.
        """
        read = await read_bounded(documents, self._world.settings.limits.of_documents)
        touch(*(resource.name for resource in read))
        async with self._changing:
            before = {_key(stored): stored for stored in self._store.live()}
            plan = await self._written(read, by)
            try:
                await self._erase_replaced(plan, before)
                away = await self._begin_all(plan.created, applied=True)
                for stored in plan.configured:
                    await self._reconfigure(stored, before[_key(stored)])
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

    async def _erase_replaced(self, plan: Plan, before: Mapping[Key, Stored]) -> None:
        """End what could not be read and is stated anew, where nobody can tell what its collections hold."""
        for stored in plan.created:
            unread = before.get(_key(stored))
            if unread is not None:
                await self._let_end(unread)
                await self._erase(unread)

    async def _let_end(self, stored: Stored) -> None:
        """Stop the work on a resource in this process, if there is any."""
        running = self._running.pop(_key(stored), None)
        if running is not None:
            await running.stop()

    async def _begin_all(
        self, resources: Sequence[Stored], *, applied: bool = False
    ) -> list[Exception | None]:
        """Begin each after what it reads: those that do not read each other side by side, so that they share flushes."""
        room = asyncio.Semaphore(BEGINNING_MAX)

        async def begun(stored: Stored) -> Exception | None:
            async with room:
                return await self._begin(stored, applied=applied)

        away: list[Exception | None] = []
        for level in self._world.catalog.levels(resources):
            away += await all_of(begun(stored) for stored in level)
        return away

    async def _taken_back(self, plan: Plan, before: Mapping[Key, Stored]) -> None:
        """Let everything be as it was before a plan that was refused while it was carried out."""
        for stored in reversed(plan.created):
            await self._end(stored)
        changed = [*plan.created, *plan.configured]
        known = [before[_key(stored)] for stored in changed if _key(stored) in before]
        await self._put(known)
        for stored in known:
            self._plan(stored)
            await self._let_end(stored)
            await self._begin(stored)

    async def _put(self, resources: Sequence[Stored]) -> None:
        """Write the catalog, also if another process has written it meanwhile."""
        written = not resources
        while not written:
            try:
                await self._store.put(resources)
                written = True
            except CatalogMoved:
                await self._store.refresh()

    async def _written(self, read: Sequence[Resource], by: Principal) -> Plan:
        """The plan, durable: made, and permitted, again if another process was faster, whatever that has written."""
        context = apply_context(self._store, self._world)
        while True:
            if self._shared is not None:
                await self._shared.work.refresh()
            await self._finish_deleting()
            await self._world.discover()
            # IMPORTANT: the version of which the names are. Whatever comes of a plan is thrown away once another one
            # has been read: a refusal, and by `put` what would be written.
            named_at = self._store.upper if self._shared is None else self._shared.work.named_at
            now_ms = self._world.clock.now_ms()
            try:
                plan = await plan_apply(read, context, now_ms, by)
            except TidemillError:
                if named_at == self._store.upper:
                    raise
                continue
            if not plan.created and not plan.configured:
                return plan
            try:
                await self._store.put([*plan.created, *plan.configured], named_at)
            except CatalogMoved:
                for stored in plan.created:
                    self._world.catalog.forget(stored.resource.name)
                continue
            if self._shared is not None:
                self._shared.work.planned(plan.created)
            return plan

    async def _reconfigure(self, stored: Stored, before: Stored) -> None:
        """Let a changed retention, or a hold that moved, take effect; what could not be read begins."""
        spec = stored.resource.spec
        if written_into(before.resource) != written_into(stored.resource):
            raise UsageError(
                f"{stored.resource} has collections to write that MaintainView was given: drop it, and give "
                "them to another one",
                reason="WrittenInto",
            )
        if isinstance(before.resource.spec, UnreadableSpec):
            await self._begin_again(stored)
        elif isinstance(spec, HoldSpec):
            await self.runner(stored).prepare()
        elif isinstance(spec, SourceSpec | TableSpec | ViewSpec):
            retain = retained_ms(spec)
            if isinstance(spec, TableSpec):
                self._world.catalog.plan(stored)
                await self.runner(stored).prepare()
            elif isinstance(spec, SourceSpec):
                await self._regrow(stored)
            for named in made_by(stored, self._world.catalog):
                for each in (named.collection, *self._world.catalog.arranged(named.name).values()):
                    await self._world.collections.retain(each, retain)
            for each in kept_with(stored) if isinstance(spec, SourceSpec) else ():
                await self._world.collections.retain(each, retain)
            if isinstance(spec, ViewSpec):
                await self._begin_again(stored)

    async def _begin_again(self, stored: Stored) -> None:
        """Let a view run as it is declared now; where work is claimed, its process sees the change."""
        await self._let_end(stored)
        self._world.catalog.plan(served(stored))
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
                self._world.catalog.plan(served(revised))
                return True
            return False

    async def _regrow(self, stored: Stored) -> None:
        """Begin a source again that has gained columns: what is not written yet is decoded anew.

        Where work is claimed its collections gain them now: a process that does not know them yet writes nothing more.
        """
        if self._shared is not None:
            self._world.catalog.plan(stored)
            await self.runner(stored).prepare()
            return
        key = (stored.resource.kind, stored.resource.name)
        running = self._running.get(key)
        runner = None if running is None else running.runner
        if isinstance(runner, SourceRunner) and runner.rows != row_schema(columns_of(stored)):
            assert running is not None
            await running.stop()
            self._world.catalog.plan(stored)
            await self._begin(stored)

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
            await self._finish_deleting()
            stored = live(self._store, kind, name)
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
        await self._ended(stored)
        if self._shared is not None:
            await self._shared.work.refresh()
        elif _makes(stored):
            self._world.catalog.forget(stored.resource.name)

    async def _finish_deleting(self) -> None:
        """Let nothing be left of what was deleted when a process or a store went away in the middle of it."""
        for stored in self._store.ending():
            try:
                await self.erase(stored)
            except Exception as error:  # it is tried again, and holds up nothing else
                log.error("not erased", resource=str(stored.resource), error=told(error))

    async def erase(self, stored: Stored) -> None:
        """Close what a deleted resource has made, and give up what it holds, without planning or running it."""
        await self._erase(stored)
        await self._ended(stored)

    async def _erase(self, stored: Stored) -> None:
        await erase(stored, self._world, self._store.bound_by_others(stored))

    async def _ended(self, stored: Stored) -> None:
        while True:
            with suppress(CatalogMoved):
                return await self._store.ended(stored)
            await self._store.refresh()

    async def _delete_created(self, name: str, by: Principal) -> None:
        """Close a collection that users have created; its data goes once nobody holds it."""
        collection = self._world.catalog.created_as(name)
        refuse_used(f"{CREATED}/{name}", self._users(CREATED, name), by)
        await self._world.collections.retire(collection)
        self._world.catalog.forget(name)

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
        """What reads the collections under a name, or the bindings of which it is the last to share them."""
        stored = self._store.get(kind, name)
        shared = None if stored is None else stored.shares
        if shared is not None and self._world.catalog.sharing(shared) == {name}:
            return [*self._users_of(kind, name), *self._users_of(kind, shared)]
        return self._users_of(kind, name)

    def _users_of(self, kind: str, name: str) -> list[str]:
        users = [f"View/{view}" for view in self._world.catalog.readers_of(name) if view != name]
        for other in self._store.live():
            spec = other.resource.spec
            if isinstance(spec, ActionSpec) and kind == "View" and spec.view == name:
                users.append(str(other.resource))
            reads = ""
            if isinstance(spec, ArrangementSpec | HoldSpec):
                reads = read_name(other, spec.collection)
            if reads and (reads == name or self._world.catalog.belongs(reads, name)):
                users.append(str(other.resource))
            if kind == CREATED and name in written_into(other.resource).values():
                users.append(str(other.resource))
            if changing(other) and self._will_read(other, name):
                users.append(str(other.resource))
        return list(dict.fromkeys(users))

    def _will_read(self, view: Stored, name: str) -> bool:
        """Whether a version that has not taken over yet reads what a resource makes."""
        try:
            inputs = plan_version(view, self._world.catalog).inputs.values()
        except TidemillError:  # a version that cannot be planned takes over from none
            return False
        return any(each.name.partition("/")[0] == name for each in inputs)

    async def get(self, kind: str | None, name: str | None) -> Sequence[ResourceStatus]:
        """Resources of a kind and name; without them all."""
        return await self._telling.get(kind, name)

    async def describe(self, kind: str, name: str) -> ResourceStatus:
        """One resource with its details, and who holds its collections."""
        return await self._telling.describe(kind, name)

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
        runner = self.runner(stored) if running is None else inner(running.runner)
        if not isinstance(runner, TableRunner):
            raise Unavailable(f"Table/{table} is broken: tidemill describe table {table} says why")
        schema = (await self._world.collections.description(stored.prefix)).schema

        def checked() -> tuple[pa.Table, pa.Array]:
            refuse_long_rows(rows, self._world.settings.limits.row_bytes)
            return fitted(rows, schema, table)

        data, diffs = await looked_at(rows, checked)
        at = await runner.driver.insert(data, diffs, token)
        return Inserted(at, data.num_rows)

    async def push(self, source: str, rows: Sequence[bytes], token: str | None = None) -> Pushed:
        """Write rows ahead to the log of a source, a heartbeat to each partition; durable on return.

        Rows of a repeated token are there once.
        """
        refuse_many_rows(len(rows), self._world.settings.limits.push_rows)
        stored = await self._found("Source", source) or live(self._store, "Source", source)
        spec = stored.resource.spec
        if not isinstance(spec, SourceSpec):
            raise Unavailable(
                f"Source/{source} is broken: tidemill describe source {source} says why"
            )
        if not in_own_log(spec):
            raise UsageError(
                f"Source/{source} does not read the log of this process: write to its broker or file"
            )
        refuse_foreign_push(stored.resource, topic_of(stored))
        if spec.kafka is not None:
            self._world.places.topics_written.check(topic_of(stored))
        if self._shared is None:
            refuse_stalled(str(stored.resource), self._telling.health(stored, {})[0])
        if rows:
            entries = await entries_of(
                stored, rows, self._world.log, self._world.settings.limits.row_bytes
            )
            if token is None:
                await self._world.log.append(topic_of(stored), entries)
            else:
                refuse_keyed(stored.resource)
                await self._tokens.append(topic_of(stored), token, entries)
        return Pushed(len(rows))

    def made(self) -> dict[str, str]:
        """Collection → the resource by whose name users know it, for metrics."""
        return {
            named.collection: str(stored.resource)
            for stored in self._store.live()
            for named in made_by(stored, self._world.catalog)
        }

    def each(self) -> Iterator[tuple[Key, Supervised, Runner]]:
        """The work of this process, for metrics; parts of one source share its runner."""
        for key, supervised in self._running.items():
            yield key, supervised, inner(supervised.runner)
        for held in [] if self._shared is None else self._shared.work.held():
            resource, runner = held.stored.resource, held.supervised.runner
            whole = runner.source if isinstance(runner, SourcePart) else runner
            yield (resource.kind, resource.name), held.supervised, inner(whole)


def _key(stored: Stored) -> Key:
    return stored.resource.kind, stored.resource.name


def _makes(stored: Stored) -> bool:
    """Whether collections have the name of a resource."""
    return stored.resource.kind not in ("Action", "Hold")


def _applied(stored: Stored, outcome: Outcome) -> Applied:
    return Applied(stored.resource.kind, stored.resource.name, outcome)
