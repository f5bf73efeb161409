"""Code that the streaming sides share: batches at once or at a rate, results with their instants,
figures of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter, process_time

import numpy as np

from bench.views.digests import digest
from bench.views.inputs import BATCH, BATCH_MS, Stream, checks, levels, trades
from bench.views.job import Report

STREAMS: dict[str, Callable[[int], Stream]] = {"strata": checks, "resample": levels, "join": trades}
FIRST = 5
"""Batches at the beginning whose freshness is not counted: the sides warm up."""

Row = tuple[int, ...]


@dataclass
class Feed:
    """The batches of a job, each due at its instant; pace zero means as fast as they are taken."""

    job: str
    events: int
    pace: int
    start: float = 0.0
    worked: float = 0.0
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = STREAMS[self.job](self.events)

    def begin(self) -> None:
        """The first batch is due now."""
        self.start = perf_counter()
        self.worked = process_time()

    def due(self, batch: int) -> float:
        """When a batch is due."""
        return self.start + (batch * BATCH / self.pace if self.pace else 0.0)

    def rows(self, batch: int) -> Iterator[Row]:
        """The columns of its events and, last, their times."""
        place = slice(batch * BATCH, (batch + 1) * BATCH)
        columns = [column[place].tolist() for column in self.stream.columns]
        return zip(*columns, self.stream.times[place].tolist(), strict=True)

    def released_by(self, row: Row) -> int:
        """The batch that makes a result certain."""
        match self.job:
            case "strata":
                return row[0]
            case "resample":
                return (row[1] + BATCH_MS // 2) // BATCH_MS
            case _:
                return row[3] // BATCH_MS


@dataclass
class Results:
    """Rows as they come out."""

    rows: list[Row] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def add(self, rows: Sequence[Row]) -> None:
        """These have come out now."""
        self.rows += rows
        self.at += [perf_counter()] * len(rows)

    def report(self, feed: Feed) -> Report:
        """Throughput and digest of a run at full speed, or freshness of a paced one."""
        if not feed.pace:
            seconds = max(self.at) - feed.start
            figures = {
                "throughput": feed.events / seconds,
                "per_busy": feed.events / (process_time() - feed.worked),
            }
            return Report(figures, {"results": digest(self.columns())})
        latest: dict[int, float] = {}
        for row, at in zip(self.rows, self.at, strict=True):
            batch = feed.released_by(row)
            if FIRST <= batch < feed.stream.batches:
                latest[batch] = max(latest.get(batch, 0.0), at - feed.due(batch))
        report = Report()
        report.latencies(list(latest.values()), "fresh_")
        report.figures["batch_busy_s"] = (process_time() - feed.worked) / feed.stream.batches
        return report

    def columns(self) -> list[np.ndarray]:
        """The rows as columns; those with a point by their bits."""
        columns = [np.array(column) for column in zip(*self.rows, strict=True)]
        return [c.view(np.int64) if c.dtype == np.float64 else c.astype(np.int64) for c in columns]


def main(module: str, run: Callable[[Feed], Results]) -> None:
    """Run a job at full speed and at a pace, each in a process of its own, and say what both
    gave.
    """
    job, *rest = sys.argv[1:]
    if rest[0] == "part":
        feed = Feed(job, int(rest[1]), int(rest[2]))
        sys.stdout.write(json.dumps(asdict(run(feed).report(feed))) + "\n")
        return
    events, paced, pace = map(int, rest)
    merged = Report()
    for size, speed in ((events, 0), (paced, pace)):
        command = [sys.executable, "-m", module, job, "part", str(size), str(speed)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found = json.loads(said.splitlines()[-1])
        merged.figures |= found["figures"]
        merged.digests |= found["digests"]
    sys.stdout.write(json.dumps(asdict(merged)) + "\n")
