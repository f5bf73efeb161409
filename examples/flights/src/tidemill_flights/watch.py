"""Watching the frontiers of a running server: samples for the chart, a table for the eyes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rich.table import Table

from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.rpc.messages import CollectionInfo
from tidemill.runtime.clock import Clock
from tidemill.time import Frontier, sole_time
from tidemill_flights.plot import Mark, Sample
from tidemill_flights.prepare import DAY_MS
from tidemill_flights.scenario import iso

SAMPLE_INTERVAL_S = 0.1
NOT_BEGUN = 1
"""The upper of a collection that nothing has been written to."""


@dataclass(frozen=True, slots=True)
class Line:
    """One collection as the table shows it; times in milliseconds of its timeline."""

    name: str
    timeline: str
    since: int
    upper: int
    lag_ms: int


def _time(frontier: Frontier) -> int:
    return 0 if frontier.empty else sole_time(frontier)


@dataclass(slots=True)
class Watch:
    """The frontiers seen so far.

    `names` are the streams and views to look at; the raw rows of a stream are looked at with it.
    Lag on the event timeline is measured against `newest`, the latest time that was sent. Lag on
    the system timeline is measured against the wall clock, as the server reports it.
    """

    clock: Clock
    begins: int
    started_s: float
    names: Sequence[str]
    newest: int = 0
    lines: list[Line] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """Note that something happened now."""
        self.marks.append(Mark(self._now_s(), name))

    def upper(self, name: str) -> int:
        """The upper of a collection or view at the last look; 0 before the first."""
        return next((line.upper for line in self.lines if line.name == name), 0)

    async def follow(self, client: Client) -> None:
        """Look again and again until cancelled; a server that is away is no news."""
        while True:
            seen: Sequence[CollectionInfo] = []
            with suppress(TidemillError):
                seen = await asyncio.to_thread(client.collections)
            if seen:
                self.observe(seen)
            await self.clock.sleep(SAMPLE_INTERVAL_S)

    def observe(self, seen: Sequence[CollectionInfo]) -> None:
        """Take in one look at all collections."""
        now_s = self._now_s()
        self.lines = self._lines(seen)
        self.samples += [
            Sample(now_s, line.name, line.timeline, line.lag_ms / 1000) for line in self.lines
        ]

    def _lines(self, seen: Sequence[CollectionInfo]) -> list[Line]:
        """One line for each stream, for its raw rows, and for each view, in the order of
        `names`.
        """
        lines: dict[str, Line] = {}
        for info in seen:
            owner = info.id.split("/")[0]
            name = owner if info.kind == "view" else info.id
            if owner not in self.names or info.kind not in ("source", "view") or name in lines:
                continue
            upper = _time(info.upper)
            if info.timeline == "system" and (info.lag_ms is None or upper <= NOT_BEGUN):
                continue  # a lag behind the wall clock would be all the time since 1970
            lag_ms = info.lag_ms or 0
            if info.timeline != "system":
                lag_ms = max(0, self.newest - max(upper, self.begins))
            lines[name] = Line(name, info.timeline, _time(info.since), upper, lag_ms)
        order = [found for name in self.names for found in (f"{name}/raw", name)]
        return sorted(lines.values(), key=lambda line: order.index(line.name))

    def table(self) -> Table:
        """The frontiers as of the last look."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("collection", "since", "upper"):
            table.add_column(name)
        table.add_column("lag", justify="right")
        for line in self.lines:
            since, upper = (_shown(time) for time in (line.since, line.upper))
            table.add_row(line.name, since, upper, shown_lag(line))
        return table

    def _now_s(self) -> float:
        return self.clock.monotonic_s() - self.started_s


def _shown(time: int) -> str:
    return iso(time // 60_000 * 60_000) if time > NOT_BEGUN else "-"


def shown_lag(line: Line) -> str:
    """The lag in days of flights, or in seconds of the wall clock."""
    if line.timeline == "system":
        return f"{line.lag_ms / 1000:.1f} s"
    return f"{line.lag_ms / DAY_MS:.1f} d"
