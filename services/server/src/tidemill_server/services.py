"""The services of a process with several roles, or with all of them."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.host.roles import ROLES, roles_of
from tidemill.host.service import Service
from tidemill_server.settings import ServerSettings

# Each import stands in a function: a process loads the services of its roles alone.


def _ingest(chosen: ServerSettings) -> Service:
    from tidemill_ingest.service import service

    return service(chosen.ingest)


def _remap(chosen: ServerSettings) -> Service:
    from tidemill_remap.service import service

    return service()


def _reclock(chosen: ServerSettings) -> Service:
    from tidemill_reclock.service import service

    return service(chosen.reclock)


def _compute(chosen: ServerSettings) -> Service:
    from tidemill_compute.service import service

    return service(chosen.compute)


def _compaction(chosen: ServerSettings) -> Service:
    from tidemill_compaction.service import service

    return service(chosen.compaction)


def _query(chosen: ServerSettings) -> Service:
    from tidemill_query.service import service

    return service(chosen.query)


_SERVICES: dict[str, Callable[[ServerSettings], Service]] = {
    "ingest": _ingest, "remap": _remap, "reclock": _reclock, "compute": _compute,
    "compaction": _compaction, "query": _query,
}  # fmt: skip


def services_of(chosen: ServerSettings) -> list[Service]:
    """The services of the chosen roles; without any, all of them. Raises: UsageError."""
    return [_SERVICES[role](chosen) for role in roles_of(chosen.role or ROLES)]
