"""The work on resources, part by part, made by the services that this process has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tidemill.catalog.store import Stored
from tidemill.catalog.versions import served
from tidemill.host.context import Context
from tidemill.host.service import Confirm, Parts
from tidemill.host.supervised import Runner
from tidemill.host.unmade import Unmade
from tidemill.runtime.breaking import told
from tidemill.runtime.logs import get_logger

log = get_logger("resources")


class Works:
    """Makes the parts of resources, each by the service of its role."""

    def __init__(self, context: Context, parts: Mapping[str, Parts]) -> None:
        self._context = context
        self._parts = parts

    def part(self, stored: Stored, role: str, share: int | None, confirm: Confirm) -> Runner:
        """The work of a role on a resource; work that cannot be made says why when prepared."""
        make = partial(self._part, stored, role, share, confirm)
        try:
            return make()
        except Exception as error:  # what nobody foresaw while it is made is told as if it ran
            log.error("not made", resource=str(stored.resource), error=told(error))
            return Unmade(stored, partial(self._make_anew, stored, make), self._context)

    def _make_anew(self, stored: Stored, make: Callable[[], Runner]) -> Runner:
        """Raises: why the resource cannot be planned, or its work not be made."""
        self._context.catalog.plan(served(stored))
        # NB: its last try may have met inputs whose change was refused after all.
        self._context.making.forget(stored)
        return make()

    def _part(self, stored: Stored, role: str, share: int | None, confirm: Confirm) -> Runner:
        return self._parts[role].make(self._context.making.known(stored), share, confirm)
