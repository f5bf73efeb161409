"""Two questions of small changes: a closure with one edge changed, and windows on touched keys.

A window on touched keys reads the rows of the keys that change, and no other row. The look-up of
those rows does not count, so the figure is a lower limit of what such windows take.
"""

from __future__ import annotations

import gc
from statistics import median
from time import process_time

import numpy as np

from bench.dataflow.sides import Dataflow, Windows, digest
from bench.dataflow.streams import Rows, checked, stream
from tidemill.datalog.check import check
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.dataflow.schema import rows_of_presences
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_record

NODES = 16
CHANGES = 40
CLOSURE = "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ edge(y, z);"
LOADED = 60_000


def closure(trees: int) -> None:
    """One edge below a root is taken away and put back, in turn, in trees of 16 nodes."""
    columns = (("x", "int"), ("y", "int"))
    program = check(
        parse(CLOSURE), InputSchemas({"edge": InputSchema("edge", "relation", columns)})
    )
    edges = [
        Record("edge", (tree * NODES + (node - 1) // 2, tree * NODES + node))
        for tree in range(trees)
        for node in range(1, NODES)
    ]
    moved = [(edges[(at // 2) * (NODES - 1)], 1 if at % 2 else -1) for at in range(CHANGES)]
    dataflow, rows = DataflowEngine(program), IncrementalEngine(program)
    schema = dataflow.schemas["edge"]
    dataflow.feed_presences("edge", [Presence(edge, 0, END) for edge in edges])
    dataflow.step(1)
    rows.feed("edge", [Presence(edge, 0, END) for edge in edges])
    rows.advance(1)
    ours, theirs = [], []
    for at, (edge, diff) in enumerate(moved, 1):
        change = rows_of_presences(schema, [Presence(edge, at, END)], dataflow.texts, diff)
        began = process_time()
        dataflow.feed("edge", change)
        told = dataflow.step(at + 1)
        ours.append(process_time() - began)
        began = process_time()
        rows.update("edge", edge, at, diff)
        facts = rows.advance(at + 1).facts
        theirs.append(process_time() - began)
        found = sorted(
            (format_record(record), sign)
            for each in told.values()
            for _, record, sign in each.records()
        )
        if found != sorted((format_record(each.record), each.diff) for each in facts):
            raise SystemExit(f"closure: the sides differ at change {at}")
    print(
        f"closure of {len(edges):,} edges, one changed: {median(ours) * 1e6:.0f} us, rows"
        f" {median(theirs) * 1e6:.0f} us, ratio {median(ours) / median(theirs):.2f}"
    )


def touched(many: int, runs: int) -> None:
    """Payments that come beside those alive: the dataflow, and a window on their orders alone."""
    program, rows = checked("join"), stream("join", LOADED + many)
    loaded = {name: each.slice(0, LOADED) for name, each in rows.items()}
    lower = int(max(each.times[-1] for each in loaded.values())) + 2_000  # all matches have ended
    late = rows["p"].slice(LOADED, LOADED + many)
    times = np.full(many, lower)
    change = Rows([*late.arguments[:-1], times], times, times + 1_000)
    orders = np.unique(change.arguments[1])
    keys = {"o": loaded["o"].arguments[0], "p": loaded["p"].arguments[1]}
    near = {name: _chosen(each, np.isin(keys[name], orders)) for name, each in loaded.items()}
    taken: dict[str, list[float]] = {"dataflow": [], "touched": []}
    for _ in range(runs):
        words = []
        for name, side, known in (
            ("dataflow", Dataflow(program), loaded), ("touched", Windows(program), near),
        ):  # fmt: skip
            side.step(lower, {each: side.prepared(each, found) for each, found in known.items()})
            given = {"p": side.prepared("p", change)}
            gc.collect()
            began = process_time()
            found = side.step(lower + 1, given)
            taken[name].append(process_time() - began)
            words.append(digest([side.words(found)]))
        if words[0] != words[1]:
            raise SystemExit(f"touched keys: {words[0]} and {words[1]}")
    ours, theirs = (median(each) * 1e6 for each in taken.values())
    print(
        f"{many:,} payments beside {2 * LOADED:,} rows: {ours:.0f} us, windows on touched keys"
        f" {theirs:.0f} us, ratio {ours / theirs:.2f}"
    )


def _chosen(rows: Rows, flags: np.ndarray) -> Rows:
    return Rows([each[flags] for each in rows.arguments], rows.times[flags], rows.ends[flags])
