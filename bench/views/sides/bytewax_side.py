"""Bytewax's side: each job as one keyed operator over batches, which is faster there than its
windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

from bench.views.inputs import BATCH_MS, ORDERS
from bench.views.sides.streaming import Feed, Results, Row, main

LIFE_MS = 10_000
REGIONS = 10
END = -1
"""Stands for the last event of a tick, which the source tells every region."""


class _Batches(StatelessSourcePartition[Any]):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._batch = 0
        self._keyed = KEYED[feed.job]

    def next_batch(self) -> Iterable[Any]:
        feed, batch = self._feed, self._batch
        if batch == 0:
            feed.begin()
        if batch == feed.stream.batches:
            raise StopIteration
        if perf_counter() < feed.due(batch):
            return []
        self._batch += 1
        return self._keyed(feed, batch)

    def next_awake(self) -> datetime | None:
        ahead = self._feed.due(self._batch) - perf_counter() if self._batch else 0.0
        return datetime.now(UTC) + timedelta(seconds=ahead) if ahead > 0 else None


class _Source(DynamicSource[Any]):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Batches:
        return _Batches(self._feed)


class _Collected(StatelessSinkPartition[Any]):
    def __init__(self, results: Results) -> None:
        self._results = results

    def write_batch(self, items: list[tuple[str, Row]]) -> None:
        self._results.add([row for _, row in items])


class _Sink(DynamicSink[Any]):
    def __init__(self, results: Results) -> None:
        self._results = results

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Collected:
        return _Collected(self._results)


def keyed_checks(feed: Feed, batch: int) -> list[Any]:
    """By region, with the end of the tick behind them."""
    found: list[Any] = [(str(s % REGIONS), (t, s, v)) for s, v, t in feed.rows(batch)]
    return found + [(str(region), (batch, END, region)) for region in range(REGIONS)]


def keyed_levels(feed: Feed, batch: int) -> list[Any]:
    """By tank."""
    return [(str(tank), (tank, level, time)) for tank, level, time in feed.rows(batch)]


def keyed_trades(feed: Feed, batch: int) -> list[Any]:
    """By order."""
    return [(str(row[1]), row) for row in feed.rows(batch)]


KEYED = {"strata": keyed_checks, "resample": keyed_levels, "join": keyed_trades}


class _Logic(StatefulBatchLogic[Any, Any, Any]):
    def snapshot(self) -> None:
        return None


class _Calm(_Logic):
    """Sensors of a region without a bad value in the tick."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._bad: set[int] = set()

    def on_batch(self, values: list[Row]) -> tuple[list[Row], bool]:
        found = []
        for tick, sensor, value in values:
            if sensor == END:
                quiet = len(self._seen) - len(self._bad)
                if quiet:
                    found.append((tick, value, quiet))
                self._seen, self._bad = set(), set()
            else:
                self._seen.add(sensor)
                if value >= 90:
                    self._bad.add(sensor)
        return found, self.RETAIN


class _Smoothed(_Logic):
    """The average of a second, when a later second has begun."""

    def __init__(self) -> None:
        self._tank = 0
        self._second = 0
        self._total = 0
        self._count = 0

    def on_batch(self, values: list[Row]) -> tuple[list[Any], bool]:
        found: list[Any] = []
        for self._tank, level, time in values:
            second = time // BATCH_MS
            if second != self._second:
                found += self._closed()
                self._second = second
            self._total += level
            self._count += 1
        return found, self.RETAIN

    def on_eof(self) -> tuple[list[Any], bool]:
        return self._closed(), self.RETAIN

    def _closed(self) -> list[Any]:
        if not self._count:
            return []
        middle = self._second * BATCH_MS + BATCH_MS // 2
        row = (self._tank, middle, self._total / self._count)
        self._total = self._count = 0
        return [row]


class _Settled(_Logic):
    """An order with its payments, each within the life of the other."""

    def __init__(self) -> None:
        self._kept: tuple[list[Row], list[Row]] = ([], [])

    def on_batch(self, values: list[Row]) -> tuple[list[Row], bool]:
        found = []
        for kind, key, amount, time in values:
            mine, others = self._kept[kind], self._kept[1 - kind]
            for other, at in others:
                if abs(time - at) < LIFE_MS:
                    placed, paid = (amount, other) if kind == ORDERS else (other, amount)
                    found.append((key, placed, paid, max(time, at)))
            mine.append((amount, time))
        return found, self.RETAIN


LOGIC = {"strata": _Calm, "resample": _Smoothed, "join": _Settled}


def run(feed: Feed) -> Results:
    """The dataflow of the job, to its end."""
    results = Results()
    logic = LOGIC[feed.job]
    flow = Dataflow("job")
    events = op.input("events", flow, _Source(feed))
    found = op.stateful_batch("logic", events, lambda _: logic())
    op.output("results", found, _Sink(results))
    run_main(flow, epoch_interval=timedelta(seconds=3600))
    return results


if __name__ == "__main__":
    main("bench.views.sides.bytewax_side", run)
