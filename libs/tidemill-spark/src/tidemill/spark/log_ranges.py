"""Bounded offset ranges of a log as DataFrames: the input of every bulk job.

For each log, a frame has the columns `partition long, offset long, value binary`, and `key binary`
if keys are wanted. It holds exactly the records of the ranges it was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.spark.dealing import dealt
from tidemill.spark.session import split_evenly

if TYPE_CHECKING:  # who launches jobs says which ranges, and has no Spark
    from pyspark.sql import DataFrame, SparkSession

RECORD_SCHEMA = "partition long, offset long, value binary"
KEYED_SCHEMA = f"{RECORD_SCHEMA}, key binary"
ROWS_PER_TASK = 200_000
_SLICES = pa.schema(
    [("task", pa.int32()), *((name, pa.int64()) for name in ("partition", "start", "stop"))]
)

ReadRange = Callable[[int, int, int], Iterator[pa.RecordBatch]]
"""(partition, start, stop) → batches with `partition`, `offset`, `value`; runs on executors."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records [start, stop) of one partition."""

    partition: int
    start: int
    stop: int


def ranges_between(starts: Mapping[int, int], stops: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """One range for every partition that has records between the two positions."""
    return tuple(
        OffsetRange(partition, starts.get(partition, 0), stop)
        for partition, stop in sorted(stops.items())
        if starts.get(partition, 0) < stop
    )


def read_kafka(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    ranges: tuple[OffsetRange, ...],
    *,
    keys: bool = False,
) -> DataFrame:
    """The records of `ranges` from Kafka, through Spark's own connector.

    Fails rather than skips if the broker no longer has an offset. Partitions that are not named
    by `ranges` are not read.
    """
    assign = {topic: [part.partition for part in ranges]}
    starting = {topic: {str(part.partition): part.start for part in ranges}}
    ending = {topic: {str(part.partition): part.stop for part in ranges}}
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("assign", json.dumps(assign))
        .option("startingOffsets", json.dumps(starting))
        .option("endingOffsets", json.dumps(ending))
        .option("failOnDataLoss", "true")
        .load()
        .selectExpr("cast(partition as long) partition", "offset", "value", *["key"] * keys)
    )


def read_with(
    spark: SparkSession,
    read: ReadRange,
    ranges: tuple[OffsetRange, ...],
    *,
    rows_per_task: int = ROWS_PER_TASK,
    keys: bool = False,
) -> DataFrame:
    """The records of `ranges` by a reader of ours that runs inside the executors.

    Each task reads at most `rows_per_task` records, so that a long partition is read in parallel.
    """
    slices = [
        (part.partition, lower, upper)
        for part in ranges
        for lower, upper in split_evenly(part.start, part.stop, rows_per_task)
    ]
    tasks = pa.Table.from_pylist(
        [
            {"task": task, "partition": partition, "start": lower, "stop": upper}
            for task, (partition, lower, upper) in enumerate(slices)
        ],
        schema=_SLICES,
    )

    def read_slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from read(row["partition"], row["start"], row["stop"])

    return dealt(spark, tasks, "task").mapInArrow(
        read_slices, KEYED_SCHEMA if keys else RECORD_SCHEMA
    )
