"""The demo's views over a part of a month, kept up to date in steps of some hours."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import process_time

import numpy as np

from bench.views.engine import Found, View
from bench.views.flight_inputs import Inputs, inputs, programs
from bench.views.job import Job, Report, Row
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.records import format_record
from tidemill_flights.prepare import HOUR_MS

STEPS_H = (60, 6, 1)


def run(checked: CheckedProgram, given: Inputs, stops: Sequence[int]) -> tuple[float, set[str]]:
    """Seconds of the processor, and the records that are there at the end."""
    view = View(checked)
    rows = {name: view.rows_of(name, given[name]) for name in checked.inputs}
    rows = {name: found[np.argsort(found[:, -3], kind="stable")] for name, found in rows.items()}
    done, told = dict.fromkeys(rows, 0), list[Found]()
    began = process_time()
    for upper in stops:
        due = {name: int(np.searchsorted(found[:, -3], upper)) for name, found in rows.items()}
        told.append(view.step(upper, {n: found[done[n] : due[n]] for n, found in rows.items()}))
        done = due
    seconds = process_time() - began
    held: Counter[str] = Counter()
    for found in told:
        for each in found.values():
            for _, record, diff in each.records():
                held[format_record(record)] += diff
    return seconds, set(+held)


def flights(days: int) -> Report:
    """Every view in steps of every length; seconds of the processor."""
    report = Report()
    with tempfile.TemporaryDirectory() as directory:
        given = inputs(Path(directory), 1)
    begin = int(min(presence.start for presence in given["flights"]))
    end = begin + days * 24 * HOUR_MS
    for name, checked in programs().items():
        for step in STEPS_H:
            stops = [*range(begin, end, step * HOUR_MS), end]
            seconds, records = run(checked, given, stops)
            report.figures[f"{name}_{step}h_s"] = seconds
            digest = sha256("\n".join(sorted(records)).encode()).hexdigest()[:16]
            if report.digests.setdefault(f"{name} at the end", digest) != digest:
                raise AssertionError(f"{name}: steps of {step} h say something else")
    return report


JOBS: dict[str, Job] = {
    "flights": Job((10,), flights, tuple(
        Row(f"{name}, ten days of the demo in steps of {step} h", f"{name}_{step}h_s")
        for name in ("weather-at-departure", "punctuality", "knock-ons", "network")
        for step in STEPS_H
    ), scaled=(0,)),
}  # fmt: skip
