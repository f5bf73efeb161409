"""Running what a resource needs, and saying how it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tidemill.catalog.unreadable import Unreadable
from tidemill.errors import (
    BeforeSince,
    Corrupt,
    Exhausted,
    TidemillError,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.host.settings import ProcessSettings
from tidemill.runtime.breaking import told, unforeseen
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger

log = get_logger("resources")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a resource does its work, and if not why: a CamelCase word and a sentence."""

    ready: bool
    reason: str = ""
    message: str = ""


_MAY_COME = frozenset(("unknown-topic",))
"""Reasons for which a resource stalls that somebody else may yet put right."""

_FOR_PEOPLE = (UsageError, Corrupt, BeforeSince)
"""Errors that come again at each try: a wrong declaration, a damaged store, a lost history."""

_PASSING = (UnknownCapability, UnknownCollection)
_PASSING_AMONG_OTHERS = (*_PASSING, BeforeSince)
"""Errors after which the same work may go on by itself, with other processes beside this one.

Others make, drop and move the collections that it reads, and may have moved the work on.
"""

STARTING = Health(False, "Starting", "it has not begun yet")
RUNNING = Health(True, "Running", "")


def refuse_stalled(source: str, health: Health) -> None:
    """Refuse rows that a source may never read. Raises: Unavailable if only a person can mend
    it.
    """
    if health.reason == "Stalled":
        raise Unavailable(
            f"push refused, {source} is stalled: {health.message}; mend it, or delete it and apply it"
            " anew",
            reason="stalled",
        )


class Runner(Protocol):
    """The work of one resource, or of one part of it."""

    @property
    def name(self) -> str: ...

    async def prepare(self) -> None:
        """Create the collections of the resource and take its holds; again is fine."""

    async def release(self) -> None:
        """Give up holds and close the collections: the resource is deleted."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Do the work until cancelled; call `ready` once it goes on by itself."""

    def details(self) -> Mapping[str, Any]:  # values of JSON
        """Status of the work, for `tidemill describe`."""


class Turns(Protocol):
    """The order in which resources may begin."""

    async def turn(self, name: str, say: Callable[[str, str], None]) -> None:
        """Return once it may; `say` why it waits, a word and a sentence."""


