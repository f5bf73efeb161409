"""A backfill by Spark equals the same kernels applied row by row."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from tidemill.arrangement.updates import consolidate
from tidemill.spark.backfill import Decoded, Target, Written, backfill, bucket_of
from tidemill.spark.dealing import dealt
from tidemill.spark.log_ranges import OffsetRange, ranges_between, read_with
from tidemill.spark.session import jars_in, split_evenly
from tidemill.time import U64_MAX

ROWS = pa.schema([("plane", pa.string()), ("delay", pa.int64())])
LETTERS = pa.schema(
    [
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
    ]
)
RECORDS_PER_PARTITION = 3_000
BINDING_EVERY = 500


def value_at(partition: int, offset: int) -> bytes:
    """Every 97th record is broken; planes repeat, so that equal updates meet."""
    if offset % 97 == 0:
        return b"{broken"
    return json.dumps({"plane": f"N{offset % 40}", "delay": (partition + offset) % 7}).encode()


def read_made_up_log(partition: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    offsets = range(start, stop)
    yield pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition] * len(offsets), pa.int64()),
            "offset": pa.array(offsets, pa.int64()),
            "value": pa.array([value_at(partition, offset) for offset in offsets], pa.binary()),
        }
    )


def decode(batch: pa.RecordBatch) -> Decoded:
    rows: list[dict[str, object]] = []
    letters: list[dict[str, object]] = []
    for record in batch.to_pylist():
        place = {"partition": record["partition"], "offset": record["offset"]}
        try:
            row = json.loads(record["value"])
        except ValueError:
            letters.append({**place, "reason": "not JSON", "raw": record["value"]})
            continue
        rows.append({**row, "_partition": place["partition"], "_offset": place["offset"]})
    placed = ROWS.append(pa.field("_partition", pa.int64())).append(pa.field("_offset", pa.int64()))
    return Decoded(pa.Table.from_pylist(rows, placed), pa.Table.from_pylist(letters, LETTERS))


def map_offsets(partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A binding every BINDING_EVERY offsets, at multiples of 1000."""
    return ((offsets // np.uint64(BINDING_EVERY) + np.uint64(1)) * np.uint64(1000)).astype(
        np.uint64
    )


def map_nothing(partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return np.full(len(offsets), U64_MAX, np.uint64)


def hash_first_column(table: pa.Table) -> np.ndarray:
    spread = np.uint64(0x9E3779B97F4A7C15)
    values = [
        int.from_bytes(str(value).encode()[:4], "big") for value in table.column(0).to_pylist()
    ]
    return np.array(values, np.uint64) * spread


def hash_all_alike(table: pa.Table) -> np.ndarray:
    """Rows of all hashes, as many of each."""
    step = 2**64 // len(table)
    return np.arange(len(table), dtype=np.uint64) * np.uint64(step)


def write_as_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module


def targets() -> tuple[Target, Target]:
    return (
        Target("flights", 0, ROWS, hash_first_column, write_as_ipc, buckets=4),
        Target("flights/deadletters", 0, LETTERS, hash_first_column, write_as_ipc, buckets=1),
    )


def updates_of(written: list[Written], target: str) -> pa.Table:
    parts = [pa.ipc.open_stream(part.part).read_all() for part in written if part.target == target]
    return consolidate(pa.concat_tables(parts))


@pytest.mark.server
def test_a_backfill_equals_the_kernels_applied_row_by_row(spark: SparkSession) -> None:
    ranges = (OffsetRange(0, 100, RECORDS_PER_PARTITION), OffsetRange(1, 0, RECORDS_PER_PARTITION))
    rows, letters = targets()
    frame = read_with(spark, read_made_up_log, ranges, rows_per_task=1_000)
    written = backfill(frame, decode, map_offsets, rows, letters)

    good: list[dict[str, object]] = []
    bad: list[dict[str, object]] = []
    for part in ranges:
        for offset in range(part.start, part.stop):
            value = value_at(part.partition, offset)
            time = (offset // BINDING_EVERY + 1) * 1000
            if value == b"{broken":
                letter = {"partition": part.partition, "offset": offset, "reason": "not JSON"}
                bad.append({**letter, "raw": value, "_time": time, "_diff": 1})
            else:
                good.append({**json.loads(value), "_time": time, "_diff": 1})
    lanes = [pa.field("_time", pa.uint64()), pa.field("_diff", pa.int64())]
    expected_rows = consolidate(pa.Table.from_pylist(good, pa.schema([*ROWS, *lanes])))
    expected_letters = consolidate(pa.Table.from_pylist(bad, pa.schema([*LETTERS, *lanes])))
    assert updates_of(written, rows.name).equals(expected_rows)
    assert updates_of(written, letters.name).equals(expected_letters)
    assert (
        sum(part.updates for part in written if part.target == letters.name)
        == expected_letters.num_rows
        > 0
    )


@pytest.mark.server
def test_what_a_target_has_already_is_left_out(spark: SparkSession) -> None:
    rows, letters = targets()
    frame = read_with(spark, read_made_up_log, (OffsetRange(0, 0, 1_000),))
    later = backfill(frame, decode, map_offsets, replace(rows, lower=1_500), letters)
    times = updates_of(later, rows.name)["_time"].to_pylist()
    assert times
    assert min(times) == 2_000


@pytest.mark.server
def test_a_record_beyond_the_bindings_fails_the_job(spark: SparkSession) -> None:
    frame = read_with(spark, read_made_up_log, (OffsetRange(0, 1, 50),))
    with pytest.raises(Exception, match="beyond the bindings"):
        backfill(frame, decode, map_nothing, *targets())


def test_buckets_are_contiguous_ranges_of_the_hash() -> None:
    hashes = np.array([0, 2**62 - 1, 2**62, 2**63, 2**64 - 1], np.uint64)
    assert bucket_of(hashes, 4).tolist() == [0, 0, 1, 2, 3]
    assert bucket_of(hashes, 1).tolist() == [0] * 5
    assert bucket_of(hashes, 3).max() == 2


def test_only_partitions_with_records_are_read() -> None:
    assert ranges_between({0: 5, 1: 3}, {0: 5, 1: 9, 2: 4}) == (
        OffsetRange(1, 3, 9),
        OffsetRange(2, 0, 4),
    )


def test_a_range_is_cut_without_gap_or_overlap() -> None:
    assert split_evenly(3, 11, 4) == [(3, 7), (7, 11)]
    assert split_evenly(5, 5, 4) == []


def test_a_folder_that_does_not_exist_holds_no_jars(tmp_path: Path) -> None:
    assert jars_in(tmp_path / "none") == ()


def write_the_task(table: pa.Table) -> bytes:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return str(context.partitionId()).encode()


@pytest.mark.server
def test_each_range_of_hashes_is_a_task_of_its_own(spark: SparkSession) -> None:
    rows, letters = targets()
    rows = replace(rows, buckets=16, write=write_the_task, key_hash=hash_all_alike)
    frame = read_with(spark, read_made_up_log, (OffsetRange(0, 0, 640),), rows_per_task=40)
    assert frame.rdd.glom().map(len).filter(bool).count() == 16
    written = backfill(frame, decode, map_offsets, rows, letters)
    tasks = [int(part.part) for part in written if part.target == rows.name]
    assert sorted(tasks) == list(range(16))


def sees_a_parent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    for batch in batches:
        yield pa.RecordBatch.from_pydict(
            {"task": batch["task"], "parent": [os.getppid()] * len(batch)}
        )


@pytest.mark.server
@pytest.mark.parametrize("by", ["arrow", "python"])
def test_tasks_need_one_parent_of_workers(spark: SparkSession, by: str) -> None:
    """Rows that come from Python ask for workers of another kind, whose parent is another."""
    tasks = pa.table({"task": pa.array([0, 1, 1], pa.int32())})
    rows = spark.createDataFrame([(0,), (1,), (1,)], "task int").repartitionById(2, "task")
    frame = dealt(spark, tasks, "task") if by == "arrow" else rows
    assert sorted(len(each) for each in frame.rdd.glom().collect()) == [1, 2]
    seen = frame.mapInArrow(sees_a_parent, "task int, parent long").collect()
    assert len({row["parent"] for row in seen}) == 1
    plan = frame._jdf.queryExecution().toString()  # type: ignore[operator]  # of the JVM
    assert ("ExistingRDD" in plan) == (by == "python")
