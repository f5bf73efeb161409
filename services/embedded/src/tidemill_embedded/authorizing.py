"""What a caller may do, collection by collection: the handlers inside are asked only for what it may.

The interceptor has found out who calls, and refused who has the role of a call over nothing at all. Here
names count. Who reads a view needs no right on its inputs; who asks why sees facts of them, and does. Who
applies a view or an action may read what it reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress

import pyarrow as pa

from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.parser import parse
from tidemill.rpc.handlers import CatalogHandlers, QueryHandlers, StorageHandlers
from tidemill.rpc.identity import EVERYBODY, Role, caller
from tidemill.rpc.messages import (
    Answer,
    AppendOutcome,
    Applied,
    CapabilityPair,
    CollectionInfo,
    CollectionShape,
    Event,
    Explanation,
    HeldCapability,
    Inserted,
    Pushed,
    ResourceDocument,
    ResourceStatus,
)
from tidemill.runtime.resources import ActionSpec, ArrangementSpec, HoldSpec, Resource, ViewSpec
from tidemill.time import Frontier, UnknownCollection
from tidemill_embedded.applying.planning import read_documents
from tidemill_embedded.resources.shapes import Shapes
from tidemill_query.goals import split_name


def _demand(role: Role, *names: str) -> None:
    caller.get().demand(role, *names)


class AuthorizedQueries:
    """Guarantees of QueryHandlers, for readers of what they name."""

    def __init__(self, inner: QueryHandlers, shapes: Shapes) -> None:
        self._inner = inner
        self._shapes = shapes

    def _reads(self, goal: str) -> None:
        name, _ = split_name(goal)
        # What there is not is refused by whoever looks for it.
        with suppress(UnknownCollection):
            name = self._shapes.named(name).name
        _demand(Role.reader, name)

    def _explains(self, view: str) -> None:
        """The view and everything that it reads."""
        with suppress(UnknownCollection):
            planned = self._shapes.planned(view)
            _demand(Role.reader, *(named.name for named in planned.inputs.values()))
        _demand(Role.reader, view)

    def _proves(self, record: str) -> None:
        name, _ = split_name(record)
        view = name
        with suppress(UnknownCollection):
            view = self._shapes.view_of(name).name
        self._explains(view)

    async def snapshot(self, collection: str, as_of: int | None, wait_s: float | None) -> Answer:
        """As the handlers inside; so are all below."""
        self._reads(collection)
        return await self._inner.snapshot(collection, as_of, wait_s)

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        self._reads(goal)
        return await self._inner.ask(goal, as_of, wait_s)

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """As the handlers inside."""
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

    async def collections(self) -> Sequence[CollectionInfo]:
        """Those that the caller may read."""
        found = await self._inner.collections()
        return [each for each in found if caller.get().has(Role.reader, each.id)]


class AuthorizedCatalog:
    """Guarantees of CatalogHandlers, for who has the role over what is named."""

    def __init__(self, inner: CatalogHandlers, shapes: Shapes) -> None:
        self._inner = inner
        self._shapes = shapes

    async def apply(self, documents: Sequence[ResourceDocument]) -> Sequence[Applied]:
        """As the handlers inside; so are all below."""
        if caller.get() is not EVERYBODY:
            resources = read_documents(documents)
            _demand(Role.admin, *(resource.name for resource in resources))
            applied = {resource.name for resource in resources}
            for resource in resources:
                _demand(Role.reader, *(n for n in self._read_by(resource) if n not in applied))
        return await self._inner.apply(documents)

    def _read_by(self, resource: Resource) -> Iterator[str]:
        """The names of what a resource will read, as far as they are known."""
        spec = resource.spec
        if isinstance(spec, ActionSpec):
            yield spec.view
        elif isinstance(spec, ArrangementSpec | HoldSpec):
            yield spec.collection
        elif isinstance(spec, ViewSpec):
            yield from spec.inputs.values()
            # A program with mistakes is refused by whoever plans it.
            with suppress(ProgramErrors):
                for rule in parse(spec.program, resource.name).rules:
                    for atom in rule.atoms:
                        with suppress(UnknownCollection):
                            if atom.application.name not in spec.inputs:
                                yield self._shapes.named(atom.application.name).name

    async def get(self, kind: str | None, name: str | None) -> Sequence[ResourceStatus]:
        """Those that the caller may read."""
        found = await self._inner.get(kind, name)
        return [each for each in found if caller.get().has(Role.reader, each.name)]

    async def describe(self, kind: str, name: str) -> ResourceStatus:
        _demand(Role.reader, name)
        return await self._inner.describe(kind, name)

    async def delete(self, kind: str, name: str) -> None:
        _demand(Role.admin, name)
        await self._inner.delete(kind, name)

    async def insert(self, table: str, rows: pa.Table) -> Inserted:
        _demand(Role.writer, table)
        return await self._inner.insert(table, rows)

    async def push(self, source: str, rows: Sequence[bytes]) -> Pushed:
        _demand(Role.writer, source)
        return await self._inner.push(source, rows)


class AuthorizedStorage:
    """Guarantees of StorageHandlers, for writers of what they name. Whoever has a capability also needs the role."""

    def __init__(self, inner: StorageHandlers) -> None:
        self._inner = inner

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        start: Frontier,
        owner: str,
        lease_ms: int | None,
    ) -> CapabilityPair:
        """As the handlers inside; so are all below."""
        _demand(Role.writer, collection)
        return await self._inner.create(collection, shape, start, owner, lease_ms)

    async def acquire(self, collection: str, owner: str, lease_ms: int | None) -> CapabilityPair:
        _demand(Role.writer, collection)
        return await self._inner.acquire(collection, owner, lease_ms)

    async def clone(self, capability: HeldCapability) -> HeldCapability:
        _demand(Role.writer, capability.collection)
        return await self._inner.clone(capability)

    async def transfer(self, capability: HeldCapability, owner: str) -> HeldCapability:
        _demand(Role.writer, capability.collection)
        return await self._inner.transfer(capability, owner)

    async def downgrade(self, capability: HeldCapability, to: Frontier) -> HeldCapability:
        _demand(Role.writer, capability.collection)
        return await self._inner.downgrade(capability, to)

    async def drop(self, capability: HeldCapability) -> None:
        _demand(Role.writer, capability.collection)
        await self._inner.drop(capability)

    async def update_and_downgrade(
        self,
        capability: HeldCapability,
        updates: pa.Table | None,
        new: Frontier,
        token: str | None,
    ) -> AppendOutcome:
        _demand(Role.writer, capability.collection)
        return await self._inner.update_and_downgrade(capability, updates, new, token)

    async def subscribe_at(
        self, capability: HeldCapability, at: int, snapshot: bool, up_to: int | None
    ) -> AsyncIterator[Event]:
        """As the handlers inside."""
        _demand(Role.writer, capability.collection)
        events = self._inner.subscribe_at(capability, at, snapshot, up_to)
        async with aclosing(events) as stream:  # type: ignore[type-var]  # a generator
            async for event in stream:
                yield event
