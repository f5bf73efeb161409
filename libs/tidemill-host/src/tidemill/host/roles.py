"""The roles of a process: which parts of the work on resources it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.runtime.problems import did_you_mean
from tidemill.runtime.resources import Resource, SourceSpec, ViewSpec

ROLES: Mapping[str, str] = MappingProxyType(
    {
        "ingest": "reads sources",
        "remap": "binds what they have come to",
        "reclock": "writes their rows",
        "compute": "keeps event streams, tables, views and actions going",
        "compaction": "keeps collections small",
        "query": "answers users, and applies what they declare",
    }
)

CLAIMED = ("ingest", "remap", "reclock", "compute")
"""Roles whose work is the resources, each claimed by one process at a time."""


LAUNCHING = ("reclock", "compute", "compaction")
"""Roles that launch bulk jobs."""


def roles_of(names: Iterable[str]) -> tuple[str, ...]:
    """The roles that a list names, in their order. Raises: UsageError for one that there is not."""
    wanted = {each.strip() for name in names for each in name.split(",") if each.strip()}
    for name in sorted(wanted - set(ROLES)):
        raise UsageError(f"there is no role {name}: {did_you_mean(name, ROLES)}", reason="role")
    return tuple(role for role in ROLES if role in wanted)


def roles_for(resource: Resource) -> tuple[str, ...]:
    """The roles that have a part in the work on a resource."""
    spec = resource.spec
    if isinstance(spec, SourceSpec):
        staged = spec.event_time is not None or spec.timeline not in (None, "system")
        return ("ingest", "remap", "reclock", *(("compute",) if staged else ()))
    return ("compute",)


def shares_of(resource: Resource, role: str = "ingest") -> int:
    """Among how many processes the work of a role on a resource is shared.

    Processes of ingest share the partitions of a source, those of compute the ranges of a view.
    """
    spec = resource.spec
    if isinstance(spec, ViewSpec):
        return spec.ranges
    kafka = spec.kafka if isinstance(spec, SourceSpec) and role == "ingest" else None
    return 1 if kafka is None else kafka.readers


def parts_for(resource: Resource) -> tuple[str, ...]:
    """The parts of the work on a resource, each done by one process: roles, or shares of one."""
    roles = roles_for(resource)
    return tuple(part for role in roles for part in items_of(resource, role, role))


def items_of(resource: Resource, role: str, name: str) -> list[str]:
    """The names of the work of a role on a resource, share by share; `name` is that of all."""
    shares = shares_of(resource, role)
    return [name] if shares == 1 else [share_of(name, number) for number in range(shares)]


def share_of(name: str, number: int) -> str:
    """The name of a share of some work."""
    return f"{name}#{number}"


def without_share(item: str) -> tuple[str, int | None]:
    """The item of which one is a share, and which share; None if it is the whole."""
    whole, mark, number = item.rpartition("#")
    return (whole, int(number)) if mark else (item, None)


def item_of(stored: Stored) -> str:
    """The name of a resource's work among processes: no other resource ever has it."""
    return f"{stored.resource.kind}/{stored.prefix}"
