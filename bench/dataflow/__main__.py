"""The dataflow beside the engines of today, in one run: make bench-dataflow.

Answers are compared first. Each rule runs in steps of 50,000 rows beside the engine on columns, and
in steps of one row beside the engine on rows. Times are those of the processor. `durable` measures
whole views, from inputs in a store to answers in it, against the answers of DuckDB.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Mapping
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from bench.dataflow.sides import Dataflow, Followed, Side, Windows, digest
from bench.dataflow.touched import closure, touched

from bench.dataflow.durable import durable
from bench.dataflow.streams import RULES, checked, demo, steps_of, stream
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import NotInDataflow
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse

STEP_ROWS = 50_000
HOUR_MS = 3_600_000
SINGLES = 300
SMALL = ("closure", "touched")
Steps = list[tuple[int, dict[str, Any]]]


def seconds_of(side: Side, steps: Steps, keep: bool) -> tuple[float, list[dict[str, Any]]]:
    """Seconds of all steps, and what they changed as words if that is to be kept."""
    prepared = [(u, {n: side.prepared(n, r) for n, r in given.items()}) for u, given in steps]
    gc.collect()
    found, began = [], process_time()
    for upper, given in prepared:
        changes = side.step(upper, given)
        if keep:
            found.append(side.words(changes))
    return process_time() - began, found


def compare(name: str, found: Mapping[str, dict[str, str]]) -> None:
    """Raises: SystemExit where two sides do not agree."""
    (first, mine), *others = found.items()
    for side, theirs in others:
        if mine != theirs:
            raise SystemExit(f"{name}: {first} has {mine}, {side} {theirs}")


def throughput(name: str, program: CheckedProgram, steps: Steps, rows: int, runs: int) -> None:
    """Steps of many rows: dataflow beside columns."""
    sides: dict[str, Callable[[CheckedProgram], Side]] = {"dataflow": Dataflow, "columns": Windows}
    digests = {s: digest(seconds_of(make(program), steps, True)[1]) for s, make in sides.items()}
    compare(name, digests)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(runs):
        for side, make in sides.items():
            taken[side].append(seconds_of(make(program), steps, False)[0])
    ours, theirs = rows / median(taken["dataflow"]), rows / median(taken["columns"])
    print(f"{name}: {ours:,.0f} rows/s, columns {theirs:,.0f} rows/s, ratio {ours / theirs:.2f}")


def latency(name: str, program: CheckedProgram, loaded: Steps, singles: Steps) -> None:
    """Steps of one row beside what is alive: dataflow beside rows."""
    medians = {}
    for side, make in (("dataflow", Dataflow), ("rows", Followed)):
        engine: Side = make(program)  # type: ignore[abstract]
        seconds_of(engine, loaded, False)
        prepared = [(u, {n: engine.prepared(n, r) for n, r in g.items()}) for u, g in singles]
        gc.collect()
        taken = []
        for upper, given in prepared:
            began = process_time()
            engine.step(upper, given)
            taken.append(process_time() - began)
        medians[side] = median(taken[20:]) * 1e6
    ours, theirs = medians["dataflow"], medians["rows"]
    print(f"{name}, one row: {ours:.0f} us, rows {theirs:.0f} us, ratio {ours / theirs:.2f}")


def memory() -> None:
    """Bytes that a row of three columns takes which is kept and joined."""
    columns = {"r": ("a", "b", "c"), "s": ("a", "d")}
    schemas = {
        name: InputSchema(name, "relation", tuple((c, "int") for c in found))
        for name, found in columns.items()
    }
    program = check(parse("j(a, b, c, d) := r(a, b, c) ^ s(a, d);"), InputSchemas(schemas))
    side, n = Dataflow(program), 1_000_000
    schema = side.engine.schemas["r"]
    rows = np.zeros((n, schema.columns + 3), np.int64)
    draw = np.random.default_rng(3)
    for column in range(1, 4):
        rows[:, column] = draw.integers(0, n, n)
    rows[:, schema.expiry] = rows[:, -2] = np.iinfo(np.int64).max
    rows[:, schema.nulls], rows[:, -1] = 1, 1
    for first in range(0, n, STEP_ROWS):
        side.step(first + 1, {"r": rows[first : first + STEP_ROWS]})
    print(f"memory: {side.engine.nbytes / n:.0f} bytes for each row of three columns")


def demo_steps(program: CheckedProgram, given: Mapping[str, Any], hours: int) -> tuple[Steps, int]:
    """The inputs of a view of the demo in steps of some hours, and how many rows they have."""
    found = {name: given[name] for name in program.inputs if name in given}
    begin = int(min(each[0].start for each in found.values()))
    end = int(max(each[-1].start for each in found.values())) + 1
    steps: Steps = []
    done = dict.fromkeys(found, 0)
    for upper in [*range(begin + hours * HOUR_MS, end, hours * HOUR_MS), end]:
        now = {}
        for name, rows in found.items():
            last = done[name]
            while last < len(rows) and rows[last].start < upper:
                last += 1
            now[name], done[name] = rows[done[name] : last], last
        steps.append((upper, now))
    return steps, sum(map(len, found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    every = [*RULES, "demo", "memory", *SMALL, "durable"]
    parser.add_argument("--only", nargs="*", default=every)
    chosen = parser.parse_args()
    for name in RULES:
        if name not in chosen.only:
            continue
        program, rows = checked(name), stream(name, chosen.rows)
        total = sum(len(each.times) for each in rows.values())
        throughput(name, program, steps_of(rows, STEP_ROWS), total, chosen.runs)
        few = {each: found.slice(0, 60_000) for each, found in rows.items()}
        steps = steps_of(few, STEP_ROWS)
        last = steps[-1][0]
        after = {each: found.slice(60_000, 60_000 + 20_000) for each, found in rows.items()}
        singles: Steps = []
        for at in range(SINGLES):
            upper = last + at + 1
            given = {}
            for each, found in after.items():
                row = found.slice(at, at + 1)
                time = np.full(1, upper - 1)
                given[each] = type(row)([*row.arguments[:-1], time], time, time + 2_000)
                break
            singles.append((upper, given))
        latency(name, program, steps, singles)
    if "demo" in chosen.only:
        programs, given = demo()
        for name, program in programs.items():
            steps, total = demo_steps(program, given, 24)
            try:
                throughput(f"{name}, steps of a day", program, steps, total, chosen.runs)
            except NotInDataflow as missing:
                print(f"{name}: not on the dataflow yet: {missing}")
    if "memory" in chosen.only:
        memory()
    for name in RULES if "durable" in chosen.only else ():
        durable(name, chosen.rows, chosen.runs)
    if "closure" in chosen.only:
        closure(1_000)
    if "touched" in chosen.only:
        for many in (100, 1_000):
            touched(many, 5 * chosen.runs)


if __name__ == "__main__":
    main()
