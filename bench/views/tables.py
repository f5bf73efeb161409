"""Sums that change, ticks that have nothing to do, programs of many rules, and how costs grow with
the state.
"""

from __future__ import annotations

from time import perf_counter, process_time

import numpy as np

from bench.views.digests import Chain, columns_of, digest
from bench.views.engine import Delta, Events, Ticks, View, begun, changed_rows, program, stacked
from bench.views.inputs import PAYMENTS, amounts, growing, rules
from bench.views.job import Aim, Job, Report, Row
from tidemill.datalog.checked import CheckedProgram

SUMS = "total(g) @sum(v) := amount(g, _, v);"
GROWTH_BASE = 10_000
PIECE, SECOND_MS = 100_000, 1_000
GROWING = {
    "sum": SUMS,
    "join": "both(i, v, w) := amount(_, i, v) ^ other(i, w);",
    "absence": "open(i, v) := amount(_, i, v) ^ not other(i, _);",
}
WANTED = {"sum": "total", "join": "both", "absence": "open"}


def sums(rows: int, batch: int, rounds: int) -> Report:
    """A sum for each of 100 groups, and `batch` rows more at a time."""
    report = Report()
    checked = program(SUMS, {"amount": ("relation", 3)})
    for size, times in ((100, 3), (rows, rounds)):  # the first plans and compiles
        view, chain = View(checked), Chain()
        chain.add(*changed_rows(view.step(1, {"amount": Delta(amounts(size, 100))}), "total"))
        seconds, busy = [], []
        for round_ in range(times):
            more = Delta(amounts(batch, 100, size + round_ * batch))
            start, worked = perf_counter(), process_time()
            changes = view.step(round_ + 2, {"amount": more})
            seconds.append(perf_counter() - start)
            busy.append(process_time() - worked)
            chain.add(*changed_rows(changes, "total"))
    report.latencies(seconds, "more_")
    report.latencies(busy, "busy_")
    report.digests["sums"] = str(chain)
    return report


def idle(strata: int, ticks: int) -> Report:
    """Ticks in which nothing comes, through a chain of strata."""
    text = ["p0(x) := a(x);"]
    text += [f"p{i}(x) := b(x) ^ not p{i - 1}(x);" for i in range(1, strata)]
    checked = program("\n".join(text), {"a": ("relation", 1), "b": ("relation", 1)})
    runner = Ticks(checked, {"a": columns_of([(1,)]), "b": columns_of([(1,), (2,)])})
    runner.tick(0)
    report, seconds = Report(), []
    for at in range(1, ticks + 1):
        start = perf_counter()
        runner.tick(at)
        seconds.append(perf_counter() - start)
    report.latencies(seconds, "tick_")
    return report


def loading(count: int) -> Report:
    """From the text of a program to its first answer."""
    below, pairs = rules(count)
    text = ["p0(x, y) := e0(x, y);"]
    text += [f"p{i}(x, z) := p{j}(x, y) ^ e{k}(y, z);" for i, j, k in below]
    schemas = {f"e{k}": ("relation", 2) for k in range(10)}
    report = Report()
    start, worked = perf_counter(), process_time()
    checked = program("\n".join(text), schemas)  # type: ignore[arg-type]
    report.figures["checked_s"] = perf_counter() - start
    view = View(checked)
    report.figures["load_s"] = perf_counter() - start
    report.figures["load_busy_s"] = process_time() - worked
    changes = view.step(1, {name: Delta(columns_of(pairs)) for name in schemas})
    report.figures["answer_s"] = perf_counter() - start
    report.figures["answer_busy_s"] = process_time() - worked
    begins = ((name, begun(changes, name)) for name in changes)
    found = stacked([np.full(len(x), int(name[1:])), x, y] for name, (x, y) in begins)
    report.digests["derived"] = digest(found)
    return report


def growth(rows: int, rounds: int) -> Report:
    """Changes of ten rows that come and go beside `rows`, ten times and a hundred times as many
    others.
    """
    report = Report()
    for name, text in GROWING.items():
        inputs = {"amount": ("relation", 3), "other": ("relation", 2)}
        checked = program(text, {n: inputs[n] for n in inputs if n in text})  # type: ignore[misc]
        changing(checked, name, 200, 5)
        for times in (1, 10, 100):
            seconds, chain = changing(checked, name, rows * times, rounds)
            report.figures[f"{name}_{times}_s"] = float(np.median(seconds))
            report.digests[f"{name} of {rows * times:,}"] = str(chain)
    return report


def changing(
    checked: CheckedProgram, name: str, rows: int, rounds: int
) -> tuple[list[float], Chain]:
    """Seconds of each change, and what all of them changed."""
    view, chain, seconds = View(checked), Chain(), []
    for step, changes in enumerate(growing(name, rows, rounds)):
        given = {
            each: Delta(columns, diff)
            for each, (columns, diff) in zip(("amount", "other"), changes, strict=False)
        }
        start = perf_counter()
        found = view.step(step + 1, given)
        seconds.append(perf_counter() - start)
        if step:
            chain.add(*changed_rows(found, WANTED[name]))
    return seconds[1:], chain


