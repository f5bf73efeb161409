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
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, concatenate, consolidate, negate, stamp
from tidemill.errors import BeforeSince, NotYet, UsageError
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

COMPARE_S, COMPARE_SHARE = 5.0, 20.0
"""Seconds between two comparisons of versions, and at least so many times what one has taken."""

COMPARED_MAX = 1_000_000
"""Updates of both versions that are compared at most."""

Make = Callable[[str, Frontier], Awaitable[None]]
"""Creates a collection of the view that begins at a frontier, unless it is there."""

Record = Callable[[int], Awaitable[None]]
"""Writes the common frontier down, for good. Raises: Fenced if another change is wanted by now."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """The version that is read, the new one in its place, and the new one beside it.

    `before` and `after` write the same outputs, `after` perhaps more; `after` and `beside` have one
    state. `at` is the common frontier, once that is decided. A change that `waits` is not brought
    about: both versions go on until somebody decides.
    """

    before: ViewTarget
    after: ViewTarget
    beside: ViewTarget
    at: int | None = None
    waits: bool = False

    def pairs(self) -> list[tuple[str, str]]:
        """Each collection that is read, with the one beside it."""
        pairs = [(read, self.beside.outputs[p][0]) for p, (read, _) in self.after.outputs.items()]
        return [*pairs, (self.after.errors, self.beside.errors)]


@dataclass(frozen=True, slots=True)
class Differs:
    """Rows in which two versions differ as of an instant; None if there are too many to compare."""

    rows: int | None
    at: int


class Takeover:
    """Brings a change about, once, whatever dies in between."""

    def __init__(
        self,
        change: VersionChange,
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
        self.differs: Differs | None = None
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
        """Return when the new version has taken over; another driver goes on on `after`."""
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
        """Run the old version until the new one is level; where it stopped for good."""
        fenced = (await self._collections.status(self._change.before.state)).upper
        if self._change.waits and fenced != frontier(FENCE):
            await self._wait(beside)
        if fenced == frontier(FENCE):
            # A life before this one stopped it, and died before it had written down where.
            uppers = [(await self._collections.status(c)).upper for c in self._read_before()]
            at = min(map(sole_time, uppers))
        else:
            at = await self._stop_before(beside)
        await self._record(at)
        return at

    async def _wait(self, beside: asyncio.Task[None]) -> None:
        """Run both versions, and compare them now and then, until cancelled."""
        before = asyncio.create_task(self.before.maintain_forever())
        compared, due_s = 0, 0.0
        try:
            while True:
                await self._look(before, beside)
                at = min(self.before.progress.lower, self.beside.progress.lower) - 1
                began_s = self._clock.monotonic_s()
                if at <= compared or began_s < due_s:
                    continue
                with suppress(BeforeSince, NotYet):
                    self.differs, compared = Differs(await self._count_differences(at), at), at
                    await self._let_go_before(at)
                took_s = self._clock.monotonic_s() - began_s
                due_s = began_s + max(COMPARE_S, COMPARE_SHARE * took_s)
        finally:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)

    async def _let_go_before(self, at: int) -> None:
        """Give up history that no later common frontier needs: somebody may wait for days."""
        for collection in {*self._read_before(), *(new for _, new in self._change.pairs())}:
            await self._holds.downgrade(collection, frontier(at))

    async def _count_differences(self, at: int) -> int | None:
        """Rows of outputs that one version alone has at an instant; None for too many to compare.

        Cost: O(rows of both).
        """
        outputs = {read for read, _ in self._change.after.outputs.values()}
        pairs = [pair for pair in self._change.pairs() if pair[0] in outputs]
        known = self._read_before()
        count = self._collections.count_updates
        updates = sum(count(each, 0, at + 1) for pair in pairs for each in pair)
        if updates > COMPARED_MAX:
            return None
        differing = 0
        for read, beside in pairs:
            tables = [await self._holds.snapshot(beside, at)]
            if read in known:
                old = await self._holds.snapshot(read, at)
                tables.append(negate(old))
            alone = consolidate(concatenate(tables))
            differing += pc.sum(pc.abs(alone[DIFF])).as_py() or 0
        return differing

    async def _stop_before(self, beside: asyncio.Task[None]) -> int:
        """Run the old version until the new one can follow, stop it; the instant of that."""
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
        """Continue a collection from the common frontier with the new version's contents."""
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
