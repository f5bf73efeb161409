"""The file of results, and the table that people read."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from os import cpu_count
from pathlib import Path
from typing import Any

from bench.workloads import Workload

RESULTS = Path("bench/results/arrangements")
DOCUMENT = Path("docs/reference/performance.md")
START, END = "<!-- table of make bench -->", "<!-- end of the table -->"


def about_this_run(seed: int) -> dict[str, str]:
    """The machine, the programs and the method of the figures."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    rust = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)
    return {
        "processor": f"{cpu_count()} × {models[0] if models else platform.machine()}",
        "memory": f"{memory_kb / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "ours": f"Python {platform.python_version()}, numpy {version('numpy')}, numba {version('numba')}, pyarrow {version('pyarrow')}",
        "theirs": f"differential-dataflow 0.25.0, timely 0.31.0, dbsp 0.349.0, mimalloc, {rust.stdout.split(' (')[0]}",
        "how": f"seed {seed}, medians of as many runs of both sides in turn as each line says, one thread each",
    }


def write_results(name: str, rows: list[dict[str, Any]], about: dict[str, str]) -> None:
    """Keep what one workload gave, in a file of its own."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = {"measured": date.today().isoformat(), "about": about, "rows": rows}
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text)


def write_table(workloads: Mapping[str, Workload]) -> None:
    """Write the table of everything that was measured, also into the document on performance."""
    files = {name: RESULTS / f"{name}.json" for name in workloads}
    kept = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    if not kept:
        return
    rows = [
        {**row, "measured": one["measured"], "code": workloads[name].code}
        for name, one in kept.items()
        for row in one["rows"]
    ]
    table = as_markdown(rows, next(reversed(kept.values()))["about"])
    RESULTS.with_suffix(".md").write_text(f"# Arrangements against the Rust original\n\n{table}")
    if DOCUMENT.exists():
        text = DOCUMENT.read_text()
        start, end = text.index(START) + len(START), text.index(END)
        DOCUMENT.write_text(f"{text[:start]}\n\n{table}\n{text[end:]}")


def as_markdown(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """A table with a line for each row; the ratio is theirs by ours."""
    lines = [f"* {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "| what | theirs | ours | ratio | aim | runs | date | operator of the product |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        theirs, ours = (_shown(row[side], row) for side in ("theirs", "ours"))
        reach = "" if row["reach"] is None else f"≥ {row['reach']:g}"
        runs = len(row["all_ours"])
        lines.append(
            f"| {row['row']} | {theirs} | {ours} | {row['ratio']:.2f} | {reach} | {runs} | {row['measured']} | {row['code']} |"
        )
    return "\n".join(lines) + "\n"


def _shown(value: float, row: dict[str, Any]) -> str:
    if row["work"]:
        return f"{row['work'] / value / 1e6:.1f} M/s"
    if row["unit"] == "bytes":
        return f"{value / 1e6:.0f} MB"
    if row["unit"] == "s":
        for scale, unit in ((1, "s"), (1e3, "ms")):
            if value * scale >= 1:
                return f"{value * scale:.2f} {unit}"
        return f"{value * 1e6:.0f} µs"
    return f"{value:.1f}"
