"""Resources of Tidemill, and changes of them: the other side of the operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from tidemill.errors import UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import (
    Applied,
    CollectionInfo,
    Decision,
    ResourceDocument,
    ResourceStatus,
)
from tidemill.runtime.resources import Resource, load_resources
from tidemill_operator.objects import Declared, Key, KnownResource
from tidemill_operator.settings import OperatorSettings


class Tidemill(Protocol):
    """The calls that the operator makes; tidemill.rpc.client.AsyncClient has them."""

    async def get(
        self, kind: str | None = None, name: str | None = None
    ) -> Sequence[ResourceStatus]:
        """Resources by kind and name, with their statuses."""

    async def collections(self) -> Sequence[CollectionInfo]:
        """All collections and their frontiers."""

    async def apply(self, documents: Sequence[ResourceDocument]) -> Sequence[Applied]:
        """Apply documents of resources."""

    async def delete(self, kind: str, name: str) -> None:
        """Delete one resource."""

    async def decide(self, view: str, decision: Decision, version: int | None = None) -> int:
        """Approve or abort the version of a view that waits."""


class Users:
    """The users by whom the operator acts, with a client for each: one user for each namespace."""

    def __init__(self, chosen: OperatorSettings) -> None:
        """Raises: UsageError for files of the own namespace that cannot be used."""
        self._chosen = chosen
        self._clients: dict[str, AsyncClient] = {}
        self.acting_for(chosen.home)

    def acting_for(self, namespace: str) -> AsyncClient | None:
        """The user of a namespace; None if it has none.

        Raises: UsageError for files that cannot be used.
        """
        token = self._chosen.token_of(namespace)
        if token is not None and token not in self._clients:
            dialer = self._chosen.dialer(token)
            self._clients[token] = AsyncClient(self._chosen.tidemill, dialer=dialer)
        return None if token is None else self._clients[token]

    async def close(self) -> None:
        """Close all of them."""
        for client in self._clients.values():
            await client.close()


async def everything(tidemill: Tidemill) -> dict[Key, KnownResource]:
    """All resources and how they do. Raises: what the client raises."""
    collections = await tidemill.collections()
    return {
        (status.kind, status.name): _known(status, _of(status.name, collections))
        for status in await tidemill.get()
    }


def document_of(each: Declared) -> ResourceDocument:
    """The object as an apply takes it."""
    return ResourceDocument(json.dumps(each.document()), f"{each.namespace}/{each.name}")


def _of(name: str, collections: Sequence[CollectionInfo]) -> list[CollectionInfo]:
    """The collections of a resource: a name that was used before has a number behind it."""
    return [each for each in collections if each.id.partition("/")[0].partition("~")[0] == name]


def _known(status: ResourceStatus, collections: Sequence[CollectionInfo]) -> KnownResource:
    holders = [
        holder
        for each in collections
        for holder in each.holders
        if not holder.frontier.empty and each.since == holder.frontier
    ]
    owners = sorted({holder.owner or "session" for holder in holders})
    return KnownResource(
        resource=_resource(status.document_yaml),
        ready=status.ready,
        reason=status.reason,
        message=status.message,
        since=status.since,
        upper=status.upper,
        lag_ms=status.lag_ms,
        holders=sum(len(each.holders) for each in collections) if collections else None,
        oldest_holder=owners[0] if owners else "",
        batches=sum(each.batches for each in collections) if collections else None,
        bytes=sum(each.bytes for each in collections) if collections else None,
        records_per_s=status.records_per_s,
        records_behind=status.records_behind,
        engine=str(status.details.get("engine", "")),
        engine_cause=str(status.details.get("engineCause", "")),
        engine_reason=str(status.details.get("engineReason", "")),
        left_ms=status.left_ms,
        waiting=_waiting(status),
    )


def _waiting(status: ResourceStatus) -> int | None:
    changing = status.details.get("changing")
    waits = isinstance(changing, dict) and changing.get("waits")
    return int(str(changing["to"])) if isinstance(changing, dict) and waits else None


def _resource(text: str) -> Resource | None:
    try:
        (resource,) = load_resources(text, "catalog")
    except (UsageError, ValueError):
        return None
    return resource
