"""The records of a backlog as a DataFrame, from whichever log they are in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.errors import Unavailable
from tidemill.runtime.kafka_access import KafkaFiles, KafkaPlace, access_of
from tidemill.runtime.log import LogRecord
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.runtime.log_segments import read_range
from tidemill.spark.log_ranges import OffsetRange, read_kafka, read_with

if TYPE_CHECKING:  # who launches a job reads this, and has no Spark
    from pyspark.sql import DataFrame, SparkSession

_FIELDS: list[pa.Field[Any]] = [
    pa.field("partition", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("value", pa.binary()),
    pa.field("key", pa.binary()),
]
RECORDS_PER_POLL = 20_000
POLL_S = 1.0
SILENCE_S_MAX = 120.0


def record_schema(*, keys: bool) -> pa.Schema:
    """Place and value of records, and their keys if they are wanted."""
    return pa.schema(_FIELDS if keys else _FIELDS[:-1])


def records_of(
    spark: SparkSession,
    origin: KafkaPlace,
    directory: str | None,
    ranges: Sequence[OffsetRange],
    *,
    keys: bool = False,
) -> DataFrame:
    """The records of `ranges`, from the embedded log under `directory`, or else from Kafka.

    The client of the live path reads, on the executors, brokers that a source names, that ask for a
    login or that speak TLS. Each connection goes where it may. Files of secrets, mounted where the
    settings say, are named and never passed on. Cost: twice that of Spark's connector, which checks
    no address.
    """
    parts = tuple(ranges)
    if directory is not None:
        return read_with(spark, partial(read_embedded, directory, origin.topic, keys), parts, keys=keys)  # fmt: skip
    if origin.egress is not None or origin.files != KafkaFiles():
        return read_with(spark, partial(read_checked, origin, keys), parts, keys=keys)
    return read_kafka(spark, origin.bootstrap, origin.topic, parts, keys=keys)


def read_embedded(
    directory: str, topic: str, keys: bool, partition: int, start: int, stop: int
) -> Iterator[pa.RecordBatch]:
    """A range of the embedded log with the columns of every bulk read."""
    schema = record_schema(keys=keys)
    for batch in read_range(Path(directory), topic, partition, start, stop, schema.names):
        table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
        yield from table.to_batches()


def read_checked(
    origin: KafkaPlace, keys: bool, partition: int, start: int, stop: int
) -> Iterator[pa.RecordBatch]:
    """A range of a topic, by checked connections as in the service; secrets come from files here.

    Raises: UsageError if a file, or an offset, is not there, or a broker is where none may be.
    Unavailable if the brokers are silent for long.
    """
    schema = record_schema(keys=keys)
    with asyncio.Runner() as runner:
        reading = _Reading(origin, partition, start, stop)
        runner.run(reading.open())
        try:
            while records := runner.run(reading.next()):
                rows = [[getattr(record, name) for record in records] for name in schema.names]
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(cells, field.type)
                        for cells, field in zip(rows, schema, strict=True)
                    ],
                    schema=schema,
                )
        finally:
            runner.run(reading.close())


class _Reading:
    """One range of one partition, read with a client of its own."""

    def __init__(self, origin: KafkaPlace, partition: int, start: int, stop: int) -> None:
        self._origin = origin
        self._partition = partition
        self._start = start
        self._stop = stop

    async def open(self) -> None:
        origin = self._origin
        self._log = KafkaLog(origin.bootstrap, access=access_of(origin.files, origin.egress))
        try:
            self._reader = await self._log.reader(origin.topic, {self._partition: self._start})
        except BaseException:
            await self._log.close()
            raise

    async def next(self) -> list[LogRecord]:
        """Some records; none once the range has ended: not every offset is one of a record."""
        waited_s = 0.0
        while self._reader.positions()[self._partition] < self._stop:
            found = await self._reader.poll(RECORDS_PER_POLL, POLL_S)
            records = [record for record in found if record.offset < self._stop]
            if records:
                return records
            waited_s = 0.0 if found else waited_s + POLL_S
            if waited_s >= SILENCE_S_MAX:
                raise Unavailable(
                    f"nothing came of {self._origin.topic}/{self._partition} below {self._stop}"
                )
        return []

    async def close(self) -> None:
        await self._reader.close()
        await self._log.close()
