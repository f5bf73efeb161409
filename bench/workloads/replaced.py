"""Rows that are replaced in batches, as views of the language: join and count, sum, closure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt

from bench.inputs import Xorshift
from bench.workloads.answers import Answers
from bench.workloads.graphs import CLOSURE, PATHS
from bench.workloads.view import View
from bench.workloads.workload import Report, Row, Workload

U64Array = npt.NDArray[np.uint64]

MILLION = 1_000_000
CUSTOMERS, REGIONS, GROUPS, VALUES, NODES, NEAR = 100_000, 1_000, 100_000, 1_000, MILLION, 10
WARM = 2_000
"""Rows of a run that only compiles."""

SOLD = "sold(region) @count(order) := order(customer, order) ^ customer(customer, region);"
SPENT = "spent(group) @sum(value) := row(group, number, value);"


def replaced(
    view: View, changing: str, rows: list[U64Array], still: Mapping[str, list[U64Array]],
    *sizes: int,
) -> Report:  # fmt: skip
    """Load `held` rows; each round replaces the oldest `batch` of them by fresh ones."""
    held, batch, rounds = sizes
    answers, report, seconds = Answers(), Report(), []

    def step() -> None:
        for told in view.step().values():
            answers.add(*told)

    with report.timed("load_s"):
        for name, columns in still.items():
            view.feed(name, columns)
        view.feed(changing, [column[:held] for column in rows])
        step()
    for round_ in range(rounds):
        start = perf_counter()
        old, new = round_ * batch, held + round_ * batch
        both = [np.concatenate([one[old : old + batch], one[new : new + batch]]) for one in rows]
        view.feed(changing, both, np.repeat([-1, 1], batch))
        step()
        seconds.append(perf_counter() - start)
    report.latencies(seconds)
    return answers.into(report)


def join_count(seed: int, held: int, batch: int, rounds: int) -> Report:
    """The number of orders of each region, by the customers of the orders."""
    numbers, total = Xorshift(seed), held + batch * rounds
    (regions,) = numbers.rows(CUSTOMERS, REGIONS)
    (customers,) = numbers.rows(total, CUSTOMERS)
    view = View(SOLD, {"order": 2, "customer": 2}, ["sold"])
    still = {"customer": [np.arange(CUSTOMERS, dtype=np.uint64), regions]}
    rows = [customers, np.arange(total, dtype=np.uint64)]
    return replaced(view, "order", rows, still, held, batch, rounds)


def sums(seed: int, held: int, batch: int, rounds: int) -> Report:
    """The sum of the values of each group, over rows told apart by a number."""
    total = held + batch * rounds
    groups, values = Xorshift(seed).rows(total, GROUPS, VALUES)
    rows = [groups, np.arange(total, dtype=np.uint64), values + np.uint64(1)]
    return replaced(View(SPENT, {"row": 3}, ["spent"]), "row", rows, {}, held, batch, rounds)


def closure(seed: int, held: int, batch: int, rounds: int) -> Report:
    """All pairs connected by a path, in a graph of many small parts."""
    starts, steps = Xorshift(seed).rows(held + batch * rounds, NODES, NEAR)
    rows = [starts, starts - starts % np.uint64(NEAR) + steps]
    return replaced(View(PATHS, {"edge": 2}, ["path"]), "edge", rows, {}, held, batch, rounds)


RUNS = {"join-count": join_count, "sum": sums, "closure": closure}


def measured(name: str, seed: int, held: int, batch: int, rounds: int) -> Report:
    """One run, after small ones that only compile."""
    for many in (100, WARM):
        RUNS[name](seed, many, min(batch, many // 10), 5)
    return RUNS[name](seed, held, batch, rounds)


JOIN_COUNT = "`join`, and `reduce` with `@count`; orders carry a number"
SUM = "`reduce` with `@sum`; rows carry a number beside the group"


def _of(name: str, what: str, held: int, code: str) -> dict[str, Workload]:
    found = {}
    for batch, rounds, reach in ((1, 500, None), (1_000, 200, 1), (100_000, 5, 2)):
        more = "one row" if batch == 1 else f"{batch:,} rows"
        shown = (Row(f"dbsp: {what}, {more} replaced, median", "batch_p50_s", reach),)
        if batch == 1_000:
            shown = (Row(f"dbsp: {what}, load {held:,}", "load_s", 2, held), *shown)
        sizes = (held, batch, rounds)
        found[f"dbsp-{name}-{batch}"] = Workload(
            name, sizes, partial(measured, name), shown, code, crate="dbsp"
        )
    return found


WORKLOADS: dict[str, Workload] = {
    **_of("join-count", "join and count by 1,000 regions", MILLION, JOIN_COUNT),
    **_of("sum", "sum by 100,000 groups", MILLION, SUM),
    **_of("closure", "closure of many small graphs", MILLION // 2, CLOSURE),
}
