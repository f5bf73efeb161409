"""Segments: the files of the embedded log, and how to read them from any process.

    <directory>/topics/<topic>/topic.json            the number of partitions, and an id; written
    last <directory>/topics/<topic>/<partition>/<base>.log    frames from offset <base> on,
    append-only <directory>/topics/<topic>/<partition>/<base>.index  (offset, position) of some
    frames; a hint only <directory>/topics/<topic>/<partition>/acknowledged  the offset behind the
    last one that was told

A partition has a folder once a record was put into it. Only its last segment grows. Readers need no
lock: they are told how far the writer has come, and check every frame.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import Corrupt, NotYet
from tidemill.runtime.log import offset_out_of_range, unknown_partition, unknown_topic
from tidemill.runtime.log_frames import (
    HEADER,
    RECORD_COLUMNS,
    Frame,
    decode_frame,
    header_at,
    intact,
)

CHUNK_BYTES = 1 << 20
BATCH_ROWS_MIN = 16_384
"""Small frames are joined until a batch has at least this many rows."""


def topic_directory(directory: Path, topic: str) -> Path:
    """Folder of `topic`."""
    return directory / "topics" / topic


def partition_directory(directory: Path, topic: str, partition: int) -> Path:
    """Folder of the segments of one partition."""
    return topic_directory(directory, topic) / str(partition)


@dataclass(frozen=True, slots=True)
class Described:
    """Number of partitions of a topic, and its identity among all of its name."""

    partitions: int
    id: str | None
    """None for a topic from before there were ids."""


def described(directory: Path, topic: str) -> Described:
    """Description of `topic`.

    Raises: UsageError if there is no such topic; Corrupt if its file is damaged.
    """
    path = topic_directory(directory, topic) / "topic.json"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise unknown_topic(topic) from None
    try:
        found = json.loads(text)
        return Described(int(found["partitions"]), found.get("id"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path} describes no topic: {error}", path=path) from error


def segment_bases(partition: Path) -> list[int]:
    """The first offsets of all segments of a partition, ascending; 0 alone where nothing was
    written.
    """
    return sorted(int(path.stem) for path in partition.glob("*.log")) or [0]


def segment_path(partition: Path, base: int) -> Path:
    """The file whose first record has offset `base`."""
    return partition / f"{base:020d}.log"


def index_path(partition: Path, base: int) -> Path:
    """The hints for the segment at `base`."""
    return partition / f"{base:020d}.index"


def read_index(partition: Path, base: int) -> npt.NDArray[np.int64]:
    """Rows (offset, position) of the index, ascending; may be short or point behind the end."""
    try:
        raw = index_path(partition, base).read_bytes()
    except FileNotFoundError:
        raw = b""
    return np.frombuffer(raw[: len(raw) // 16 * 16], np.int64).reshape(-1, 2)


class FrameCursor:
    """The frames of a partition in order, from the one that holds offset `start`.

    Not for use by two threads at once. Holds one open file until `close`; the next read opens it
    again.
    """

    def __init__(self, partition: Path, start: int) -> None:
        self._partition = partition
        self._start = start
        self._fd = -1
        self._base: int | None = None
        self._position = 0
        self._next_offset = start
        self._size_wanted = CHUNK_BYTES

    @property
    def next_offset(self) -> int:
        """The first offset that no frame returned so far holds."""
        return self._next_offset

    def close(self) -> None:
        """Close the open segment, if any."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def next_frames(self, stop: int) -> list[Frame]:
        """Some next frames that begin below `stop`; empty if there are none.

        `stop` must not be beyond what the writer has announced.
        Raises: Corrupt if the bytes there are not those that were written.
        """
        if self._next_offset >= stop:
            return []
        if self._fd < 0 and not self._reopen():
            return []
        while True:
            frames, moved = self._parse_chunk(stop)
            if frames or not (moved or self._open_following()):
                return frames

    def _reopen(self) -> bool:
        """Open the file of the position, or the first one; false if there is none."""
        if self._base is None:
            return self._open_at_start()
        self._fd = os.open(segment_path(self._partition, self._base), os.O_RDONLY | os.O_CLOEXEC)
        return True

    def _open_at_start(self) -> bool:
        bases = [base for base in segment_bases(self._partition) if base <= self._start]
        if not bases or not segment_path(self._partition, bases[-1]).exists():
            return False
        self._open(bases[-1])
        hints = read_index(self._partition, bases[-1])
        hints = hints[hints[:, 0] <= self._start]
        for offset, position in hints[::-1].tolist():
            header = header_at(memoryview(os.pread(self._fd, HEADER.size, position)), 0)
            if header is not None and header.base_offset == offset:
                self._position, self._next_offset = position, offset
                break
        return True

    def _open(self, base: int) -> None:
        self.close()
        self._fd = os.open(segment_path(self._partition, base), os.O_RDONLY | os.O_CLOEXEC)
        self._base = base
        self._position = 0
        self._next_offset = base

    def _open_following(self) -> bool:
        """Go to the next segment; false if this is the last one."""
        if os.fstat(self._fd).st_size > self._position:
            return False
        if not segment_path(self._partition, self._next_offset).exists() or self._position == 0:
            return False
        self._open(self._next_offset)
        return True

    def _parse_chunk(self, stop: int) -> tuple[list[Frame], bool]:
        """Frames of the next chunk, and whether the position moved."""
        chunk = os.pread(self._fd, self._size_wanted, self._position)
        view, buffer = memoryview(chunk), pa.py_buffer(chunk)
        self._size_wanted = CHUNK_BYTES
        frames: list[Frame] = []
        at = 0
        while self._next_offset < stop and at < len(chunk):
            header = header_at(view, at)
            if header is None or at + header.size > len(chunk):
                if at == 0:
                    self._want_whole_frame(len(chunk), None if header is None else header.size)
                    return [], True
                break
            if header.base_offset != self._next_offset or not intact(view, at, header):
                raise self._damaged(at)
            if header.next_offset > self._start:
                frames.append(decode_frame(buffer, at, header))
            self._next_offset = header.next_offset
            at += header.size
        self._position += at
        return frames, at > 0

    def _want_whole_frame(self, read: int, size: int | None) -> None:
        """Make the next read large enough for the frame at the position."""
        if size is None or os.fstat(self._fd).st_size < self._position + size:
            raise self._damaged(0)
        self._size_wanted = max(size, read + 1)

    def _damaged(self, ahead: int) -> Corrupt:
        return Corrupt(
            f"frame of offset {self._next_offset} is damaged at byte {self._position + ahead}"
            f" of a segment in {self._partition}",
            partition=self._partition,
            offset=self._next_offset,
        )


