"""The writing side of one partition of the embedded log.

`write` puts frames into the page cache, `sync` makes them durable, `undo` takes back what was
written since the last sync. Only after `sync` may an offset be told to anybody.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tidemill.errors import Corrupt
from tidemill.runtime.log import Entry
from tidemill.runtime.log_frames import MAGIC, encode_frame, header_at, intact
from tidemill.runtime.log_segments import index_path, read_index, segment_bases, segment_path

SEGMENT_BYTES_MAX = 64 << 20
INDEX_EVERY_BYTES = 64 << 10
FRAME_RECORDS_MAX = 65_536
FRAME_BYTES_MAX = 8 << 20

TOLD = "acknowledged"
"""File of a partition: crc32 u32 · offset u64."""


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class PartitionWriter:
    """Appends to the last segment; the only writer, guarded by the lock of the log.

    Files are open from a write until `close`: a partition that nobody writes to holds none, and
    makes none. A write after `close` opens them again.
    """

    def __init__(self, directory: Path, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        """Find the end of the partition, and cut a write off that never finished.

        Raises: Corrupt if what was durable is damaged, or what was acknowledged is not there.
        """
        self._directory = directory
        self._segment_bytes_max = segment_bytes_max
        bases = segment_bases(directory)
        self.low = bases[0]
        self._base = bases[-1]
        self._fd = self._index_fd = self._told_fd = -1
        found = recovered(directory, self._base)
        _refuse_loss(directory, found.next_offset)
        if found.length < found.size:
            self._cut(found.length)
        if read_index(directory, self._base).tolist() != [list(hint) for hint in found.hints]:
            self._rewrite_index(found.hints)
        self._index_bytes = 16 * len(found.hints)
        self._length = self._durable = found.length
        self._indexed = self._indexed_durable = (
            found.hints[-1][1] if found.hints else -INDEX_EVERY_BYTES
        )
        self.high = self._next_offset = found.next_offset

    def close(self) -> None:
        """Close the files."""
        for fd in (self._fd, self._index_fd, self._told_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index_fd = self._told_fd = -1

    def write(self, entries: Sequence[Entry], default_timestamp_ms: int) -> int:
        """Write `entries` behind the last record; the offset of the first. Not durable yet."""
        self._open()
        if self._length >= self._segment_bytes_max and self._length == self._durable:
            self._roll()
        first = self._next_offset
        for some in _frames_of(entries):
            frame = encode_frame(some, self._next_offset, self._durable, default_timestamp_ms)
            if self._length - self._indexed >= INDEX_EVERY_BYTES:
                _write_all(self._index_fd, _hint(self._next_offset, self._length))
                self._indexed = self._length
            _write_all(self._fd, frame)
            self._length += len(frame)
            self._next_offset += len(some)
        return first

    def sync(self) -> None:
        """Make everything written durable, and visible to readers of this process."""
        os.fdatasync(self._fd)
        self._durable = self._length
        self._indexed_durable = self._indexed
        self._index_bytes = os.fstat(self._index_fd).st_size
        os.pwrite(self._told_fd, _told(self._next_offset), 0)
        self.high = self._next_offset

    def undo(self) -> None:
        """Take back what was written since the last `sync`; nothing was where no file is open."""
        if self._fd < 0:
            return
        os.ftruncate(self._fd, self._durable)
        os.ftruncate(self._index_fd, self._index_bytes)
        self._length = self._durable
        self._indexed = self._indexed_durable
        self._next_offset = self.high

    def _roll(self) -> None:
        self.close()
        self._base = self._next_offset
        self._open()
        self._length = self._durable = self._index_bytes = 0
        self._indexed = self._indexed_durable = -INDEX_EVERY_BYTES

    def _open(self) -> None:
        """Open the files of the last segment; a new one has its name on disk then."""
        if self._fd >= 0:
            return
        segment = segment_path(self._directory, self._base)
        if not segment.exists():
            if not self._directory.exists():
                self._directory.mkdir(mode=0o700)
                sync_directory(self._directory.parent)
            os.close(os.open(segment, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            sync_directory(self._directory)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        index, told = index_path(self._directory, self._base), self._directory / TOLD
        try:
            self._fd = os.open(segment, flags)
            self._index_fd = os.open(index, flags | os.O_CREAT, 0o600)
            self._told_fd = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            self.close()
            raise

    def _cut(self, length: int) -> None:
        fd = os.open(segment_path(self._directory, self._base), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _rewrite_index(self, hints: list[tuple[int, int]]) -> None:
        index = index_path(self._directory, self._base)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(index, flags, 0o600)
        try:
            _write_all(fd, b"".join(_hint(offset, at) for offset, at in hints))
        finally:
            os.close(fd)


def _told(offset: int) -> bytes:
    body = offset.to_bytes(8, "little")
    return zlib.crc32(body).to_bytes(4, "little") + body


def acknowledged(directory: Path) -> int:
    """The offset behind the last one that was told to anybody, as far as that is known.

    The witness is not flushed: after the power failed it may be older than the segment, never newer
    unless the segment lost its end. One that is not whole tells nothing.
    """
    try:
        record = (directory / TOLD).read_bytes()
    except FileNotFoundError:
        return 0
    return int.from_bytes(record[4:12], "little") if record == _told_again(record) else 0


def _told_again(record: bytes) -> bytes:
    return _told(int.from_bytes(record[4:12], "little"))


def _refuse_loss(directory: Path, end: int) -> None:
    told = acknowledged(directory)
    if end < told:
        raise Corrupt(
            f"the log in {directory} ends at {end}, but offsets up to {told} were acknowledged: it was"
            f" cut off or put back; restore it, or remove {directory / TOLD} to go on without them",
            offset=end,
            acknowledged=told,
        )


class Recovered:
    """The intact beginning of a segment of `size` bytes, with hints for its index."""

    def __init__(self, base: int, size: int) -> None:
        self.size = size
        self.length = 0
        self.next_offset = base
        self.hints: list[tuple[int, int]] = []


def recovered(directory: Path, base: int) -> Recovered:
    """The longest prefix of whole frames. Raises: Corrupt if a durable frame is not in it."""
    path = segment_path(directory, base)
    size = path.stat().st_size if path.exists() else 0
    found = Recovered(base, size)
    if size == 0:
        return found
    with pa.memory_map(str(path)) as file:
        data = memoryview(file.read_buffer(size))
        while (header := header_at(data, found.length)) is not None:
            if header.base_offset != found.next_offset or not intact(data, found.length, header):
                break
            if not found.hints or found.length - found.hints[-1][1] >= INDEX_EVERY_BYTES:
                found.hints.append((header.base_offset, found.length))
            found.length += header.size
            found.next_offset = header.next_offset
        if _durable_later(data, found.length) > found.length:
            raise Corrupt(
                f"segment {path.name} is damaged at byte {found.length}: what follows was written"
                f" after that place was durable ({directory})",
                path=path,
                position=found.length,
                offset=found.next_offset,
            )
    return found


def _durable_later(data: memoryview, position: int) -> int:
    """The greatest durable length that an intact frame behind `position` tells of."""
    durable = 0
    tail = bytes(data[position:])
    at = tail.find(MAGIC, 1)
    while at >= 0:
        header = header_at(data, position + at)
        if header is not None and intact(data, position + at, header):
            durable = max(durable, header.durable)
        at = tail.find(MAGIC, at + 1)
    return durable


def _frames_of(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    """`entries` cut into runs that each fit into one frame."""
    runs: list[Sequence[Entry]] = []
    start = size = 0
    for at, entry in enumerate(entries):
        size += len(entry.key or b"") + len(entry.value or b"")
        if (size > FRAME_BYTES_MAX and at > start) or at - start == FRAME_RECORDS_MAX:
            runs.append(entries[start:at])
            start, size = at, len(entry.key or b"") + len(entry.value or b"")
    if start < len(entries):
        runs.append(entries[start:])
    return runs


def _hint(offset: int, position: int) -> bytes:
    return offset.to_bytes(8, "little") + position.to_bytes(8, "little")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
