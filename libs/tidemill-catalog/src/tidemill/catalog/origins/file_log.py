"""A set of files read as a partitioned log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tidemill.catalog.origins.files import RowFile, count_rows
from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import LogRecord
from tidemill.runtime.places import ANY_FILE, Files
from tidemill.shard.offloading import first_of

ROWS_PER_READ = 20_000


class FileRegistry(Protocol):
    """Remembers which file is which partition, for ever."""

    async def paths(self) -> Sequence[str]:
        """The files known so far; the index of a file is its partition."""

    async def add(self, paths: Sequence[str]) -> Sequence[str]:
        """Append new files, durably; all files known then."""


class OneFile:
    """The registry of a source that names a single file: it is partition 0."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def paths(self) -> Sequence[str]:
        """The path of the file."""
        return [self._path]

    async def add(self, paths: Sequence[str]) -> Sequence[str]:
        """The path of the file; nothing is added."""
        return [self._path]


class Counted:
    """Number of complete rows of each file, and the readers that wait for more."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.more = asyncio.Event()

    def note(self, partition: int, rows: int) -> None:
        """A file has so many rows."""
        if self.rows.get(partition) != rows:
            self.rows[partition] = rows
            self.more.set()
            self.more = asyncio.Event()


class FileLog:
    """The files that a path names, with rows as records; the value of a record is its row.

    Implements of the log port what a source needs: bounds and readers.
    """

    def __init__(
        self,
        pattern: str,
        registry: FileRegistry,
        open_file: Callable[[Path], RowFile],
        clock: Clock,
        places: Files = ANY_FILE,
    ) -> None:
        self._pattern = pattern
        self._places = places
        self._registry = registry
        self._open_file = open_file
        self._clock = clock
        self._files: list[RowFile] = []
        self._counted = Counted()
        self._counting = asyncio.Lock()

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → (0, number of complete rows). Raises UsageError if there is no file.

        One count at a time: a file goes on from where its last count ended.
        """
        async with self._counting:
            await self._discover()
            now_ms = self._clock.now_ms()
            for partition, file in enumerate(self._files):
                self._counted.note(partition, await count_rows(file, now_ms))
            return {partition: (0, rows) for partition, rows in self._counted.rows.items()}

    async def identity(self, topic: str) -> str | None:
        """Files are known by their paths."""
        return None

    async def reader(self, topic: str, starts: Mapping[int, int]) -> FileReader:
        """A reader of the counted rows of each file, from its row in `starts`."""
        async with self._counting:
            await self._discover()
        return FileReader(self._files, self._counted, dict(starts), self._clock)

    async def _discover(self) -> None:
        """Give every file that is new its partition before anything is read from it."""
        known = list(await self._registry.paths())
        found = await asyncio.to_thread(self._places.matching, self._pattern)
        if not known and not found:
            raise UsageError(f"no file matches {self._pattern}", reason="unknown-topic")
        numbered = set(known)
        if fresh := [path for path in found if path not in numbered]:
            for path in fresh:
                # Before it gets a partition, so that a wrong file can be taken away again.
                await asyncio.to_thread(self._open_file(Path(path)).check)
            known = list(await self._registry.add(fresh))
        for path in known[len(self._files) :]:
            self._files.append(self._open_file(Path(path)))


class FileReader:
    """Reads rows of several files in turn, each in order."""

    def __init__(
        self,
        files: Sequence[RowFile],
        counted: Counted,
        positions: dict[int, int],
        clock: Clock,
    ) -> None:
        self._files = files
        self._counted = counted
        self._positions = positions
        self._clock = clock
        self._turn = 0

    async def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        """Up to `max_records` next rows of one file; none after `timeout_s`."""
        for waited in (False, True):
            for _ in range(len(self._files)):
                self._turn = (self._turn + 1) % max(1, len(self._files))
                if rows := await self._read(self._turn, max_records):
                    return rows
            if not waited:
                # A file that has more rows ends the pause.
                await first_of((self._counted.more.wait(), self._clock.sleep(timeout_s)))
        return []

    async def assign(self, partition: int, offset: int) -> None:
        """Read a partition from an offset on, from now on."""
        self._positions[partition] = offset

    def positions(self) -> dict[int, int]:
        """Partition → number of the next row to read."""
        return dict(self._positions)

    async def close(self) -> None:
        """Nothing is held open between two reads."""

    async def _read(self, partition: int, max_records: int) -> list[LogRecord]:
        first = self._positions.get(partition)
        last = self._counted.rows.get(partition, 0)
        if first is None or first >= last:
            return []
        stop = min(last, first + min(max_records, ROWS_PER_READ))
        rows = await asyncio.to_thread(self._files[partition].read, first, stop)
        if not rows.values:
            raise Unavailable(
                f"file of partition {partition} has {first + len(rows.values)} rows, "
                f"{stop} were counted"
            )
        self._positions[partition] = first + len(rows.values)
        return [
            LogRecord(partition, first + index, None, value, 0)
            for index, value in enumerate(rows.values)
        ]
