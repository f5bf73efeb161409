"""The demo's chart: how far each collection was behind, second by second of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d5fc7", "#c98a00", "#3aa6a6", "#7a5c43", "#555555")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one collection: `lag_s` seconds of its own timeline behind what could be known."""

    wall_s: float
    collection: str
    timeline: str
    lag_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the run worth a line in the chart."""

    wall_s: float
    name: str


def draw_lags(samples: Sequence[Sample], marks: Sequence[Mark], path: Path) -> None:
    """Write a PNG with one panel per timeline: event time in days, system time in seconds.

    Each line is one collection over the seconds since the start; marks cross both panels.
    """
    event = [sample for sample in samples if sample.timeline != "system"]
    system = [sample for sample in samples if sample.timeline == "system"]
    figure = Figure(figsize=(11, 7), dpi=120, layout="constrained")
    upper, lower = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2), "hspace": 0.05}
    )
    _lines(upper, event, 86_400.0)
    upper.set_ylabel("days of flights behind the log")
    _lines(lower, system, 1.0)
    lower.set_ylabel("seconds behind the wall clock")
    lower.set_xlabel("seconds since the start of the run")
    for axes in (upper, lower):
        _style(axes, marks)
    top = upper.get_ylim()[1]
    for mark in marks:
        upper.text(
            mark.wall_s, top, f" {mark.name}", rotation=90, va="top", ha="right", fontsize=8,
            color="#333333",
        )  # fmt: skip
    upper.set_title("Frontier lag of each collection", loc="left", fontsize=12)
    figure.savefig(path)


def _lines(axes: Axes, samples: Sequence[Sample], unit_s: float) -> None:
    names = list(dict.fromkeys(sample.collection for sample in samples))
    for index, name in enumerate(names):
        own = [sample for sample in samples if sample.collection == name]
        axes.plot(
            [sample.wall_s for sample in own],
            [sample.lag_s / unit_s for sample in own],
            label=name,
            color=COLOURS[index % len(COLOURS)],
            linestyle="-" if index < len(COLOURS) else "--",
            linewidth=1.6,
        )
    if names:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False)


def _style(axes: Axes, marks: Sequence[Mark]) -> None:
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    for mark in marks:
        axes.axvline(mark.wall_s, color="#999999", linewidth=0.9, linestyle=":")
