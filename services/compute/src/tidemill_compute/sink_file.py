"""A file as a sink: one line for each key, whatever happens to the process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from tidemill.time import Unavailable
from tidemill_compute.outbox import Firing, key_in


class FileSink:
    """Appends each firing as one line of JSON; durable when `fire` returns.

    The file is its own memory: a last line that a crash tore is cut off, and the keys that are in
    the file have fired. Delivery: askable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    at_most_once = False

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        return await asyncio.to_thread(self._recover)

    async def fire(self, firings: Sequence[Firing]) -> None:
        if firings:
            text = "".join(firing.line + "\n" for firing in firings)
            await asyncio.to_thread(self._append, text.encode())

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    def _recover(self) -> frozenset[str]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                file.seek(0)
                content = file.read()
                whole = content.rfind(b"\n") + 1
                if whole < len(content):
                    file.truncate(whole)
                    os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(
                f"sink file {self._path} refused: {error.strerror}", path=str(self._path)
            ) from error
        return frozenset(key_in(line) for line in content[:whole].splitlines())

    def _append(self, data: bytes) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(
                f"sink file {self._path} refused: {error.strerror}", path=str(self._path)
            ) from error
