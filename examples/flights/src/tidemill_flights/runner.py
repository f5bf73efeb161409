"""The demo from start to end: load, backfill, stream, kill, go on, ask, prove, verify, draw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251  the seed comes with the scenario

from rich.console import Console

from tidemill.client import Client
from tidemill.errors import Unavailable
from tidemill.runtime.clock import Clock
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill_flights.display import Display
from tidemill_flights.feed import fill_backlog, pieces
from tidemill_flights.plot import DARK, LIGHT, draw_lags
from tidemill_flights.prepare import (
    Arrivals,
    arrivals,
    flight_rows,
    weather_rows,
    write_reference,
)
from tidemill_flights.questions import Questions
from tidemill_flights.raw import unpack
from tidemill_flights.report import print_timings, print_verdict
from tidemill_flights.scenario import Scenario, iso
from tidemill_flights.server import DemoServer
from tidemill_flights.waiting import Waiter
from tidemill_flights.watch import Watch

SEED = 2013
FLIGHT_PARTITIONS = 4
STREAMS = ("flights", "weather")
VIEWS = {
    "weather-at-departure": STREAMS,
    "punctuality": ("flights",),
    "knock-ons": ("flights",),
    "network": ("flights",),
}
"""The views of examples/flights, and the streams that each of them reads."""
ACTION = "knock-on-alarms"


@dataclass(slots=True)
class DemoRun:
    """One run; `directory` holds everything it makes."""

    scenario: Scenario
    directory: Path
    examples: Path
    jars: Path
    clock: Clock
    console: Console
    server: DemoServer = field(init=False)
    watch: Watch = field(init=False)
    display: Display = field(init=False)
    questions: Questions = field(init=False)

    async def run(self, *, keep: bool = False) -> bool:
        """Whether everything that was compared is equal; with `keep` only once the server is
        ended.
        """
        scenario, begun_s = self.scenario, self.clock.monotonic_s()
        self.server = DemoServer(self.directory, self.clock, self.jars, scenario.spark_rows)
        self.watch = Watch(
            self.clock, scenario.begins, begun_s, (*STREAMS, *VIEWS), newest=scenario.backlog_until
        )
        self.display = Display(self.console, self.clock, self.watch)
        with self.display.drawn():
            with self.display.phase("prepare the records"):
                feeds = await asyncio.to_thread(self._prepare)
            self.questions = Questions(
                scenario, self.directory, self.display, {feed.topic: feed.broken for feed in feeds}
            )
            try:
                await self._serve(feeds)
                equal = await self._conclude(self.clock.monotonic_s() - begun_s)
                if keep and self.server.address:
                    self.console.print(
                        f"the server stays: TIDEMILL_ADDRESS={self.server.address} (Ctrl-C ends it)",
                        highlight=False, soft_wrap=True,
                    )  # fmt: skip
                    await self.server.end()
            finally:
                await self.server.stop()
        return equal

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

    async def _serve(self, feeds: Sequence[Arrivals]) -> None:
        """Everything between the first record in the log and the last answer."""
        scenario, display = self.scenario, self.display
        display.expect(sum(map(len, feeds)))
        with display.phase("write the backlog to the log"):
            await self._fill(feeds)
        with display.phase("start the server, apply examples/flights"):
            client = await self.server.start()
            await self._apply(client)
        async with self._watched(client) as waiter:
            with display.phase("backfill with Spark"):
                await waiter.catch_up(dict.fromkeys(STREAMS, scenario.begins))
                self.watch.mark("backfilled")
                await self._check_backfill(waiter, feeds[0].before(scenario.backlog_until))
            with display.phase("views catch up with the backlog"):
                await waiter.views_complete()
                display.frontiers()
                await self.questions.ask(client, scenario.instants[0])
            with display.phase("stream, to the kill"):
                reached = await self._stream(
                    waiter, feeds, scenario.backlog_until, scenario.kill_at
                )
            uppers = {name: self.watch.upper(name) for name in VIEWS}
        client.close()
        self.watch.mark("SIGKILL")
        pid = await self.server.kill()
        self.console.print(
            f"[red]process {pid} is killed[/red] (SIGKILL), its log sent up to {iso(reached)}"
        )
        with display.phase("start it again"):
            client = await self.server.start()
            self.watch.mark("restarted")
        async with self._watched(client) as waiter:
            with display.phase("stream, to the end"):
                await waiter.views_within(max(uppers.values()))
                await self.questions.ask(client, scenario.instants[1])
                await self._stream(waiter, feeds, reached, None)
            with display.phase("views catch up with the end"):
                complete = await waiter.views_complete()
                await waiter.await_fired(ACTION, complete["knock-ons"], self.questions.lines_told)
                display.frontiers()
                await self.questions.ask(client, scenario.instants[2])
            with display.phase("prove one alarm, verify everything"):
                await self.questions.prove(client)
                await self.questions.verify(client, complete)
        client.close()

    async def _fill(self, feeds: Sequence[Arrivals]) -> None:
        log = EmbeddedLog(self.server.state / "log")
        try:
            count = await fill_backlog(log, feeds, self.scenario.backlog_until)
        finally:
            await log.close()
        self.display.sent(count)
        self.display.say(
            f"{count:,} records in {FLIGHT_PARTITIONS} partitions of flights and one of weather, up to "
            f"{iso(self.scenario.backlog_until)}, out of order by up to an hour"
        )
        broken = sum(len(feed.broken) for feed in feeds)
        self.display.say(f"{broken} records of the year are broken on purpose")

    async def _apply(self, client: Client) -> None:
        applied = await asyncio.to_thread(client.apply, self.examples)
        self.display.say(" ".join(f"{each.kind}/{each.name}" for each in applied))

    async def _check_backfill(self, waiter: Waiter, records: int) -> None:
        """Say how many records Spark wrote. Raises: Unavailable if they are not the whole
        backlog.
        """
        details = await waiter.await_running("Source", "flights")
        if details["backfilled"] != records:
            raise Unavailable(
                f"Spark wrote {details['backfilled']} of the {records} records of the backlog"
            )
        self.display.say(f"Spark reclocked the {records:,} records of flights")

    @asynccontextmanager
    async def _watched(self, client: Client) -> AsyncIterator[Waiter]:
        """Follow the frontiers of the server for as long as the block runs."""
        following = asyncio.create_task(self.watch.follow(client))
        try:
            yield Waiter(client, self.watch, self.clock, VIEWS, self.display.tick)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _stream(
        self, waiter: Waiter, feeds: Sequence[Arrivals], begin: int, end: int | None
    ) -> int:
        """Push what arrives from `begin` until at least `end`, never far ahead of the views.

        Returns how far it came; the views are at work then.
        """
        reached = begin
        for piece in pieces(feeds, begin, self.scenario.piece_ms):
            await waiter.views_within(piece.until_ms - self.scenario.ahead_ms)
            for source, rows in piece.rows.items():
                await asyncio.to_thread(waiter.client.push, source, list(rows))
            self.display.sent(len(piece))
            reached = self.watch.newest = piece.until_ms
            if end is not None and reached >= end:
                break
        return reached

    async def _conclude(self, total_s: float) -> bool:
        """Draw the chart, print what was compared and where the time went."""
        chart = self.directory / "frontier-lag.png"
        for path, theme in ((chart, LIGHT), (chart.with_stem("frontier-lag-dark"), DARK)):
            await asyncio.to_thread(draw_lags, self.watch.samples, self.watch.marks, path, theme)
        comparisons = self.questions.comparisons
        print_verdict(self.console, comparisons)
        facts = {
            "frontier lag over the run": str(chart),
            "one line for each alarm": str(self.questions.alarms),
            "log of the server": str(self.server.log),
        }
        print_timings(self.console, self.display.phases, total_s, facts)
        return all(each.equal for each in comparisons)
