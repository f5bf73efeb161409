"""A catalog in memory, for tests of whoever declares resources: order, refusals, users of users."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.errors import UnknownCollection, UsageError
from tidemill.rpc.messages import (
    Applied,
    CollectionInfo,
    Decision,
    HolderInfo,
    Json,
    Outcome,
    ResourceDocument,
    ResourceStatus,
)
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    Resource,
    ViewSpec,
    load_resources,
)
from tidemill.time import frontier


@dataclass(slots=True)
class MemoryCatalog:
    """Guarantees of the catalog's commands, without any data behind them.

    `upper` is everybody's.
    """

    resources: dict[tuple[str, str], Resource] = field(default_factory=dict)
    upper: int = 1_000
    ready: bool = True
    log: list[str] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    """Of views the number of a version that waits."""

    def _reads(self, resource: Resource) -> list[str]:
        spec = resource.spec
        if isinstance(spec, ViewSpec):
            return [each.partition("/")[0] for each in spec.inputs.values()]
        if isinstance(spec, ActionSpec):
            return [spec.view]
        if isinstance(spec, ArrangementSpec | HoldSpec):
            return [spec.collection.partition("/")[0]]
        return []

    async def apply(self, documents: Sequence[ResourceDocument]) -> Sequence[Applied]:
        """Apply documents; refused for a missing input, or a change of a fixed field."""
        return [
            self._applied(resource)
            for document in documents
            for resource in load_resources(document.text, document.file)
        ]

    def _applied(self, resource: Resource) -> Applied:
        key = resource.kind, resource.name
        readable = {name for kind, name in self.resources if kind in ("Source", "Table", "View")}
        missing = [name for name in self._reads(resource) if name not in readable]
        if missing:
            raise UnknownCollection(f"there is no {missing[0]}", name=missing[0])
        before = self.resources.get(key)
        if before is not None and before.spec != resource.spec:
            raise UsageError(f"{resource}: spec cannot change", reason="Immutable")
        self.resources[key] = resource
        self.log.append(f"apply {resource}")
        outcome = Outcome.CREATED if before is None else Outcome.CONFIGURED
        return Applied(resource.kind, resource.name, outcome)

    async def delete(self, kind: str, name: str) -> None:
        """Delete a resource; refused while another resource reads it."""
        if (kind, name) not in self.resources:
            raise UnknownCollection(f"there is no {kind} {name}", kind=kind, name=name)
        users = [
            str(each)
            for each in self.resources.values()
            if kind in ("Source", "Table", "View") and name in self._reads(each)
        ]
        if users:
            raise UsageError(
                f"{kind}/{name} is used by {', '.join(users)}: delete them first", reason="InUse"
            )
        del self.resources[kind, name]
        self.log.append(f"delete {kind}/{name}")

    async def decide(self, view: str, decision: Decision, version: int | None = None) -> int:
        """Approve or abort the version that waits."""
        if version not in (None, self.waiting.get(view)) or view not in self.waiting:
            raise UsageError(f"{view} has no version that waits", reason="NothingWaits")
        self.log.append(f"{decision.value} View/{view}")
        return self.waiting.pop(view)

    async def get(
        self, kind: str | None = None, name: str | None = None
    ) -> Sequence[ResourceStatus]:
        """Every resource and how it does."""
        return [
            ResourceStatus(
                each.kind, each.name, self.ready, "Running" if self.ready else "Retrying", "",
                frontier(0), frontier(self.upper), 250, 0, json.dumps(each.to_document()),
                self._changing(each),
            )
            for each in self.resources.values()
        ]  # fmt: skip

    def _changing(self, resource: Resource) -> dict[str, Json]:
        number = self.waiting.get(resource.name) if resource.kind == "View" else None
        return {} if number is None else {"changing": {"to": number, "waits": True}}

    async def collections(self) -> Sequence[CollectionInfo]:
        """One collection for each resource."""
        holders = (HolderInfo("view:late", frontier(0)), HolderInfo("session", frontier(9)))
        return [
            CollectionInfo(
                name,
                kind.lower(),
                "system",
                frontier(0),
                frontier(self.upper),
                250,
                holders,
                7,
                3,
                999,
            )
            for kind, name in self.resources
        ]
