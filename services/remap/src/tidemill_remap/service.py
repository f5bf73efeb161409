"""The role remap in a process."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.catalog.made.making import Made
from tidemill.catalog.made.sources import SourceCollections
from tidemill.host.context import Context
from tidemill.host.pace import Paces
from tidemill.host.roles import item_of, shares_of
from tidemill.host.service import Confirm, RunningParts, Service
from tidemill.host.settings import ProcessSettings
from tidemill.runtime.metrics import (
    MINT_RETRIES,
    REMAP_BINDINGS,
    SOURCE_OFFSET_BOUND,
    SOURCE_OFFSET_KNOWN,
    Reading,
)
from tidemill_remap.part import BindContext, BindPart

ROLE = "remap"


class RemapProcess(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a process with this role alone."""

    role: tuple[str, ...] = (ROLE,)


class BindParts:
    """Binds sources; those that rest follow the paces of this process."""

    def __init__(self, context: Context) -> None:
        self._host = context
        name = context.settings.name_of_process
        self._paces = Paces(name, context.collections, context.clock)
        self._context = BindContext(context.collections, context.clock, self._paces)

    def make(self, made: Made, share: int | None, confirm: Confirm) -> BindPart:
        """The binding of a source."""
        assert isinstance(made, SourceCollections)
        feed = self._host.feeds.of(item_of(made.stored), shares_of(made.stored.resource))
        return BindPart(made, ROLE, feed.probe, self._context)

    def watch(self, running: RunningParts) -> None:
        """Register offsets that are known and bound, and bindings."""
        metrics = self._host.metrics
        metrics.watch(SOURCE_OFFSET_KNOWN, lambda: list(_offsets(running, "known")))
        metrics.watch(SOURCE_OFFSET_BOUND, lambda: list(_offsets(running, "bound")))
        metrics.watch(REMAP_BINDINGS, lambda: list(_mints(running, "minted")))
        metrics.watch(MINT_RETRIES, lambda: list(_mints(running, "lost")))

    async def close(self) -> None:
        """Give up the paces."""
        await self._paces.close()


def _mints(running: RunningParts, which: str) -> Iterator[Reading]:
    for name, part in running.of(BindPart):
        counts = part.driver.counts
        yield {"source": name}, counts.minted if which == "minted" else counts.lost


def _offsets(running: RunningParts, which: str) -> Iterator[Reading]:
    for name, part in running.of(BindPart):
        counts = part.driver.counts
        for partition, offset in (counts.known if which == "known" else counts.bound).items():
            yield {"source": name, "partition": str(partition)}, offset


def service() -> Service:
    """The role as a process takes it on."""
    return Service(ROLE, BindParts)