class Supervised:
    """A runner that is started again, with growing pauses, unless only a person can mend the cause.

    A resource that fails keeps its frontiers: it never answers wrongly. No state ends the process:

    * `Stalled`: its declaration, its input or a store is wrong;
    * `Retrying`: the same work may go on by itself;
    * `Broken`: an error that nobody foresaw was raised, with its class and place;
    * `Exhausted`: it wanted more than a limit allows.
    """

    def __init__(
        self, runner: Runner, clock: Clock, settings: ProcessSettings, *, sole: bool = True,
        turns: Turns | None = None, preparing: asyncio.Semaphore | None = None,
    ) -> None:  # fmt: skip
        """Unless `sole`, a history that is gone is no reason to stall: others may have moved it.

        With `turns`, each try waits for its turn; `preparing` limits preparations at the same time.
        """
        self.runner = runner
        self.begun = asyncio.Event()
        """Set once it has been prepared, has failed to be, or waits for its turn."""
        self._turns = turns
        self._preparing = preparing
        self._passing = _PASSING if sole else _PASSING_AMONG_OTHERS
        self.health = STARTING
        self.retries = 0
        self.broken = 0
        """Errors raised that nobody foresaw."""
        self.failures = 0
        """Ends in a row of the work, since it last went well for a while."""
        self._clock = clock
        self._settings = settings
        self._since_ms = 0
        self._ready_s: float | None = None

    async def run(self, *, prepared: bool = False, failed: Exception | None = None) -> None:
        """Prepare and run until cancelled; finished or stalled work stays, and says so.

        Work that is `prepared` already only runs; if that `failed`, it is tried again later.
        """
        await self._run(prepare=not prepared, failed=failed)
        await asyncio.get_running_loop().create_future()

    @property
    def well(self) -> bool:
        """Whether the work, once begun, has gone on by itself for a while."""
        if self._ready_s is None:
            return False
        return self._clock.monotonic_s() - self._ready_s > self._settings.retry_s_max

    async def _begin(self, prepare: bool) -> None:
        if prepare:
            async with self._preparing or nullcontext():
                await self.runner.prepare()
        self.begun.set()
        await self.runner.run(self._ready)

    async def _run(self, *, prepare: bool = False, failed: Exception | None = None) -> None:
        while True:
            self._ready_s = None
            error, failed = failed, None
            if error is None and self._turns is not None:
                await self._turns.turn(self.runner.name.partition(" ")[0], self._waits)
            if error is None:
                # NB: a task of its own. Python 3.11 leaves a task in which a group has failed as if
                # cancelled.
                begun = _first_error(self._begin, prepare)
                error = await asyncio.create_task(begun)
            if _cancelled():
                # A group of tasks tells of an error and keeps the cancellation that came with it to
                # itself.
                raise asyncio.CancelledError
            self.begun.set()
            if error is None:
                self.health = Health(True, "Finished", "everything has been done")
                return
            soon = isinstance(error, TidemillError) and not isinstance(error, Exhausted)
            pause_s = self._next_pause_s(soon)
            if not self._goes_on(error, pause_s):
                return
            self.retries += 1
            prepare = True
            await self._clock.sleep(pause_s)

    def _goes_on(self, error: Exception, pause_s: float) -> bool:
        """Say why the work has ended, and whether it begins again."""
        name = self.runner.name
        if not isinstance(error, TidemillError):
            self.broken += 1
            self.health = broken(error, self._since_ms, self.failures, pause_s)
            shown = None if isinstance(error, Unreadable) else error
            log.error("broken", resource=name, error=_said(error), pause_s=pause_s, exc_info=shown)
            return True
        if isinstance(error, Exhausted):
            self.health = Health(False, "Exhausted", f"{error}; tried again in {pause_s:.0f} s")
            log.warning("exhausted", resource=name, error=str(error), pause_s=pause_s)
            return True
        if isinstance(error, self._passing) or not isinstance(error, _FOR_PEOPLE):
            self.health = Health(False, "Retrying", str(error))
            log.warning("retrying", resource=name, error=str(error), pause_s=pause_s)
            return True
        reason = error.details.get("reason", type(error).__name__)
        self.health = Health(False, "Stalled", str(error))
        log.error("stalled", resource=name, reason=reason, error=str(error))
        return reason in _MAY_COME

    def _next_pause_s(self, soon: bool) -> float:
        """The pause before the next try: twice the last one, unless work went well in between."""
        settings = self._settings
        if self.well:
            self.failures = 0
        if self.failures == 0:
            self._since_ms = self._clock.now_ms()
        self.failures += 1
        longest = settings.retry_s_max if soon else settings.broken_s_max
        return float(min(settings.retry_s_min * 2.0 ** min(self.failures - 1, 30), longest))

    def _waits(self, reason: str, message: str) -> None:
        self.begun.set()
        self.health = Health(False, reason, message)

    def _ready(self) -> None:
        self.health = RUNNING
        self._ready_s = self._clock.monotonic_s()
        log.info("running", resource=self.runner.name)


def broken(error: BaseException, since_ms: int, tries: int, pause_s: float) -> Health:
    """The health of a resource after an unforeseen error: class and place, since when, the next
    try.
    """
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
    return Health(
        False, "Broken",
        f"{_said(error)}, since {since}, {tries} times in a row; tried again in {pause_s:g} s; its text "
        "is in the log of the process",
    )  # fmt: skip


def _said(error: BaseException) -> str:
    """The text of a foreign error that may be shown; all of it for a row that cannot be read."""
    return str(error) if isinstance(error, Unreadable) else told(error)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _first_error(run: Callable[[bool], Awaitable[None]], prepare: bool) -> Exception | None:
    """The end of the work: None if it is done; of a group the unforeseen error, else our first one.

    Raises: errors meant for the process, such as a request to exit.
    """
    try:
        await run(prepare)
    except asyncio.CancelledError as error:
        if _cancelled():
            raise
        # A library has cancelled what the work waited for; nobody has asked the work to end.
        return Unavailable(f"what it waited for was cancelled ({told(error)})")
    except Exception as error:  # one resource's work ends here, and no other's
        return error if not isinstance(error, ExceptionGroup) else _of_group(error)
    return None


def _of_group(group: ExceptionGroup[Exception]) -> Exception:
    """The group if something in it was not foreseen, else its first error."""
    if unforeseen(group) is not None:
        return group
    leaf: Exception = group
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
