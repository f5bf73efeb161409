"""The demo's chart: how far each collection was behind, second by second of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd",
    "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
)  # fmt: skip
"""The ten colours of Tableau, none of which is lost on a white or on a black page."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a page: its ground, its text, its rules."""

    ground: str
    text: str
    rules: str


LIGHT = Theme("#ffffff", "#222222", "#dddddd")
DARK = Theme("#0d1117", "#d0d7de", "#30363d")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one collection: `lag_s` seconds of its own timeline behind what could be
    known.
    """

    wall_s: float
    collection: str
    timeline: str
    lag_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the run worth a line in the chart."""

    wall_s: float
    name: str


def draw_lags(
    samples: Sequence[Sample], marks: Sequence[Mark], path: Path, theme: Theme = LIGHT
) -> None:
    """Write a PNG with one panel per timeline: event time in days, system time in seconds.

    Each line is one collection over the seconds since the start; marks cross both panels. A
    collection has one colour in both.
    """
    names = dict.fromkeys(sample.collection for sample in samples)
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    event = [sample for sample in samples if sample.timeline != "system"]
    system = [sample for sample in samples if sample.timeline == "system"]
    figure = Figure(figsize=(11, 7), dpi=120, layout="constrained", facecolor=theme.ground)
    upper, lower = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": (3, 2), "hspace": 0.05}
    )
    _lines(upper, event, colours, 86_400.0)
    upper.set_ylabel("days of flights behind the log")
    _lines(lower, system, colours, 1.0)
    lower.set_ylabel("seconds behind the wall clock")
    lower.set_xlabel("seconds since the start of the run")
    for axes in (upper, lower):
        _style(axes, marks, theme)
    top = upper.get_ylim()[1]
    for mark in marks:
        upper.text(
            mark.wall_s, top, f" {mark.name}", rotation=90, va="top", ha="right", fontsize=8,
            color=theme.text,
        )  # fmt: skip
    upper.set_title("Frontier lag of each collection", loc="left", fontsize=12, color=theme.text)
    figure.savefig(path)


def _lines(
    axes: Axes, samples: Sequence[Sample], colours: Mapping[str, str], unit_s: float
) -> None:
    for name in dict.fromkeys(sample.collection for sample in samples):
        own = [sample for sample in samples if sample.collection == name]
        axes.plot(
            [sample.wall_s for sample in own],
            [sample.lag_s / unit_s for sample in own],
            label=name,
            color=colours[name],
            linewidth=1.6,
        )


def _style(axes: Axes, marks: Sequence[Mark], theme: Theme) -> None:
    if axes.lines:
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False,
            labelcolor=theme.text,
        )  # fmt: skip
    axes.set_facecolor(theme.ground)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y", color=theme.rules, linewidth=0.7)
    axes.tick_params(colors=theme.text)
    axes.xaxis.label.set_color(theme.text)
    axes.yaxis.label.set_color(theme.text)
    axes.spines[:].set_color(theme.text)
    axes.spines[["top", "right"]].set_visible(False)
    for mark in marks:
        axes.axvline(mark.wall_s, color="#999999", linewidth=0.9, linestyle=":")
