"""The role ingest in a process."""

from __future__ import annotations

from functools import partial

from tidemill.catalog.made.making import Made
from tidemill.catalog.made.sources import SourceCollections
from tidemill.host.context import Context
from tidemill.host.roles import item_of, share_of, shares_of
from tidemill.host.service import Confirm, RunningParts, Service
from tidemill.host.settings import ProcessSettings
from tidemill_ingest.driver import WHOLE, Share
from tidemill_ingest.part import ReadContext, ReadPart
from tidemill_ingest.settings import IngestSettings

ROLE = "ingest"


class IngestProcess(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a process with this role alone."""

    role: tuple[str, ...] = (ROLE,)

    ingest: IngestSettings = IngestSettings()


class ReadParts:
    """Reads sources."""

    def __init__(self, settings: IngestSettings, context: Context) -> None:
        self._context = ReadContext(
            context.collections, context.log, context.open_kafka, context.clock, context.metrics,
            context.places, context.readers, settings, context.settings.limits.parquet_cells_max,
        )  # fmt: skip

    def make(self, made: Made, share: int | None, confirm: Confirm) -> ReadPart:
        """The reader of a source, or of one share of its partitions."""
        assert isinstance(made, SourceCollections)
        item = item_of(made.stored)
        if share is None:
            return ReadPart(made, ROLE, item, WHOLE, self._context)
        part = Share(share, shares_of(made.stored.resource))
        return ReadPart(made, share_of(ROLE, share), share_of(item, share), part, self._context)

    def watch(self, running: RunningParts) -> None:
        """Readers count as they read."""

    async def close(self) -> None:
        """Readers share nothing."""


def service(settings: IngestSettings) -> Service:
    """The role as a process takes it on."""
    return Service(ROLE, partial(ReadParts, settings))