def single(alive: int, changes: int) -> Report:
    """One order more at a time beside orders and payments that stay, in memory."""
    checked = program(PAYMENTS, {"placed": ("relation", 3), "paid": ("relation", 2)})
    report = Report()
    for size in (100, alive):  # the first plans and compiles
        view, chain, seconds, busy = View(checked), Chain(), [], []
        orders = np.arange(size, dtype=np.int64)
        view.step(1, {
            "placed": Delta((orders, orders, orders % 50)), "paid": Delta((orders[::2], orders[::2])),
        })  # fmt: skip
        for at in range(size, size + changes):
            row = [np.array([each]) for each in (at, at, at % 50)]
            start, worked = perf_counter(), process_time()
            found = view.step(at - size + 2, {"placed": Delta(row)})
            seconds.append(perf_counter() - start)
            busy.append(process_time() - worked)
            for name in sorted(found):
                chain.add(*changed_rows(found, name))
    report.latencies(seconds, "change_")
    report.latencies(busy, "busy_")
    report.digests["changes"] = str(chain)
    return report


def alive(few: int, many: int, changes: int) -> Report:
    """One order a second beside events that are all alive, few and many of them."""
    checked = program(PAYMENTS, {"placed": ("events", 3), "paid": ("events", 2)})
    report = Report()
    for name, size in (("first", few), ("few", few), ("many", many)):  # the first compiles
        view, busy = View(checked), []
        placed = size * 2 // 3
        for first in range(0, placed, PIECE):
            n = np.arange(first, min(first + PIECE, placed), dtype=np.int64)
            view.step(first + PIECE, {
                "placed": Events((n, n, n % 50), n), "paid": Events((n[::2], n[::2]), n[::2]),
            })  # fmt: skip
        for at in range(1, changes + 1):
            time = placed + PIECE + at * SECOND_MS
            row = [np.array([each]) for each in (-at, at, at % 50)]
            given = {"placed": Events(row, np.array([time]))}
            worked = process_time()
            view.step(time + 1, given)
            busy.append(process_time() - worked)
        report.latencies(busy, f"{name}_")
    return report


JOBS: dict[str, Job] = {
    "sum-10": Job((10_000, 10, 100), sums, (
        Row("sum of 100 groups over 10,000 rows, 10 rows more, median", "more_p50_s", Aim("most", 0.004)),
        Row("the same, p99", "more_p99_s"),
        Row("the same, seconds of the processor, median", "busy_p50_s"),
    ), ("differential",), scaled=(2,)),
    "sum-1000": Job((10_000, 1_000, 100), sums, (
        Row("sum of 100 groups over 10,000 rows, 1,000 rows more, median", "more_p50_s", Aim("most", 0.009)),
        Row("the same, p99", "more_p99_s"),
        Row("the same, seconds of the processor, median", "busy_p50_s"),
    ), ("differential",), scaled=(2,)),
    "idle": Job((20, 2_000), idle, (
        Row("a tick with nothing to do, 20 strata, median", "tick_p50_s", Aim("most", 50e-6)),
        Row("the same, p99", "tick_p99_s"),
    )),
    "rules": Job((4_000,), loading, (
        Row("4,000 rules, from the text to a program that is ready", "load_s", Aim("most", 2.0)),
        Row("the same, seconds of the processor", "load_busy_s"),
        Row("the same, to its first answer", "answer_s", Aim("most", 1.0)),
        Row("that, in seconds of the processor", "answer_busy_s"),
    ), ("clingo",), scaled=(0,)),
    "one-row": Job((10_000, 300), single, (
        Row("one row more beside 10,000, five operators, in memory, median", "change_p50_s", Aim("most", 300e-6)),
        Row("the same, p99", "change_p99_s"),
        Row("the same, seconds of the processor, median", "busy_p50_s"),
    ), scaled=(1,)),
    "alive": Job((100_000, 10_000_000, 200), alive, (
        Row("one event a second beside 10,000,000 alive, five operators, processor, median", "many_p50_s"),
        Row("times what it takes beside 100,000", "many_p50_s/few_p50_s", Aim("most", 1.2), "times"),
    ), scaled=(1,), least=1_000),
    "growth": Job((GROWTH_BASE, 60), growth, tuple(
        row
        for name, title in (("sum", "sum"), ("join", "join by key"), ("absence", "absence"))
        for row in (
            Row(f"{title}, 10 rows come or go beside 10,000, median", f"{name}_1_s"),
            Row("beside ten times as many, times as long", f"{name}_10_s/{name}_1_s", Aim("most", 1.5), "times"),
            Row("beside a hundred times as many, times as long", f"{name}_100_s/{name}_1_s", Aim("most", 1.3), "times"),
        )
    ), ("differential",), scaled=(0,), least=100),
}  # fmt: skip
