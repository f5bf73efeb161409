"""Arrange, count and join over tables of whole numbers and text."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.inputs import Xorshift, digest, digest_of_words, text_words
from bench.workloads.workload import Report, Row, Workload, resident_bytes
from tidemill.arrangement.columns import ColumnArrangement, ColumnCount, ColumnJoin
from tidemill.arrangement.columns.values import ValueCodes
from tidemill.arrangement.kernels import Columns, consolidate
from tidemill.time import U64_TIME, frontier

U64Array = npt.NDArray[np.uint64]

MILLION = 1_000_000


def inserts(time: int, keys: U64Array, vals: U64Array | None = None) -> Columns:
    """Each pair once more at `time`; without vals all are zero."""
    diffs = np.ones(len(keys), np.int64)
    if vals is None:
        vals = np.broadcast_to(np.uint64(0), len(keys)) if len(keys) > 4096 else keys * np.uint64(0)
    return Columns.at((time,), keys, vals, diffs)


def contents(arranged: ColumnArrangement) -> Columns:
    """The whole contents, accumulated."""
    parts = [batch.updates() for batch in arranged.batches()]
    everything = Columns.concatenate(parts)
    return consolidate(
        Columns(everything.keys, everything.vals, everything.times * 0, everything.diffs)
    )


def told(report: Report, columns: list[U64Array], diffs: Any) -> Report:
    """The report with the digest of a consolidated result."""
    report.digest, report.rows = digest(columns, diffs), len(diffs)
    return report


def arrange(seed: int, rows: int, keys: int, vals: int) -> Report:
    """Load pairs as one batch."""
    warm = ColumnArrangement(U64_TIME)
    for many in (100, 5000):
        small = Xorshift(seed).rows(many, keys, vals)
        warm.push(inserts(many, *small), frontier(many + 1))
    contents(warm)
    data = Xorshift(seed).rows(rows, keys, vals)
    report = Report()
    before = resident_bytes()
    arranged = ColumnArrangement(U64_TIME)
    with report.timed("load_s"):
        arranged.push(inserts(0, *data), frontier(1))
    arranged.compact(frontier(1))
    arranged.trace.spine.settle()
    report.figures["bytes"] = resident_bytes() - before
    found = contents(arranged)
    return told(report, [found.keys, found.vals], found.diffs)


def texts_below(seed: int, rows: int, keys: int, prefix: str) -> pa.Array:
    """Decimal numbers as text, after a prefix."""
    (numbers,) = Xorshift(seed).rows(rows, keys)
    texts = pa.array(numbers).cast(pa.string())
    return pc.binary_join_element_wise(prefix, texts, "") if prefix else texts


def arrange_text(seed: int, rows: int, keys: int, prefix: str = "") -> Report:
    """Load texts as keys without vals."""
    for many in (100, 5000):
        warm = ValueCodes(pa.string()).encode(texts_below(seed, many, keys, prefix))
        ColumnArrangement(U64_TIME).push(inserts(0, warm), frontier(1))
    data = texts_below(seed, rows, keys, prefix)
    pa.default_memory_pool().release_unused()  # what making the input needed
    report = Report()
    before = resident_bytes()
    codes, arranged = ValueCodes(pa.string()), ColumnArrangement(U64_TIME)
    with report.timed("load_s"):
        arranged.push(inserts(0, codes.encode(data)), frontier(1))
    report.figures["bytes"] = resident_bytes() - before
    found = contents(arranged)
    return told(report, [text_words(codes.decode(found.keys)), found.vals], found.diffs)


arrange_long_text = partial(arrange_text, prefix="https://example.org/item/")


def arrange_stream(seed: int, held: int, batch: int, batches: int) -> Report:
    """Batches into an arrangement that holds `held` rows of keys below one million."""
    warm = ColumnArrangement(U64_TIME)
    for i in range(40):
        small = Xorshift(seed + i).rows(max(batch, 100 * (i % 3)), MILLION, MILLION)
        warm.push(inserts(i, *small), frontier(i + 1))
        warm.compact(frontier(i + 1))
    numbers = Xorshift(seed)
    report = Report()
    arranged = ColumnArrangement(U64_TIME)
    arranged.push(inserts(0, *numbers.rows(held, MILLION, MILLION)), frontier(1))
    rounds = [numbers.rows(batch, MILLION, MILLION) for _ in range(batches)]
    seconds = []
    for time, fresh in enumerate(rounds, 1):
        start = perf_counter()
        arranged.push(inserts(time, *fresh), frontier(time + 1))
        arranged.compact(frontier(time + 1))
        seconds.append(perf_counter() - start)
    report.latencies(seconds)
    found = contents(arranged)
    return told(report, [found.keys, found.vals], found.diffs)


def insert_latency(seed: int, rows: int, batch: int) -> Report:
    """Latency of each insert until all rows are held, merges amortised by fuel."""
    warm = ColumnArrangement(U64_TIME)
    for i in range(40):
        warm.push(inserts(i, *Xorshift(seed + i).rows(batch, MILLION, 0)), frontier(i + 1))
        warm.compact(frontier(i + 1))
    numbers = Xorshift(seed)
    report = Report()
    arranged = ColumnArrangement(U64_TIME)
    seconds = []
    for time in range(rows // batch):
        fresh = numbers.rows(batch, MILLION, 0)
        start = perf_counter()
        arranged.push(inserts(time, *fresh), frontier(time + 1))
        arranged.compact(frontier(time + 1))
        seconds.append(perf_counter() - start)
    report.latencies(seconds, "")
    found = contents(arranged)
    return told(report, [found.keys, found.vals], found.diffs)


def count(seed: int, rows: int, batch: int, batches: int) -> Report:
    """Count per key: load, then batches of inserts."""
    warm = ColumnCount()
    for i in range(40):
        warm.step(
            inserts(i, *Xorshift(seed + i).rows(max(batch, 5000 * (i % 2)), MILLION)),
            frontier(i + 1),
        )
        warm.compact(frontier(i + 1))
    numbers = Xorshift(seed)
    report = Report()
    counting = ColumnCount()
    (data,) = numbers.rows(rows, MILLION)
    with report.timed("load_s"):
        counting.step(inserts(0, data), frontier(1))
    rounds = [numbers.rows(batch, MILLION) for _ in range(batches)]
    seconds = []
    for time, fresh in enumerate(rounds, 1):
        start = perf_counter()
        counting.step(inserts(time, *fresh), frontier(time + 1))
        counting.compact(frontier(time + 1))
        seconds.append(perf_counter() - start)
    report.latencies(seconds)
    found = contents(counting.output)
    return told(report, [found.keys, found.vals], found.diffs)


class JoinSink:
    """Takes the matches of a join as they appear and adds up their digest, as the peer does."""

    def __init__(self, join: ColumnJoin) -> None:
        self._join = join
        self.sum, self.rows = 0, 0

    def push(self, left: Columns, right: Columns, time: int) -> None:
        """One step of both inputs, and all its matches."""
        self._join.push(left, right, frontier(time + 1))
        while not self._join.done:
            piece = self._join.work(MILLION)
            self.sum += digest_of_words(
                [piece.keys, piece.left_vals, piece.right_vals], piece.diffs
            )
            self.rows += len(piece)


def join(seed: int, rows: int, batch: int, batches: int) -> Report:
    """Join two arrangements on keys below `rows`; then batches into the left side."""
    nothing = Columns.empty(1)
    warm = JoinSink(ColumnJoin(U64_TIME))
    for i in range(40):
        small = inserts(i, *Xorshift(seed + i).rows(max(batch, 5000 * (i % 2)), 1000, MILLION))
        warm.push(small, small if i < 2 else nothing, i)
    numbers = Xorshift(seed)
    report = Report()
    sink = JoinSink(ColumnJoin(U64_TIME))
    first, second = (numbers.rows(rows, rows, MILLION) for _ in range(2))
    with report.timed("load_s"):
        sink.push(inserts(0, *first), inserts(0, *second), 0)
    rounds = [numbers.rows(batch, rows, MILLION) for _ in range(batches)]
    seconds = []
    for time, fresh in enumerate(rounds, 1):
        start = perf_counter()
        sink.push(inserts(time, *fresh), nothing, time)
        seconds.append(perf_counter() - start)
    report.latencies(seconds)
    report.digest, report.rows = f"{sink.sum % 2**64:016x}", sink.rows
    return report


TEN = 10 * MILLION
ARRANGEMENT = "`arrangement.columns.ColumnArrangement`: no view"
TEXTS = "`arrangement.columns`, `ValueCodes` and `ColumnArrangement`: no view"
COUNT = "`arrangement.columns.ColumnCount`: no view"
JOIN = "`arrangement.columns.ColumnJoin`: no view"

WORKLOADS: dict[str, Workload] = {
    "arrange": Workload("arrange", (TEN, MILLION, MILLION), arrange, (
        Row("arrange 10 M rows, key and val below 1 M", "load_s", 8, TEN),
        Row("memory of these rows", "bytes", 1, unit="bytes"),
    ), ARRANGEMENT),
    "arrange-full": Workload("arrange", (TEN, 0, 0), arrange, (
        Row("arrange 10 M rows, key and val of 64 bits", "load_s", 4, TEN),
        Row("memory of these rows", "bytes", 1, unit="bytes"),
    ), ARRANGEMENT),
    "arrange-text": Workload("arrange-text", (TEN, MILLION), arrange_text, (
        Row("arrange 10 M texts, 1 M different", "load_s", 2, TEN),
        Row("memory of these texts", "bytes", 1, unit="bytes"),
    ), TEXTS),
    "arrange-long-text": Workload("arrange-long-text", (TEN, MILLION), arrange_long_text, (
        Row("arrange 10 M texts of 26 to 31 bytes, 1 M different", "load_s", 2, TEN),
        Row("memory of these long texts", "bytes", 1, unit="bytes"),
    ), TEXTS),
    "stream-1000": Workload("arrange-stream", (MILLION, 1000, 1000), arrange_stream, (
        Row("arrange 1,000 rows more into 1 M, median", "batch_p50_s", 1),
        Row("the same, mean", "batch_mean_s"),
    ), ARRANGEMENT),
    "stream-100000": Workload("arrange-stream", (MILLION, 100_000, 15), arrange_stream, (
        Row("arrange 100,000 rows more into 1 M, median", "batch_p50_s", 5),
        Row("the same, mean", "batch_mean_s"),
    ), ARRANGEMENT),
    "count-1000": Workload("count", (TEN, 1000, 300), count, (
        Row("count per key, load 10 M", "load_s", 6, TEN),
        Row("count per key, 1,000 rows more, median", "batch_p50_s", 2),
    ), COUNT),
    "count-100000": Workload("count", (TEN, 100_000, 12), count, (
        Row("count per key, 100,000 rows more, median", "batch_p50_s", 4),
    ), COUNT),
    "join-1000": Workload("join", (MILLION, 1000, 300), join, (
        Row("join 1 M with 1 M rows, load", "load_s", 3, 2 * MILLION),
        Row("join, 1,000 rows more, median", "batch_p50_s", 1.5),
    ), JOIN),
    "join-100000": Workload("join", (MILLION, 100_000, 12), join, (
        Row("join, 100,000 rows more, median", "batch_p50_s", 3),
    ), JOIN),
    "one-arrange": Workload("arrange-stream", (MILLION, 1, 500), arrange_stream, (
        Row("one row more, arranged, median", "batch_p50_s"),
    ), ARRANGEMENT),
    "one-count": Workload("count", (MILLION, 1, 500), count, (
        Row("one row more, counted, median", "batch_p50_s"),
    ), COUNT),
    "one-join": Workload("join", (MILLION, 1, 500), join, (
        Row("one row more, joined, median", "batch_p50_s"),
    ), JOIN),
    "latency": Workload("insert-latency", (TEN, 1000), insert_latency, (
        Row("insert 1,000 rows until 10 M are held: p99 / p50", "p99_s/p50_s", 1, unit=""),
        Row("the same, p99", "p99_s"),
        Row("the same, greatest", "max_s"),
    ), ARRANGEMENT),
}  # fmt: skip
