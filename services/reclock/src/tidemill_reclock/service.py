"""The role reclock in a process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tidemill.catalog.made.making import Made
from tidemill.catalog.made.sources import SourceCollections
from tidemill.host.context import Context
from tidemill.host.roles import item_of, shares_of
from tidemill.host.service import Confirm, RunningParts, Service
from tidemill.host.settings import ProcessSettings
from tidemill.runtime.metrics import SOURCE_OFFSET_COMMITTED, SOURCE_UNBOUND_UPDATES, Reading
from tidemill_reclock.part import WriteContext, WritePart
from tidemill_reclock.settings import ReclockSettings

ROLE = "reclock"


class ReclockProcess(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a process with this role alone."""

    role: tuple[str, ...] = (ROLE,)

    reclock: ReclockSettings = ReclockSettings()


class WriteParts:
    """Writes sources."""

    def __init__(self, settings: ReclockSettings, context: Context) -> None:
        chosen = context.settings
        self._host = context
        self._context = WriteContext(
            context.collections, context.clock, context.metrics, context.places, context.launcher,
            settings, context.root / "log", chosen.log.partition(":")[2], chosen.log_kafka,
        )  # fmt: skip

    def make(self, made: Made, share: int | None, confirm: Confirm) -> WritePart:
        """The writer of a source."""
        assert isinstance(made, SourceCollections)
        feed = self._host.feeds.of(item_of(made.stored), shares_of(made.stored.resource))
        return WritePart(made, ROLE, feed, self._context)

    def watch(self, running: RunningParts) -> None:
        """Register offsets that are written, and rows that wait."""
        metrics = self._host.metrics
        metrics.watch(SOURCE_OFFSET_COMMITTED, lambda: list(_committed(running)))
        metrics.watch(SOURCE_UNBOUND_UPDATES, lambda: list(_unbound(running)))

    async def close(self) -> None:
        """Writers share nothing."""


def _committed(running: RunningParts) -> Iterator[Reading]:
    for name, part in running.of(WritePart):
        for partition, offset in part.committed().items():
            yield {"source": name, "partition": str(partition)}, offset


def _unbound(running: RunningParts) -> Iterator[Reading]:
    for name, part in running.of(WritePart):
        if part.writing:
            yield {"source": name}, part.unbound()


def service(settings: ReclockSettings) -> Service:
    """The role as a process takes it on."""
    return Service(ROLE, partial(WriteParts, settings))
