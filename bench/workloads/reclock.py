"""Reclock a partitioned source: rows wait by partition and offset, bindings come one at a time."""

from __future__ import annotations

import numpy as np

from bench.inputs import Xorshift, digest
from bench.workloads.workload import Report, Row, Workload
from tidemill.reclock.columns import SourceColumns, WaitingColumns


def source(seed: int, rows: int, partitions: int) -> SourceColumns:
    """Rows of random partitions, each at the next offset of its partition."""
    owners, vals = Xorshift(seed).rows(rows, partitions, 1_000_000)
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners.view(np.int64), minlength=partitions)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    offsets = np.empty(rows, np.uint64)
    offsets[order] = np.arange(rows) - np.repeat(starts, counts)
    return SourceColumns(owners, offsets, vals, np.ones(rows, np.int64))


def reclock(seed: int, rows: int, partitions: int, bindings: int) -> Report:
    """Every row gets the time of the first binding beyond its offset."""
    if rows > 1000:
        reclock(seed, 1000, partitions, 10)  # loads the machine code
    data = source(seed, rows, partitions)
    highs = np.bincount(data.partitions.view(np.int64), minlength=partitions)
    report = Report()
    vals, times = [], []
    none = np.zeros(partitions, np.uint64)
    with report.timed("load_s"):
        waiting = WaitingColumns(data)
        for time in range(1, bindings + 1):
            held = (highs * time // bindings).astype(np.uint64)
            taken, _ = waiting.extract_before(held, none)
            vals.append(taken)
            times.append(np.full(len(taken), time, np.uint64))
    everything = np.concatenate(vals)
    columns = [everything, np.concatenate(times)]
    report.digest = digest(columns, np.ones(len(everything), np.int64))
    report.rows = len(everything)
    return report


WORKLOADS: dict[str, Workload] = {
    "reclock": Workload("reclock", (10_000_000, 64, 1000), reclock, (
        Row("reclock 10 M rows, 64 partitions, 1,000 bindings", "load_s", 3, 10_000_000),
    )),
}  # fmt: skip
