"""The work on a table: its upper follows the clock, or its timeline."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.catalog.made.tables import TableCollection
from tidemill_compute.views.context import ComputeContext


class TablePart:
    """Keeps a table readable while users write it."""

    def __init__(self, made: TableCollection, context: ComputeContext) -> None:
        self.name = made.name
        self._made = made
        self._interval_s = context.settings.table_interval_ms / 1000

    def details(self) -> dict[str, object]:
        """Nothing beyond the status."""
        return {}

    async def prepare(self) -> None:
        """Make the collection."""
        await self._made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """Keep it readable until cancelled."""
        ready()
        await self._made.writer.advance_forever(self._interval_s)

    async def release(self) -> None:
        """Close it."""
        await self._made.release()
