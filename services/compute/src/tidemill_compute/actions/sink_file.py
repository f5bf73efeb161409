"""A file as a sink: one line for each key, whatever happens to the process."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from tidemill.errors import Fenced, Unavailable, UsageError
from tidemill.runtime.places import ANY_SINK, Files
from tidemill_compute.actions.outbox import Firing, Took, key_in, untold

T = TypeVar("T")
LINE_BYTES_MAX = 16 << 20
"""No line of ours is longer: what is, somebody else wrote."""
FENCE_BYTES_MAX = 32


class FileSink:
    """Appends each firing as one line of JSON; durable when `fire` returns.

    The file is its own memory. A last line that a crash of ours tore is cut off. The keys in the
    file have fired, also for an action that is applied again. It is read line by line at each
    start. Delivery: askable. Each start takes a higher fence, kept in a hidden file beside: a
    paused and replaced process is refused. A process that is paused within a write keeps the file
    locked until it goes on or ends.
    """

    def __init__(self, path: Path, files: Files = ANY_SINK) -> None:
        """`files` are those that may be written.

        Raises: UsageError for a path that is a fence's.
        """
        if path.name.startswith(".") and path.name.endswith(".fence"):
            raise UsageError(f"sink file {path} is refused: fences have such names", reason="File")
        self._files = files
        self._path = path
        self._fence = path.parent / f".{path.name}.fence"
        self._epoch = 0

    at_most_once = False

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """The keys in the file; cuts off a torn last line and raises the fence."""
        return await asyncio.to_thread(self._in_turn, self._recover)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Raises: Fenced if another process has started since; Unavailable."""
        if firings:
            text = "".join(firing.line + "\n" for firing in firings)
            await asyncio.to_thread(self._in_turn, lambda newest: self._append(newest, text))
            took(firings)

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    def _recover(self, newest: int) -> frozenset[str]:
        keys: set[str] = set()
        with self._opened(self._path, os.O_RDWR) as file:
            whole = 0
            for line in iter(lambda: file.readline(LINE_BYTES_MAX), b""):
                if not line.endswith(b"\n"):
                    self._cut(file, whole, line, own=newest > 0)
                    break
                keys.add(key_in(line))
                whole += len(line)
        # IMPORTANT: after the look: a file that was refused stays somebody else's.
        self._epoch = newest + 1
        with self._opened(self._fence, os.O_RDWR) as file:
            file.truncate(0)
            file.write(b"%d\n" % self._epoch)
            file.flush()
            os.fsync(file.fileno())
        return frozenset(keys)

    def _cut(self, file: BinaryIO, whole: int, torn: bytes, *, own: bool) -> None:
        """Take a line away that a crash of ours tore, and nothing that somebody else wrote."""
        if not own or not torn.startswith(b"{") or len(torn) == LINE_BYTES_MAX:
            raise UsageError(
                f"sink file {self._path} is refused: its last line has no end, and no action of ours wrote it; "
                "end it, or name another file",
                reason="ForeignFile",
            )
        file.truncate(whole)
        os.fsync(file.fileno())

    def _append(self, newest: int, text: str) -> None:
        if newest != self._epoch:
            raise Fenced(
                f"sink file {self._path} refused: fence {self._epoch} is not the newest, {newest}"
            )
        with self._opened(self._path, os.O_WRONLY | os.O_APPEND) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def _in_turn(self, work: Callable[[int], T]) -> T:
        """Call `work` with the newest fence, while no other process is at the file."""
        try:
            with self._opened(self._fence, os.O_RDWR) as fence:
                # Raises BlockingIOError if another process has it.
                fcntl.flock(fence.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                return work(self._newest(fence.read(FENCE_BYTES_MAX)))
        except OSError as error:
            raise Unavailable(
                f"sink file {self._path} refused: {error.strerror}", path=str(self._path)
            ) from error

    def _newest(self, held: bytes) -> int:
        try:
            return int(held or b"0")
        except ValueError:
            raise UsageError(
                f"sink file {self._path} is refused: {self._fence} is no fence of ours",
                reason="ForeignFile",
            ) from None

    def _opened(self, path: Path, flags: int) -> BinaryIO:
        mode = "r+b" if flags & os.O_RDWR else "ab"
        return cast("BinaryIO", os.fdopen(self._files.write(path, flags), mode))
