"""Closure, distances and strongly connected components of a graph whose edges are replaced."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import numpy.typing as npt

from bench.inputs import Xorshift, digest_of_words
from bench.workloads.workload import Report, Row, Workload, resident_bytes
from tidemill.arrangement.columns.reductions import least
from tidemill.arrangement.loops import Changes, Collection, Computation, Input, Loop

U64Array = npt.NDArray[np.uint64]
Build = Callable[[Computation, Input], Collection]

HALF, LOW = np.uint64(32), np.uint64(2**32 - 1)
ONE = np.uint64(1)


def paths(computation: Computation, edges: Input) -> Collection:
    """All pairs connected by a path, each path an edge or a path and an edge."""
    loop = computation.loop()
    known = loop.enter(edges.distinct())
    found = loop.variable()
    result = found.swap().join(known, lambda _, a, c: (a, c)).concat(known).distinct()
    found.set(result)
    return loop.leave(result)


def distances(computation: Computation, edges: Input) -> Collection:
    """The length of the shortest path from the root to each node that it leads to."""
    roots = computation.constant(Changes.of([0], [0]))
    loop = computation.loop()
    known, own = loop.enter(edges), loop.enter(roots)
    found = loop.variable()
    result = found.join(known, lambda _, far, b: (b, far + ONE)).concat(own).reduce(least)
    found.set(result)
    return loop.leave(result)


def labels(outer: Loop, edges: Collection, nodes: Collection) -> Collection:
    """Each node with the least node that leads to it."""
    loop = outer.loop()
    known, own = loop.enter(edges), loop.enter(nodes)
    offered = loop.variable(netting=False)
    result = offered.concat(own).reduce(least)
    offered.set(result.join(known, lambda _, label, b: (b, label)))
    return loop.leave(result)


def trimmed(loop: Loop, cycle: Collection, edges: Collection) -> Collection:
    """The edges, turned round, whose ends get one label through `cycle`."""
    nodes = edges.map(lambda _, b: (b, b)).consolidate()
    found = labels(loop, cycle, nodes)
    half = edges.join(found, lambda a, b, label: (b, a << HALF | label))
    both = half.join(found, lambda b, pair, label: (b, kept(pair, label)))
    return both.filter(lambda _, a: a != LOW)


def kept(pairs: U64Array, other: U64Array) -> U64Array:
    """The node of each pair whose label equals the other one, elsewhere what is no node."""
    return np.where(pairs & LOW == other, pairs >> HALF, LOW)


def components(computation: Computation, edges: Input) -> Collection:
    """The edges inside strongly connected components: forwards and backwards until none is cut."""
    loop = computation.loop()
    known = loop.enter(edges)
    left = loop.variable()
    backwards = trimmed(loop, known.concat(left), known)
    result = trimmed(loop, backwards, known.swap())
    left.set(result.minus(known))
    return loop.leave(result)


def replaced(build: Build, seed: int, nodes: int, edges: int, batch: int, rounds: int) -> Report:
    """Load random edges; then in each round replace the next `batch` of them by fresh ones."""
    numbers, report = Xorshift(seed), Report()
    computation = Computation()
    source = computation.input()
    output = computation.output(build(computation, source))
    live = numbers.rows(edges, nodes, nodes)
    total, seconds = 0, []

    def step(changes: Changes) -> None:
        nonlocal total
        computation.step(computation.upper, {source: changes})
        found = output.take()
        total += digest_of_words([found.keys, found.vals], found.diffs)
        report.rows += int(found.diffs.sum())

    before = resident_bytes()
    with report.timed("load_s"):
        step(Changes.of(*live))
    for round_ in range(rounds):
        fresh = numbers.rows(batch, nodes, nodes)
        start = perf_counter()
        places = (round_ * batch + np.arange(batch)) % edges
        columns = [np.concatenate([old[places], new]) for old, new in zip(live, fresh, strict=True)]
        step(Changes.of(*columns, np.repeat([-1, 1], batch)))
        for old, new in zip(live, fresh, strict=True):
            old[places] = new
        seconds.append(perf_counter() - start)
    if seconds:
        report.latencies(seconds, "round_")
    report.figures["bytes"] = resident_bytes() - before
    report.digest = f"{total % 2**64:016x}"
    return report


def warmed(build: Build, nodes: int) -> None:
    """Everything compiled or read from disk that small and large changes need."""
    replaced(build, 1, nodes, 2 * nodes, 3, 5)


def closure(seed: int, nodes: int, edges: int, rounds: int) -> Report:
    """All pairs connected by a path; then one edge at a time is replaced."""
    warmed(paths, 150)
    return replaced(paths, seed, nodes, edges, 1, rounds)


def bfs(seed: int, nodes: int, edges: int, batch: int, rounds: int) -> Report:
    """Distances from node 0; then many edges at a time are replaced."""
    warmed(distances, 8000)
    return replaced(distances, seed, nodes, edges, batch, rounds)


def scc(seed: int, nodes: int, edges: int, batch: int, rounds: int) -> Report:
    """Edges inside strongly connected components; then many edges at a time are replaced."""
    warmed(components, 8000)
    return replaced(components, seed, nodes, edges, batch, rounds)


LOOPS = "`arrangement.loops.Computation`: recursive rules of views that follow changes"
REDUCED = "`arrangement.loops`, its reductions and inner loops: no view"

WORKLOADS: dict[str, Workload] = {
    "closure-500": Workload("closure", (500, 1000, 200), closure, (
        Row("closure of 500 nodes, 1,000 edges, load", "load_s", 5),
        Row("the same, one edge replaced, median", "round_p50_s", 1.5),
        Row("the same, p99", "round_p99_s"),
    ), LOOPS),
    "closure-1000": Workload("closure", (1000, 2000, 200), closure, (
        Row("closure of 1,000 nodes, 2,000 edges, load", "load_s", 5),
        Row("the same, one edge replaced, median", "round_p50_s", 1.5),
        Row("the same, p99", "round_p99_s"),
        Row("memory of this closure", "bytes", unit="bytes"),
    ), LOOPS),
    "bfs": Workload("bfs", (100_000, 200_000, 1000, 20), bfs, (
        Row("distances in 100,000 nodes, 200,000 edges, load", "load_s", 1),
        Row("the same, 1,000 edges replaced, median", "round_p50_s", 1),
        Row("memory of these distances", "bytes", unit="bytes"),
    ), REDUCED),
    "scc": Workload("scc", (100_000, 200_000, 1000, 3), scc, (
        Row("components of 100,000 nodes, 200,000 edges, load", "load_s", 1),
        Row("the same, 1,000 edges replaced, median", "round_p50_s", 1),
        Row("memory of these components", "bytes", unit="bytes"),
    ), REDUCED),
}  # fmt: skip
