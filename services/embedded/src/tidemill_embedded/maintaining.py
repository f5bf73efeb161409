"""Views by command: a program over what the caller holds, maintained as one that was applied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

from tidemill.rpc.identity import PROCESS, Principal
from tidemill.rpc.messages import HeldCapability, MaintainedView, ResourceDocument, Right
from tidemill.runtime.resources import Resource
from tidemill.runtime.resources.resource import API_VERSION
from tidemill.shard.capability_commands import request_digest
from tidemill.time import (
    U64_TIME,
    AlreadyUsed,
    BeforeSince,
    Frontier,
    UnknownCollection,
    UsageError,
    sole_time,
)
from tidemill_embedded.applying.planning import read_bounded
from tidemill_embedded.resources.resource_store import ResourceStore, Stored
from tidemill_embedded.resources.shapes import Shapes
from tidemill_embedded.settings import DocumentLimits
from tidemill_embedded.system import System
from tidemill_query.storage import StorageDriver

MAINTAINED = "tidemill.dev/maintained-for"
"""The annotation of a view that was begun by command: the digest of the request's token."""


class Maintaining:
    """Guarantees of ComputeHandlers: a view by command is a resource, durable and run as any other (D2).

    Its inputs are those for which a capability is presented as it is held, and no others; the view takes
    holds of its own on them, so that the caller may let go. Its outputs all begin at the common frontier
    of the inputs, or none is made (MV1, MV2).
    """

    def __init__(
        self,
        system: System,
        storage: StorageDriver,
        store: ResourceStore,
        shapes: Shapes,
        limits: DocumentLimits,
    ) -> None:
        self._system = system
        self._storage = storage
        self._store = store
        self._shapes = shapes
        self._limits = limits

    async def maintain_view(
        self, view: MaintainedView, token: str | None = None, by: Principal = PROCESS
    ) -> Mapping[str, HeldCapability]:
        """Begin the view, and hold each output where it begins.

        Raises: AlreadyUsed for a name that means something else; BeforeSince naming the input that is not
        held at `at`; UsageError for a program that reads what is not held, or has mistakes.
        """
        asked = request_digest("maintain", token)
        if not self._begun(view.name, asked):
            at = await self._common(view)
            document = json.dumps(self._document(view, sole_time(at), asked))
            text = ResourceDocument(document, f"MaintainView {view.name}")
            (resource,) = await read_bounded([text], self._limits)
            self._refuse_unheld(view, resource)
            await self._system.apply([text], by)
        held = {}
        for predicate, named in self._shapes.planned(view.name).outputs.items():
            held[predicate] = await self._storage.acquire_right(
                named.name, Right.READ, view.owner, view.lease_ms,
                None if token is None else f"{token} {predicate}",
            )  # fmt: skip
        return held

    async def drop_view(self, capability: HeldCapability, by: Principal = PROCESS) -> None:
        """Delete the view, and drop the capability. Raises: UsageError while something else reads an output."""
        await self._storage.check_read(capability)
        name = self._shapes.name_of(capability.collection).rpartition("/")[0]
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
        """Whether this very request has begun the view. Raises: AlreadyUsed if another one has the name."""
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
        frontiers = [held.frontier for held in view.inputs.values()]
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
        return at

    def _document(self, view: MaintainedView, at: int, asked: str) -> dict[str, Any]:
        """The view as a document that could be applied."""
        inputs = {p: self._shapes.name_of(held.collection) for p, held in view.inputs.items()}
        spec: dict[str, Any] = {
            "program": view.program, "inputs": inputs, "hydrateFrom": at,
            "retain": "all" if view.retain_ms is None else f"{view.retain_ms}ms",
        }  # fmt: skip
        if view.outputs:
            spec["outputs"] = list(view.outputs)
        metadata = {"name": view.name, "annotations": {MAINTAINED: asked}}
        return {"apiVersion": API_VERSION, "kind": "View", "metadata": metadata, "spec": spec}

    def _refuse_unheld(self, view: MaintainedView, resource: Resource) -> None:
        """Raises: UsageError if the program reads by name what nobody has presented."""
        try:
            reads = self._shapes.reads_of(Stored(resource, 0))
        except UnknownCollection as error:
            raise UsageError(str(error), reason="UnknownInput") from None
        unheld = sorted(set(reads) - set(view.inputs))
        if unheld:
            raise UsageError(
                f"the program of {view.name} reads {', '.join(unheld)}: present a capability for each input",
                reason="NotHeld",
            )
