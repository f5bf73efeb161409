"""The display of the demo while it runs: a bar and the frontiers on a terminal, lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from tidemill.runtime.clock import Clock
from tidemill_flights.scenario import iso
from tidemill_flights.watch import Watch

LINE_INTERVAL_S = 10.0
"""Seconds between two lines of frontiers, where nothing can be drawn over."""


@dataclass(slots=True)
class Display:
    """The progress of one run. `phases` are the names and seconds of what has been done."""

    console: Console
    clock: Clock
    watch: Watch
    phases: list[tuple[str, float]] = field(default_factory=list)
    _progress: Progress = field(init=False)
    _sent: TaskID = field(init=False)
    _line_s: float = 0.0

    def __post_init__(self) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(40), MofNCompleteColumn(),
            TextColumn("records in the log"), console=self.console,
        )  # fmt: skip
        self._sent = self._progress.add_task("", total=None)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw the bar and the frontiers below everything that is printed, if on a terminal."""
        if not self.console.is_terminal:
            yield
            return
        with Live(
            console=self.console, get_renderable=self._picture, refresh_per_second=4, transient=True
        ):
            yield

    def _picture(self) -> Group:
        return Group("", self._progress, self.watch.table())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what is done now, and say afterwards how long it took."""
        begun_s = self.clock.monotonic_s()
        self._progress.update(self._sent, description=name)
        self.console.print(f"[bold]{name}[/bold]")
        yield
        took_s = self.clock.monotonic_s() - begun_s
        self.phases.append((name, took_s))
        self.console.print(f"  done in {took_s:.1f} s")

    def expect(self, records: int) -> None:
        """Set the number of records that the run brings to the log in all."""
        self._progress.update(self._sent, total=records)

    def sent(self, count: int) -> None:
        """Count records that are in the log."""
        self._progress.advance(self._sent, count)

    def say(self, text: str) -> None:
        """Print one fact."""
        self.console.print(f"  {text}", highlight=False)

    def frontiers(self) -> None:
        """Print all frontiers as of now."""
        self.console.print(self.watch.table())

    def tick(self) -> None:
        """Print the frontiers in one line now and then, where nothing is drawn."""
        now_s = self.clock.monotonic_s()
        if self.console.is_terminal or now_s - self._line_s < LINE_INTERVAL_S:
            return
        self._line_s = now_s
        lines = [line for line in self.watch.lines if line.timeline != "system"]
        uppers = " · ".join(f"{line.name} {iso(line.upper)[:10]}" for line in lines if line.upper)
        if uppers:
            self.say(f"uppers at {now_s - self.watch.started_s:.0f} s: {uppers}")
