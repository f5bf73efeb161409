"""Closure and same generation: loads, and single edges that go and come back."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from bench.views.digests import Chain, columns_of, digest
from bench.views.engine import Delta, View, changed_rows, program
from bench.views.inputs import Edge, graph, toggled, tree
from bench.views.job import Aim, Job, Report, Row
from tidemill.datalog.checked import CheckedProgram

CLOSURE = """
path(x, y) := edge(x, y);
path(x, z) := path(x, y) ^ edge(y, z);
"""
GENERATIONS = """
same(x, y) := parent(x, p) ^ parent(y, p);
same(x, y) := parent(x, a) ^ same(a, b) ^ parent(y, b);
"""


def maintained(
    checked: CheckedProgram, given: str, wanted: str, edges: list[Edge], rounds: int
) -> Report:
    """Load all edges, then let single ones go and come back; until what changed lies there as
    columns.
    """
    report, chain = Report(), Chain()
    view = View(checked)
    columns = columns_of(edges)
    start = perf_counter()
    rows, diffs = changed_rows(view.step(1, {given: Delta(columns)}), wanted)
    report.figures["load_s"] = perf_counter() - start
    report.digests["loaded"] = digest(rows, diffs)
    seconds = []
    for upper, (edge, diff) in enumerate(toggled(edges, rounds), 2):
        change = Delta([np.array([end], np.int64) for end in edge], diff)
        start = perf_counter()
        rows, diffs = changed_rows(view.step(upper, {given: change}), wanted)
        seconds.append(perf_counter() - start)
        chain.add(rows, diffs)
    report.latencies(seconds, "edge_")
    report.digests["each change"] = str(chain)
    return report


def closure(nodes: int, edges: int, rounds: int) -> Report:
    """All pairs connected by a path."""
    checked = program(CLOSURE, {"edge": ("relation", 2)})
    maintained(checked, "edge", "path", graph(60, 120), 20)
    return maintained(checked, "edge", "path", graph(nodes, edges), rounds)


def generations(nodes: int, rounds: int) -> Report:
    """All pairs as far below a common ancestor as each other."""
    checked = program(GENERATIONS, {"parent": ("relation", 2)})
    maintained(checked, "parent", "same", tree(60), 20)
    return maintained(checked, "parent", "same", tree(nodes), rounds)


PEERS = ("clingo", "differential")

JOBS: dict[str, Job] = {
    "closure": Job((500, 1_000, 100), closure, (
        Row("closure of 500 nodes, 1,000 edges (172,699 pairs), load", "load_s", Aim("most", 2.0)),
        Row("the same, one edge goes or comes, median", "edge_p50_s", Aim("times", 1)),
        Row("the same, p99", "edge_p99_s"),
    ), PEERS, scaled=(2,)),
    "closure-1000": Job((1_000, 2_000, 30), closure, (
        Row("closure of 1,000 nodes, 2,000 edges (631,815 pairs), load", "load_s", Aim("most", 8.0)),
        Row("the same, one edge goes or comes, median", "edge_p50_s", Aim("times", 1)),
        Row("the same, p99", "edge_p99_s"),
    ), PEERS, scaled=(2,)),
    "generations": Job((2_001, 100), generations, (
        Row("same generation in a tree of 2,001 nodes, load", "load_s", Aim("most", 1.0)),
        Row("the same, one edge goes or comes, median", "edge_p50_s", Aim("times", 1)),
        Row("the same, p99", "edge_p99_s"),
    ), PEERS, scaled=(1,)),
}  # fmt: skip
