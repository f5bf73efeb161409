"""A Rust side: writes the changes of a job to a file, which a binary reads to keep the view.

python -m bench.views.sides.rust_side PEER JOB SIZES…
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.views.inputs import I64Array, amounts, batched, graph, growing, toggled, tree
from bench.views.job import Report
from bench.views.peers import BINARIES

Rows = I64Array
"""Rows of step, input, three columns, diff."""


def rows_of(step: int, place: int, columns: Sequence[I64Array], diff: int = 1) -> Rows:
    """The rows of one input in one step; columns left out are zero."""
    found = np.zeros((len(columns[0]), 6), np.int64)
    found[:, 0], found[:, 1], found[:, 5] = step, place, diff
    for at, column in enumerate(columns, 2):
        found[:, at] = column
    return found


def ran(binary: Path, view: str, rows: Iterable[Rows]) -> tuple[list[float], list[int]]:
    """Seconds of each step, and the digest of what it changed."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "changes"
        np.concatenate(list(rows)).astype("<i8").tofile(file)
        said = subprocess.run(
            [str(binary), view, str(file)], capture_output=True, text=True, check=True
        )
    found: dict[str, Any] = json.loads(said.stdout)
    return found["seconds"], [int(word, 16) for word in found["sums"]]


def chained(sums: Iterable[int]) -> str:
    """The digest over steps, as `Chain` makes it."""
    total = 0
    for word in sums:
        total = (total * 31 + word) % 2**64
    return f"{total:016x}"


def edges(binary: Path, view: str, given: list[tuple[int, int]], rounds: int) -> Report:
    """A load, then single edges."""
    loaded = np.array(given, np.int64).T
    rows = [rows_of(0, 0, list(loaded))]
    for step, (edge, diff) in enumerate(toggled(given, rounds), 1):
        rows.append(rows_of(step, 0, [np.array([end]) for end in edge], diff))
    seconds, sums = ran(binary, view, rows)
    report = Report({"load_s": seconds[0]}, {"loaded": f"{sums[0]:016x}"})
    report.latencies(seconds[1:], "edge_")
    report.digests["each change"] = chained(sums[1:])
    return report


def sums(binary: Path, rows: int, batch: int, rounds: int) -> Report:
    """A load, then batches of rows more."""
    firsts = [0, *range(rows, rows + rounds * batch, batch)]
    steps = [
        rows_of(step, 0, amounts(batch if step else rows, 100, first))
        for step, first in enumerate(firsts)
    ]
    seconds, found = ran(binary, "sum", steps)
    report = Report(digests={"sums": chained(found)})
    report.latencies(seconds[1:], "more_")
    return report


def growth(binary: Path, rows: int, rounds: int) -> Report:
    """Ten rows that come and go beside more and more others."""
    report = Report()
    for name in ("sum", "join", "absence"):
        for times in (1, 10, 100):
            steps = [
                rows_of(step, place, columns, diff)
                for step, changes in enumerate(growing(name, rows * times, rounds))
                for place, (columns, diff) in enumerate(changes)
            ]
            seconds, found = ran(binary, name, steps)
            report.figures[f"{name}_{times}_s"] = float(np.median(seconds[1:]))
            report.digests[f"{name} of {rows * times:,}"] = chained(found[1:])
    return report


def batches(binary: Path, view: str, rows: int) -> Report:
    """A load, then batches of some sizes."""
    steps = list(batched(view, rows))
    seconds, found = ran(
        binary,
        view,
        (
            rows_of(step, place, columns, diff)
            for step, (_, changes) in enumerate(steps)
            for place, columns, diff in changes
        ),
    )
    report = Report()
    report.batches([size for size, _ in steps], seconds, found)
    return report


def main() -> None:
    """Run the job named on the command line."""
    peer, job, *sizes = sys.argv[1:]
    numbers = [int(size) for size in sizes]
    binary = BINARIES[peer]
    match job.split("-"):
        case ["batches", view]:
            report = batches(binary, view, *numbers)
        case ["closure", *_]:
            report = edges(binary, "closure", graph(numbers[0], numbers[1]), numbers[2])
        case ["generations"]:
            report = edges(binary, "generations", tree(numbers[0]), numbers[1])
        case ["sum", *_]:
            report = sums(binary, *numbers)
        case _:
            report = growth(binary, *numbers)
    sys.stdout.write(json.dumps(asdict(report)) + "\n")


if __name__ == "__main__":
    main()
