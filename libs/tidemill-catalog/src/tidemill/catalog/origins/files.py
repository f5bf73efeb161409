"""Files as partitioned logs: one partition for each file, the row number as the offset.

A row once counted keeps its number, because files may only grow. A last line without an end of line
is a row as soon as the file has been left alone for a while. Until then it may be half of one.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import BinaryIO, Protocol

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.formats.lengths import RECORD_BYTES_MAX
from tidemill.runtime.places import ANY_FILE, Files

READ_BYTES = 1 << 20
ROWS_BYTES_MAX = 32 << 20
"""Rows are given until they have so much together."""
_HELD_BYTES_MAX = RECORD_BYTES_MAX + len(b"\r\n")
HEADER_BYTES_MAX = 1 << 20
COLUMNS_MAX = 10_000
MARK = b"\xef\xbb\xbf"
"""Byte order mark, which some editors put before the first character of a UTF-8 text."""
SETTLED_MS = 2_000
"""A file that did not change for this long is not in the middle of a line."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows [first, first + len(values)) of one file, each as the bytes that the format decodes."""

    first: int
    values: list[bytes]


class RowFile(Protocol):
    """One file whose rows are numbered from 0."""

    def check(self) -> None:
        """Raises UsageError if the file is known to hold other columns than the source."""

    def count(self, now_ms: int) -> int:
        """Number of complete rows. Raises: Unavailable if the file cannot be read."""

    def read(self, first: int, stop: int) -> FileRows:
        """The rows from `first` on, before `stop`, which were counted before; at least one of
        them.
        """


@dataclass(slots=True)
class LineFile:
    """A text file with one row to a line; with `quoted`, a line end inside quotes is part of a row.

    With `columns`, the first line has to name these, in any order; it is no row, and rows are given
    in the order of `columns`. Positions of rows are remembered every now and then, so that reading
    on from a row does not start at the beginning of the file.
    """

    path: Path
    columns: Sequence[str] = ()
    delimiter: str = ","
    quoted: bool = False
    files: Files = ANY_FILE
    _checked: bool = False
    _order: Sequence[int] = ()
    _rows: int = 0
    _end: int = 0
    _marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    @property
    def header_rows(self) -> int:
        """Number of lines before the first row."""
        return 1 if self.columns else 0

    def check(self) -> None:
        """A header that is not there yet is checked with the first count after it is."""
        if self._checked or not self.columns:
            return
        names = csv_header(self.path, self.delimiter, self.files)
        if names is None:
            return
        if sorted(names) != sorted(self.columns):
            raise UsageError(
                f"file {self.path} has the columns {', '.join(names)}, the source has "
                f"{', '.join(self.columns)}: take it away, or give it these",
                reason="OtherColumns",
            )
        if names != list(self.columns):
            self._order = [names.index(column) for column in self.columns]
        self._checked = True

    def count(self, now_ms: int) -> int:
        """Complete rows; a file that became shorter, or has other columns, raises UsageError."""
        self.check()
        try:
            stat = self.files.stat(self.path)
            if stat.st_size < self._end:
                raise UsageError(
                    f"file {self.path} became shorter: {stat.st_size} bytes, {self._end} were read",
                    reason="FileShrank",
                )
            if stat.st_size > self._end:
                settled = now_ms - stat.st_mtime_ns // 1_000_000 >= SETTLED_MS
                self._scan(settled, stat.st_size)
        except OSError as error:
            raise unreadable(self.path, error) from error
        return max(0, self._rows - self.header_rows)

    def read(self, first: int, stop: int) -> FileRows:
        """The rows [first, stop) without their line ends."""
        wanted, last = first + self.header_rows, stop + self.header_rows
        number, position = max(mark for mark in self._marks if mark[0] <= wanted)
        values: list[bytes] = []
        size = 0
        for row, _ in _rows_from(self._open(), position, self._end, self.quoted):
            if number >= last or size >= ROWS_BYTES_MAX:
                break
            if number >= wanted:
                values.append(self._given(row.removeprefix(MARK) if number == 0 else row))
                size += len(row)
            number += 1
        return FileRows(first, values)

    def _open(self) -> BinaryIO:
        return self.files.read(self.path)

    def _given(self, row: bytes) -> bytes:
        """A row without its line end, with its fields in the order of the source's columns."""
        bare = row.rstrip(b"\r\n")
        if not self._order or len(bare) > RECORD_BYTES_MAX:
            return bare
        return reordered(bare, self._order, self.delimiter)

    def _scan(self, settled: bool, size: int) -> None:
        """Count the rows between the last known end and `size`."""
        for row, end in _rows_from(self._open(), self._end, size, self.quoted):
            if not row.endswith(b"\n") and not settled:
                break
            self._rows += 1
            self._end = end
            if end - self._marks[-1][1] >= READ_BYTES:
                self._marks.append((self._rows, end))


