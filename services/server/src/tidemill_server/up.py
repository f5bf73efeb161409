"""`tidemill up`: the whole system in one process, or some of its roles."""

from __future__ import annotations

from tidemill.host.command import command
from tidemill_server.services import services_of
from tidemill_server.settings import ServerSettings

up = command(
    ServerSettings,
    services_of,
    """Run everything in this process, with its state in one folder; or some roles, on shared stores.

    Then, in another shell: tidemill apply -f examples/… · tidemill get · tidemill query 'late(f, d)'
    """,
)
