"""A driver that stays, as its owner sees it: begun when somebody asks, ended when nobody does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from tidemill.errors import TidemillError, Unavailable, UsageError
from tidemill.runtime.clock import Clock
from tidemill.shard.stores import StoredBlob
from tidemill.spark.launcher import (
    FailureKind,
    Job,
    JobDone,
    JobFailed,
    JobKind,
    SparkLauncher,
)
from tidemill_compute.views.windows.mailbox import (
    DONE,
    END,
    PAUSE_S,
    STAY,
    SessionSpec,
    asked_key,
    told_key,
)

MODULE = "tidemill_compute.views.windows.session_job"
KEEP_S, ALIVE_S, IDLE_S = 600.0, 20.0, 90.0
"""Seconds that a driver is kept after the last window; seconds between two heartbeats; seconds
without a heartbeat until a driver ends."""
UNHEARD_MAX = 30
"""Last heartbeats without an answer that are looked for; older ones stay until the driver ends."""
LOOK_S_MAX = 0.25
END_S = 5.0
"""Time that a driver has to end."""
MOMENT_S = 1.0
"""Time in which a driver ends that is the cause of a question that could not be put."""


class WindowSession:
    """Guarantees: a window is evaluated by one driver at a time, begun again after it has ended.

    Windows only write objects that no version names, so they may be asked for any number of times.
    For one event loop.
    """

    def __init__(
        self, launcher: SparkLauncher, open_blob: Callable[[], StoredBlob], clock: Clock, of: str,
        unique: Callable[[], str], deadline_s: float, lacking: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """`of` tells the driver from those of other processes; `unique` names its folders.

        A window without an answer for `deadline_s` is given up, and its driver with it.
        `lacking` is a sentence if no driver can run here.
        """
        self.lacking = lacking
        self._launcher = launcher
        self._open_blob = open_blob
        self._opened: StoredBlob | None = None
        self._clock = clock
        self._of = of
        self._unique = unique
        self._deadline_s = deadline_s
        self._folder = ""
        self._number = 0
        self._asked_s = 0.0
        self._driver: asyncio.Task[JobDone | JobFailed] | None = None
        self._alive: asyncio.Task[None] | None = None
        self._numbering = asyncio.Lock()
        self.begun = 0
        """Drivers that were begun."""
        self._counted = 0

    @property
    def executors(self) -> int:
        """Executors of the driver at the last heartbeat; without a driver none."""
        return 0 if self._driver is None or self._driver.done() else self._counted

    @property
    def _blob(self) -> StoredBlob:
        """The place of questions and answers; a process without windows opens none."""
        if self._opened is None:
            self._opened = self._open_blob()
        return self._opened

    async def ask(self, window: bytes) -> bytes:
        """The packed answer to a packed window.

        Raises: Unavailable with the end of the log, if the driver ended or the window failed, or
        had no answer in time. UsageError, if drivers cannot run here.
        """
        driver, folder = self._begin()
        until_s = self._clock.monotonic_s() + self._deadline_s
        try:
            number = await self._put(folder, window)
        except Unavailable as error:
            # The end of a driver takes the folder away, also from under a question.
            await asyncio.wait((driver,), timeout=MOMENT_S)
            if driver.done():
                raise _ended(driver) from error
            raise
        pause_s = PAUSE_S
        while True:
            ended = driver.done()
            found = await self._blob.get(told_key(folder, number))
            if found is not None:
                break
            if ended:
                raise _ended(driver)
            if self._clock.monotonic_s() >= until_s:
                driver.cancel()  # its executors may never come, or never answer
                raise Unavailable(
                    f"a window had no answer for {self._deadline_s:g} s "
                    f"(spark.pods.deadline_s): the driver of {self._of} was ended"
                )
            await self._clock.sleep(pause_s)
            pause_s = min(LOOK_S_MAX, 1.1 * pause_s)
        self._asked_s = self._clock.monotonic_s()
        await self._forget(asked_key(folder, number), told_key(folder, number))
        if found[:1] != DONE:
            text = found[1:].decode(errors="replace")
            raise Unavailable(f"a window failed in the driver of {self._of}: {text}")
        return found[1:]

    def _begin(self) -> tuple[asyncio.Task[JobDone | JobFailed], str]:
        self._asked_s = self._clock.monotonic_s()
        if self._driver is None or self._driver.done():
            self._folder, self._number, self._counted = f"job-session-{self._unique()}", 0, 0
            spec = msgspec.msgpack.encode(SessionSpec(self._folder, IDLE_S))
            job = Job(JobKind.SESSION, self._of, MODULE, spec)
            self._driver = asyncio.create_task(self._launcher.launch(job))
            self.begun += 1
            if self._alive is not None:
                self._alive.cancel()
            self._alive = asyncio.create_task(self._keep(self._driver, self._folder))
        return self._driver, self._folder

    async def _put(self, folder: str, question: bytes) -> int:
        """Put the next question. A number is used up only once its object is there."""
        async with self._numbering:
            if folder != self._folder:
                raise Unavailable("the driver ended before it was asked")
            await self._blob.put(asked_key(folder, self._number + 1), question)
            self._number += 1
            return self._number

    async def _keep(self, driver: asyncio.Task[JobDone | JobFailed], folder: str) -> None:
        """Send heartbeats until nobody has asked for long; then the driver ends."""
        try:
            unheard = deque[int](maxlen=UNHEARD_MAX)
            while not driver.done() and self._clock.monotonic_s() - self._asked_s < KEEP_S:
                with suppress(TidemillError):
                    unheard.append(await self._put(folder, STAY))
                waking = asyncio.ensure_future(self._clock.sleep(ALIVE_S))
                await asyncio.wait((waking, driver), return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                with suppress(TidemillError):
                    await self._hear(folder, unheard)
        finally:
            await self._end(driver, folder)

    async def _hear(self, folder: str, unheard: deque[int]) -> None:
        """Take answers to heartbeats; a driver that is busy or begins gives them later."""
        for number in tuple(unheard):
            found = await self._blob.get(told_key(folder, number))
            if found is not None:
                unheard.remove(number)
                await self._forget(asked_key(folder, number), told_key(folder, number))
                if found[:1] == DONE:
                    self._counted = int(found[1:])

    async def _end(self, driver: asyncio.Task[JobDone | JobFailed], folder: str) -> None:
        """End a driver, softly where it still answers, and delete its objects."""
        if not driver.done():
            with suppress(TidemillError):
                await self._put(folder, END)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(driver), END_S)
        driver.cancel()
        with suppress(TidemillError):
            await self._forget(*(each.key for each in await self._blob.list(f"{folder}/")))

    async def _forget(self, *keys: str) -> None:
        with suppress(TidemillError):
            for key in keys:
                await self._blob.delete(key)

    async def close(self) -> None:
        """End the driver; again is fine."""
        if self._alive is not None:
            self._alive.cancel()
        tasks = [each for each in (self._alive, self._driver) if each is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._alive = self._driver = None
        if self._opened is not None:
            await self._opened.close()
            self._opened = None


def _ended(driver: asyncio.Task[JobDone | JobFailed]) -> TidemillError:
    """Why a driver that was asked answers no more."""
    if driver.cancelled():
        return Unavailable("the driver was ended")
    error = driver.exception()
    if isinstance(error, TidemillError):
        return error
    outcome = driver.result()
    if isinstance(outcome, JobDone):
        return Unavailable("the driver ended, since nobody had asked it for long")
    if outcome.kind is FailureKind.REFUSED:
        return UsageError(f"no windows on Spark: {outcome.reason}", reason="launcher")
    return Unavailable(f"the driver ended: {outcome}")
