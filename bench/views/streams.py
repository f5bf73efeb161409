"""Three streaming jobs: ticks through three strata, the resampling of a series, a join by key with
expiry.

Each job is run twice: as fast as batches are taken in (throughput), and paced, with a batch due at
fixed intervals. Freshness is the time from when the batch was due that made a result certain, to
the result.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time, sleep

import numpy as np
import numpy.typing as npt

from bench.views.digests import columns_of, digest
from bench.views.engine import (
    Columns,
    Delta,
    Events,
    Passing,
    View,
    begun,
    program,
    stacked,
    stretches,
)
from bench.views.inputs import BATCH, BATCH_MS, ORDERS, Stream, checks, levels, trades
from bench.views.job import Aim, Job, Report, Row

LIFE_MS = 10_000
STRATA = """
bad(s) := check(s, v) if v >= 90;
quiet(r, s) := check(s, _) ^ region(s, r) ^ not bad(s);
calm(r) @count(1) := quiet(r, s);
"""
RESAMPLED = """
smoothed(tank) @average(x) @time(tc - 500) :=
  level(tank, x) @time(te) ^ clock(0, 1000) @time(tc) if te < tc ^ te >= tc - 1000;
"""
"""The rule of the language's own document, as it stands."""
RESAMPLED_LIVE = RESAMPLED.replace("@time(tc - 500)", "@time(tc - 500) @expires(tc + 1000)")
"""Averages end after a second, so that the readings behind them may end: they do not change
afterwards.
"""
JOINED = "settled(o, a, b) := placed(o, a) ^ paid(o, b);"

TOGETHER = 50
"""Batches that are taken in together at full speed, as a view takes a backlog."""
FIRST = 5
"""Batches at the beginning whose freshness is not counted, here and on the other sides."""
Step = Callable[[int], Columns]
"""Rows that a batch has brought of the predicate that is asked for, as columns."""
Found = list[tuple[int, Columns]]


def run(step: Step, batches: int, pause_s: float = 0.0) -> tuple[float, list[float], Found]:
    """Seconds in all, seconds from when each batch was due to its results, and what each
    changed.
    """
    found: Found = []
    seconds = []
    start = perf_counter()
    for batch in range(batches):
        due = start + batch * pause_s if pause_s else perf_counter()
        while (ahead := due - perf_counter()) > 0:
            sleep(ahead)
        found.append((batch, step(batch)))
        seconds.append(perf_counter() - due)
    return perf_counter() - start, seconds, found


