"""Records of Kafka by batches, as a broker sends them: columns first, records when asked for.

aiokafka makes an object of eleven fields for each record, which took two thirds of reading. It
keeps what has arrived in one dictionary of its fetcher, which is replaced here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult
from aiokafka.errors import CorruptRecordException

from tidemill.runtime.log import ColumnarRecords, LogRecord, RecordColumns


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition whose offsets ascend, as aiokafka reads them from a batch."""

    partition: int
    records: list[Any]  # aiokafka ships no types

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return int(self.records[0].offset)

    def cut(self, count: int) -> tuple[Batch, Batch | None]:
        """The first records, and the others if there are any."""
        if count >= len(self.records):
            return self, None
        before, after = self.records[:count], self.records[count:]
        return replace(self, records=before), replace(self, records=after)

    def offsets(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The offset of each record; a batch that nothing was compacted out of has no gaps."""
        first, count = self.first, len(self.records)
        if self.records[-1].offset - first + 1 == count:
            return np.arange(first, first + count, dtype=np.uint64)
        return np.fromiter((record.offset for record in self.records), np.uint64, count)


class BatchedRecords(ColumnarRecords):
    """The records of some batches, one batch behind the other."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._records = [record for batch in batches for record in batch.records]
        sizes = [len(batch.records) for batch in batches]
        partitions = np.repeat(np.array([batch.partition for batch in batches], np.int64), sizes)
        offsets = np.concatenate([batch.offsets() for batch in batches])
        values = [record.value for record in self._records]
        self._columns = RecordColumns(partitions, offsets, values)

    @property
    def columns(self) -> RecordColumns:
        """Partitions, offsets and values."""
        return self._columns

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, at: int) -> LogRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[LogRecord]: ...
    def __getitem__(self, at: int | slice) -> LogRecord | Sequence[LogRecord]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        record = self._records[at]
        partition = int(self._columns.partitions[at])
        return LogRecord(partition, record.offset, record.key, record.value, record.timestamp)


def read_by_batches(consumer: AIOKafkaConsumer) -> None:
    """Have a consumer that has started return a `Batch` where it returns a record otherwise."""
    consumer._fetcher._records = _Arrived(consumer._fetcher._records)


class _Arrived(dict[Any, Any]):
    """Answers of brokers by partition, each read by batches."""

    def __setitem__(self, place: Any, found: Any) -> None:
        if isinstance(found, FetchResult):
            found._partition_records = _Batches(place.partition, found._partition_records)
        super().__setitem__(place, found)


class _Batches:
    """The batches of one answer; aiokafka reads on behind the last one that it has taken."""

    def __init__(self, partition: int, answer: Any) -> None:
        self._partition = partition
        self._answer = answer

    @property
    def next_fetch_offset(self) -> int:
        """The offset behind all batches so far, also those that nobody may see."""
        return int(self._answer.next_fetch_offset)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        answer = self._answer
        while answer._records.has_next():
            batch = answer._records.next_batch()
            if answer._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {answer._tp}")
            records = [] if self._is_hidden(batch) else list(batch)
            if records and records[0].offset < answer.next_fetch_offset:  # a position within it
                records = [each for each in records if each.offset >= answer.next_fetch_offset]
            answer.next_fetch_offset = batch.next_offset
            if records:
                return Batch(self._partition, records)
        raise StopIteration

    def _is_hidden(self, batch: Any) -> bool:
        """Whether a batch is a marker of transactions, or of one that was aborted."""
        answer = self._answer
        if answer._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            answer._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and answer._contains_abort_marker(batch):
                answer._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in answer._aborted_producers:
                return True
        return bool(batch.is_control_batch)
