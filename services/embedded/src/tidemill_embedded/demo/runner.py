"""The demo from start to end: load, backfill, stream, kill, go on, ask, prove, verify, draw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251  the seed comes with the scenario

from rich.console import Console
from rich.table import Table

from tidemill.client import Client
from tidemill.runtime.clock import Clock
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.time import Unavailable
from tidemill_embedded.demo.feed import fill_backlog, pieces
from tidemill_embedded.demo.oracle import QUERIES, Oracle
from tidemill_embedded.demo.plot import draw_lags
from tidemill_embedded.demo.prepare import (
    DAY_MS,
    Arrivals,
    arrivals,
    flight_rows,
    weather_rows,
    write_reference,
)
from tidemill_embedded.demo.raw import unpack
from tidemill_embedded.demo.scenario import Scenario, iso
from tidemill_embedded.demo.server import DemoServer
from tidemill_embedded.demo.verify import (
    Comparison,
    answer_rows,
    compare,
    describe_difference,
    fired_alarms,
)
from tidemill_embedded.demo.watch import Watch

SEED = 2013
FLIGHT_PARTITIONS = 4
PIECE_MS = 4 * DAY_MS
BEHIND_MS_MAX = 24 * DAY_MS
"""How far the stream may run ahead of the slowest view before it waits."""
STUCK_S_MAX = 120.0
VIEWS = ("weather-at-departure", "punctuality", "knock-ons", "network")


@dataclass(slots=True)
class DemoRun:
    """One run; `directory` holds everything it makes."""

    scenario: Scenario
    directory: Path
    examples: Path
    jars: Path
    clock: Clock
    console: Console
    phases: list[tuple[str, float]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    async def run(self) -> bool:
        """Whether everything that was compared is equal."""
        begun_s = self.clock.monotonic_s()
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._phase("prepare the records"):
            feeds = await asyncio.to_thread(self._prepare)
        server = DemoServer(self.directory, self.clock, self.jars)
        with self._phase("write the backlog to the log"):
            await self._fill(server, feeds)
        watch = Watch(self.clock, self.scenario.begins, begun_s, self.scenario.backlog_until)
        try:
            await self._serve(server, watch, feeds)
        finally:
            await server.stop()
        chart = self.directory / "frontier-lag.png"
        await asyncio.to_thread(draw_lags, watch.samples, watch.marks, chart)
        return self._conclude(self.clock.monotonic_s() - begun_s, chart)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun_s = self.clock.monotonic_s()
        self.console.print(f"[bold]{name}[/bold] …")
        yield
        took_s = self.clock.monotonic_s() - begun_s
        self.phases.append((name, took_s))
        self.console.print(f"  {took_s:.1f} s")

    def _prepare(self) -> list[Arrivals]:
        """The raw files, the reference files, and the records of both topics in arrival order."""
        raw = unpack(self.directory / "raw")
        write_reference(raw, self.directory / "data")
        months, rng = self.scenario.months, Random(SEED)
        return [
            arrivals(
                "flights", FLIGHT_PARTITIONS, flight_rows(raw, months), time="scheduled",
                key="tailnum", broken=self.scenario.broken_flights, rng=rng,
            ),
            arrivals(
                "weather", 1, weather_rows(raw, months), time="hour", key="origin",
                broken=self.scenario.broken_weather, rng=rng,
            ),
        ]  # fmt: skip

    async def _fill(self, server: DemoServer, feeds: Sequence[Arrivals]) -> None:
        log = EmbeddedLog(server.state / "log")
        try:
            count = await fill_backlog(log, feeds, self.scenario.backlog_until)
        finally:
            await log.close()
        self.console.print(
            f"  {count:,} records in {FLIGHT_PARTITIONS + 1} partitions, out of order by up to an "
            f"hour, up to {iso(self.scenario.backlog_until)}"
        )

    async def _serve(self, server: DemoServer, watch: Watch, feeds: Sequence[Arrivals]) -> None:
        client = await server.start()
        with self._phase("apply examples/flights"):
            applied = await asyncio.to_thread(client.apply, self.examples)
            names = ", ".join(f"{each.kind}/{each.name}" for each in applied)
            self.console.print(f"  {names}")
        following = asyncio.create_task(watch.follow(client))
        with self._phase("backfill with Spark, then catch up"):
            await self._catch_up(watch, self.scenario.backlog_until - 2 * DAY_MS)
        watch.mark("backfilled")
        self.console.print(watch.table())
        with self._phase("stream until the kill"):
            reached = await self._stream(
                client, watch, feeds, self.scenario.backlog_until, self.scenario.kill_at
            )
        following.cancel()
        watch.mark("SIGKILL")
        pid = await server.kill()
        client.close()
        self.console.print(f"[red]killed process {pid} with SIGKILL[/red]; starting again")
        with self._phase("restart"):
            client = await server.start()
        watch.mark("restarted")
        following = asyncio.create_task(watch.follow(client))
        with self._phase("stream the rest"):
            await self._stream(client, watch, feeds, reached, None)
            last = max(feed.at_ms[-1] for feed in feeds)
            await self._catch_up(watch, min(last - 3 * DAY_MS, self.scenario.instants[-1] + 1))
            await self._settle(watch)
        self.console.print(watch.table())
        following.cancel()
        with self._phase("ask, prove, verify"):
            await asyncio.to_thread(self._ask, client)
        client.close()

    async def _stream(
        self,
        client: Client,
        watch: Watch,
        feeds: Sequence[Arrivals],
        begin: int,
        end: int | None,
    ) -> int:
        """Push what arrives from `begin` until at least `end`, no faster than the views follow.

        Returns how far it came.
        """
        shown = reached = begin
        for piece in pieces(feeds, begin, PIECE_MS):
            for source, rows in piece.rows.items():
                await asyncio.to_thread(client.push, source, list(rows))
            watch.newest = piece.until_ms
            await self._catch_up(watch, piece.until_ms - BEHIND_MS_MAX)
            if piece.until_ms - shown >= 30 * DAY_MS:
                shown = piece.until_ms
                self.console.print(f"  sent up to {iso(shown)}, views at {iso(self._least(watch))}")
            reached = piece.until_ms
            if end is not None and reached >= end:
                break
        return reached

    def _least(self, watch: Watch) -> int:
        return min((watch.upper(view) for view in VIEWS), default=0)

    async def _catch_up(self, watch: Watch, upper: int) -> None:
        """Wait until every view has come to `upper`. Raises: Unavailable if none moves for long."""
        before, moved_s = -1, self.clock.monotonic_s()
        while (least := self._least(watch)) < upper:
            now_s = self.clock.monotonic_s()
            if least != before:
                before, moved_s = least, now_s
            elif now_s - moved_s > STUCK_S_MAX:
                raise Unavailable(
                    f"the views stand at {iso(least)} (log: {self.directory}/server.log)"
                )
            await self.clock.sleep(0.25)

    async def _settle(self, watch: Watch) -> None:
        """Wait until the views have stopped moving."""
        before = -1
        while (least := self._least(watch)) != before:
            before = least
            await self.clock.sleep(3.0)

    def _ask(self, client: Client) -> None:
        """Answers at three past instants, one proof, and the comparison of all with the oracle."""
        months = self.scenario.months
        with Oracle.over(self.directory / "raw", months) as oracle:
            for at in self.scenario.instants:
                table = Table(title=f"as of {iso(at)}", title_justify="left", box=None)
                for name in ("collection", "rows", "since", "upper"):
                    table.add_column(name)
                for collection in QUERIES:
                    answer = client.query(collection, at)
                    found = answer_rows(answer.table)
                    self.comparisons.append(
                        compare(f"{collection} at {iso(at)}", oracle.rows(collection, at), found)
                    )
                    since = answer.since.elements[0] if len(answer.since) else 0
                    upper = answer.upper.elements[0] if len(answer.upper) else 0
                    table.add_row(collection, f"{len(found):,}", str(since), iso(upper))
                self.console.print(table)
            upper = client.query("knock-ons/knock_on").upper.elements[0]
            alarms = fired_alarms(self.directory / "alarms.jsonl")
            self.comparisons.append(
                compare(f"alarms fired below {iso(upper)}", oracle.alarms(upper), alarms)
            )
        self._prove(client)

    def _prove(self, client: Client) -> None:
        """Why one alarm was raised."""
        lines = (self.directory / "alarms.jsonl").read_text().splitlines()
        if not lines:
            return
        alarm = json.loads(lines[len(lines) // 2])
        record = alarm["record"].split(" @expires")[0]
        self.console.print(f"[bold]why {record}[/bold] at {iso(alarm['instant'])}")
        self.console.print(client.why(record, alarm["instant"]).text, highlight=False)

    def _conclude(self, total_s: float, chart: Path) -> bool:
        """What was compared, where the time went."""
        verdict = Table(
            title="compared with DuckDB over the raw files", title_justify="left", box=None
        )
        for name, justify in (
            ("what", "left"),
            ("expected", "right"),
            ("found", "right"),
            ("", "left"),
        ):
            verdict.add_column(name, justify=justify)  # type: ignore[arg-type]  # rich names its own literals
        for each in self.comparisons:
            mark = "[green]equal[/green]" if each.equal else "[red]DIFFERENT[/red]"
            verdict.add_row(each.what, f"{each.expected:,}", f"{each.found:,}", mark)
        self.console.print(verdict)
        for each in self.comparisons:
            if not each.equal:
                self.console.print(f"[red]{each.what}[/red]\n{describe_difference(each)}")
        times = Table(
            title="where the time went", title_justify="left", box=None, show_header=False
        )
        times.add_column()
        times.add_column(justify="right")
        for name, took_s in self.phases:
            times.add_row(name, f"{took_s:.1f} s")
        times.add_row("in all", f"{total_s:.1f} s")
        self.console.print(times)
        self.console.print(f"frontier lag over the run: {chart}")
        return all(each.equal for each in self.comparisons)
