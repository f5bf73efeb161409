"""The work on an arrangement: a collection once more, found by other columns."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.catalog.made.arrangements import ArrangementCollection
from tidemill_compute.arrangements import ArrangementDriver
from tidemill_compute.arranging import SparkArrange
from tidemill_compute.views.context import ComputeContext


class ArrangementPart:
    """Follows the collection."""

    def __init__(self, made: ArrangementCollection, context: ComputeContext) -> None:
        host = context.host
        self.name = made.name
        self._made = made
        self.driver = ArrangementDriver(
            made.arranged, made.collection, host.collections,
            SparkArrange(host.launcher, host.collections), host.clock, context.settings,
        )  # fmt: skip

    def details(self) -> dict[str, object]:
        """Counts of the updates that this process has written, and that its jobs have."""
        return {"written": self.driver.written, "builtByJobs": self.driver.built}

    async def prepare(self) -> None:
        """Make the collection."""
        await self._made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """Follow the collection until cancelled."""
        ready()
        await self.driver.advance_forever()

    async def release(self) -> None:
        """Close it, give up the hold on the collection."""
        await self._made.release()