def measured(
    opened: Callable[[int], Step],
    results: Callable[[Found], Columns],
    sizes: tuple[int, ...],
    flush: bool = False,
) -> Report:
    """The figures of one streaming job; `opened` gives a step that takes so many batches together.

    With `flush`, one more step after the last batch lets what is still held back come out.
    """
    events, paced, pace = sizes
    report = Report()
    together = min(TOGETHER, events // BATCH)
    steps = events // (together * BATCH)
    for size in (1, together):  # the first plans and compiles
        run(opened(size), min(steps, 5))
    step, busy = opened(together), process_time()
    total, _, found = run(step, steps + flush)
    report.figures["throughput"] = steps * together * BATCH / total
    report.figures["per_busy"] = steps * together * BATCH / (process_time() - busy)
    report.digests["results"] = digest(results(found))
    busy = process_time()
    _, seconds, found = run(opened(1), paced // BATCH, BATCH / pace)
    report.figures["batch_busy_s"] = (process_time() - busy) / (paced // BATCH)
    times = [s for s, (_, changes) in zip(seconds, found, strict=True) if any(map(len, changes))]
    report.latencies(times[FIRST:], "fresh_")
    return report


def slices(stream: Stream, together: int) -> list[tuple[Columns, npt.NDArray[np.int64]]]:
    """Input of the steps of a stream, `together` batches each: columns and times."""
    size = together * BATCH
    places = [slice(at * size, (at + 1) * size) for at in range(len(stream.times) // size)]
    return [([c[place] for c in stream.columns], stream.times[place]) for place in places]


# Ticks through three strata.


def strata(events: int, paced: int, pace: int) -> Report:
    """Number of sensors of each region without a bad reading, by tick; the ticks are instants."""
    checked = program(STRATA, {"check": ("relation", 2), "region": ("relation", 2)})
    sensors = np.arange(500, dtype=np.int64)
    stream = checks(max(events, paced))

    def opened(together: int) -> Step:
        view, batches = View(checked), slices(stream, together)
        view.step(0, {"region": Delta((sensors, sensors % 10))})

        def step(at: int) -> Columns:
            columns, ticks = batches[at]
            passing = {"check": Passing(columns, ticks)}
            return stretches(view.step((at + 1) * together, passing), "calm")

        return step

    return measured(opened, calm_by_tick, (events, paced, pace))


def calm_by_tick(found: Found) -> Columns:
    """(tick, region, count) of every tick, from (diff, tick, region, count) where one begins or
    ends.
    """
    diffs, ticks, *facts = stacked(changes for _, changes in found)
    last = int(ticks.max()) + 1
    since: dict[tuple[int, ...], int] = {}
    rows = []
    for at in np.lexsort((diffs, ticks)).tolist():  # at one tick what ends comes first
        fact = tuple(int(column[at]) for column in facts)
        if diffs[at] > 0:
            since[fact] = int(ticks[at])
        else:
            rows += [(tick, *fact) for tick in range(since.pop(fact), int(ticks[at]))]
    rows += [(tick, *fact) for fact, start in since.items() for tick in range(start, last)]
    return columns_of(rows)


# Resampling.


def resampled(events: int, paced: int, pace: int) -> Report:
    """The average level of each tank in each second, as soon as it is certain."""
    checked = program(RESAMPLED_LIVE, {"level": ("events", 2)})
    stream = levels(max(events, paced))

    def opened(together: int) -> Step:
        view, batches = View(checked), slices(stream, together)
        step_ms = together * BATCH_MS

        def step(at: int) -> Columns:
            if at == len(batches):
                return begun(view.step(at * step_ms + 1, {}), "smoothed")
            columns, times = batches[at]
            given = {"level": Events(columns, times, BATCH_MS + 1)}
            return begun(view.step((at + 1) * step_ms, given), "smoothed")

        return step

    def averages(found: Found) -> Columns:
        return stacked(changes for _, changes in found)

    return measured(opened, averages, (events, paced, pace), flush=True)


def resampled_batch(events: int) -> Report:
    """The same averages of all readings at once."""
    checked = program(RESAMPLED, {"level": ("events", 2)})
    report = Report()
    for size in (10 * BATCH, events):
        stream = levels(size)
        view, parts, together = View(checked), [], min(TOGETHER, stream.batches)
        start = perf_counter()
        for at, (columns, times) in enumerate(slices(stream, together), 1):
            given = {"level": Events(columns, times)}
            parts.append(begun(view.step(at * together * BATCH_MS, given), "smoothed"))
        parts.append(begun(view.step(stream.batches * BATCH_MS + 1, {}), "smoothed"))
        found = stacked(parts)
        report.figures["throughput"] = size / (perf_counter() - start)
        report.digests["results"] = digest(found)
    return report


# A join by key with expiry.


def joined(events: int, paced: int, pace: int) -> Report:
    """Orders with their payments, where both come within ten seconds."""
    checked = program(JOINED, {"placed": ("events", 2), "paid": ("events", 2)})
    stream = trades(max(events, paced))

    def opened(together: int) -> Step:
        view, batches = View(checked), slices(stream, together)

        def step(at: int) -> Columns:
            (kinds, keys, amounts), times = batches[at]
            given = {}
            for name, of in (("placed", kinds == ORDERS), ("paid", kinds != ORDERS)):
                given[name] = Events((keys[of], amounts[of]), times[of], LIFE_MS)
            return begun(view.step((at + 1) * together * BATCH_MS, given), "settled")

        return step

    def settled(found: Found) -> Columns:
        return stacked(changes for _, changes in found)

    return measured(opened, settled, (events, paced, pace))


PEERS = ("pathway", "bytewax")


def rows_of(title: str, least: float) -> tuple[Row, ...]:
    """Throughput against an aim and against the best peer, and freshness."""
    return (
        Row(title, "throughput", Aim("least", least), "/s"),
        Row("the same, beside the best of the others", "throughput", Aim("times", 2), "/s"),
        Row("the same, for each second of the processor", "per_busy", unit="/s"),
        Row("freshness at 20,000 events/s, p99", "fresh_p99_s", Aim("times", 1)),
        Row("the same, median", "fresh_p50_s"),
        Row("the same, seconds of the processor for a batch", "batch_busy_s"),
    )


JOBS: dict[str, Job] = {
    "strata": Job((1_000_000, 100_000, 20_000), strata,
                  rows_of("three strata, ticks of 1,000 events", 200_000),
                  PEERS, scaled=(0,), least=TOGETHER * BATCH),
    "resample": Job((10_000_000, 100_000, 20_000), resampled,
                    rows_of("resampling live", 200_000), PEERS, scaled=(0,), least=TOGETHER * BATCH),
    "resample-batch": Job((10_000_000,), resampled_batch, (
        Row("resampling as a batch", "throughput", Aim("least", 3_000_000), "/s"),
    ), ("pathway-batch",), scaled=(0,), least=TOGETHER * BATCH),
    "join": Job((1_000_000, 100_000, 20_000), joined,
                rows_of("join by key with expiry", 200_000), PEERS, scaled=(0,), least=TOGETHER * BATCH),
}  # fmt: skip
