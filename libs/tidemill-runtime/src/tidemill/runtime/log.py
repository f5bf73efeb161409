"""The log port: durable, partitioned, replayable topics, with the contract of Kafka.

A topic has a fixed number of partitions. A partition is a sequence of records with increasing
offsets. Offsets may have gaps (Kafka keeps markers of transactions there). A reader's progress is
therefore its `position`, never the offset of the last record plus one. Readers choose partitions
and offsets themselves; nothing rebalances. Committed offsets are information for people and tools.

`log_embedded.EmbeddedLog` and `log_kafka.KafkaLog` both pass `tidemill.testkit.kits.log`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tidemill.arrangement.looks import with_looks
from tidemill.errors import UsageError

RECORD_BYTES_MAX = 1_000_000
"""Key and value together; what a broker with default settings takes, and so everybody."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record to append.

    Without `partition` the key decides, without key any; without `timestamp_ms` the clock of the
    log.
    """

    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as read. A value of None is a tombstone."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class RecordColumns(NamedTuple):
    """Partition, offset and value of each of some records."""

    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]
    values: Sequence[bytes | None]


class ColumnarRecords(Sequence[LogRecord]):
    """Records that are columns already; one of them is made when it is asked for."""

    @property
    @abstractmethod
    def columns(self) -> RecordColumns:
        """The columns that every format reads."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[bytes | None]:
        """The key of each."""


def columns_of(records: Sequence[LogRecord]) -> RecordColumns:
    """Records as columns. Cost: O(1) for those that are, else some 200 ns a record."""
    if isinstance(records, ColumnarRecords):
        return records.columns
    count = len(records)
    return RecordColumns(
        np.fromiter((record.partition for record in with_looks(records)), np.int64, count),
        np.fromiter((record.offset for record in with_looks(records)), np.uint64, count),
        values_of(records),
    )


def values_of(records: Sequence[LogRecord]) -> Sequence[bytes | None]:
    """The value of each record. Cost: as `columns_of`."""
    if isinstance(records, ColumnarRecords):
        return records.columns.values
    return [record.value for record in with_looks(records)]


def keys_of(records: Sequence[LogRecord]) -> Sequence[bytes | None]:
    """The key of each record."""
    if isinstance(records, ColumnarRecords):
        return records.keys
    return [record.key for record in records]


class LogReader(Protocol):
    """Reads the partitions it was given, each in order, from the offsets it was given."""

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """Up to `max_records` next records, as soon as there are any; empty after `timeout_s`.

        Records of one partition are in order; a partition with many records does not starve others.
        Raises: Unavailable if the log cannot be reached. UsageError with reason
        `offset-out-of-range` if the records at a position are gone. Fenced if the reader or its log
        is closed.
        """
        ...

    async def assign(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on, whether or not it was read before."""
        ...

    def positions(self) -> dict[int, int]:
        """Partition → offset below which every record was returned by `poll`."""
        ...

    async def close(self) -> None:
        """Release what the reader holds; twice is once."""
        ...


class FencedWriter(Protocol):
    """Appends under a name that one writer has at a time: the one that was opened last."""

    async def append(self, topic: str, records: Sequence[Entry]) -> None:
        """Append `records`, durably on return; nothing of them once a later writer of the name is
        open.

        Readers see all of them or none, where the log can do that; otherwise an append that failed
        may be there in part. After an error the writer is of no more use: open another one. Raises:
        Fenced if a later writer of the name is open, or the log is closed. UsageError as
        `Log.append`. Indeterminate if they may have been appended.
        """
        ...

    async def close(self) -> None:
        """Release what the writer holds; twice is once."""
        ...


class Log(Protocol):
    """Durable topics. Every method raises Unavailable if the log cannot be reached."""

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Make sure that `topic` exists with exactly `partitions` partitions.

        Raises: UsageError if it exists with another number, or the name is not allowed.
        """
        ...

    async def topics(self) -> dict[str, int]:
        """Topic → number of partitions; internal topics of the implementation are left out."""
        ...

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → (offset of the oldest record kept, offset that the next record will get).

        Raises: UsageError with reason `unknown-topic`.
        """
        ...

    async def identity(self, topic: str) -> str | None:
        """The identity of this topic among all of its name, before or after it; never changes.

        None if the log cannot tell, or never lets a name mean another topic.
        Raises: UsageError with reason `unknown-topic`.
        """
        ...

    async def append(self, topic: str, records: Sequence[Entry]) -> list[tuple[int, int]]:
        """Append `records`, durably on return; their (partition, offset) in the order given.

        Records of one call that go to one partition are there in the order given. One call is not
        atomic over partitions. Raises: UsageError before anything is appended, for an unknown topic
        or partition or a record that is too large. Unavailable if nothing was appended,
        Indeterminate if some may have been.
        """
        ...

    async def open_fenced_writer(self, name: str) -> FencedWriter:
        """A writer that ends all earlier ones of its name, whichever process has them.

        Records of earlier writers are there for all readers when this returns; later appends of
        theirs have no effect.
        """
        ...

    async def reader(self, topic: str, starts: Mapping[int, int]) -> LogReader:
        """A reader of the partitions in `starts`, each from its offset.

        Raises: UsageError with reason `unknown-topic`, `unknown-partition` or, for an offset
        outside of `bounds`, `offset-out-of-range`.
        """
        ...

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Note how far `group` has come, for people and tools; Tidemill never reads from there."""
        ...

    async def read_committed(self, group: str, topic: str) -> dict[int, int]:
        """Last committed offset of each partition; partitions without one are left out."""
        ...

    async def close(self) -> None:
        """Finish running appends, then release everything; twice is once."""
        ...


def check_topic_name(topic: str) -> None:
    """Raise UsageError unless every implementation takes `topic` as a name."""
    if topic in {".", ".."} or not _TOPIC_NAME.fullmatch(topic):
        raise UsageError(
            f"topic name refused: {topic!r} is not 1 to 249 letters, digits, '.', '_' or '-'",
            reason="topic-name",
            topic=topic,
        )


def check_entries(topic: str, records: Sequence[Entry], partitions: int) -> None:
    """Raise UsageError if a record names a partition that is not there, or is too large."""
    for entry in with_looks(records):
        size = len(entry.key or b"") + len(entry.value or b"")
        if size > RECORD_BYTES_MAX:
            raise UsageError(
                f"append refused: a record of {size} bytes, at most {RECORD_BYTES_MAX} are allowed"
                f" (topic {topic})",
                reason="record-too-large",
                topic=topic,
                size=size,
            )
        if entry.partition is not None and not 0 <= entry.partition < partitions:
            raise unknown_partition(topic, entry.partition, partitions)


def unknown_topic(topic: str) -> UsageError:
    """The error for a topic that is not there."""
    says = f"topic {topic} does not exist: create it, or correct its name"
    return UsageError(says, reason="unknown-topic", topic=topic)


def unknown_partition(topic: str, partition: int, partitions: int) -> UsageError:
    """The error for a partition that is not there."""
    return UsageError(
        f"topic {topic} has no partition {partition}: it has {partitions}",
        reason="unknown-partition",
        topic=topic,
        partition=partition,
        partitions=partitions,
    )


def offset_out_of_range(topic: str, partition: int, offset: int, low: int, high: int) -> UsageError:
    """The error for a position at which there is nothing to read, and never will be."""
    return UsageError(
        f"offset {offset} of {topic}/{partition} is outside of [{low}, {high}]",
        reason="offset-out-of-range",
        topic=topic,
        partition=partition,
        offset=offset,
        low=low,
        high=high,
    )
