"""Pathway's side: each job with its own tables, windows and joins, fed through its Python
connector.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter, sleep
from typing import Any

import pandas as pd
import pathway as pw

from bench.views.inputs import BATCH, BATCH_MS, ORDERS
from bench.views.job import Report
from bench.views.sides.streaming import Feed, Results, main

LIFE_MS = 10_000
TOGETHER = 50
"""Batches that are committed together at full speed: three times as fast here as one by one."""
BACKLOG = 2 * TOGETHER * BATCH
"""Events that wait in front of Pathway at most, so that a run at full speed does not only fill a
queue.
"""


class Check(pw.Schema):
    """A reading of a sensor in a tick."""

    sensor: int
    value: int
    tick: int


class Level(pw.Schema):
    """A reading of a tank."""

    tank: int
    level: int
    time: int


class Trade(pw.Schema):
    """An order or a payment."""

    kind: int
    order: int
    amount: int
    time: int


SCHEMAS: dict[str, type[pw.Schema]] = {"strata": Check, "resample": Level, "join": Trade}


class _Source(pw.io.python.ConnectorSubject):
    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._set_max_backlog_size(BACKLOG)

    def run(self) -> None:
        feed = self._feed
        names = SCHEMAS[feed.job].column_names()
        feed.begin()
        for batch in range(feed.stream.batches):
            while (ahead := feed.due(batch) - perf_counter()) > 0:
                sleep(ahead)
            for row in feed.rows(batch):
                self.next(**dict(zip(names, row, strict=True)))
            if feed.pace or batch % TOGETHER == 0:
                self.commit()


def calm(checks: pw.Table) -> pw.Table:
    """Number of sensors of each region without a bad value in a tick."""
    sensors = checks.groupby(pw.this.tick, pw.this.sensor).reduce(
        pw.this.tick, pw.this.sensor, worst=pw.reducers.max(pw.this.value)
    )
    quiet = sensors.filter(pw.this.worst < 90).with_columns(region=pw.this.sensor % 10)
    return quiet.groupby(pw.this.tick, pw.this.region).reduce(
        pw.this.tick, pw.this.region, number=pw.reducers.count()
    )


def smoothed(levels: pw.Table) -> pw.Table:
    """The average level of each tank in each second, once, when it is complete."""
    windows = levels.windowby(
        pw.this.time,
        window=pw.temporal.tumbling(duration=BATCH_MS),
        instance=pw.this.tank,
        behavior=pw.temporal.exactly_once_behavior(),
    )
    return windows.reduce(
        tank=pw.this._pw_instance,
        middle=pw.this._pw_window_start + BATCH_MS // 2,
        average=pw.reducers.avg(pw.this.level),
    )


def settled(trades: pw.Table) -> pw.Table:
    """Orders with payments, each within the life of the other; what is older is forgotten."""
    orders = trades.filter(pw.this.kind == ORDERS)
    payments = trades.filter(pw.this.kind != ORDERS)
    joined = pw.temporal.interval_join(
        orders,
        payments,
        orders.time,
        payments.time,
        pw.temporal.interval(1 - LIFE_MS, LIFE_MS - 1),
        orders.order == payments.order,
        behavior=pw.temporal.common_behavior(cutoff=LIFE_MS + BATCH_MS, keep_results=True),
    )
    return joined.select(
        orders.order,
        placed=orders.amount,
        paid=payments.amount,
        time=pw.if_else(orders.time > payments.time, orders.time, payments.time),
    )


VIEWS: dict[str, Callable[[pw.Table], pw.Table]] = {
    "strata": calm, "resample": smoothed, "join": settled,
}  # fmt: skip


def run(feed: Feed) -> Results:
    """The job, to its end."""
    results = Results()
    held: dict[Any, list[tuple[int, ...]]] = {}
    events = pw.io.python.read(_Source(feed), schema=SCHEMAS[feed.job], autocommit_duration_ms=None)

    def change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        if is_addition:
            held.setdefault(time, []).append(tuple(row.values()))
        else:
            raise AssertionError(f"{row} was taken back at {time}")

    def end(time: int) -> None:
        results.add(held.pop(time, []))

    pw.io.subscribe(VIEWS[feed.job](events), on_change=change, on_time_end=end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return results


def batch(events: int) -> Report:
    """The averages of all levels at once, from columns."""
    feed = Feed("resample", events, 0)
    names = Level.column_names()
    columns = [*feed.stream.columns, feed.stream.times]
    frame = pd.DataFrame(dict(zip(names, columns, strict=True)))
    results = Results()
    feed.begin()
    levels = pw.debug.table_from_pandas(frame, schema=Level)
    seconds = levels.with_columns(middle=pw.this.time // BATCH_MS * BATCH_MS + BATCH_MS // 2)
    table = seconds.groupby(pw.this.tank, pw.this.middle).reduce(
        pw.this.tank,
        pw.this.middle,
        average=pw.reducers.avg(pw.this.level),
    )
    found = pw.debug.table_to_pandas(table, include_id=False)
    results.add(list(found.itertuples(index=False, name=None)))
    return results.report(feed)


if __name__ == "__main__":
    if sys.argv[1] == "resample-batch":
        sys.stdout.write(json.dumps(asdict(batch(int(sys.argv[2])))) + "\n")
    else:
        main("bench.views.sides.pathway_side", run)
