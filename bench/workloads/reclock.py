"""Reclock a partitioned source: each row gets the time of the first binding beyond its offset."""

from __future__ import annotations

import numpy as np

from bench.inputs import Xorshift, digest
from bench.workloads.workload import Report, Row, Workload
from tidemill.arrangement.kernels import I64Array, U64Array
from tidemill.reclock.offsets import UNBOUND, Bindings, map_offsets


def source(seed: int, rows: int, partitions: int) -> tuple[I64Array, U64Array, U64Array]:
    """Partition, offset and word of rows of random partitions, each at its next offset."""
    owners, vals = Xorshift(seed).rows(rows, partitions, 1_000_000)
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners.view(np.int64), minlength=partitions)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    offsets = np.empty(rows, np.uint64)
    offsets[order] = np.arange(rows) - np.repeat(starts, counts)
    return owners.view(np.int64), offsets, vals


def bound(highs: I64Array, bindings: int) -> Bindings:
    """Bindings at the times 1, 2, …, each of the next part of every partition."""
    partitions = len(highs)
    times = np.arange(1, bindings + 1)
    return Bindings(
        starts=np.arange(partitions, dtype=np.uint64),
        first=np.arange(partitions + 1, dtype=np.int64) * bindings,
        offsets=(highs[:, None] * times // bindings).astype(np.uint64).ravel(),
        times=np.tile(times.astype(np.uint64), partitions),
        ended=np.full(partitions, UNBOUND, np.uint64),
    )


def reclock(seed: int, rows: int, partitions: int, bindings: int) -> Report:
    """All rows through the columns of the bindings, as the service maps what has come."""
    if rows > 1000:
        reclock(seed, 1000, partitions, 10)  # loads the machine code
    owners, offsets, vals = source(seed, rows, partitions)
    highs = np.bincount(owners, minlength=partitions)
    report = Report()
    with report.timed("load_s"):
        times = map_offsets(bound(highs, bindings), owners, offsets)
    report.digest = digest([vals, times], np.ones(rows, np.int64))
    report.rows = rows
    return report


WORKLOADS: dict[str, Workload] = {
    "reclock": Workload("reclock", (10_000_000, 64, 1000), reclock, (
        Row("reclock 10 M rows, 64 partitions, 1,000 bindings", "load_s", 3, 10_000_000),
    ), "`reclock.offsets.map_offsets`: every source"),
}  # fmt: skip
