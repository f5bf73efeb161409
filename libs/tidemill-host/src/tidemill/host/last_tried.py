"""The resources that a process was beginning when it died, so that the next start can leave one
out.

A native crash, or a kernel that takes the memory back, leaves no time for a message. A small file
in the state directory names the resources that began less than a minute ago. If the file is there
at a start, the process has died: these begin one after the other. If it dies again, the one that
began last is left out for a while, and more of them if that was not the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Lock

import msgspec

from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger

WATCH_S = 60.0
"""Seconds of running after which a resource is no cause of a death at the start."""

GAP_S, GAP_AGAIN_S = 0.5, 2.0
"""Between two resources that may be what the process has died of, after its first death and later;
all of them begin within WATCH_S. Most first deaths come from outside: the next start need not wait.
"""

LEFT_OUT_S, LEFT_OUT_S_MAX = 30.0, 3_600.0
"""Seconds for which a resource is left out at first, and at most: four times as long each time."""

LOOK_S = 0.5

log = get_logger("resources")


class LeftOut(msgspec.Struct, frozen=True):
    """A resource that the process may have died of: how often it was left out, and until when it
    is.
    """

    times: int
    until_ms: int


class _File(msgspec.Struct):
    deaths: int = 0
    begun: list[str] = []
    left_out: dict[str, LeftOut] = {}


class LastTried:
    """Lets resources begin, or leaves them out: what was begun in the last minute is in `file`."""

    def __init__(self, file: Path, clock: Clock, without: Collection[str]) -> None:
        self._file = file
        self._clock = clock
        self._without = frozenset(without)
        self._known = _File()
        self._turns_s: dict[str, float] = {}
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._opened = False
        self._numbers = count(1)
        self._written = 0
        """The number of the newest content that the file has, or was refused."""
        self._turn = asyncio.Lock()
        self._writes = Lock()

    def open(self) -> None:
        """Read how the process ended before. A file that cannot be read says nothing."""
        with suppress(OSError, msgspec.MsgspecError):
            self._known = msgspec.json.decode(self._file.read_bytes(), type=_File)
        self._opened = True
        suspects, known = self._known.begun, self._known
        known.begun = []
        if not suspects:
            known.deaths = 0
            return
        known.deaths += 1
        if known.deaths > 1:
            for name in suspects[-(1 << min(known.deaths - 2, 30)) :]:
                self._leave_out(name)
        gap_s = min(GAP_S if known.deaths == 1 else GAP_AGAIN_S, WATCH_S / len(suspects))
        now_s = self._clock.monotonic_s()
        self._turns_s = {name: now_s + n * gap_s for n, name in enumerate(suspects)}
        log.warning("the process died at its start", deaths=known.deaths, begun=",".join(suspects))
        self._write()

    def _leave_out(self, name: str) -> None:
        before = self._known.left_out.get(name, LeftOut(0, 0))
        pause_s = min(LEFT_OUT_S * 4.0 ** min(before.times, 10), LEFT_OUT_S_MAX)
        until_ms = self._clock.now_ms() + int(pause_s * 1000)
        self._known.left_out[name] = LeftOut(before.times + 1, until_ms)

    def waits(self, name: str) -> tuple[str, str] | None:
        """Why a resource does not begin now, a word and a sentence; None if it may."""
        if name in self._without:
            return (
                "LeftOut",
                f"this process was started with --without {name}: start it without that, or delete it",
            )
        left = self._known.left_out.get(name)
        if left is not None and self._clock.now_ms() < left.until_ms:
            until = datetime.fromtimestamp(left.until_ms / 1000, UTC).isoformat(timespec="seconds")
            return (
                "LeftOut",
                f"the process died again within a minute of beginning it: left out until {until} (for the "
                f"{left.times}. time); apply it anew to try at once, or delete it",
            )
        if self._turns_s.get(name, 0.0) > self._clock.monotonic_s():
            return (
                "Starting",
                "the process died within a minute of its start: it begins after others, one by one",
            )
        return None

    async def turn(self, name: str, say: Callable[[str, str], None]) -> None:
        """Return once a resource may begin, which is then written down; `say` why it waits."""
        while (waits := self.waits(name)) is not None:
            say(*waits)
            await self._clock.sleep(LOOK_S)
        await self.begin(name)

    async def begin(self, name: str) -> None:
        """Write down that a resource begins now; it stands there until it has run for a while."""
        if not self._opened:
            return
        settling = self._settling.pop(name, None)
        if settling is not None:
            settling.cancel()
        self._known.begun = [*(each for each in self._known.begun if each != name), name]
        # NB: before the write, during which whoever waits for it may be cancelled.
        self._settling[name] = asyncio.create_task(self._settle(name))
        await self._write_beside()

    async def _settle(self, name: str) -> None:
        await self._clock.sleep(WATCH_S)
        del self._settling[name]
        self._known.begun.remove(name)
        self._known.left_out.pop(name, None)
        if not self._known.begun:
            self._known.deaths = 0
        await self._write_beside()

    def forgive(self, name: str) -> None:
        """Begin a resource at once again: it was applied anew, or is deleted."""
        self._turns_s.pop(name, 0.0)
        if name in self._known.left_out:
            del self._known.left_out[name]
            self._write()

    def close(self) -> None:
        """Everything has ended as it should: nothing is left to be suspected."""
        for settling in self._settling.values():
            settling.cancel()
        self._settling.clear()
        if self._opened:
            self._known.begun, self._known.deaths = [], 0
            self._write()

    async def _write_beside(self) -> None:
        """Replace the file on another thread: a disk that is busy takes its time for that.

        Tasks that wait meanwhile share the next write: a thousand resources that begin at once take
        one thread, not all of them.
        """
        number = next(self._numbers)
        async with self._turn:
            if self._written < number:
                content = next(self._numbers), msgspec.json.encode(self._known)
                await asyncio.to_thread(self._replace, *content)

    def _write(self) -> None:
        self._replace(next(self._numbers), msgspec.json.encode(self._known))

    def _replace(self, number: int, content: bytes) -> None:
        """Replace the file unless it is newer; a disk that refuses it takes nothing with it."""
        with self._writes:
            if number < self._written:
                return
            try:
                beside = self._file.with_suffix(".new")
                beside.write_bytes(content)
                beside.replace(self._file)
            except OSError as error:
                log.warning("not written down", file=str(self._file), error=str(error))
            self._written = number
