"""Arrange, count and join over tables of whole numbers and text, as views of the language."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.inputs import Xorshift, text_words
from bench.workloads.answers import Answers
from bench.workloads.view import View
from bench.workloads.workload import Report, Row, Workload, resident_bytes

U64Array = npt.NDArray[np.uint64]

MILLION = 1_000_000
TEN = 10 * MILLION
FEW = 5000
"""Rows of a run that only compiles."""
PIECE = 1 << 20
"""Keys that are asked for at a time, after the measurement."""

ARRANGED = "found(k, v) := row(k, v) ^ asked(k);"
TEXTS = "found(t) := text(t) ^ asked(t);"
COUNTED = "counted(k) @count(i) := row(k, i);"
JOINED = "matched(k, v, w) := left(k, v) ^ right(k, w);"


class Arranged:
    """Rows by key, in the state of a join: what keys are asked for tells the rows of these."""

    def __init__(self) -> None:
        self.view = View(ARRANGED, {"row": 2, "asked": 1}, ["found"])
        self.answers = Answers()
        self._asked = 0
        self._keys: list[U64Array] = []

    def push(self, keys: U64Array, vals: U64Array) -> None:
        """Take rows in, and look one key up: the next of 1, 2, …, so that all of them are found."""
        self._keys.append(keys)
        self.view.feed("row", [keys, vals])
        self._ask()

    def load(self, keys: U64Array, vals: U64Array) -> None:
        """The same in two steps, so that what is looked up is there before."""
        self._keys.append(keys)
        self.view.feed("row", [keys, vals])
        self._take()
        self._ask()

    def _ask(self) -> None:
        self._asked += 1
        self.view.feed("asked", [np.array([self._asked], np.uint64)])
        self._take()

    def into(self, report: Report) -> Report:
        """The report with the digest of all rows."""
        keys = np.unique(np.concatenate(self._keys))
        keys = keys[(keys == 0) | (keys > self._asked)]
        for first in range(0, len(keys), PIECE):
            self.view.feed("asked", [keys[first : first + PIECE]])
            self._take()
        return self.answers.into(report)

    def _take(self) -> None:
        for told in self.view.step().values():
            self.answers.add(*told)


def arrange(seed: int, rows: int, keys: int, vals: int) -> Report:
    """Load pairs as one batch."""
    for many in (100, 5000):
        warm = Arranged()
        warm.push(*Xorshift(seed).rows(many, keys, vals))
        warm.into(Report())
    data = Xorshift(seed).rows(rows, keys, vals)
    report = Report()
    before = resident_bytes()
    arranged = Arranged()
    with report.timed("load_s"):
        arranged.load(*data)
    report.figures["bytes"] = resident_bytes() - before
    return arranged.into(report)


def texts_below(seed: int, rows: int, keys: int, prefix: str) -> pa.Array:
    """Decimal numbers as text, after a prefix."""
    (numbers,) = Xorshift(seed).rows(rows, keys)
    texts = pa.array(numbers).cast(pa.string())
    return pc.binary_join_element_wise(prefix, texts, "") if prefix else texts


def arrange_text(seed: int, rows: int, keys: int, prefix: str = "") -> Report:
    """Load texts as keys without vals."""
    report = Report()
    for many in (100, 5000, rows):
        data = texts_below(seed, many, keys, prefix)
        pa.default_memory_pool().release_unused()  # what making the input needed
        report = Report()
        before = resident_bytes()
        view = View(TEXTS, {"text": 1, "asked": 1}, ["found"], "text")
        with report.timed("load_s"):
            view.feed_texts("text", data)
            assert not view.step()
            view.feed_texts("asked", data[:1])
            first = view.step()["found"]
        report.figures["bytes"] = resident_bytes() - before
        view.feed_texts("asked", pc.unique(data)[1:])
        known = view.texts.texts(np.arange(len(view.texts)))
        answers, words = Answers(), text_words(pa.array(known, pa.string()))
        for columns, diffs in (first, view.step()["found"]):
            answers.add([words[columns[0].view(np.int64)], np.zeros(len(diffs), np.uint64)], diffs)
        answers.into(report)
    return report


arrange_long_text = partial(arrange_text, prefix="https://example.org/item/")


def arrange_stream(seed: int, held: int, batch: int, batches: int) -> Report:
    """Batches beside `held` rows of keys below one million."""
    if held > FEW:
        arrange_stream(seed, FEW, batch, 40)
    numbers, arranged, report = Xorshift(seed), Arranged(), Report()
    arranged.load(*numbers.rows(held, MILLION, MILLION))
    rounds = [numbers.rows(batch, MILLION, MILLION) for _ in range(batches)]
    report.latencies(_each(rounds, lambda pair: arranged.push(*pair)))
    return arranged.into(report)


def insert_latency(seed: int, rows: int, batch: int) -> Report:
    """Latency of each insert until all rows are held."""
    if rows > 40 * batch:
        insert_latency(seed, 40 * batch, batch)
    numbers, arranged, report = Xorshift(seed), Arranged(), Report()
    rounds = (numbers.rows(batch, MILLION, 0) for _ in range(rows // batch))
    report.latencies(_each(rounds, lambda pair: arranged.push(*pair)), "")
    return arranged.into(report)


def count(seed: int, rows: int, batch: int, batches: int) -> Report:
    """Count the rows of each key, told apart by a number: load, then batches of inserts."""
    if rows > FEW:
        count(seed, FEW, batch, 40)
    numbers, answers, report = Xorshift(seed), Answers(), Report()
    view, taken = View(COUNTED, {"row": 2}, ["counted"]), 0

    def step(keys: U64Array) -> None:
        nonlocal taken
        view.feed("row", [keys, np.arange(taken, taken + len(keys), dtype=np.uint64)])
        taken += len(keys)
        for told in view.step().values():
            answers.add(*told)

    (data,) = numbers.rows(rows, MILLION)
    with report.timed("load_s"):
        step(data)
    rounds = [numbers.rows(batch, MILLION) for _ in range(batches)]
    report.latencies(_each((each[0] for each in rounds), step))
    return answers.into(report)


def join(seed: int, rows: int, batch: int, batches: int) -> Report:
    """Join two relations on keys below `rows`; then batches into the left side."""
    if rows > FEW:
        join(seed, FEW, batch, 40)
    numbers, answers, report = Xorshift(seed), Answers(), Report()
    view = View(JOINED, {"left": 2, "right": 2}, ["matched"])

    def step(given: Mapping[str, Sequence[U64Array]]) -> None:
        for name, columns in given.items():
            view.feed(name, columns)
        for told in view.step().values():
            answers.add(*told)

    first, second = (_numbered(numbers, rows, rows, 0) for _ in range(2))
    with report.timed("load_s"):
        step({"left": first, "right": second})
    rounds = [_numbered(numbers, batch, rows, rows + i * batch) for i in range(batches)]
    report.latencies(_each(({"left": fresh} for fresh in rounds), step))
    return answers.into(report)


def _numbered(numbers: Xorshift, rows: int, keys: int, first: int) -> list[U64Array]:
    """Random keys, each with the number of its row."""
    (found,) = numbers.rows(rows, keys)
    return [found, np.arange(first, first + rows, dtype=np.uint64)]


def _each(rounds: Iterable[Any], step: Callable[..., None]) -> list[float]:
    """The seconds of a step for each round."""
    seconds = []
    for given in rounds:
        start = perf_counter()
        step(given)
        seconds.append(perf_counter() - start)
    return seconds


ARRANGE = "a relation that a `join` reads: merged, indexed by key, one key looked up"
WORDS = "the same, and the numbering of texts"
COUNT = "`reduce` with `@count`; rows carry a number beside the key"
JOIN = "`join` of two relations"

WORKLOADS: dict[str, Workload] = {
    "arrange": Workload("arrange", (TEN, MILLION, MILLION), arrange, (
        Row("arrange 10 M rows, key and val below 1 M", "load_s", 8, TEN),
        Row("memory of these rows", "bytes", 1, unit="bytes"),
    ), ARRANGE),
    "arrange-full": Workload("arrange", (TEN, 0, 0), arrange, (
        Row("arrange 10 M rows, key and val of 64 bits", "load_s", 4, TEN),
        Row("memory of these rows", "bytes", 1, unit="bytes"),
    ), ARRANGE),
    "arrange-text": Workload("arrange-text", (TEN, MILLION), arrange_text, (
        Row("arrange 10 M texts, 1 M different", "load_s", 2, TEN),
        Row("memory of these texts", "bytes", 1, unit="bytes"),
    ), WORDS),
    "arrange-long-text": Workload("arrange-long-text", (TEN, MILLION), arrange_long_text, (
        Row("arrange 10 M texts of 26 to 31 bytes, 1 M different", "load_s", 2, TEN),
        Row("memory of these long texts", "bytes", 1, unit="bytes"),
    ), WORDS),
    "stream-1000": Workload("arrange-stream", (MILLION, 1000, 1000), arrange_stream, (
        Row("arrange 1,000 rows more into 1 M, median", "batch_p50_s", 1),
        Row("the same, mean", "batch_mean_s"),
    ), ARRANGE),
    "stream-100000": Workload("arrange-stream", (MILLION, 100_000, 15), arrange_stream, (
        Row("arrange 100,000 rows more into 1 M, median", "batch_p50_s", 5),
        Row("the same, mean", "batch_mean_s"),
    ), ARRANGE),
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
    ), ARRANGE),
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
    ), ARRANGE),
}  # fmt: skip
