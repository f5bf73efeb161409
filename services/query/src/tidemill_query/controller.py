"""Resources as users apply and delete them, rows that users write, and what is said of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from tidemill.catalog.apply.context import ApplyContext
from tidemill.catalog.apply.documents import with_resources
from tidemill.catalog.apply.permissions import refuse_foreign_push, refuse_used
from tidemill.catalog.apply.plan import Plan, plan_apply
from tidemill.catalog.apply.turns import forget_all, in_turns
from tidemill.catalog.entry import CREATED, columns_of, read_name
from tidemill.catalog.made.making import Made, made_by
from tidemill.catalog.made.sources import kept_with
from tidemill.catalog.made.tables import TableCollection
from tidemill.catalog.origins.sampling import SourceOrigins
from tidemill.catalog.own_log import in_own_log, topic_of
from tidemill.catalog.store import CatalogMoved, Key, Stored
from tidemill.catalog.table_rows import fitted
from tidemill.catalog.versions import (
    abort,
    approve,
    changing,
    plan_version,
    served,
    version_of,
)
from tidemill.catalog.written_into import written_into
from tidemill.errors import Indeterminate, TidemillError, Unavailable, UsageError
from tidemill.host.claimed_work import BEGINNING_MAX, ClaimedWork
from tidemill.host.context import Context
from tidemill.host.reports import Reports
from tidemill.host.supervised import refuse_stalled
from tidemill.host.unmade import erase, erase_deleted, note_ended
from tidemill.rpc.audited import touch
from tidemill.rpc.identity import PROCESS, Principal
from tidemill.rpc.messages import (
    Applied,
    Decision,
    Inserted,
    Outcome,
    Pushed,
    ResourceDocument,
    ResourceStatus,
)
from tidemill.rpc.paging import Page
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
from tidemill.shard.offloading import all_of, while_others_wait
from tidemill_query.definitions import definition, definitions
from tidemill_query.push_tokens import PushTokens, refuse_keyed, refuse_many_rows
from tidemill_query.pushed_entries import append_entries, entries_of
from tidemill_query.resource_status import ResourceStatuses, kind_of, live, unknown
from tidemill_query.storage import examine

log = get_logger("resources")


class Controller:
    """Guarantees of CatalogHandlers. An applied resource is durable first, then it runs.

    This process works on its claims; the status of the rest comes from the processes that have it.
    """

    def __init__(self, context: Context, work: ClaimedWork, reports: Reports) -> None:
        self._context = context
        self._store = context.store
        self.work = work
        self._changing = context.revisions.changing
        self._tokens = PushTokens(context.log, context.settings.limits.push_rows_known)
        self._statuses = ResourceStatuses(context, reports)

    async def _prepare(self, stored: Stored) -> Exception | None:
        """Prepare a resource and hand it over to be run; the error if the stores are away.

        Raises: any other reason why it cannot be prepared.
        """
        failed: Exception | None = None
        await self._context.tried.begin(str(stored.resource))
        made = self._context.making.make(stored)
        try:
            await made.prepare()
        except (Unavailable, Indeterminate) as error:
            failed = error
        self.work.hand_over(stored, made, failed)
        return failed

    # -- catalog ------------------------------------------------------------------------------

    async def apply(
        self, documents: Sequence[ResourceDocument], by: Principal = PROCESS
    ) -> Sequence[Applied]:
        """Make all resources so, or none of them if one is refused, in the name of `by`.

        Raises: Unavailable or Indeterminate also where all are recorded and one begins once the
        stores are back.
        """
        limits = self._context.settings.limits.of_documents
        return await with_resources(documents, limits, lambda read: self._apply(read, by))

    async def _apply(self, read: list[Resource], by: Principal) -> Sequence[Applied]:
        touch(*(resource.name for resource in read))
        async with while_others_wait(self._changing):
            before = {_key(stored): stored for stored in self._store.live()}
            plan = await self._write(read, by)
            try:
                await self._erase_replaced(plan, before)
                away = await self._prepare_all(plan.created)
                for stored in plan.configured:
                    await self._reconfigure(stored, before[_key(stored)])
            except Exception as error:  # whatever it was: what is refused leaves nothing behind
                try:
                    await self._take_back(plan, before)
                except Exception as left:
                    log.error("not taken back", error=told(left))
                raise error from None
            finally:
                self.work.prepared(plan.created)
                await self.work.take_up()
        if by != PROCESS:  # its own files are applied at each start: they forgive nothing
            for resource in read:  # the unchanged ones too
                self._context.tried.forgive(str(resource))
        for failed in filter(None, away):
            raise failed
        return _outcomes(plan)

    async def check(
        self, documents: Sequence[ResourceDocument], by: Principal
    ) -> Sequence[Applied]:
        """The outcome that `apply` would have now; nothing is done. Raises: its refusal."""
        limits = self._context.settings.limits.of_documents
        return await with_resources(documents, limits, lambda read: self._check(read, by))

    async def _check(self, read: list[Resource], by: Principal) -> Sequence[Applied]:
        async with while_others_wait(self._changing):
            await self.work.refresh()
            await self._context.discover()
            now_ms = self._context.clock.now_ms()
            plan = await plan_apply(read, _apply_context(self._context), now_ms, by)
            planned = [*plan.created, *plan.configured]
            await forget_all(self._context.catalog, (each.resource.name for each in planned))
            async for stored in in_turns(plan.configured):
                with suppress(TidemillError):  # one that cannot be planned is as it was before
                    known = self._store.get(*_key(stored))
                    if known is not None:
                        self._context.catalog.plan(served(known))
        return _outcomes(plan)

    async def _erase_replaced(self, plan: Plan, before: Mapping[Key, Stored]) -> None:
        """End what could not be read and is stated anew, where nobody can tell what its collections
        hold.
        """
        for stored in plan.created:
            unread = before.get(_key(stored))
            if unread is not None:
                async with self.work.stopped(unread):
                    await self._erase(unread)

    async def _prepare_all(self, resources: Sequence[Stored]) -> list[Exception | None]:
        """Prepare each resource after its inputs; unrelated ones at once, to share flushes."""
        beginning = asyncio.Semaphore(BEGINNING_MAX)

        async def prepare(stored: Stored) -> Exception | None:
            async with beginning:
                return await self._prepare(stored)

        away: list[Exception | None] = []
        for level in self._context.catalog.levels(resources):
            away += await all_of(prepare(stored) for stored in level)
        return away

    async def _take_back(self, plan: Plan, before: Mapping[Key, Stored]) -> None:
        """Restore the state before a plan that was refused while it was carried out."""
        for stored in reversed(plan.created):
            await self._end(stored)
        changed = [*plan.created, *plan.configured]
        known = [before[_key(stored)] for stored in changed if _key(stored) in before]
        await self._put(known)
        for stored in known:
            async with self.work.stopped(stored):
                try:
                    self._context.catalog.plan(served(stored))
                    await self._prepare(stored)
                except Exception as error:  # it is tried again, and says why
                    self._context.catalog.forget(stored.resource.name)
                    log.error("not begun again", resource=str(stored.resource), error=told(error))

    async def _put(self, resources: Sequence[Stored]) -> None:
        """Write the catalog, also if another process has written it meanwhile."""
        written = not resources
        while not written:
            try:
                await self._store.put(resources)
                written = True
            except CatalogMoved:
                await self._store.refresh()

    async def _write(self, read: Sequence[Resource], by: Principal) -> Plan:
        """The plan, durable: made, and permitted, again if another process was faster, whatever
        that has written.
        """
        context = _apply_context(self._context)
        while True:
            await self.work.refresh()
            await erase_deleted(self._context)
            await self._context.discover()
            # IMPORTANT: the version of the catalog that the names are of. The result of a plan is
            # thrown away once another version has been read: a refusal, and by `put` the rows to
            # write.
            named_at = self.work.named_at
            now_ms = self._context.clock.now_ms()
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
                created = (stored.resource.name for stored in plan.created)
                await forget_all(self._context.catalog, created)
                continue
            self.work.planned(plan.created)
            return plan

    async def _reconfigure(self, stored: Stored, before: Stored) -> None:
        """Apply a changed retention, or a hold that moved; an unreadable resource begins."""
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
            await self._context.making.known(stored).prepare()
        elif isinstance(spec, SourceSpec | TableSpec | ViewSpec):
            retain = retained_ms(spec)
            if isinstance(spec, TableSpec):
                self._context.catalog.plan(stored)
                await self._context.making.known(stored).prepare()
            elif isinstance(spec, SourceSpec):
                await self._regrow(stored, before)
            for named in made_by(stored, self._context.catalog):
                for each in (
                    named.collection,
                    *self._context.catalog.arranged(named.name).values(),
                ):
                    await self._context.collections.retain(each, retain)
            for each in kept_with(stored) if isinstance(spec, SourceSpec) else ():
                await self._context.collections.retain(each, retain)
            if isinstance(spec, ViewSpec):
                await self._begin_again(stored)

    async def _begin_again(self, stored: Stored) -> None:
        """Start a resource as it is declared now; a process elsewhere sees the change."""
        async with self.work.stopped(stored):
            self._context.catalog.plan(served(stored))
            await self._prepare(stored)

    async def decide(
        self, view: str, decision: Decision, version: int | None, by: Principal = PROCESS
    ) -> int:
        """Approve the waiting version of a view, or give it up; its number.

        Raises: UsageError if none waits, or another one than `version`.
        """
        decided = {Decision.APPROVE: approve, Decision.ABORT: abort}[decision]
        async with while_others_wait(self._changing):
            while True:
                await self.work.refresh()
                revised = decided(live(self._store, "View", view), version)
                try:
                    await self._store.put([revised])
                    break
                except CatalogMoved:
                    continue
            await self._begin_again(revised)
            await self.work.take_up()
        log.info("decided", view=view, version=version_of(revised), decision=decision.value)
        return version_of(revised)

    async def _regrow(self, stored: Stored, before: Stored) -> None:
        """Begin a source again that has gained columns: what is not written yet is decoded anew.

        Its collections gain them now: a process that does not know them yet writes nothing more.
        """
        if columns_of(stored) == columns_of(before):
            self._context.catalog.plan(stored)
        else:
            await self._begin_again(stored)

    async def delete(self, kind: str, name: str, by: Principal = PROCESS) -> None:
        """Remove the resource and close its collections; refused while another one reads them.

        Readers that `by` may not see are counted, not named.
        """
        async with while_others_wait(self._changing):
            await self.work.refresh()
            if kind.lower() in (CREATED.lower(), f"{CREATED.lower()}s"):
                await self._delete_created(name, by)
                return
            await erase_deleted(self._context)
            stored = live(self._store, kind, name)
            refuse_used(str(stored.resource), self._users(stored.resource.kind, name), by)
            await self._end(stored)

    async def _end(self, stored: Stored) -> None:
        """Stop the work of a resource, mark it as deleted, close its collections."""
        async with self.work.stopped(stored):
            made = self._made(stored)
            await self.forget(stored)
            await (self._erase(stored) if made is None else made.release())
            await note_ended(self._context, stored)
            await self.work.refresh()
        await self.work.take_up()

    def _made(self, stored: Stored) -> Made | None:
        """Collections and holds of a resource; None if it is not known which they are."""
        try:
            return self._context.making.make(stored)
        except Exception as error:  # what cannot be made can be deleted all the same
            log.error("not made", resource=str(stored.resource), error=told(error))
            return None

    async def erase(self, stored: Stored) -> None:
        """Close what a deleted resource has made, and give up what it holds, without planning or
        running it.
        """
        await self._erase(stored)
        await note_ended(self._context, stored)

    async def _erase(self, stored: Stored) -> None:
        await erase(stored, self._context, self._store.bound_by_others(stored))

    async def _delete_created(self, name: str, by: Principal) -> None:
        """Close a collection that users have created; its data goes once nobody holds it."""
        collection = self._context.catalog.created_as(name)
        refuse_used(f"{CREATED}/{name}", self._users(CREATED, name), by)
        await self._context.collections.retire(collection)
        self._context.catalog.forget(name)

    async def forget(self, stored: Stored) -> None:
        """Mark a resource as deleted; it may be that another process has done so."""
        kind, name = stored.resource.kind, stored.resource.name
        self._context.tried.forgive(str(stored.resource))
        while self._store.get(kind, name) is not None:
            try:
                await self._store.delete(kind, name)
            except CatalogMoved:
                await self._store.refresh()

    def _users(self, kind: str, name: str) -> list[str]:
        """Readers of the collections under a name, or of bindings that it is the last to share."""
        stored = self._store.get(kind, name)
        shared = None if stored is None else stored.shares
        if shared is not None and self._context.catalog.sharing(shared) == {name}:
            return [*self._users_of(kind, name), *self._users_of(kind, shared)]
        return self._users_of(kind, name)

    def _users_of(self, kind: str, name: str) -> list[str]:
        users = [f"View/{view}" for view in self._context.catalog.readers_of(name) if view != name]
        for other in self._store.live():
            spec = other.resource.spec
            if isinstance(spec, ActionSpec) and kind == "View" and spec.view == name:
                users.append(str(other.resource))
            reads = ""
            if isinstance(spec, ArrangementSpec | HoldSpec):
                reads = read_name(other, spec.collection)
            if reads and (reads == name or self._context.catalog.belongs(reads, name)):
                users.append(str(other.resource))
            if kind == CREATED and name in written_into(other.resource).values():
                users.append(str(other.resource))
            if changing(other) and self._will_read(other, name):
                users.append(str(other.resource))
        return list(dict.fromkeys(users))

    def _will_read(self, view: Stored, name: str) -> bool:
        """Whether a version that has not taken over yet reads what a resource makes."""
        try:
            inputs = plan_version(view, self._context.catalog).inputs.values()
        except TidemillError:  # a version that cannot be planned takes over from none
            return False
        return any(each.name.partition("/")[0] == name for each in inputs)

    async def get(
        self,
        kind: str | None,
        name: str | None,
        documents: bool = True,
        as_of: int | None = None,
        page: Page | None = None,
    ) -> Sequence[ResourceStatus]:
        """Resources of a kind and name; without them all. As of an instant their definitions."""
        if as_of is None:
            return await self._statuses.get(kind, name, documents, page)
        wanted = None if kind is None else kind_of(kind, self._store)
        return await definitions(self._store, wanted, name, as_of, documents=documents, page=page)

    async def describe(self, kind: str, name: str, as_of: int | None = None) -> ResourceStatus:
        """One resource with its details, and who holds its collections; or its definition as of an
        instant.
        """
        if as_of is None:
            return await self._statuses.describe(kind, name)
        return await definition(self._store, kind_of(kind, self._store), name, as_of)

    async def _find(self, kind: str, name: str) -> Stored | None:
        """A live resource; the catalog is read anew before it is said that there is none."""
        if self._store.get(kind, name) is None:
            await self.work.refresh()
        return self._store.get(kind, name)

    # -- rows from users ----------------------------------------------------------------------

    async def insert(self, table: str, rows: pa.Table, token: str | None = None) -> Inserted:
        """Write rows durably to a table; `_diff` of −1 removes what is there.

        Raises: UsageError for rows that do not fit; nothing is written then. A repeated token
        writes nothing.
        """
        stored = await self._find("Table", table)
        if stored is None:
            raise unknown(self._store, "Table", table)
        if not isinstance(stored.resource.spec, TableSpec):
            raise Unavailable(f"Table/{table} is broken: tidemill describe table {table} says why")
        made = self._context.making.known(stored)
        assert isinstance(made, TableCollection)
        schema = (await self._context.collections.description(stored.prefix)).schema

        def checked() -> tuple[pa.Table, pa.Array]:
            refuse_long_rows(rows, self._context.settings.limits.row_bytes)
            return fitted(rows, schema, table)

        data, diffs = await examine(rows, checked)
        at = await made.writer.insert(data, diffs, token)
        return Inserted(at, data.num_rows)

    async def push(self, source: str, rows: Sequence[bytes], token: str | None = None) -> Pushed:
        """Write rows ahead to the log of a source, a heartbeat to each partition; durable on
        return.

        Rows of a repeated token are there once.
        """
        return await self._append(source, rows, token, first_counts=False)

    async def receive(self, source: str, rows: Sequence[bytes], delivery: str | None) -> Pushed:
        """Write rows ahead as `push` does; rows of a known delivery are those that came first."""
        return await self._append(source, rows, delivery, first_counts=True)

    def known_source(self, name: str) -> SourceSpec | None:
        """A source by its name, without looking whether another process has applied it just now."""
        stored = self._store.get("Source", name)
        spec = None if stored is None else stored.resource.spec
        return spec if isinstance(spec, SourceSpec) else None

    async def source(self, name: str) -> SourceSpec:
        """A source by its name. Raises: UnknownCollection, Unavailable if it is broken."""
        return _source_of(await self._source(name))

    async def _source(self, name: str) -> Stored:
        return await self._find("Source", name) or live(self._store, "Source", name)

    async def _append(
        self, source: str, rows: Sequence[bytes], token: str | None, *, first_counts: bool
    ) -> Pushed:
        refuse_many_rows(len(rows), self._context.settings.limits.push_rows)
        stored = await self._source(source)
        spec = _source_of(stored)
        if not in_own_log(spec):
            raise UsageError(
                f"Source/{source} does not read the log of this process: write to its broker or file"
            )
        refuse_foreign_push(stored.resource, topic_of(stored))
        if spec.kafka is not None:
            self._context.places.topics_written.check(topic_of(stored))
        for held in self.work.held_of(stored):
            refuse_stalled(str(stored.resource), held.supervised.health)
        if rows:
            entries = await entries_of(
                stored, rows, self._context.log, self._context.settings.limits.row_bytes
            )
            topic = topic_of(stored)
            if token is None:
                await append_entries(self._context.log, topic, entries)
            else:
                refuse_keyed(stored.resource)
                await self._tokens.append(topic, token, entries, first_counts=first_counts)
        return Pushed(len(rows))


def _source_of(stored: Stored) -> SourceSpec:
    spec, name = stored.resource.spec, stored.resource.name
    if not isinstance(spec, SourceSpec):
        raise Unavailable(f"Source/{name} is broken: tidemill describe source {name} says why")
    return spec


def _apply_context(context: Context) -> ApplyContext:
    """The state of this process, for the plan of an apply."""
    limits, chosen = context.settings.limits, context.settings
    origins = SourceOrigins(
        context.places, context.log, context.open_kafka, context.clock, chosen.topic_partitions,
        limits.parquet_cells_max,
    )  # fmt: skip
    return ApplyContext(
        context.catalog, context.store, context.collections, context.places, origins,
        min(limits.row_bytes, limits.row_bytes_max), bool(chosen.log),
    )  # fmt: skip


def _outcomes(plan: Plan) -> list[Applied]:
    return [
        *(_applied(each, Outcome.CREATED) for each in plan.created),
        *(_applied(each, Outcome.CONFIGURED) for each in plan.configured),
        *(Applied(r.kind, r.name, Outcome.UNCHANGED) for r in plan.unchanged),
    ]


def _key(stored: Stored) -> Key:
    return stored.resource.kind, stored.resource.name


def _applied(stored: Stored, outcome: Outcome) -> Applied:
    return Applied(stored.resource.kind, stored.resource.name, outcome)
