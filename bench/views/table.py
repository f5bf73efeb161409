"""The file of the results of views, and the table that people read."""

from __future__ import annotations

import json
import platform
import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from os import cpu_count
from pathlib import Path
from typing import Any

from bench.views.job import Job
from bench.views.peers import REQUIREMENTS

DOCUMENT = Path("docs/reference/performance.md")


@dataclass(frozen=True)
class Place:
    """Files of the results of some jobs: a folder, and a table between two marks of a page."""

    results: Path
    title: str
    start: str
    end: str


VIEWS = Place(
    Path("bench/results/views"), "Views beside their peers",
    "<!-- table of make bench-views -->", "<!-- end of that table -->",
)  # fmt: skip
BATCHES = Place(
    Path("bench/results/batches"), "Views in batches beside differential dataflow",
    "<!-- table of batches of make bench -->", "<!-- end of the table of batches -->",
)  # fmt: skip
HEAD = ["| what | ours | the others | best by ours | aim | reached | runs | date |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip


def about_this_run() -> dict[str, str]:
    """The machine and the programs of the figures."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    rust = subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.strip()
    lines = [line.split("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    others = ", ".join(line.replace("==", " ") for line in lines if line)
    return {
        "processor": f"{cpu_count()} × {models[0] if models else platform.machine()}",
        "memory": f"{memory_kb / 2**20:.0f} GiB",
        "ours": f"Python {platform.python_version()}, numpy {version('numpy')}, numba {version('numba')}",
        "the others": f"{others}; differential-dataflow 0.25.0 by {rust}",
    }


def write_results(
    name: str, rows: list[dict[str, Any]], about: dict[str, str], place: Place
) -> None:
    """Keep what one job gave, in a file of its own."""
    place.results.mkdir(parents=True, exist_ok=True)
    found = {"measured": date.today().isoformat(), "about": about, "rows": rows}
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    (place.results / f"{name}.json").write_text(text)


def write_table(jobs: Mapping[str, Job], place: Place) -> None:
    """Write the table of everything that was measured, also into the document on performance.

    Rows that a job no longer has are left out.
    """
    lines: list[str] = []
    about: dict[str, str] = {}
    for name, job in jobs.items():
        file, titles = place.results / f"{name}.json", {row.title for row in job.rows}
        if file.exists():
            one = json.loads(file.read_text())
            lines += [line_of(r, one["measured"]) for r in one["rows"] if r["row"] in titles]
            about = one["about"]
    heads = [line for each in about.items() for line in wrapped(f"* {each[0]}: {each[1]}")]
    lines = [*heads, "", *HEAD, *lines]
    table = "\n".join(lines) + "\n"
    place.results.with_suffix(".md").write_text(f"# {place.title}\n\n{table}")
    text = DOCUMENT.read_text()
    if place.start not in text:
        return
    start, end = text.index(place.start) + len(place.start), text.index(place.end)
    DOCUMENT.write_text(f"{text[:start]}\n\n{table}\n{text[end:]}")


def wrapped(text: str) -> list[str]:
    """An item of a list as lines of prose."""
    return textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def line_of(row: dict[str, Any], measured: str = "") -> str:
    """A row as a line of the table. The ratio is above one where we are faster, or smaller."""
    unit, medians = row["unit"], row["medians"]
    ours = medians["ours"]
    others = {side: found for side, found in medians.items() if side != "ours"}
    ratios = {side: ratio_of(unit, ours, found) for side, found in others.items()}
    best = min(ratios.values()) if ratios and unit != "times" else None
    shown_others = ", ".join(f"{side} {shown(found, unit)}" for side, found in others.items())
    aim, reached = aim_of(row["aim"], unit, ours, best)
    scale = "" if row["scale"] == 1 else f" (at {row['scale']:g} of the size)"
    ratio = "" if best is None else f"{best:.2f}"
    runs = len(row["all"]["ours"])
    return f"| {row['row']}{scale} | {shown(ours, unit)} | {shown_others} | {ratio} | {aim} | {reached} | {runs} | {measured} |"


def ratio_of(unit: str, ours: float, theirs: float) -> float:
    """Our figure as a multiple of the best other one; above one ours is better."""
    return ours / theirs if unit == "/s" else theirs / ours


def aim_of(
    aim: tuple[str, float] | None, unit: str, ours: float, best: float | None
) -> tuple[str, str]:
    """The aim of a row, and whether the row reaches it."""
    if aim is None:
        return "", ""
    kind, value = aim
    if kind == "times":
        reached = "" if best is None else ("yes" if best >= value else "no")
        return f"ratio ≥ {value:g}", reached
    sign, met = ("≤", ours <= value) if kind == "most" else ("≥", ours >= value)
    return f"{sign} {shown(value, unit)}", "yes" if met else "no"


def shown(value: float, unit: str) -> str:
    """A figure with its unit."""
    if unit == "times":
        return f"{value:.2f}"
    if unit == "/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.1f} k/s"
    if unit == "bytes":
        return f"{value / 1e6:.0f} MB" if value >= 1e6 else f"{value:.0f} bytes"
    for scale, name in ((1, "s"), (1e3, "ms")):
        if value * scale >= 1:
            return f"{value * scale:.3g} {name}"
    return f"{value * 1e6:.0f} µs"
