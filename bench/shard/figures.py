"""Figures and how they are shown: a table for people, JSON for programs."""

from __future__ import annotations

import json
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from os import cpu_count
from pathlib import Path

LIBRARIES = ("pyarrow", "numpy", "redis", "obstore", "msgspec")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement, and the floor it stands on: a bare write or read of the same data."""

    world: str
    what: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str = ""

    @property
    def ratio(self) -> float | None:
        """The value divided by its floor; above one is more than the floor."""
        return None if self.floor is None else self.value / self.floor


def quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """(median, 99th percentile)."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def machine() -> dict[str, str]:
    """The machine and the programs of the figures."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": f"{cpu_count()} × {models[0] if models else platform.machine()}",
        "memory": f"{memory_kb / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "redis-server": said.stdout.split("v=")[1].split()[0],
        "object store": "versitygw v1.8.0 on files",
        **{f"library {name}": version(name) for name in LIBRARIES},
    }


def as_markdown(figures: Sequence[Figure], about: dict[str, str]) -> str:
    """A table with a line for each figure."""
    lines = ["# Durable collections", ""]
    lines += ["Made by `make bench-shard` in one run; a floor was measured beside each figure.", ""]
    lines += [f"* {name}: {value}" for name, value in about.items()]
    lines += ["", "| stores | what | measured | floor | ratio |", "|---|---|---|---|---|"]
    for figure in figures:
        floor = ratio = ""
        if figure.floor is not None and figure.ratio is not None:
            floor = f"{_number(figure.floor)} {figure.unit} ({figure.floor_name})"
            ratio = f"{figure.ratio:.2f}"
        measured = f"{_number(figure.value)} {figure.unit}"
        lines.append(f"| {figure.world} | {figure.what} | {measured} | {floor} | {ratio} |")
    return "\n".join(lines) + "\n"


def as_json(figures: Sequence[Figure], about: dict[str, str]) -> str:
    """The same for programs."""
    found = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    return json.dumps({"about": about, "figures": found}, indent=1, ensure_ascii=False) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
