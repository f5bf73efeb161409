"""The embedded log: the log port on files of one directory, without a server.

Appends that wait at the same time share one write and one fsync (group commit). The directory has
one writing process at a time, guarded by a lock file; reading bounded ranges needs no lock
(`log_segments.read_range`).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from tidemill.arrangement.looks import looking, with_looks
from tidemill.errors import (
    Corrupt,
    Fenced,
    Indeterminate,
    TidemillError,
    Unavailable,
    UsageError,
)
from tidemill.runtime.clock import Clock, SystemClock
from tidemill.runtime.ids import random_id
from tidemill.runtime.log import (
    Entry,
    LogRecord,
    check_entries,
    check_topic_name,
    offset_out_of_range,
    unknown_partition,
    unknown_topic,
)
from tidemill.runtime.log_groups import GroupCommit, Outcome, Place
from tidemill.runtime.log_partitioner import partition_of
from tidemill.runtime.log_segments import (
    FrameCursor,
    described,
    partition_directory,
    topic_directory,
)
from tidemill.runtime.log_writer import SEGMENT_BYTES_MAX, PartitionWriter, sync_directory
from tidemill.shard.offloading import OBJECT_ROWS, compute_beside

GROUP_NAME_MAX = 255
OPEN_MAX = 64
"""Partitions whose files are open for writing at once: three files each."""


@dataclass(slots=True)
class _Topic:
    """An open topic: its writers, who waits for records, and where keyless records went last."""

    name: str
    directory: Path
    partitions: list[PartitionWriter]
    count: int = 0
    """Number of its partitions, with those that cannot be opened."""
    id: str | None = None
    damage: Corrupt | None = None
    """Why nobody can read or write it, if that is so; other topics are not touched by it."""
    next_keyless: int = 0
    waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def places(self, entries: Sequence[Entry]) -> list[int]:
        """The partition of each entry. Raises: UsageError for one that cannot be written."""
        check_entries(self.name, entries, len(self.partitions))
        return [self._place(entry) for entry in with_looks(entries)]

    def _place(self, entry: Entry) -> int:
        if entry.partition is not None:
            return entry.partition
        if entry.key is not None:
            return partition_of(entry.key, len(self.partitions))
        self.next_keyless += 1
        return self.next_keyless % len(self.partitions)


class EmbeddedLog:
    """The log port on a directory. Belongs to one event loop.

    A topic of which something acknowledged is damaged, or gone, is opened by nobody: each call
    about it raises Corrupt, and other topics go on. Of any number of partitions `OPEN_MAX` have
    files open. Raises: UsageError with reason `locked` if another process (or this one) has the
    directory open.
    """

    def __init__(
        self,
        directory: Path | str,
        clock: Clock | None = None,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        unique: Callable[[], str] = random_id,
    ) -> None:
        """`unique` names topics, so that one that was made anew is another one."""
        self._directory = Path(directory)
        self._clock: Clock = clock or SystemClock()
        self._segment_bytes_max = segment_bytes_max
        self._unique = unique
        self._open: dict[Place, PartitionWriter] = {}
        self._lock_fd = _lock(self._directory)
        self._topics: dict[str, _Topic] = {}
        self._creating: dict[str, asyncio.Lock] = {}
        self._groups = GroupCommit(self._write_runs)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="embedded-log")
        self._readers: set[EmbeddedReader] = set()
        self._fences: dict[str, int] = {}
        self._closed = False
        self._broken: OSError | None = None
        try:
            for path in sorted(self._directory.glob("topics/*/topic.json")):
                self._open_topic(path.parent.name)
        except BaseException:
            self._release()
            raise

    @property
    def directory(self) -> Path:
        """Folder in which `read_range` finds the records."""
        return self._directory

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create the topic with so many partitions, or check that it has them."""
        self._check_open()
        check_topic_name(topic)
        if partitions < 1:
            raise UsageError(f"topic {topic} refused: {partitions} partitions", reason="partitions")
        async with self._creating.setdefault(topic, asyncio.Lock()):
            if topic not in self._topics:
                made = self._directory, topic, partitions, self._unique()
                await asyncio.to_thread(_create_topic_files, *made)
                self._open_topic(topic)
        known = self._topic(topic)
        if known.count != partitions:
            raise UsageError(
                f"topic {topic} has {known.count} partitions, not {partitions}",
                reason="partitions",
                topic=topic,
                partitions=known.count,
            )

    async def topics(self) -> dict[str, int]:
        """Topic → number of its partitions."""
        self._check_open()
        return {name: topic.count for name, topic in self._topics.items()}

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → (oldest offset, offset of the next record)."""
        return {
            number: (partition.low, partition.high)
            for number, partition in enumerate(self._topic(topic).partitions)
        }

    async def identity(self, topic: str) -> str | None:
        """The id that the topic got at its creation."""
        return self._topic(topic).id

    async def append(self, topic: str, records: Sequence[Entry]) -> list[tuple[int, int]]:
        """Append `records`, on disk on return; appends that wait together share a write."""
        opened = self._topic(topic)
        size = OBJECT_ROWS * len(records)
        partitions = await compute_beside(size, partial(opened.places, records))
        if self._broken is not None:
            raise Fenced(f"log is unusable since a failed fsync: {self._broken}")
        return await self._groups.append(topic, records, partitions)

    async def open_fenced_writer(self, name: str) -> EmbeddedFencedWriter:
        """A writer that ends all earlier ones of its name in this process, the only one that
        writes.
        """
        self._check_open()
        # One process at a time has the directory open: to count within it is enough.
        self._fences[name] = self._fences.get(name, 0) + 1
        return EmbeddedFencedWriter(self, name, self._fences[name])

    async def reader(self, topic: str, starts: Mapping[int, int]) -> EmbeddedReader:
        """A reader of the partitions of `starts`, each from its offset on."""
        reader = EmbeddedReader(self, self._topic(topic), self._clock)
        for partition, offset in starts.items():
            await reader.assign(partition, offset)
        self._readers.add(reader)
        return reader

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Note offsets of a group in a file."""
        noted = {**await self.read_committed(group, topic), **offsets}
        path = self._group_path(group, topic)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps({str(key): offset for key, offset in noted.items()}).encode())

    async def read_committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets noted for a group."""
        self._topic(topic)
        try:
            noted = json.loads(self._group_path(group, topic).read_bytes())
        except FileNotFoundError:
            return {}
        return {int(partition): offset for partition, offset in noted.items()}

    async def close(self) -> None:
        """Finish running appends, end all readers, release the folder."""
        if self._closed:
            return
        self._closed = True
        await self._groups.drain()
        for reader in tuple(self._readers):
            await reader.close()
        self._release()

    def _release(self) -> None:
        self._writer.shutdown()
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.close()
        os.close(self._lock_fd)

    def _check_open(self) -> None:
        if self._closed:
            raise Fenced(f"log is closed ({self._directory})")

    def _topic(self, name: str) -> _Topic:
        self._check_open()
        topic = self._topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        if topic.damage is not None:
            raise Corrupt(topic.damage.message, **topic.damage.details)
        return topic

    def _open_topic(self, name: str) -> None:
        topic = _Topic(name, topic_directory(self._directory, name), [])
        self._topics[name] = topic
        try:
            found = described(self._directory, name)
            topic.count, topic.id = found.partitions, found.id
            for number in range(topic.count):
                files = partition_directory(self._directory, name, number)
                topic.partitions.append(PartitionWriter(files, self._segment_bytes_max))
        except Corrupt as error:
            topic.damage = error

    def _group_path(self, group: str, topic: str) -> Path:
        # NB: the names of files have 255 bytes, and a group may be called as a folder above is.
        name = quote(group, safe="")
        if len(name) > GROUP_NAME_MAX or set(name) <= {"."}:
            name = f"~{blake2b(group.encode(), digest_size=32).hexdigest()}"
        return self._directory / "groups" / name / f"{topic}.json"

    async def _write_runs(self, runs: Mapping[Place, list[Entry]]) -> Mapping[Place, Outcome]:
        now_ms = self._clock.now_ms()
        loop = asyncio.get_running_loop()
        offsets = await loop.run_in_executor(self._writer, self._write_and_sync, runs, now_ms)
        for name in {name for name, _ in runs}:
            _wake(self._topics[name])
        return offsets

    def _write_and_sync(
        self, runs: Mapping[Place, list[Entry]], now_ms: int
    ) -> dict[Place, Outcome]:
        """Write all runs and make them durable, so many partitions at a time as may be open."""
        outcomes: dict[Place, Outcome] = {}
        for some in _batched(runs, OPEN_MAX):
            try:
                outcomes |= self._write_some(some, now_ms)
            except TidemillError as error:
                outcomes |= dict.fromkeys(some, error)
        return outcomes

    def _write_some(
        self, runs: Mapping[Place, list[Entry]], now_ms: int
    ) -> dict[Place, Sequence[int]]:
        """One write and one fsync for each partition."""
        if self._broken is not None:
            raise Fenced(f"log is unusable since a failed fsync: {self._broken}")
        writers = self._opened(runs)
        try:
            firsts = {place: writers[place].write(run, now_ms) for place, run in runs.items()}
        except OSError as error:
            self._undo(list(writers.values()), error)
            raise Unavailable(f"append failed, nothing was written: {error}") from error
        try:
            for writer in writers.values():
                writer.sync()
        except OSError as error:
            self._broken = error
            raise Indeterminate(f"append failed while it was made durable: {error}") from error
        return {place: range(first, first + len(runs[place])) for place, first in firsts.items()}

    def _opened(self, places: Iterable[Place]) -> dict[Place, PartitionWriter]:
        """The writers of some places; of others as many stay open beside them as may, the
        latest.
        """
        writers = {
            (name, partition): self._topics[name].partitions[partition]
            for name, partition in places
        }
        self._open = {place: each for place, each in self._open.items() if place not in writers}
        for place in list(self._open)[: max(0, len(self._open) + len(writers) - OPEN_MAX)]:
            self._open.pop(place).close()
        self._open |= writers
        return writers

    def _undo(self, writers: list[PartitionWriter], cause: OSError) -> None:
        try:
            for writer in writers:
                writer.undo()
        except OSError as error:
            self._broken = error
            raise Indeterminate(f"append failed and could not be undone: {cause}") from error


class EmbeddedFencedWriter:
    """Appends unless a later writer of its name is open.

    An append that failed may be there in part.
    """

    def __init__(self, log: EmbeddedLog, name: str, fence: int) -> None:
        self._log = log
        self._name = name
        self._fence = fence

    async def append(self, topic: str, records: Sequence[Entry]) -> None:
        """Append `records`. Raises: Fenced once a later writer of the name is open."""
        if self._log._fences[self._name] != self._fence:
            raise Fenced(f"append to {topic} refused: a later writer {self._name} is open")
        await self._log.append(topic, records)

    async def close(self) -> None:
        """It holds nothing."""
        self._fence = 0


class EmbeddedReader:
    """Reads partitions of one topic of an EmbeddedLog; any number of readers, one task each."""

    def __init__(self, log: EmbeddedLog, topic: _Topic, clock: Clock) -> None:
        self._log = log
        self._topic = topic
        self._clock = clock
        self._cursors: dict[int, _RecordCursor] = {}
        self._turn = 0
        self._closed = False
        self._files = asyncio.Lock()

    async def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        """Up to `max_records` next records; waits up to `timeout_s` for the first."""
        self._check_open()
        if not self._behind() and timeout_s > 0:
            await self._wait(timeout_s)
            self._check_open()
        if not self._behind():
            return []
        async with self._files:
            self._check_open()
            return await asyncio.to_thread(looking, partial(self._take, max_records))

    async def assign(self, partition: int, offset: int) -> None:
        """Read a partition from an offset on, from now on."""
        self._check_open()
        count = len(self._topic.partitions)
        if not 0 <= partition < count:
            raise unknown_partition(self._topic.name, partition, count)
        writer = self._topic.partitions[partition]
        if not writer.low <= offset <= writer.high:
            raise offset_out_of_range(self._topic.name, partition, offset, writer.low, writer.high)
        async with self._files:
            before = self._cursors.pop(partition, None)
            if before is not None:
                before.close()
            self._cursors[partition] = _RecordCursor(self._topic.directory, partition, offset)

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record to read."""
        return {partition: cursor.position for partition, cursor in self._cursors.items()}

    async def close(self) -> None:
        """End the reader and close its files."""
        if self._closed:
            return
        self._closed = True
        _wake(self._topic)
        self._log._readers.discard(self)
        async with self._files:
            for cursor in self._cursors.values():
                cursor.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Fenced(f"reader of topic {self._topic.name} is closed")

    def _behind(self) -> bool:
        partitions = self._topic.partitions
        return any(cursor.position < partitions[i].high for i, cursor in self._cursors.items())

    async def _wait(self, timeout_s: float) -> None:
        """Return when something was appended to the topic, or after `timeout_s`."""
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        self._topic.waiting.add(appended)
        try:
            while not (timer.done() or self._behind() or self._closed):
                await asyncio.wait((appended, timer), return_when=asyncio.FIRST_COMPLETED)
                if appended.done():
                    appended = asyncio.get_running_loop().create_future()
                    self._topic.waiting.add(appended)
        finally:
            self._topic.waiting.discard(appended)
            timer.cancel()

    def _take(self, max_records: int) -> list[LogRecord]:
        """Up to `max_records` records, an equal share of every partition that has enough."""
        taken: list[LogRecord] = []
        order = sorted(self._cursors)
        self._turn += 1
        first = self._turn % max(1, len(order))
        ready = [
            (self._cursors[partition], self._topic.partitions[partition].high)
            for partition in order[first:] + order[:first]
        ]
        ready = [(cursor, high) for cursor, high in ready if cursor.position < high]
        while ready and len(taken) < max_records:
            share = max(1, (max_records - len(taken)) // len(ready))
            for cursor, high in ready:
                taken += cursor.take(min(share, max_records - len(taken)), high)
            ready = [(cursor, high) for cursor, high in ready if cursor.position < high]
        return taken


class _RecordCursor:
    """A position in one partition, with the records of the frame it is in."""

    def __init__(self, topic: Path, partition: int, offset: int) -> None:
        self._partition = partition
        self._frames = FrameCursor(topic / str(partition), offset)
        self._ahead: list[LogRecord] = []
        self._at = 0
        self.position = offset

    def take(self, count: int, high: int) -> list[LogRecord]:
        """The next at most `count` records below `high`."""
        while len(self._ahead) - self._at < count:
            frames = self._frames.next_frames(high)
            if not frames:
                break
            fresh = [record for frame in frames for record in frame.to_records(self._partition)]
            skip = max(0, self.position - fresh[0].offset)
            self._ahead = self._ahead[self._at :] + fresh[skip:]
            self._at = 0
        taken = self._ahead[self._at : self._at + count]
        self._at += len(taken)
        if taken:
            self.position = taken[-1].offset + 1
        self._frames.close()  # thousands of partitions may be read side by side
        return taken

    def close(self) -> None:
        self._frames.close()


def _wake(topic: _Topic) -> None:
    waiting, topic.waiting = topic.waiting, set()
    for future in waiting:
        if not future.done():
            future.set_result(None)


def _lock(directory: Path) -> int:
    """Take the lock of the directory; the operating system lets go when the process ends."""
    directory.mkdir(parents=True, exist_ok=True)
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise UsageError(
            f"log directory {directory} is in use by the process with pid {holder}: "
            "end that one, or name another folder with --dir",
            reason="locked",
            directory=directory,
            pid=holder,
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _batched(runs: Mapping[Place, list[Entry]], size: int) -> Iterator[Mapping[Place, list[Entry]]]:
    places = iter(runs.items())
    while some := dict(islice(places, size)):
        yield some


def _create_topic_files(directory: Path, topic: str, partitions: int, unique: str) -> None:
    """A topic exists once `topic.json` does; its partitions make their folders themselves."""
    home = topic_directory(directory, topic)
    home.mkdir(parents=True, exist_ok=True)
    _replace(home / "topic.json", json.dumps({"partitions": partitions, "id": unique}).encode())
    for parent in (home, home.parent, directory):
        sync_directory(parent)


def _replace(path: Path, content: bytes) -> None:
    """Give `path` the new content at once: a reader sees the old or the new one."""
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(path)
