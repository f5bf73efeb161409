"""Bulk reclocking of a backlog: the live path's kernels over bounded ranges of a log.

`backfill` reads ranges whose bindings are already minted, decodes every record and maps each by
itself to its time. It sorts and consolidates per key-hash range and writes parts. It commits
nothing: the caller appends the parts by compare-and-append. So a job that runs twice, or beside the
live path, changes nothing. Its function arguments are those of the live path, pickled to the
executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.arrow_bytes import pack_table, unpack_table
from tidemill.arrangement.updates import consolidate
from tidemill.time import U64_MAX

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark.sql import DataFrame

LETTER_COLUMNS = ("partition", "offset", "reason", "raw")


class Decoded(NamedTuple):
    """Result of decoding a batch of records.

    `rows`: data columns, then `partition` and `offset` of each row under the names `_partition`,
    `_offset`. `letters`: the bad records with the columns of LETTER_COLUMNS.
    """

    rows: pa.Table
    letters: pa.Table


Decode = Callable[[pa.RecordBatch], Decoded]
MapOffsets = Callable[["np.ndarray", "np.ndarray"], "np.ndarray"]
"""(partitions, offsets) → times; U64_MAX where no binding covers the offset."""

WritePart = Callable[[pa.Table], bytes]
"""Writes one sorted, consolidated update table where batches live; → what the commit needs."""

KeyHash = Callable[[pa.Table], "np.ndarray"]
"""The key hash of each row, uint64, as the collection splits its parts."""


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of the rows, or the letters, of a backfill.

    Updates before `lower` are there already and are left out. `schema` are the data columns.
    """

    name: str
    lower: int
    schema: pa.Schema
    key_hash: KeyHash
    write: WritePart
    buckets: int
    arrange: Callable[[pa.Table], pa.Table] = consolidate


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that depend on all changes of their key.

    `changes` is their target, cut up by key. `apply` turns all changes of some keys, at their
    times, into the updates of the rows and those of the letters.
    """

    changes: Target
    apply: Callable[[pa.Table], tuple[pa.Table, pa.Table]]


class Written(NamedTuple):
    """One part that a task wrote: for which target, how many updates, and its description."""

    target: str
    updates: int
    part: bytes


_WRITTEN_SCHEMA = "target string, updates long, part binary"


def backfill(
    records: DataFrame, decode: Decode, map_offsets: MapOffsets, rows: Target, letters: Target
) -> list[Written]:
    """Every record of `records` at its own time, as sorted parts; nothing is committed.

    Shapes: one update per good record in `rows`, one per bad record in `letters`, equal updates
    consolidated. Each part covers one key-hash range. Raises (inside the job) if a record lies
    beyond the bindings: the ranges were not bounded by them. Cost: one shuffle.
    """
    mapped = records.mapInArrow(_mapper(decode, map_offsets, rows, letters), MAPPED_SCHEMA)
    return write_buckets(mapped, [rows, letters])


def backfill_folded(
    records: DataFrame,
    decode: Decode,
    map_offsets: MapOffsets,
    fold: Fold,
    rows: Target,
    letters: Target,
) -> list[Written]:
    """Backfill of records that decode to changes of rows. Cost: two shuffles."""
    mapped = records.mapInArrow(_mapper(decode, map_offsets, fold.changes, letters), MAPPED_SCHEMA)
    folded = mapped.repartitionById(fold.changes.buckets, "bucket").mapInArrow(
        _folder(fold, rows, letters), MAPPED_SCHEMA
    )
    return write_buckets(folded, [rows, letters])


def _folder(
    fold: Fold, rows: Target, letters: Target
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fold_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: dict[int, list[pa.Table]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                if row["target"] == fold.changes.name:
                    held.setdefault(row["bucket"], []).append(unpack_table(row["batch"]))
                else:
                    yield pa.RecordBatch.from_pylist([row], _MAPPED)
        for _, tables in sorted(held.items()):
            updates, refused = fold.apply(pa.concat_tables(tables))
            yield from in_buckets(rows, updates)
            yield from in_buckets(letters, refused)

    return fold_batches


def write_buckets(mapped: DataFrame, targets: Sequence[Target]) -> list[Written]:
    """The parts of updates that `in_buckets` has cut up, each of one key-hash range.

    Cost: one shuffle.
    """
    buckets = max(target.buckets for target in targets)
    # `repartition` would place a bucket by its hash: some tasks with several, others with none.
    parts = mapped.repartitionById(buckets, "bucket").mapInArrow(_writer(targets), _WRITTEN_SCHEMA)
    return [Written(row["target"], row["updates"], bytes(row["part"])) for row in parts.collect()]


# Rows of both targets travel in one frame as Arrow bytes. Spark's own types have no unsigned
# integers, and a second encoding of every column would cost more than the shuffle.
MAPPED_SCHEMA = "target string, bucket int, batch binary"
_MAPPED_FIELDS: list[pa.Field[Any]] = [
    pa.field("target", pa.string()),
    pa.field("bucket", pa.int32()),
    pa.field("batch", pa.binary()),
]
_MAPPED = pa.schema(_MAPPED_FIELDS)


def _mapper(
    decode: Decode, map_offsets: MapOffsets, rows: Target, letters: Target
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def map_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            decoded = decode(batch)
            good = _at_their_times(decoded.rows, "_partition", "_offset", map_offsets)
            bad = _at_their_times(decoded.letters, "partition", "offset", map_offsets)
            yield from in_buckets(rows, good)
            yield from in_buckets(letters, bad)

    return map_batches


def _at_their_times(
    table: pa.Table, partition: str, offset: str, map_offsets: MapOffsets
) -> pa.Table:
    times = map_offsets(
        table[partition].to_numpy().astype(np.int64), table[offset].to_numpy().astype(np.uint64)
    )
    if len(times) and int(times.max()) == U64_MAX:
        raise ValueError("a record lies beyond the bindings of this backfill")
    return table.append_column("_time", pa.array(times, pa.uint64())).append_column(
        "_diff", pa.array(np.ones(len(times), np.int64))
    )


def in_buckets(target: Target, updates: pa.Table) -> Iterator[pa.RecordBatch]:
    """The updates from the target's lower on, as batches of MAPPED_SCHEMA: one for each key-hash
    range.
    """
    lanes = pa.schema([("_time", pa.uint64()), ("_diff", pa.int64())])
    table = updates.select([*target.schema.names, *lanes.names])
    table = table.cast(pa.schema([*target.schema, *lanes]))
    table = table.filter(pc.field("_time") >= pa.scalar(target.lower, pa.uint64()))
    if not table.num_rows:
        return
    bucket = bucket_of(target.key_hash(table), target.buckets)
    order = np.argsort(bucket, kind="stable")
    table, bucket = table.take(order), bucket[order]
    edges = np.flatnonzero(np.diff(bucket, prepend=-1))
    for begin, end in zip(edges, [*edges[1:], len(bucket)], strict=True):
        yield pa.RecordBatch.from_pydict(
            {
                "target": pa.array([target.name]),
                "bucket": pa.array([int(bucket[begin])], pa.int32()),
                "batch": pa.array(
                    [pack_table(table.slice(int(begin), int(end - begin)))], pa.binary()
                ),
            }
        )


def bucket_of(hashes: np.ndarray, buckets: int) -> np.ndarray:
    """The key-hash range, 0 … buckets−1, of each hash: ranges are contiguous and equally wide."""
    width = -(-(2**64) // buckets)
    return (
        (hashes // np.uint64(width)).astype(np.int32)
        if buckets > 1
        else np.zeros(len(hashes), np.int32)
    )


def _writer(
    written: Sequence[Target],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    targets = {target.name: target for target in written}

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: dict[tuple[str, int], list[pa.Table]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                held.setdefault((row["target"], row["bucket"]), []).append(
                    unpack_table(row["batch"])
                )
        for (name, _), tables in sorted(held.items(), key=lambda item: item[0]):
            updates = targets[name].arrange(pa.concat_tables(tables))
            if updates.num_rows:
                yield pa.RecordBatch.from_pydict(
                    {
                        "target": pa.array([name]),
                        "updates": pa.array([updates.num_rows], pa.int64()),
                        "part": pa.array([targets[name].write(updates)], pa.binary()),
                    }
                )

    return write
