"""Views as the service keeps them, in memory: a load, and batches of 1, 1,000 and 100,000 rows.

The timed code of ours is `tidemill_compute.views.dataflow`. It takes tables of updates, as they are
read of collections, and gives tables of updates, as they are written.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

import pyarrow as pa

from bench.views.digests import digest
from bench.views.engine import program
from bench.views.inputs import BATCHES, batched
from bench.views.job import Aim, Job, Report, Row
from bench.views.kept import Kept

PROGRAMS = {
    "counted": "counted(w) @count(i) := amount(g, i, _) ^ other(g, w);",
    "sum": "total(g) @sum(v) := amount(g, _, v);",
    "closure": "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ edge(y, z);",
}
INPUTS = {"counted": {"amount": 3, "other": 2}, "sum": {"amount": 3}, "closure": {"edge": 2}}
ROWS_FEW = 5_000


def batches(view: str, rows: int) -> Report:
    """The seconds of each step, and the digest of what it changed."""
    checked = program(
        PROGRAMS[view], {name: ("relation", arity) for name, arity in INPUTS[view].items()}
    )
    for size in (ROWS_FEW, rows):  # the first plans and compiles
        kept, names = Kept(checked), list(INPUTS[view])
        sizes, seconds, digests = [], [], []
        for step, (many, changes) in enumerate(batched(view, size), 1):
            given: dict[str, pa.Table] = {}
            for place, columns, diff in changes:
                given[names[place]] = kept.updates(names[place], columns, step, diff)
            start = perf_counter()
            found = kept.step(step + 1, given)
            seconds.append(perf_counter() - start)
            sizes.append(many)
            digests.append(int(digest(*found), 16))
    report = Report()
    report.batches(sizes, seconds, digests)
    return report


def _rows(title: str) -> tuple[Row, ...]:
    return (
        Row(f"{title}, load", "load_s", Aim("times", 2)),
        *(
            Row(f"{title}, batches of {size:,}, median", f"batch_{size}_s", aim)
            for size, aim in zip(BATCHES, (None, Aim("times", 1), Aim("times", 2)), strict=True)
        ),
    )


TITLES = {
    "counted": (500_000, "join of 500,000 rows with 500,000 keys and count"),
    "sum": (1_000_000, "sum of 1,000,000 rows by 10,000 groups"),
    "closure": (200_000, "closure of 187,500 edges in trees of 16 nodes"),
}

JOBS: dict[str, Job] = {
    f"batches-{view}": Job(
        (rows,), partial(batches, view), _rows(title), ("differential",),
        scaled=(0,), least=1_600,
    )
    for view, (rows, title) in TITLES.items()
}  # fmt: skip
