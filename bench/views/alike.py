"""Ten rules over one join in one program, and each of them in a program of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from time import process_time

import numpy as np

from bench.views.digests import Chain
from bench.views.engine import (
    Delta,
    Given,
    I64Array,
    Passing,
    View,
    changed_rows,
    program,
    stretches,
)
from bench.views.inputs import amounts
from bench.views.job import Aim, Job, Report, Row
from tidemill.datalog.checked import CheckedProgram

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
WAYS: Mapping[str, Sequence[str]] = {"together": (TEXT,), "alone": TEXT.split("\n")[1:-1]}
Steps = Iterator[tuple[int, Mapping[str, Given]]]
"""An upper, and what comes below it."""


def alike(rows: int, changes: int, window: int, windows: int) -> Report:
    """Small changes, and steps of many instants, by one program and by ten; answers compared."""
    report = Report()
    ways = {
        name: [program(text, INPUTS) for text in texts]  # type: ignore[arg-type]
        for name, texts in WAYS.items()
    }
    for programs in ways.values():  # the first plans and compiles
        run(programs, few_at_a_time(ROWS_FEW, 2))
        run(programs, passing(ROWS_FEW, 2))
    for name, programs in ways.items():
        busy, found = run(programs, few_at_a_time(rows, changes))
        report.figures |= {f"rows_{name}_load_s": busy[0], f"rows_{name}_s": median(busy[1:])}
        busy, other = run(programs, passing(window, windows))
        report.figures[f"passing_{name}_s"] = median(busy[1:])
        for what, digests in (("rows", found), ("passing", other)):
            for predicate, digest in digests.items():
                if report.digests.setdefault(f"{what} {predicate}", digest) != digest:
                    raise AssertionError(f"{predicate}, {what}: rules alone say something else")
    return report


def run(programs: Sequence[CheckedProgram], steps: Steps) -> tuple[list[float], dict[str, str]]:
    """Seconds of the processor of each step, and what each predicate changed."""
    views = [View(each) for each in programs]
    chains = {name: Chain() for each in programs for name in each.derived}
    busy = []
    for upper, given in steps:
        began = process_time()
        found = [view.step(upper, given) for view in views]
        busy.append(process_time() - began)
        for told in found:
            for name in told:
                columns, diffs = changed_rows(told, name)
                chains[name].add([stretches(told, name)[1], *columns], diffs)
    return busy, {name: str(chain) for name, chain in chains.items()}


def priced(rows: int) -> tuple[I64Array, I64Array]:
    """Two prices for each group, of which there are half as many as rows."""
    numbers = np.arange(rows, dtype=np.int64)
    return numbers // 2, numbers * 7 % 1_000


def barred(rows: int) -> tuple[I64Array]:
    """Every tenth row."""
    return (np.arange(0, rows, 10, dtype=np.int64),)


def few_at_a_time(rows: int, changes: int) -> Steps:
    """A load, then ten rows that come or go, by turns."""
    yield 1, {
        "amount": Delta(amounts(rows, rows // 2)),
        "price": Delta(priced(rows)), "barred": Delta(barred(rows)),
    }  # fmt: skip
    for step in range(1, changes + 1):
        first = rows + (step - 1) // 2 * STEP
        yield (
            step + 1,
            {"amount": Delta(amounts(STEP, rows // 2, first), -1 if step % 2 == 0 else 1)},
        )


def passing(rows: int, steps: int) -> Steps:
    """Steps of rows that are present at one of a hundred instants each."""
    yield 0, {"price": Delta(priced(rows)), "barred": Delta(barred(rows * steps))}
    for step in range(steps):
        columns = amounts(rows, rows // 2, step * rows)
        instants = np.sort(columns[2] % 100) + step * 100
        yield (step + 1) * 100, {"amount": Passing(columns, instants)}


JOBS: dict[str, Job] = {
    "alike": Job((20_000, 60, 100_000, 7), alike, (
        Row("ten rules over one join of 20,000 rows with two others each, load, processor", "rows_together_load_s"),
        Row("times what ten programs of one rule take", "rows_together_load_s/rows_alone_load_s", Aim("most", 1.0), "times"),
        Row("ten rows that come or go, processor, median", "rows_together_s"),
        Row("times what ten programs of one rule take", "rows_together_s/rows_alone_s", unit="times"),
        Row("the same rules, 100,000 rows that are present at one of 100 instants, processor, median", "passing_together_s"),
        Row("times what ten programs of one rule take", "passing_together_s/passing_alone_s", Aim("most", 1.0), "times"),
    ), scaled=(0, 2), least=1_000),
}  # fmt: skip
