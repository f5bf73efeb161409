"""The work on a hold: nothing happens while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.catalog.made.holds import HeldCollection


class HoldPart:
    """Keeps the history of one collection."""

    def __init__(self, made: HeldCollection) -> None:
        self.name = made.name
        self._made = made

    def details(self) -> dict[str, object]:
        """Nothing beyond the status."""
        return {}

    async def prepare(self) -> None:
        """Take the hold, or move it forward."""
        await self._made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """Wait until cancelled."""
        ready()
        await asyncio.get_running_loop().create_future()

    async def release(self) -> None:
        """Give the hold up."""
        await self._made.release()
