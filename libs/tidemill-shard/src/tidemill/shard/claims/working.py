"""Work on claimed items: a task for each, begun when the item is gained, stopped before others begin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

from tidemill.shard.claims.claimant import Claim, Claiming
from tidemill.shard.ports import Clock
from tidemill.time import Fenced, Indeterminate, Unavailable

RENEWALS_PER_LEASE = 4
"""Three renewals may fail before the lease is over."""

Work: TypeAlias = Callable[[Claim], Coroutine[Any, Any, None]]


async def work_claimed(
    claimant: Claiming,
    wanted: Callable[[], Awaitable[Iterable[str]]],
    work: Work,
    clock: Clock,
) -> None:
    """Run `work(claim)` for each item this replica has, until cancelled; then give everything up.

    `wanted` says which items there are. The work of an item is cancelled when its claim is over, also
    while Consensus cannot be reached, or when the item goes to another replica: that one begins once the
    task has ended. Work that returns, or raises Fenced, has nothing more to do until the claim changes.
    Raises: what else `work` raises (nothing is worked on any more then), or `wanted`, or Corrupt.
    """
    tasks = _Tasks(claimant, work)
    watching: asyncio.Task[None] | None = None
    try:
        watching = asyncio.create_task(_stopped_in_time(claimant, tasks, clock))
        while True:
            with suppress(Unavailable, Indeterminate):
                surplus = await claimant.renew(await wanted())
                tasks.begin()
                stopped = tasks.stop(surplus)
                if stopped:
                    await claimant.give_up(stopped)
            await tasks.under_way(clock, claimant.lease_s / RENEWALS_PER_LEASE)
    finally:
        if watching is not None:
            watching.cancel()
        await tasks.end()
        with suppress(Unavailable, Indeterminate):
            await claimant.leave()


async def _stopped_in_time(claimant: Claiming, tasks: _Tasks, clock: Clock) -> None:
    """Cancel all work whose claim is over, for as long as this runs: renewals may hang."""
    while True:
        tasks.stop_lost()
        left_s = claimant.held_until_s - clock.monotonic_s()
        await clock.sleep(left_s if left_s > 0 else claimant.lease_s / RENEWALS_PER_LEASE)


class _Tasks:
    """The work under way by item; at most one task each, however often an item comes and goes."""

    def __init__(self, claimant: Claiming, work: Work) -> None:
        self._claimant = claimant
        self._work = work
        self._running: dict[str, tuple[Claim, asyncio.Task[None]]] = {}
        self._leaving: set[str] = set()

    def begin(self) -> None:
        """Begin what is held and not under way."""
        self.stop_lost()
        for item, claim in self._claimant.held().items():
            if item in self._running:
                continue  # of an earlier claim, perhaps, that has not stopped yet
            task = asyncio.create_task(self._work(claim), name=f"{claim.group}/{item}")
            self._running[item] = claim, task

    def stop_lost(self) -> None:
        """Cancel the work of claims that are over, and forget what has ended."""
        held = self._claimant.held()
        for item, (claim, task) in list(self._running.items()):
            if task.cancelled() and item not in self._leaving:
                # The claim lapsed on our clock. If nobody has noticed, it counts again, and begins again.
                del self._running[item]
                continue
            if held.get(item) == claim:
                continue
            if task.done() and not _failed(task):
                del self._running[item]
            elif not task.done() and not task.cancelling():
                task.cancel()

    def stop(self, claims: Iterable[Claim]) -> list[Claim]:
        """Cancel the work of these claims; those whose work has ended, to be given up."""
        stopped = []
        self._leaving = set()
        for claim in claims:
            _, task = self._running.get(claim.item, (claim, None))
            if task is None or (task.done() and not _failed(task)):
                self._running.pop(claim.item, None)
                stopped.append(claim)
                continue
            self._leaving.add(claim.item)
            if not task.done() and not task.cancelling():
                task.cancel()
        return stopped

    async def under_way(self, clock: Clock, seconds: float) -> None:
        """Return after `seconds`, or once something has stopped that is to be given up.

        Raises: what the work of an item raised, as soon as it did.
        """
        pause = asyncio.ensure_future(clock.sleep(seconds))
        try:
            while not pause.done() and not self._settle():
                tasks = [task for _, task in self._running.values() if not task.done()]
                await asyncio.wait((pause, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            await asyncio.gather(pause, return_exceptions=True)

    def _settle(self) -> bool:
        """Look at what has ended; whether something did that is to be given up. Raises: its error."""
        self.stop_lost()
        for _, task in self._running.values():
            if _failed(task):
                task.result()
        return any(self._running[item][1].done() for item in self._leaving & self._running.keys())

    async def end(self) -> None:
        """Cancel everything and wait for it."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failed(task: asyncio.Task[None]) -> bool:
    """Whether it ended with an error that is not the loss of its claim."""
    if not task.done() or task.cancelled():
        return False
    error = task.exception()
    return error is not None and not isinstance(error, Fenced)