def csv_header(path: Path, delimiter: str, files: Files = ANY_FILE) -> list[str] | None:
    """The names in the first line of a CSV file, None before there is a whole one.

    Raises Unavailable if the file cannot be read, UsageError if it names no columns, or too many.
    """
    try:
        with files.read(path) as file:
            line = file.readline(HEADER_BYTES_MAX)
    except OSError as error:
        raise unreadable(path, error) from error
    text = line.removeprefix(MARK).decode(errors="replace")
    if not text.endswith("\n"):
        return None
    try:
        found = next(csv.reader([text.rstrip("\r\n")], delimiter=delimiter), [])
    except csv.Error as error:
        raise UsageError(
            f"the first line of the file {path} names no columns: {error}", reason="OtherColumns"
        ) from error
    if len(found) > COLUMNS_MAX:
        raise UsageError(
            f"the first line of the file {path} names {len(found):,} columns, more than {COLUMNS_MAX:,}",
            reason="OtherColumns",
        )
    return [name.strip() for name in found]


def reordered(row: bytes, order: Sequence[int], delimiter: str) -> bytes:
    """A CSV row with its fields in another order; one with another number of fields as it is."""
    try:
        fields = next(csv.reader(StringIO(row.decode(), newline=""), delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error):
        return row  # nothing that reads it makes a row of it
    if len(fields) != len(order):
        return row
    written = StringIO(newline="")
    # NB: the writer quotes a line end only if it is in its own.
    csv.writer(written, delimiter=delimiter, lineterminator="\r\n").writerow(
        [fields[place] for place in order]
    )
    return written.getvalue().removesuffix("\r\n").encode()


async def count_rows(file: RowFile, now_ms: int) -> int:
    """`file.count` off the event loop."""
    return await asyncio.to_thread(file.count, now_ms)


def _rows_from(
    file: BinaryIO, position: int, end: int, quoted: bool
) -> Iterator[tuple[bytes, int]]:
    """Rows between two byte positions with the position after each; the last may lack its end.

    Of a row beyond the limit of a record only a beginning is held, itself longer than the limit. An
    open quote makes one row of the rest of a file.
    """
    with file:
        file.seek(position)
        held, quotes = bytearray(), 0
        while position < end:
            line = file.readline(READ_BYTES)
            if not line:
                break
            position += len(line)
            held += line[: max(0, _HELD_BYTES_MAX - len(held))]
            quotes += line.count(b'"') if quoted else 0
            whole = line.endswith(b"\n")
            if whole and quotes % 2 == 0:
                yield _cut(held, whole), position
                held, quotes = bytearray(), 0
        if held:
            yield _cut(held, whole), position


def _cut(held: bytearray, whole: bool) -> bytes:
    """The held bytes of a row; of a row that is too long, a beginning beyond the limit, and its
    end.
    """
    if len(held) < _HELD_BYTES_MAX:
        return bytes(held)
    return bytes(held) + (b"..\n" if whole else b"..")


def unreadable(path: Path, error: Exception) -> Unavailable:
    """The error of a file that is not there, or not whole, now."""
    return Unavailable(f"file {path} cannot be read: {error}", path=str(path))
