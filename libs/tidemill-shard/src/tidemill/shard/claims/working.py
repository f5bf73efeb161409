"""Work on claimed items: a task for each, begun when the item is gained, stopped before others
begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.errors import Fenced, Indeterminate, Unavailable
from tidemill.shard.claims.claimant import Claim, Claiming
from tidemill.shard.claims.ending import end_task
from tidemill.shard.ports import Clock

RENEWALS_PER_LEASE = 4
"""Three renewals may fail before the lease is over."""

Work: TypeAlias = Callable[[Claim], Coroutine[Any, Any, None]]


async def work_claimed(
    claimant: Claiming,
    wanted: Callable[[], Awaitable[Iterable[str]]],
    work: Work,
    clock: Clock,
    left: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Run `work(claim)` for each item this replica has, until cancelled; then give everything up.

    `wanted` gives all items, and `left` those that other replicas should have, if there are any.
    The work of an item is cancelled when its claim is over, also while Consensus cannot be reached.
    It is cancelled too when the item goes to another replica, which begins once the task has ended.
    A task that ignores the cancellation is cancelled again once a lease. A task that returns, or
    raises Fenced, has nothing more to do until the claim changes. Raises: any other error of `work`
    (all work stops then), or of `wanted`, or Corrupt.
    """
    await ClaimedTasks(claimant, wanted, work, clock, left).run()


class ClaimedTasks:
    """The loop of `work_claimed`, whose next renewal may be asked for at once."""

    def __init__(
        self,
        claimant: Claiming,
        wanted: Callable[[], Awaitable[Iterable[str]]],
        work: Work,
        clock: Clock,
        left: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Arguments are those of `work_claimed`."""
        self._claimant = claimant
        self._wanted = wanted
        self._left = left
        self._clock = clock
        self._tasks = _Tasks(claimant, work, clock)
        self._renewing = asyncio.Lock()

    async def run(self) -> None:
        """Run claimed work, with the promises of `work_claimed`."""
        watching: asyncio.Task[None] | None = None
        try:
            watching = asyncio.create_task(_stop_in_time(self._claimant, self._tasks, self._clock))
            while True:
                await self.renew()
                await self._tasks.under_way(self._claimant.lease_s / RENEWALS_PER_LEASE)
        finally:
            if watching is not None:
                watching.cancel()
            await self._tasks.end()
            with suppress(Unavailable, Indeterminate):
                await self._claimant.leave()

    async def renew(self) -> bool:
        """Renew the claims now, while `run` runs: begin gained items, stop lost ones.

        False if the store could not be reached, or did not say what became of it.
        """
        with suppress(Unavailable, Indeterminate):
            async with self._renewing:
                surplus = await self._claimant.renew(await self._wanted(), self._left())
                self._tasks.begin()
                stopped = self._tasks.stop(surplus)
                if stopped:
                    await self._claimant.give_up(stopped)
            return True
        return False


async def _stop_in_time(claimant: Claiming, tasks: _Tasks, clock: Clock) -> None:
    """Cancel all work whose claim is over, for as long as this runs: renewals may hang."""
    while True:
        tasks.stop_lost()
        left_s = claimant.held_until_s - clock.monotonic_s()
        pause_s = left_s if left_s > 0 else claimant.lease_s / RENEWALS_PER_LEASE
        await clock.sleep(min(pause_s, claimant.lease_s))


@dataclass(slots=True)
class _UnderWay:
    """The work of a claim, and when it was last cancelled."""

    claim: Claim
    task: asyncio.Task[None]
    cancelled_s: float = float("-inf")

    def cancel(self, now_s: float, again_s: float) -> None:
        """Cancel it unless it has ended, or was cancelled less than `again_s` ago: it may be
        clearing up.
        """
        if not self.task.done() and now_s - self.cancelled_s >= again_s:
            self.cancelled_s = now_s
            self.task.cancel()

    @property
    def over(self) -> bool:
        """Whether it has ended, and not with an error that is to be told."""
        return self.task.done() and not self.failed

    @property
    def failed(self) -> bool:
        """Whether it ended with an error that is not the loss of its claim."""
        if not self.task.done() or self.task.cancelled():
            return False
        error = self.task.exception()
        return error is not None and not isinstance(error, Fenced)


class _Tasks:
    """The work under way by item; at most one task each, however often an item comes and goes."""

    def __init__(self, claimant: Claiming, work: Work, clock: Clock) -> None:
        self._claimant = claimant
        self._work = work
        self._clock = clock
        self._running: dict[str, _UnderWay] = {}
        self._leaving: set[str] = set()
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Begin what is held and not under way."""
        self.stop_lost()
        for item, claim in self._claimant.held().items():
            if item in self._running:
                continue  # of an earlier claim, perhaps, that has not stopped yet
            task = asyncio.create_task(self._work(claim), name=f"{claim.group}/{item}")
            self._running[item] = _UnderWay(claim, task)
        self._changed.set()

    def stop_lost(self) -> None:
        """Cancel the work of claims that are over, and forget what has ended."""
        held = self._claimant.held()
        for item, work in list(self._running.items()):
            if work.task.cancelled() and item not in self._leaving:
                # The claim lapsed on our clock. If nobody has noticed, it counts again, and begins
                # again.
                del self._running[item]
            elif held.get(item) == work.claim:
                # A cancellation of an earlier lapse may have been forgotten: the next one is not to
                # wait.
                work.cancelled_s = float("-inf")
            elif work.over:
                del self._running[item]
            else:
                self._cancel(work)

    def _cancel(self, work: _UnderWay) -> None:
        work.cancel(self._clock.monotonic_s(), self._claimant.lease_s)

    def stop(self, claims: Iterable[Claim]) -> list[Claim]:
        """Cancel the work of these claims; those whose work has ended, to be given up."""
        stopped = []
        self._leaving = set()
        for claim in claims:
            work = self._running.get(claim.item)
            if work is None or work.over:
                self._running.pop(claim.item, None)
                stopped.append(claim)
            else:
                self._leaving.add(claim.item)
                self._cancel(work)
        self._changed.set()
        return stopped

    async def under_way(self, seconds: float) -> None:
        """Return after `seconds`, or once something has stopped that is to be given up.

        Raises: what the work of an item raised, as soon as it did.
        """
        pause = asyncio.ensure_future(self._clock.sleep(seconds))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            while not pause.done() and not self._settle():
                if changed.done():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                tasks = [work.task for work in self._running.values() if not work.task.done()]
                await asyncio.wait((pause, changed, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            changed.cancel()
            await asyncio.gather(pause, changed, return_exceptions=True)

    def _settle(self) -> bool:
        """Look at what has ended; whether something did that is to be given up.

        Raises: its error.
        """
        self.stop_lost()
        for work in self._running.values():
            if work.failed:
                work.task.result()
        return any(self._running[item].task.done() for item in self._leaving & self._running.keys())

    async def end(self) -> None:
        """Cancel everything and wait for it."""
        await asyncio.gather(*(end_task(work.task, self._clock) for work in self._running.values()))
