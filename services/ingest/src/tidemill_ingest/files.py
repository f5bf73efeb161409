"""Files as partitioned logs: one partition for each file, the row number as the offset.

A row once counted keeps its number, because files may only grow. A last line without an end of
line is a row as soon as the file has been left alone for a while; until then it may be half of one.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow.parquet as pq

from tidemill.time import Unavailable, UsageError

READ_BYTES = 1 << 20
SETTLED_MS = 2_000
"""A file that did not change for this long is not in the middle of a line."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows [first, first + len(values)) of one file, each as the bytes that the format decodes."""

    first: int
    values: list[bytes]


class RowFile(Protocol):
    """One file whose rows are numbered from 0."""

    def count(self, now_ms: int) -> int:
        """How many rows are complete. Raises Unavailable if the file cannot be read."""

    def read(self, first: int, stop: int) -> FileRows:
        """The rows [first, stop), which were counted before."""


@dataclass(slots=True)
class LineFile:
    """A text file with one row to a line; with `quoted`, a line end inside quotes is part of a row.

    Positions of rows are remembered every now and then, so that reading on from a row does not
    start at the beginning of the file.
    """

    path: Path
    header_rows: int = 0
    quoted: bool = False
    _rows: int = 0
    _end: int = 0
    _marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def count(self, now_ms: int) -> int:
        """Complete rows; a file that became shorter raises UsageError."""
        try:
            stat = self.path.stat()
            if stat.st_size < self._end:
                raise UsageError(
                    f"file {self.path} became shorter: {stat.st_size} bytes, {self._end} were read",
                    reason="FileShrank",
                )
            if stat.st_size > self._end:
                settled = now_ms - stat.st_mtime_ns // 1_000_000 >= SETTLED_MS
                self._scan(settled, stat.st_size)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return max(0, self._rows - self.header_rows)

    def read(self, first: int, stop: int) -> FileRows:
        """The rows [first, stop) without their line ends."""
        wanted, last = first + self.header_rows, stop + self.header_rows
        number, position = max(mark for mark in self._marks if mark[0] <= wanted)
        values = []
        for row, _ in _rows_from(self.path, position, self._end, self.quoted):
            if number >= last:
                break
            if number >= wanted:
                values.append(row.rstrip(b"\r\n"))
            number += 1
        return FileRows(first, values)

    def header(self) -> bytes | None:
        """The first line, once it is there."""
        for row, _ in _rows_from(self.path, 0, self._end, self.quoted):
            return row.rstrip(b"\r\n")
        return None

    def _scan(self, settled: bool, size: int) -> None:
        """Count the rows between the last known end and `size`."""
        for row, end in _rows_from(self.path, self._end, size, self.quoted):
            if not row.endswith(b"\n") and not settled:
                break
            self._rows += 1
            self._end = end
            if end - self._marks[-1][1] >= READ_BYTES:
                self._marks.append((self._rows, end))


@dataclass(slots=True)
class ParquetFile:
    """A Parquet file, whose rows become JSON texts; it cannot grow, only be replaced."""

    path: Path

    def count(self, now_ms: int) -> int:
        try:
            return int(pq.read_metadata(self.path).num_rows)
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, error) from error

    def read(self, first: int, stop: int) -> FileRows:
        rows = pq.read_table(self.path).slice(first, stop - first)
        return FileRows(first, [msgspec.json.encode(row) for row in rows.to_pylist()])


def names_many(pattern: str) -> bool:
    """Whether a path may stand for more than one file: a pattern, or a folder."""
    return glob.has_magic(pattern) or Path(pattern).is_dir()


def files_of(pattern: str) -> list[Path]:
    """The files that a path names: itself, what it matches as a pattern, or what a folder holds."""
    path = Path(pattern)
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.is_file())
    if glob.has_magic(pattern):
        return sorted(Path(name) for name in glob.glob(pattern))
    return [path] if path.is_file() else []


async def count_rows(file: RowFile, now_ms: int) -> int:
    """`file.count` off the event loop."""
    return await asyncio.to_thread(file.count, now_ms)


def _rows_from(path: Path, position: int, end: int, quoted: bool) -> Iterator[tuple[bytes, int]]:
    """Rows between two byte positions with the position after each; the last may lack its end."""
    with path.open("rb") as file:
        file.seek(position)
        held, quotes = b"", 0
        while position < end:
            line = file.readline()
            if not line:
                break
            position += len(line)
            held += line
            quotes += line.count(b'"') if quoted else 0
            if quotes % 2 == 0:
                yield held, position
                held = b""
        if held:
            yield held, position


def _unreadable(path: Path, error: Exception) -> Unavailable:
    return Unavailable(f"file {path} cannot be read: {error}", path=str(path))
