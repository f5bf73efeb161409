"""A changed program takes the place of the one before: at one instant, in the same collections.

The new version is evaluated beside the old one, from the beginning of its inputs' history, into
collections that nobody reads. When it has come as far as the old one, that one stops at one upper
of all its outputs: the *common frontier*. From there on the new version's updates follow in the old
collections; differences at the frontier are updates at that instant. So readers see the old answers
below the frontier and the new ones from it on, in every output at once. Frontiers only grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, concatenate, consolidate, stamp
from tidemill.errors import UsageError
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import Frontier, frontier, sole_time
from tidemill_compute.appending import FENCE, append_through, fence
from tidemill_compute.holds import Holds
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

LOOK_S = 0.02
"""Seconds between looks at whether the new version has come far enough."""

Make = Callable[[str, Frontier], Awaitable[None]]
"""Creates a collection of the view that begins at a frontier, unless it is there."""

Record = Callable[[int], Awaitable[None]]
"""Writes the common frontier down, for good. Raises: Fenced if another change is wanted by now."""


@dataclass(frozen=True, slots=True)
class Change:
    """The version that is read, the new one in its place, and the new one beside it.

    `before` and `after` write the same outputs, `after` perhaps more; `after` and `beside` have one
    state. `at` is the common frontier, once that is decided.
    """

    before: ViewTarget
    after: ViewTarget
    beside: ViewTarget
    at: int | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Each collection that is read, with the one beside it."""
        pairs = [(read, self.beside.outputs[p][0]) for p, (read, _) in self.after.outputs.items()]
        return [*pairs, (self.after.errors, self.beside.errors)]


class Takeover:
    """Brings a change about, once, whatever dies in between."""

    def __init__(
        self,
        change: Change,
        collections: Collections,
        clock: Clock,
        settings: ComputeSettings,
        make: Make,
        record: Record,
        shared: SharedInputs | None = None,
    ) -> None:
        self._change = change
        self._collections = collections
        self._clock = clock
        self._make = make
        self._record = record
        self._holds = Holds(collections, takeover_owner(change.after))
        self.before = ViewDriver(change.before, collections, clock, settings, shared)
        self.beside = ViewDriver(change.beside, collections, clock, settings, shared)

    async def prepare(self) -> None:
        """Hold what the new version reads, create what it writes beside, hold what is compared."""
        begin = await self.beside.hold_inputs()
        if begin.empty:
            raise UsageError(f"{self._change.after.name}: an input is closed", reason="Closed")
        for _, beside in self._change.pairs():
            await self._make(beside, begin)
            await self._holds.take(beside)
        await self._make(self._change.beside.state, begin)
        for read in self._read_before():
            await self._holds.take(read)
        await self.beside.prepare()

    async def run(self) -> None:
        """Return when the new version has taken over; another driver on `after` goes on from
        there.
        """
        await self.prepare()
        at = self._change.at
        beside = asyncio.create_task(self.beside.maintain_forever())
        try:
            if at is None:
                at = await self._decide(beside)
            while self.beside.progress.lower <= at:
                await self._look(beside)
            await self._come_to_rest(self.beside, beside)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        for read, new in self._change.pairs():
            await self._hand_over(read, new, at)

    def _read_before(self) -> list[str]:
        """The collections that the old version writes and that are read."""
        outputs = [collection for collection, _ in self._change.before.outputs.values()]
        return [*outputs, self._change.before.errors]

    async def _decide(self, beside: asyncio.Task[None]) -> int:
        """Run the old version until the new one has caught up with it; where it has stopped for
        good.
        """
        fenced = (await self._collections.status(self._change.before.state)).upper
        if fenced == frontier(FENCE):
            # A life before this one stopped it, and died before it had written down where.
            uppers = [(await self._collections.status(c)).upper for c in self._read_before()]
            at = min(map(sole_time, uppers))
        else:
            at = await self._stop_before(beside)
        await self._record(at)
        return at

    async def _stop_before(self, beside: asyncio.Task[None]) -> int:
        """Run the old version until the new one can follow it, then stop it for good; the instant
        of the stop.
        """
        least = max([sole_time(await self._holds.take(read)) for read in self._read_before()])
        least = max(least, sole_time(await self.beside.hold_inputs()) - 1)
        while True:
            before = asyncio.create_task(self.before.maintain_forever())
            try:
                while self.before.progress.lower <= least or (
                    self.beside.progress.lower < self.before.progress.lower
                ):
                    await self._look(before, beside)
                await self._come_to_rest(self.before, before)
            finally:
                before.cancel()
                await asyncio.gather(before, return_exceptions=True)
            at = self.before.progress.lower
            if at >= FENCE:
                raise UsageError(
                    f"{self._change.after.name}: all its inputs are closed, and it has said everything",
                    reason="Closed",
                )
            # IMPORTANT: another process may still run the old version, and wake at any time. The
            # next step of that version begins with the state, and finds the fence there.
            if await fence(
                self._collections, self._change.before.state, at, self._change.after.name
            ):
                return at

    async def _come_to_rest(self, driver: ViewDriver, task: asyncio.Task[None]) -> None:
        """Stop a driver where everything it writes has one upper."""
        driver.finish()
        while not task.done() and not driver.rests:
            await self._look(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _look(self, *tasks: asyncio.Task[None]) -> None:
        """Wait a moment; an error of a driver is raised here."""
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        await self._clock.sleep(LOOK_S)

    async def _hand_over(self, read: str, beside: str, at: int) -> None:
        """Continue a collection from the common frontier on with the contents of the new
        version.
        """
        await self._make(read, frontier(at))
        upper = sole_time((await self._collections.status(beside)).upper)
        news = await self._holds.changes(beside, at + 1, upper) if at + 1 < upper else None
        reached = sole_time((await self._collections.status(read)).upper)
        tables: list[pa.Table] = []
        if reached <= at:
            new = await self._holds.snapshot(beside, at)
            tables.append(stamp(new.drop_columns([DIFF]), at))
            if read in self._read_before():
                old = await self._holds.snapshot(read, at - 1)
                tables.append(stamp(old.drop_columns([DIFF]), at, -1))
        if news is not None:
            tables.append(news)
        if tables:
            updates = consolidate(concatenate(tables))
            await append_through(self._collections, read, updates, upper, self._change.after.name)


def takeover_owner(target: ViewTarget) -> str:
    """In whose name histories are held while a version takes over."""
    return f"takeover:{target.name}"
