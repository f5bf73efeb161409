"""Rights of a caller, collection by collection: the handlers inside are asked for permitted ones
only.

The interceptor has identified the caller, and refused callers without any grant of the call's role.
Here names count. A reader of a view needs no right on its inputs. An
answer to why shows facts of them, so its caller needs that right, too. The reads of a resource are
permitted when it is planned, once its names are resolved.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidemill.catalog.catalog import Catalog
from tidemill.errors import UnknownCollection
from tidemill.rpc.audited import touch
from tidemill.rpc.handlers import ActingCatalog, ActingCompute, QueryHandlers, StorageHandlers
from tidemill.rpc.identity import Role, caller, listed
from tidemill.rpc.messages import (
    Answer,
    AppendOutcome,
    Applied,
    CapabilityPair,
    CollectionInfo,
    CollectionShape,
    Condition,
    Decision,
    Event,
    Explanation,
    HeldCapability,
    HeldVersion,
    HolderInfo,
    Inserted,
    Json,
    MaintainedView,
    Outcome,
    Pushed,
    ResourceDocument,
    ResourceStatus,
    Right,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.paging import Page
from tidemill.time import Frontier, SourceFrontier
from tidemill_query.goals import split_name


def _demand(role: Role, *names: str) -> None:
    touch(*names)
    caller.get().demand(role, *names)


class _Hidden:
    """The resources that the caller may not read, as they may be named in what it is told."""

    def __init__(self, catalog: Catalog) -> None:
        names = catalog.resources()
        self._names = names.difference(listed(names))

    def told(self, text: str) -> str:
        """The text with every name of theirs left out."""
        if not self._names:
            return text
        return _WORD.sub(lambda m: "…" if m[0] in self._names else m[0], text)

    def info(self, info: CollectionInfo) -> CollectionInfo:
        """A collection with the names of theirs left out of those of its holders."""

        if not self._names:
            return info

        def told(holders: Sequence[HolderInfo]) -> tuple[HolderInfo, ...]:
            return tuple(replace(each, owner=self.told(each.owner)) for each in holders)

        return replace(info, holders=told(info.holders), writers=told(info.writers))

    def status(self, status: ResourceStatus) -> ResourceStatus:
        """A status with the names of theirs left out of its reads and of the holders."""
        details = dict(status.details)
        for told in ("heldBack", "holders", "reads"):
            lines = details.get(told)
            if isinstance(lines, list):
                shown: list[Json] = [self.told(str(line)) for line in lines]
                details[told] = shown
        return replace(status, details=details)


_WORD = re.compile(r"[\w.-]+")


def may_explain(catalog: Catalog, view: str) -> bool:
    """Whether the caller may read a view and everything that it reads; outside of a call anybody
    may.
    """
    names = {view, *(named.name for named in catalog.planned(view).inputs.values())}
    return len(listed(names)) == len(names)


class AuthorizedQueries:
    """Guarantees of QueryHandlers, for readers of what they name."""

    def __init__(self, inner: QueryHandlers, catalog: Catalog) -> None:
        self._inner = inner
        self._catalog = catalog

    def _reads(self, goal: str) -> None:
        written, _ = split_name(goal)
        # The handlers refuse a collection that is not there.
        known = self._catalog.knows(written)
        name = self._catalog.named(written).name if known else written
        caller.get().demand(Role.reader, name, shown=written)

    def _explains(self, view: str) -> None:
        """The view and everything that it reads; who may not even see an input is told its
        predicate alone.
        """
        _demand(Role.reader, view)
        with suppress(UnknownCollection):
            for predicate, named in self._catalog.planned(view).inputs.items():
                shown = f"{predicate}, which {view} reads"
                caller.get().demand(Role.reader, named.name, shown=shown)

    def _proves(self, record: str) -> None:
        name, _ = split_name(record)
        view = name
        with suppress(UnknownCollection):
            view = self._catalog.view_of(name).name
        self._explains(view)

    async def snapshot(
        self,
        collection: str,
        as_of: int | None,
        wait_s: float | None,
        where: Sequence[Condition] = (),
    ) -> Answer:
        """The answer of the handlers inside, if permitted, as for all methods below."""
        self._reads(collection)
        return await self._inner.snapshot(collection, as_of, wait_s, where)

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        self._reads(goal)
        return await self._inner.ask(goal, as_of, wait_s)

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """The events of the handlers inside, if permitted."""
        self._reads(goal)
        events = self._inner.subscribe(goal, start, snapshot, until)
        async with aclosing(events) as stream:  # type: ignore[type-var]  # a generator
            async for event in stream:
                yield event

    async def why(self, record: str, as_of: int | None) -> Explanation:
        self._proves(record)
        return await self._inner.why(record, as_of)

    async def why_not(self, record: str, as_of: int | None) -> Explanation:
        self._proves(record)
        return await self._inner.why_not(record, as_of)

    async def explain(self, view: str, form: str) -> str:
        self._explains(view)
        return await self._inner.explain(view, form)

    async def tables(
        self, names: Sequence[str], as_of: int | None, wait_s: float | None
    ) -> Mapping[str, Answer]:
        for name in names:
            self._reads(name)
        return await self._inner.tables(names, as_of, wait_s)

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None
    ) -> TimestampExplanation:
        for name in names:
            with suppress(UnknownCollection):
                self._explains(self._catalog.planned(name).stored.resource.name)
                continue
            self._reads(name)
        found = await self._inner.explain_timestamp(names, as_of)
        hidden = _Hidden(self._catalog)
        inputs = tuple((name, hidden.info(info)) for name, info in found.inputs)
        return replace(found, reason=hidden.told(found.reason), inputs=inputs)

    async def translate(
        self, source: str, wanted: int | SourceFrontier | None, wait_s: float | None
    ) -> Translation:
        self._reads(source)
        return await self._inner.translate(source, wanted, wait_s)

    async def collections(self, page: Page | None = None) -> Sequence[CollectionInfo]:
        """Those that the caller may read. Of a page no other one is looked at."""
        may = partial(caller.get().has, Role.reader)
        part = None if page is None else replace(page, may=may)
        hidden = _Hidden(self._catalog)
        return [hidden.info(each) for each in await self._inner.collections(part) if may(each.id)]


class AuthorizedCatalog:
    """Guarantees of CatalogHandlers, for who has the role over what is named."""

    def __init__(self, inner: ActingCatalog, catalog: Catalog) -> None:
        self._inner = inner
        self._catalog = catalog

    async def apply(self, documents: Sequence[ResourceDocument]) -> Sequence[Applied]:
        """Apply by the handlers inside, which permit the resources that they read; as all methods
        below.
        """
        applied = await self._inner.apply(documents, caller.get())
        changed = [f"{a.kind}/{a.name}" for a in applied if a.outcome is not Outcome.UNCHANGED]
        touch(*changed, instead=True)
        return applied

    async def get(
        self,
        kind: str | None,
        name: str | None,
        documents: bool = True,
        as_of: int | None = None,
        page: Page | None = None,
    ) -> Sequence[ResourceStatus]:
        """Those that the caller may read. Of a page no other one is looked at."""
        may = partial(caller.get().has, Role.reader)
        part = (
            None
            if page is None
            else replace(page, may=lambda key: may(key.partition("/")[2]))  # of KIND/NAME
        )
        found = await self._inner.get(kind, name, documents, as_of, part)
        hidden = _Hidden(self._catalog)
        return [hidden.status(each) for each in found if may(each.name)]

    async def describe(self, kind: str, name: str, as_of: int | None = None) -> ResourceStatus:
        _demand(Role.reader, name)
        status = await self._inner.describe(kind, name, as_of)
        return _Hidden(self._catalog).status(status)

    async def delete(self, kind: str, name: str) -> None:
        _demand(Role.admin, name)
        await self._inner.delete(kind, name, caller.get())

    async def decide(self, view: str, decision: Decision, version: int | None) -> int:
        _demand(Role.admin, view)
        touch(f"View/{view} {decision.value}", instead=True)
        return await self._inner.decide(view, decision, version, caller.get())

    async def insert(self, table: str, rows: pa.Table, token: str | None = None) -> Inserted:
        _demand(Role.writer, table)
        return await self._inner.insert(table, rows, token)

    async def push(self, source: str, rows: Sequence[bytes], token: str | None = None) -> Pushed:
        _demand(Role.writer, source)
        return await self._inner.push(source, rows, token)


class AuthorizedCompute:
    """Guarantees of ComputeHandlers, for who may apply such a view and read what it is made of."""

    def __init__(self, inner: ActingCompute, catalog: Catalog) -> None:
        self._inner = inner
        self._catalog = catalog

    async def maintain_view(
        self, view: MaintainedView, token: str | None = None
    ) -> Mapping[str, HeldCapability]:
        """Maintain a view by the handlers inside, if permitted."""
        _demand(Role.admin, view.name)
        for held in view.inputs.values():
            caller.get().demand(Role.reader, self._catalog.name_of(held.collection))
        for held in view.into.values():
            caller.get().demand(Role.writer, self._catalog.name_of(held.collection))
        return await self._inner.maintain_view(view, token, caller.get())

    async def drop_view(self, capability: HeldCapability) -> None:
        _demand(Role.admin, self._catalog.name_of(capability.collection).rpartition("/")[0])
        await self._inner.drop_view(capability, caller.get())


class AuthorizedStorage:
    """Guarantees of StorageHandlers. History is read and held by readers of its name, written by
    writers.

    The holder of a capability also needs the role.
    """

    def __init__(self, inner: StorageHandlers, catalog: Catalog) -> None:
        self._inner = inner
        self._catalog = catalog

    def _demand(self, role: Role, collection: str) -> None:
        _demand(role, self._catalog.name_of(collection))

    def _presents(self, capability: HeldCapability) -> None:
        reads = capability.right is Right.READ
        self._demand(Role.reader if reads else Role.writer, capability.collection)

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        start: Frontier,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> CapabilityPair:
        """Create by the handlers inside, if permitted, as for all methods below."""
        self._demand(Role.writer, collection)
        return await self._inner.create(collection, shape, start, owner, lease_ms, token)

    async def acquire(
        self, collection: str, owner: str, lease_ms: int | None, token: str | None = None
    ) -> CapabilityPair:
        self._demand(Role.writer, collection)
        return await self._inner.acquire(collection, owner, lease_ms, token)

    async def acquire_right(
        self,
        collection: str,
        right: Right,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldCapability:
        self._demand(Role.reader if right is Right.READ else Role.writer, collection)
        return await self._inner.acquire_right(collection, right, owner, lease_ms, token)

    async def clone(self, capability: HeldCapability, token: str | None = None) -> HeldCapability:
        self._presents(capability)
        return await self._inner.clone(capability, token)

    async def transfer(
        self, capability: HeldCapability, owner: str, token: str | None = None
    ) -> HeldCapability:
        self._presents(capability)
        return await self._inner.transfer(capability, owner, token)

    async def downgrade(self, capability: HeldCapability, to: Frontier) -> HeldCapability:
        self._presents(capability)
        return await self._inner.downgrade(capability, to)

    async def drop(self, capability: HeldCapability) -> None:
        self._presents(capability)
        await self._inner.drop(capability)

    async def renew(self, capability: HeldCapability) -> HeldCapability:
        self._presents(capability)
        return await self._inner.renew(capability)

    async def expire(self, collection: str, key: str) -> HolderInfo:
        self._demand(Role.admin, collection)
        return await self._inner.expire(collection, key)

    async def update_and_downgrade(
        self,
        capability: HeldCapability,
        updates: pa.Table | None,
        new: Frontier,
        token: str | None,
    ) -> AppendOutcome:
        self._demand(Role.writer, capability.collection)
        return await self._inner.update_and_downgrade(capability, updates, new, token)

    async def subscribe_at(
        self,
        capability: HeldCapability,
        at: int,
        snapshot: bool,
        up_to: int | None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> AsyncIterator[Event]:
        """The events of the handlers inside, if permitted."""
        self._presents(capability)
        events = self._inner.subscribe_at(capability, at, snapshot, up_to, columns, where)
        async with aclosing(events) as stream:  # type: ignore[type-var]  # a generator
            async for event in stream:
                yield event

    async def hold_version(
        self,
        collection: str,
        at: int | None,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldVersion:
        self._demand(Role.reader, collection)
        return await self._inner.hold_version(collection, at, owner, lease_ms, token)

    async def locate(self, capability: HeldCapability, keys: Sequence[str]) -> Sequence[str]:
        self._presents(capability)
        return await self._inner.locate(capability, keys)