def read_range(
    directory: Path | str,
    topic: str,
    partition: int,
    start: int,
    stop: int,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Exactly the records [start, stop) of a partition, as batches of RECORD_COLUMNS.

    Needs no EmbeddedLog and no lock; any process may call it while another one writes. Raises:
    UsageError if the topic or partition is not there or the range begins below the oldest record.
    NotYet if the log does not reach `stop`, Corrupt if stored bytes are damaged. Cost: one read of
    the bytes of the range; no Python object per record.
    """
    partitions = described(Path(directory), topic).partitions
    if not 0 <= partition < partitions:
        raise unknown_partition(topic, partition, partitions)
    files = partition_directory(Path(directory), topic, partition)
    low = segment_bases(files)[0]
    if not low <= start <= stop:
        raise offset_out_of_range(topic, partition, start, low, stop)
    names = list(RECORD_COLUMNS.names if columns is None else columns)
    cursor = FrameCursor(files, start)
    waiting: list[pa.RecordBatch] = []
    try:
        while cursor.next_offset < stop:
            frames = cursor.next_frames(stop)
            if not frames:
                raise NotYet(
                    f"offset {stop} of {topic}/{partition} is not written: the log ends at"
                    f" {cursor.next_offset}",
                    requested=stop,
                    upper=cursor.next_offset,
                )
            for frame in frames:
                waiting.append(frame.to_batch(partition, start, stop).select(names))
                if sum(batch.num_rows for batch in waiting) >= BATCH_ROWS_MIN:
                    yield _joined(waiting)
                    waiting = []
        if waiting:
            yield _joined(waiting)
    finally:
        cursor.close()


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
