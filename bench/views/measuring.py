"""Measurement of a job: sides in processes of their own, in turn, digests before times."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from statistics import median
from time import perf_counter
from typing import Any

from bench.views.job import Job, Row
from bench.views.peers import COMMANDS, peers_ready
from bench.views.table import Place, about_this_run, line_of, write_results, write_table

LONG_S = 30
"""A side that takes longer than this for one run is not run again."""
OURS = (sys.executable, "-m", "bench.views.ours")


class SidesDiffer(Exception):
    """Two sides ran on the same input and do not agree: no time means anything."""


def one_run(command: list[str], seconds_max: float) -> dict[str, Any]:
    """The last line of a side, as JSON. A side that fails is shown, and stops the run."""
    said = subprocess.run(command, capture_output=True, text=True, timeout=seconds_max)
    if said.returncode:
        sys.stderr.write(said.stderr[-4_000:])
        raise SystemExit(f"failed: {' '.join(command)}")
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def tell(what: str) -> None:
    """Say how far it has come."""
    sys.stderr.write(what + "\n")
    sys.stderr.flush()


def compare(job: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Every digest that two runs have is the same. Raises: SidesDiffer."""
    known: dict[str, tuple[str, str]] = {}
    for side, mine in runs.items():
        for run in mine:
            for what, found in run["digests"].items():
                other, expected = known.setdefault(what, (side, found))
                if found != expected:
                    raise SidesDiffer(f"{job}, {what}: {side} has {found}, {other} {expected}")


def measured(name: str, job: Job, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one job. Raises: SidesDiffer."""
    sizes = job.at_scale(chosen.scale)
    sides = {"ours": OURS}
    sides |= {p: COMMANDS[p] for p in job.peers if p.split("-")[0] not in chosen.without}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    long: set[str] = set()
    for repetition in range(chosen.repetitions):
        for side, command in sides.items():
            if side in long:
                continue
            start = perf_counter()
            runs[side].append(one_run([*command, name, *map(str, sizes)], chosen.seconds_max))
            seconds = perf_counter() - start
            tell(f"{name}: {side}, run {repetition + 1} of {chosen.repetitions}, {seconds:.0f} s")
            compare(name, runs)
            if seconds > LONG_S:
                long.add(side)
    return list(rows_of(name, job, sizes, runs, chosen.scale))


def rows_of(
    name: str,
    job: Job,
    sizes: tuple[int, ...],
    runs: dict[str, list[dict[str, Any]]],
    scale: float,
) -> Iterator[dict[str, Any]]:
    """The lines of the table: medians of every side that has the figure."""
    for row in job.rows:
        every = {side: figures_of(row, mine) for side, mine in runs.items()}
        every = {side: found for side, found in every.items() if found}
        yield {
            "job": name, "row": row.title, "unit": row.unit, "sizes": sizes, "scale": scale,
            "aim": None if row.aim is None else [row.aim.kind, row.aim.value],
            "medians": {side: median(found) for side, found in every.items()}, "all": every,
        }  # fmt: skip


def figures_of(row: Row, runs: list[dict[str, Any]]) -> list[float]:
    """One figure of every run of a side."""
    return [found for run in runs if (found := row.of(run["figures"])) is not None]


def arguments(about: str | None, jobs: list[str], repetitions: int) -> argparse.ArgumentParser:
    """The options of a run of some jobs."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", nargs="*", choices=jobs, default=jobs)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of the input is used")
    parser.add_argument("--repetitions", type=int, default=repetitions)
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out")
    parser.add_argument("--seconds-max", type=float, default=900, help="for one run of one side")
    parser.add_argument("--keep", action="store_true", help="keep the results of any scale")
    return parser


def measure(chosen: argparse.Namespace, jobs: Mapping[str, Job], place: Place) -> None:
    """Measure the chosen ones of some jobs, tell their lines, and keep what is to be kept."""
    names = [name for name in chosen.only if name in jobs]
    peers_ready({p for name in names for p in jobs[name].peers}, set(chosen.without))
    start = perf_counter()
    for number, name in enumerate(names, 1):
        tell(f"{name}, job {number} of {len(names)}, after {perf_counter() - start:.0f} s")
        rows = measured(name, jobs[name], chosen)
        for row in rows:
            print(line_of(row), flush=True)
        if chosen.keep or chosen.scale == 1.0:
            write_results(name, rows, about_this_run(), place)
            write_table(jobs, place)
