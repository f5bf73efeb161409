"""Running what a resource needs, and saying how it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.shard.claims import ended
from tidemill.time import (
    BeforeSince,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCollection,
)
from tidemill_embedded.settings import EmbeddedSettings

log = get_logger("resources")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a resource does its work, and if not why: a CamelCase word and a sentence."""

    ready: bool
    reason: str = ""
    message: str = ""


_MAY_COME = frozenset(("unknown-topic",))
"""Reasons for which a resource stalls that somebody else may yet put right."""

_PASSING = (Unavailable, Indeterminate, NotYet)
_PASSING_CLAIMED = (*_PASSING, BeforeSince, Fenced, UnknownCollection)
"""Errors after which the same work may go on by itself; a claim may be faster than who makes its collections."""

STARTING = Health(False, "Starting", "it has not begun yet")
RUNNING = Health(True, "Running", "")


class Runner(Protocol):
    """The work of one resource."""

    @property
    def name(self) -> str: ...

    async def prepare(self) -> None:
        """Create its collections and take its holds; again is fine."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Do the work until cancelled; call `ready` once it goes on by itself."""

    async def release(self) -> None:
        """Give up holds and close the collections: the resource is deleted."""


class Supervised:
    """A runner that is started again when a store was away, and stalls with the reason otherwise.

    A stalled resource keeps its frontiers where they are: it never answers wrongly. Errors that are
    not ours pass through to the process.
    """

    def __init__(
        self, runner: Runner, clock: Clock, settings: EmbeddedSettings, *, claimed: bool = False
    ) -> None:
        """With `claimed`, what another process has done meanwhile is no reason to stall: it begins again."""
        self.runner = runner
        self._passing = _PASSING_CLAIMED if claimed else _PASSING
        self.health = STARTING
        self.retries = 0
        self._clock = clock
        self._settings = settings
        self._pause_s = settings.retry_s_min
        self._task: asyncio.Task[None] | None = None

    def start(self, report: Callable[[BaseException], None]) -> None:
        """Run in the background; `report` is told of an error that nobody expects."""
        self._task = asyncio.create_task(self._run(), name=self.runner.name)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                error = task.exception()
                assert error is not None
                report(error)

        self._task.add_done_callback(ended)

    async def stop(self) -> None:
        """Cancel, and return when it has ended."""
        if self._task is None:
            return
        await ended(self._task, self._clock)
        self._task = None

    async def run_claimed(self) -> None:
        """Prepare and run until cancelled: what has finished or stalled is still held, and says so."""
        await self._run(prepare=True)
        await asyncio.get_running_loop().create_future()

    async def _begun(self, prepare: bool) -> None:
        if prepare:
            await self.runner.prepare()
        await self.runner.run(self._ready)

    async def _run(self, *, prepare: bool = False) -> None:
        while True:
            # NB: a task of its own. Python 3.11 leaves a task in which a group has failed as if cancelled.
            error = await asyncio.create_task(_first_error(lambda: self._begun(prepare)))
            if _cancelled():
                # A group of tasks tells of an error and keeps the cancellation that came with it to itself.
                raise asyncio.CancelledError
            if error is None:
                self.health = Health(True, "Finished", "everything has been done")
                return
            reason = error.details.get("reason", type(error).__name__)
            passing = isinstance(error, self._passing)
            self.health = Health(False, "Retrying" if passing else "Stalled", str(error))
            if not passing:
                log.error("stalled", resource=self.runner.name, reason=reason, error=str(error))
                if reason not in _MAY_COME:
                    return
            log.warning(
                "retrying", resource=self.runner.name, error=str(error), pause_s=self._pause_s
            )
            self.retries += 1
            await self._clock.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, self._settings.retry_s_max)

    def _ready(self) -> None:
        self.health = RUNNING
        self._pause_s = self._settings.retry_s_min
        log.info("running", resource=self.runner.name)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _first_error(run: Callable[[], Awaitable[None]]) -> TidemillError | None:
    """How the work ended: None if it is done, our own error if it failed, anything else is raised."""
    try:
        await run()
    except TidemillError as error:
        return error
    except BaseExceptionGroup as group:
        ours = _ours(group)
        if ours is None:
            raise
        return ours
    return None


def _ours(group: BaseExceptionGroup[BaseException]) -> TidemillError | None:
    """The first of our errors in a group that holds nothing else but cancellations."""
    found: TidemillError | None = None
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            inner = _ours(error)
            if inner is None:
                return None
            found = found or inner
        elif isinstance(error, TidemillError):
            found = found or error
        elif not isinstance(error, asyncio.CancelledError):
            return None
    return found
