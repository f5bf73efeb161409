"""Views by command: a program over what the caller holds, maintained as one that was applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from tidemill.catalog.apply.documents import DocumentLimits, read_bounded
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import PlannedView
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.catalog.written_into import WRITTEN_INTO, owns, refuse_unlike, writer_of, written_into
from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    CapabilityExpired,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc.identity import PROCESS, Principal
from tidemill.rpc.messages import HeldCapability, MaintainedView, ResourceDocument, Right
from tidemill.runtime.resources import Resource
from tidemill.runtime.resources.resource import API_VERSION
from tidemill.shard import Collections, CollectionStatus
from tidemill.shard.capability_commands import request_digest
from tidemill.time import U64_TIME, Frontier, sole_time
from tidemill_query.controller import Controller
from tidemill_query.storage import StorageDriver

MAINTAINED = "tidemill.dev/maintained-for"
"""The annotation of a view that was begun by command: the digest of the request's token."""


class Maintaining:
    """Guarantees of ComputeHandlers: a view by command is a resource, durable and run as any other
    (D2).

    Its inputs are exactly those whose capability is presented as it is held. The view takes holds
    of its own on them, so that the caller may let go. All its outputs begin at the common frontier
    of the inputs, or none is made (MV1, MV2).
    """

    def __init__(
        self,
        system: Controller,
        storage: StorageDriver,
        store: ResourceStore,
        catalog: Catalog,
        collections: Collections,
        limits: DocumentLimits,
    ) -> None:
        self._system = system
        self._storage = storage
        self._store = store
        self._catalog = catalog
        self._collections = collections
        self._limits = limits

    async def maintain_view(
        self, view: MaintainedView, token: str | None = None, by: Principal = PROCESS
    ) -> Mapping[str, HeldCapability]:
        """Begin the view, and hold each output where it begins.

        Raises: AlreadyUsed for a name with another meaning; BeforeSince naming an input not held at
        `at`. UsageError for a program that reads other collections than the held ones, or has
        mistakes.
        """
        asked = request_digest("maintain", token)
        if not self._begun(view.name, asked):
            at = await self._common(view)
            document = json.dumps(self._document(view, sole_time(at), asked))
            text = ResourceDocument(document, f"MaintainView {view.name}")
            (resource,) = await read_bounded([text], self._limits)
            self._refuse_unheld(view, resource)
            await self._refuse_unwritable(view, Stored(resource, 0))
            await self._system.apply([text], by)
        await self._take_over(view)
        held = {}
        for predicate, named in self._catalog.planned(view.name).outputs.items():
            held[predicate] = await self._storage.acquire_right(
                named.name, Right.READ, view.owner, view.lease_ms,
                None if token is None else f"{token} {predicate}",
            )  # fmt: skip
        return held

    async def drop_view(self, capability: HeldCapability, by: Principal = PROCESS) -> None:
        """Delete the view, and drop the capability. Raises: UsageError while another resource reads
        an output.

        Outputs that it wrote by a capability end there, unless another writer has come meanwhile.
        """
        await self._storage.check_read(capability)
        name = self._catalog.name_of(capability.collection).rpartition("/")[0]
        stored = self._store.get("View", name)
        if stored is None or MAINTAINED not in stored.resource.annotations:
            raise UsageError(
                f"{capability.collection} is no output of a view that was begun by command: delete what "
                "makes it",
                reason="NotMaintained",
            )
        await self._system.delete("View", name, by)
        await self._storage.drop(capability)

    def _begun(self, name: str, asked: str) -> bool:
        """Whether this very request has begun the view. Raises: AlreadyUsed if another one has the
        name.
        """
        stored = self._store.get("View", name)
        if stored is None:
            return False
        if asked and stored.resource.annotations.get(MAINTAINED) == asked:
            return True
        raise AlreadyUsed(f"the name {name} is that of {stored.resource}: choose another")

    async def _common(self, view: MaintainedView) -> Frontier:
        """The frontier that all inputs are held at (MV2)."""
        if not view.inputs:
            raise UsageError(f"the view {view.name} has no inputs: present a capability for each")
        for held in view.inputs.values():
            await self._storage.check_read(held)
        for held in view.into.values():
            await self._storage.check_write(held)
        frontiers = [held.frontier for held in (*view.inputs.values(), *view.into.values())]
        at = view.at or reduce(lambda a, b: a.join(b, U64_TIME), frontiers)
        if at.empty:
            raise UsageError(
                f"the view {view.name} would begin at the end of time", reason="Closed"
            )
        for predicate, held in view.inputs.items():
            if not held.frontier.precedes(at):
                raise BeforeSince(
                    f"the input {predicate} is held from {held.frontier} on, not at {at}: begin there or later",
                    requested=at, since=held.frontier, input=predicate,
                )  # fmt: skip
        for predicate, held in view.into.items():
            if not held.frontier.precedes(at):
                raise UsageError(
                    f"the output {predicate} is written from {held.frontier} on, not at {at}: begin there or "
                    "later",
                    reason="Written",
                )
        return at

    def _document(self, view: MaintainedView, at: int, asked: str) -> dict[str, Any]:
        """The view as a document that could be applied."""
        inputs = {p: self._catalog.name_of(held.collection) for p, held in view.inputs.items()}
        spec: dict[str, Any] = {
            "program": view.program, "inputs": inputs, "hydrateFrom": at,
            "retain": "all" if view.retain_ms is None else f"{view.retain_ms}ms",
        }  # fmt: skip
        if view.outputs:
            spec["outputs"] = list(view.outputs)
        annotations = {MAINTAINED: asked}
        if view.into:
            into = {p: held.collection for p, held in sorted(view.into.items())}
            annotations[WRITTEN_INTO] = json.dumps(into)
        metadata = {"name": view.name, "annotations": annotations}
        return {"apiVersion": API_VERSION, "kind": "View", "metadata": metadata, "spec": spec}

    async def _refuse_unwritable(self, view: MaintainedView, stored: Stored) -> None:
        """Raises: UsageError for an output that cannot be written into what is given for it."""
        if not view.into:
            return
        if len({held.collection for held in view.into.values()}) < len(view.into):
            raise UsageError(
                f"two outputs of {view.name} would be one collection: give each its own",
                reason="Twice",
            )
        await self._catalog.foresee(stored)
        planned = self._catalog.plan_view(stored)
        for predicate, held in view.into.items():
            if predicate not in planned.outputs:
                raise UsageError(
                    f"{predicate} is no output of the view {view.name}: outputs are "
                    f"{', '.join(planned.outputs)}",
                    reason="UnknownOutput",
                )
            into = await self._status(held)
            if not into.description.created:
                raise UsageError(
                    f"{held.collection} is written by what makes it: present a capability on what Create made",
                    reason="NotCreated",
                )
            if into.description.timeline != planned.timeline:
                raise UsageError(
                    f"{predicate} is on the timeline {planned.timeline}, {held.collection} on "
                    f"{into.description.timeline}",
                    reason="Timeline",
                )
            schema = planned.outputs[predicate].shape.schema
            refuse_unlike(predicate, schema, held.collection, into.description.schema)
            if len(into.writing) > 1:
                raise UsageError(
                    f"{held.collection} has {len(into.writing)} writers: what a view writes nobody else does",
                    reason="HeldByWriters",
                )
        self._refuse_circle(planned, {held.collection for held in view.into.values()})

    async def _status(self, held: HeldCapability) -> CollectionStatus:
        return await self._collections.status(held.collection)

    def _refuse_circle(self, planned: PlannedView, into: set[str]) -> None:
        """Raises: UsageError if a view would wait for what it writes, also through other views that
        are written on.
        """
        makers = {
            collection: stored.resource.name
            for stored in self._store.live()
            for collection in written_into(stored.resource).values()
        }
        waiting, seen = self._catalog.roots_below(planned.inputs.values()), set[str]()
        while waiting:
            root = waiting.pop()
            if root in into:
                raise UsageError(
                    f"{root} is what {planned.stored.resource.name} reads: it would wait for itself",
                    reason="Circle",
                )
            if root in makers and root not in seen:
                waiting += self._catalog.roots_of(makers[root])
            seen.add(root)

    async def _take_over(self, view: MaintainedView) -> None:
        """Give the view alone the capabilities to write by; done before in a repeated request."""
        stored = self._store.get("View", view.name)
        assert stored is not None
        owner = writer_of(stored.prefix)
        for predicate, collection in written_into(stored.resource).items():
            held = view.into.get(predicate)
            if held is None or held.collection != collection:
                continue  # another request with this token
            if not any(owns(each, owner) for each in (await self._status(held)).writing):
                await self._storage.check_write(held)
            # NB: first held, then dropped: a collection without a writer would end.
            await self._collections.write_hold(held.collection, owner=owner)
            with suppress(UnknownCapability, CapabilityExpired):
                await self._storage.drop(held)

    def _refuse_unheld(self, view: MaintainedView, resource: Resource) -> None:
        """Raises: UsageError if the program reads by name what nobody has presented."""
        try:
            reads = self._catalog.reads_of(Stored(resource, 0))
        except UnknownCollection as error:
            raise UsageError(str(error), reason="UnknownInput") from None
        unheld = sorted(set(reads) - set(view.inputs))
        if unheld:
            raise UsageError(
                f"the program of {view.name} reads {', '.join(unheld)}: present a capability for each input",
                reason="NotHeld",
            )
