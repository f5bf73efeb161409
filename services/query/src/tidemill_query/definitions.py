"""Definitions of resources as of an instant of the past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.catalog.apply.turns import in_turns
from tidemill.catalog.entry import READS, read_name
from tidemill.catalog.names import meant, resource_of
from tidemill.catalog.resource_yaml import yaml_of
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.catalog.versions import served
from tidemill.errors import UnknownCollection
from tidemill.rpc.identity import listed
from tidemill.rpc.messages import Json, ResourceStatus
from tidemill.rpc.paging import Page, cut
from tidemill.runtime.resources import ActionSpec, ArrangementSpec, HoldSpec, ViewSpec
from tidemill_query.listing import TURN

REASON = "AsOf"
"""The reason of a status that tells a definition, and nothing of how the resource did."""

WRITTEN_A_TURN = 10
"""Documents that are written as YAML before other tasks have a turn."""


async def definitions(
    store: ResourceStore,
    kind: str | None,
    name: str | None,
    at: int,
    *,
    documents: bool,
    page: Page | None = None,
) -> list[ResourceStatus]:
    """The resources that were there at an instant, by kind and name, with their documents.

    Raises: NotYet, BeforeSince. Cost: a read of the catalog.
    """
    found = [
        stored
        for stored in await store.as_of(at)
        if kind in (None, stored.resource.kind) and name in (None, stored.resource.name)
    ]
    found = cut(found, page, lambda stored: str(stored.resource))
    turn = WRITTEN_A_TURN if documents else TURN
    return [_status(stored, at, documents) async for stored in in_turns(found, turn)]


async def definition(store: ResourceStore, kind: str, name: str, at: int) -> ResourceStatus:
    """One resource as it was defined at an instant.

    Raises: UnknownCollection if it was not there. It says whether it is there now, else which name
    of then is almost the same.
    """
    then = [each for each in await store.as_of(at) if each.resource.kind == kind]
    for stored in then:
        if stored.resource.name == name:
            return _status(stored, at, documents=True)
    known = store.get(kind, name)
    hint = meant(name, [each.resource.name for each in then])
    if known is not None:
        hint = f"; the one of now is there since {known.created_ms}"
    raise UnknownCollection(
        f"there was no {kind} {name} as of {at}{hint}", kind=kind, name=name, as_of=at
    )


def _status(stored: Stored, at: int, documents: bool) -> ResourceStatus:
    resource, read = stored.resource, served(stored)
    details: dict[str, Json] = {"asOf": at}
    if isinstance(resource.spec, ViewSpec):
        details["version"] = int(read.resolved.get("version", 1))
    if names := _reads(read):
        details["reads"] = [each if listed([resource_of(each)]) else "…" for each in names]
    if documents and read is not stored:
        details["served"] = yaml_of(read.resource.to_document())
    return ResourceStatus(
        kind=resource.kind,
        name=resource.name,
        ready=True,
        reason=REASON,
        message=f"defined so as of {at}; frontiers, health and rates are known of now alone",
        age_ms=max(0, at - stored.created_ms),
        document_yaml=yaml_of(resource.to_document()) if documents else "",
        details=details,
    )


def _reads(stored: Stored) -> Sequence[str]:
    """The names of the collections that a resource read, as they were decided at its apply."""
    spec: Any = stored.resource.spec
    if isinstance(spec, ActionSpec):
        return [spec.view]
    if isinstance(spec, HoldSpec | ArrangementSpec):
        return [read_name(stored, spec.collection)]
    if isinstance(spec, ViewSpec):
        return sorted({str(each) for each in stored.resolved.get(READS, spec.inputs).values()})
    return []
