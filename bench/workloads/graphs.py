"""Closure, distances, generations and components of a graph whose edges are replaced, as views."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import numpy.typing as npt

from bench.inputs import Xorshift
from bench.workloads.answers import Answers
from bench.workloads.view import View
from bench.workloads.workload import Report, Row, Workload, resident_bytes

U64Array = npt.NDArray[np.uint64]

PATHS = """
path(x, y) := edge(x, y);
path(x, z) := path(x, y) ^ edge(y, z);
"""
DISTANCES = """
far(x) @min(0) := root(x);
far(y) @min(d + 1) := far(x) @min(d) ^ edge(x, y);
distance(x, d) ~min := far(x) @min(d);
"""
COMPONENTS = """
ways(x) @count(y) := edge(w, x) ^ edge(x, y);
most(0) ~count @max(n) := ways(x) @count(n);
pivot(0) ~count ~max @min(x) := ways(x) @count(n) ^ most(0) @max(n);
after(x) ~min := pivot(0) @min(x);
after(y) := after(x) ^ edge(x, y);
before(x) ~min := pivot(0) @min(x);
before(x) := before(y) ^ edge(x, y);
core(x) := before(x) ^ after(x);
inside(x, y) := edge(x, y) ^ core(x) ^ core(y);
rest(x, y) := edge(x, y) ^ not core(x) ^ not core(y);
path(x, y) := rest(x, y);
path(x, z) := path(x, y) ^ rest(y, z);
inside(x, y) := rest(x, y) ^ path(y, x);
"""
"""The component of a node through which most ways go, and all pairs of nodes outside of it."""


def replaced(
    text: str, answer: str, seed: int, nodes: int, edges: int, batch: int, rounds: int
) -> Report:
    """Load random edges; then in each round replace the next `batch` of them by fresh ones."""
    numbers, report, answers = Xorshift(seed), Report(), Answers()
    view = View(text, {"edge": 2, "root": 1}, [answer])
    live = numbers.rows(edges, nodes, nodes)
    seconds = []

    def step(columns: Sequence[U64Array], diffs: npt.NDArray[np.int64] | int) -> None:
        view.feed("edge", columns, diffs)
        for told in view.step().values():
            answers.add(*told)

    before = resident_bytes()
    with report.timed("load_s"):
        if "root" in text:
            view.feed("root", [np.zeros(1, np.uint64)])
        step(live, 1)
    for round_ in range(rounds):
        fresh = numbers.rows(batch, nodes, nodes)
        start = perf_counter()
        places = (round_ * batch + np.arange(batch)) % edges
        columns = [np.concatenate([old[places], new]) for old, new in zip(live, fresh, strict=True)]
        step(columns, np.repeat([-1, 1], batch))
        for old, new in zip(live, fresh, strict=True):
            old[places] = new
        seconds.append(perf_counter() - start)
    if seconds:
        report.latencies(seconds, "round_")
    report.figures["bytes"] = resident_bytes() - before
    return answers.into(report)


def warmed(text: str, answer: str, nodes: int) -> None:
    """Everything compiled or read from disk that small and large changes need."""
    replaced(text, answer, 1, nodes, 2 * nodes, 3, 5)


def closure(seed: int, nodes: int, edges: int, rounds: int) -> Report:
    """All pairs connected by a path; then one edge at a time is replaced."""
    warmed(PATHS, "path", 150)
    return replaced(PATHS, "path", seed, nodes, edges, 1, rounds)


def bfs(seed: int, nodes: int, edges: int, batch: int, rounds: int) -> Report:
    """Distances from node 0; then many edges at a time are replaced."""
    warmed(DISTANCES, "distance", 8000)
    return replaced(DISTANCES, "distance", seed, nodes, edges, batch, rounds)


def scc(seed: int, nodes: int, edges: int, batch: int, rounds: int) -> Report:
    """Edges inside strongly connected components; then some edges at a time are replaced."""
    warmed(COMPONENTS, "inside", 150)
    return replaced(COMPONENTS, "inside", seed, nodes, edges, batch, rounds)


CLOSURE = "`iterate`, a recursive rule of two atoms"
LATTICE = "`iterate` over a rule with `@min`"
PIVOT = "`iterate` from and to one node, and over pairs of the rest; `not`, `reduce`"

WORKLOADS: dict[str, Workload] = {
    "closure-500": Workload("closure", (500, 1000, 50), closure, (
        Row("closure of 500 nodes, 1,000 edges, load", "load_s", 5),
        Row("the same, one edge replaced, median", "round_p50_s", 1.5),
        Row("the same, p99", "round_p99_s"),
    ), CLOSURE),
    "closure-1000": Workload("closure", (1000, 2000, 50), closure, (
        Row("closure of 1,000 nodes, 2,000 edges, load", "load_s", 5),
        Row("the same, one edge replaced, median", "round_p50_s", 1.5),
        Row("the same, p99", "round_p99_s"),
        Row("memory of this closure", "bytes", unit="bytes"),
    ), CLOSURE),
    "bfs": Workload("bfs", (10_000, 20_000, 100, 10), bfs, (
        Row("distances in 10,000 nodes, 20,000 edges, load", "load_s", 1),
        Row("the same, 100 edges replaced, median", "round_p50_s", 1),
        Row("memory of these distances", "bytes", unit="bytes"),
    ), LATTICE),
    "scc": Workload("scc", (1000, 2000, 1, 5), scc, (
        Row("components of 1,000 nodes, 2,000 edges, load", "load_s", 1),
        Row("the same, one edge replaced, median", "round_p50_s", 1),
        Row("memory of these components", "bytes", unit="bytes"),
    ), PIVOT),
}  # fmt: skip
