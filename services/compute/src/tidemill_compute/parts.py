"""The work on collections that no program derives: tables, arrangements and holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.catalog.entry import SYSTEM
from tidemill.catalog.made.arrangements import ArrangementCollection
from tidemill.catalog.made.making import Made
from tidemill.catalog.made.tables import TableCollection
from tidemill_compute.arrangements import ArrangementDriver
from tidemill_compute.arranging import SparkArrange
from tidemill_compute.table_rest import TableRest
from tidemill_compute.views.context import ComputeContext


class _MadePart:
    """The part of a resource whose collections are made before its work begins."""

    def __init__(self, made: Made) -> None:
        self.name = made.name
        self._made = made

    def details(self) -> dict[str, object]:
        """Nothing beyond the status."""
        return {}

    async def prepare(self) -> None:
        """Make the collections, or take the hold."""
        await self._made.prepare()

    async def release(self) -> None:
        """Close the collections, give holds up."""
        await self._made.release()


class TablePart(_MadePart):
    """Keeps a table readable while users write it: its upper follows the clock, or its timeline.

    One that follows the clock rests while nobody writes.
    """

    def __init__(self, made: TableCollection, context: ComputeContext) -> None:
        super().__init__(made)
        self._writer = made.writer
        self._interval_ms = context.settings.table_interval_ms
        self._rest: TableRest | None = None
        if made.spec.timeline == SYSTEM:
            pace = context.paces.of(self._interval_ms)
            self._rest = TableRest(made.writer, context.host.collections, pace)

    async def run(self, ready: Callable[[], None]) -> None:
        """Keep it readable until cancelled."""
        ready()
        interval_s = self._interval_ms / 1000
        if self._rest is None:
            await self._writer.advance_forever(interval_s)
        else:
            await self._writer.advance_forever(interval_s, self._rest.rest_if_idle)


class ArrangementPart(_MadePart):
    """Follows a collection that is kept once more, found by other columns."""

    def __init__(self, made: ArrangementCollection, context: ComputeContext) -> None:
        super().__init__(made)
        host = context.host
        self.driver = ArrangementDriver(
            made.arranged, made.collection, host.collections,
            SparkArrange(host.launcher, host.collections), host.clock, context.settings,
        )  # fmt: skip

    def details(self) -> dict[str, object]:
        """Counts of the updates that this process has written, and that its jobs have."""
        return {"written": self.driver.written, "builtByJobs": self.driver.built}

    async def run(self, ready: Callable[[], None]) -> None:
        """Follow the collection until cancelled."""
        ready()
        await self.driver.advance_forever()


class HoldPart(_MadePart):
    """Keeps the history of one collection: nothing happens while the hold lasts."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Wait until cancelled."""
        ready()
        await asyncio.get_running_loop().create_future()
