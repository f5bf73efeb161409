"""A file as a sink: one line for each key, whatever happens to the process."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tidemill.time import Fenced, Unavailable
from tidemill_compute.actions.outbox import Firing, key_in

T = TypeVar("T")


class FileSink:
    """Appends each firing as one line of JSON; durable when `fire` returns.

    The file is its own memory: a last line that a crash tore is cut off, and the keys that are in
    the file have fired. Delivery: askable. Each start takes a higher fence, kept in a hidden file
    beside: a process that was paused and replaced is refused. One that is paused within a write keeps
    the file locked until it goes on or ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fence = path.parent / f".{path.name}.fence"
        self._epoch = 0

    at_most_once = False

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        return await asyncio.to_thread(self._in_turn, self._recover)

    async def fire(self, firings: Sequence[Firing]) -> None:
        """Raises: Fenced if another process has started since; Unavailable."""
        if firings:
            text = "".join(firing.line + "\n" for firing in firings)
            await asyncio.to_thread(self._in_turn, lambda newest: self._append(newest, text))

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    def _recover(self, newest: int) -> frozenset[str]:
        self._epoch = newest + 1
        with self._fence.open("wb") as file:
            file.write(b"%d\n" % self._epoch)
            file.flush()
            os.fsync(file.fileno())
        with self._path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)
                os.fsync(file.fileno())
        return frozenset(key_in(line) for line in content[:whole].splitlines())

    def _append(self, newest: int, text: str) -> None:
        if newest != self._epoch:
            raise Fenced(
                f"sink file {self._path} refused: fence {self._epoch} is not the newest, {newest}"
            )
        with self._path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def _in_turn(self, work: Callable[[int], T]) -> T:
        """Let one process at a time at the file; `work` is given the newest fence."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self._fence):
                return work(int(self._fence.read_bytes() or b"0"))
        except OSError as error:
            raise Unavailable(
                f"sink file {self._path} refused: {error.strerror}", path=str(self._path)
            ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Have the lock of a file. Raises: BlockingIOError if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
