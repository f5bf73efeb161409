"""Ten rules that have one join, and the same rules each joining for itself."""

from __future__ import annotations

from statistics import median
from time import process_time

import numpy as np

from bench.views.digests import Chain
from bench.views.engine import (
    Delta,
    I64Array,
    Passing,
    View,
    Windows,
    changed_rows,
    program,
    stretches,
)
from bench.views.inputs import amounts
from bench.views.job import Aim, Job, Report, Row
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.sharing import Sharing

TEXT = """
t0(i, w) := amount(g, i, v) ^ price(g, w);
t1(i) := amount(g, i, v) ^ price(g, w) if v < w;
t2(w, i) := price(k, w) ^ amount(k, i, v) if v != 500;
t3(g) @sum(v) @count(i) := amount(g, i, v) ^ price(g, w);
t4(w) @max(v) @min(i) := amount(g, i, v) ^ price(g, w);
t5(n, g) := amount(g, n, _) ^ price(g, _) if n != 7;
t6(w) @count(i) := price(g, w) ^ amount(g, i, v);
t7(i, v) := amount(g, i, v) ^ price(g, w) ^ not barred(i);
t8(w) @sum(v) := amount(g, i, v) ^ price(g, w) if v > 100;
t9(i, v, w) := amount(h, i, v) ^ price(h, w) if w != 3;
"""
INPUTS = {"amount": ("relation", 3), "price": ("relation", 2), "barred": ("relation", 1)}
ROWS_FEW, STEP = 1_000, 10
WAYS: dict[str, Sharing] = {"shared": "auto", "alone": "none"}


def alike(rows: int, changes: int, window: int, windows: int) -> Report:
    """Rows followed, and windows of them, with the join done once and by each rule; answers
    compared.
    """
    report = Report()
    checked = program(TEXT, INPUTS)  # type: ignore[arg-type]
    for sharing in WAYS.values():  # the first plans and compiles
        followed(checked, ROWS_FEW, 2, sharing)
        in_windows(checked, ROWS_FEW, 2, sharing)
    for name, sharing in WAYS.items():
        load, busy, found = followed(checked, rows, changes, sharing)
        report.figures |= {f"rows_{name}_load_s": load, f"rows_{name}_s": busy}
        busy, other = in_windows(checked, window, windows, sharing)
        report.figures[f"columns_{name}_s"] = busy
        for what, of in (("followed", found), ("in windows", other)):
            if report.digests.setdefault(what, of) != of:
                raise AssertionError(f"{what}: joined once, rules say something else")
    return report


def priced(rows: int) -> tuple[I64Array, I64Array]:
    """Two prices for each group, of which there are half as many as rows."""
    numbers = np.arange(rows, dtype=np.int64)
    return numbers // 2, numbers * 7 % 1_000


def barred(rows: int) -> tuple[I64Array]:
    """Every tenth row."""
    return (np.arange(0, rows, 10, dtype=np.int64),)


def followed(
    checked: CheckedProgram, rows: int, changes: int, sharing: Sharing
) -> tuple[float, float, str]:
    """Seconds of the processor for the load and, the median, for ten rows that come or go; what
    changed.
    """
    view, chain, busy = View(checked, sharing), Chain(), []
    for step in range(changes + 1):
        first, count = (rows + (step - 1) // 2 * STEP, STEP) if step else (0, rows)
        diff = -1 if step and step % 2 == 0 else 1
        given = {"amount": Delta.of(amounts(count, rows // 2, first), diff)}
        if not step:
            given |= {"price": Delta.of(priced(rows)), "barred": Delta.of(barred(rows))}
        began = process_time()
        found = view.step(step + 1, given)
        busy.append(process_time() - began)
        for name in checked.derived:
            chain.add(*changed_rows(found, name))
    return busy[0], median(busy[1:]), str(chain)


def in_windows(
    checked: CheckedProgram, rows: int, windows: int, sharing: Sharing
) -> tuple[float, str]:
    """Seconds of the processor for a window of rows that are present at one instant each, the
    median; what changed.
    """
    view, chain, busy = Windows(checked, sharing), Chain(), []
    view.keep("price", priced(rows))
    view.keep("barred", barred(rows * windows))
    for step in range(windows):
        columns = amounts(rows, rows // 2, step * rows)
        given = Passing(columns, np.sort(columns[2] % 100) + step * 100)
        began = process_time()
        found = view.step((step + 1) * 100, {"amount": given})
        busy.append(process_time() - began)
        for name in checked.derived:
            diffs, *others = stretches(found[name])
            chain.add(others, diffs)
    return median(busy), str(chain)


JOBS: dict[str, Job] = {
    "alike": Job((20_000, 60, 100_000, 7), alike, (
        Row("ten rules with one join of 20,000 rows with two others each, load, processor", "rows_shared_load_s"),
        Row("times what it takes where each rule joins", "rows_shared_load_s/rows_alone_load_s", Aim("most", 1.0), "times"),
        Row("ten rows that come or go, processor, median", "rows_shared_s"),
        Row("times what it takes where each rule joins", "rows_shared_s/rows_alone_s", unit="times"),
        Row("the same rules in windows of 100,000 rows, processor, median", "columns_shared_s"),
        Row("times what it takes where each rule joins", "columns_shared_s/columns_alone_s", Aim("most", 1.0), "times"),
    ), scaled=(0, 2), least=1_000),
}  # fmt: skip
