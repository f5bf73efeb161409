"""The demo's views over a part of a month, kept up to date by windows and by changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import process_time

from bench.views.flight_inputs import Inputs, inputs, programs
from bench.views.job import Job, Report, Row
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import format_record
from tidemill.datalog.scratch import Engine
from tidemill.datalog.state import EngineState
from tidemill_flights.prepare import HOUR_MS

STEPS_H = (60, 6, 1)
Run = Callable[[CheckedProgram, Inputs, list[int]], tuple[float, set[str]]]


def by_windows(program: CheckedProgram, given: Inputs, stops: list[int]) -> tuple[float, set[str]]:
    """Seconds, and the records at the end, when each step is evaluated over all that is alive in
    it.
    """
    engine, state = Engine(program), EngineState()
    waiting = {name: sorted(given[name], key=lambda p: p.start) for name in program.inputs}
    alive: dict[str, list[Presence]] = {name: [] for name in waiting}
    taken = dict.fromkeys(waiting, 0)
    lower: int | None = None
    began = process_time()
    for upper in stops:
        for name, presences in waiting.items():
            while taken[name] < len(presences) and presences[taken[name]].start < upper:
                alive[name].append(presences[taken[name]])
                taken[name] += 1
        window = engine.evaluate(alive, lower=lower, upper=upper, state=state)
        found = {name: window.presences[name] for name in program.derived}
        state, lower = window.state, upper - 1
        alive = {name: [p for p in held if p.end >= upper] for name, held in alive.items()}
    seconds = process_time() - began
    at = stops[-1] - 1
    held = [p for presences in found.values() for p in presences if p.start <= at < p.end]
    return seconds, {format_record(p.record) for p in held}


def by_changes(program: CheckedProgram, given: Inputs, stops: list[int]) -> tuple[float, set[str]]:
    """Seconds, and the records at the end, when the changes of each step are followed."""
    engine = IncrementalEngine(program)
    for name in program.inputs:
        engine.feed(name, given[name])
    began = process_time()
    for upper in stops:
        engine.advance(upper)
    seconds = process_time() - began
    records = (record for name in program.derived for record in engine.records(name))
    return seconds, set(map(format_record, records))


def report_of(run: Run, days: int) -> Report:
    """Every view in steps of every length; seconds of the processor."""
    report = Report()
    with tempfile.TemporaryDirectory() as directory:
        given = inputs(Path(directory), 1)
    begin = int(min(presence.start for presence in given["flights"]))
    end = begin + days * 24 * HOUR_MS
    for name, program in programs().items():
        for step in STEPS_H:
            stops = [*range(begin, end, step * HOUR_MS), end]
            seconds, records = run(program, given, stops)
            report.figures[f"{name}_{step}h_s"] = seconds
            text = "\n".join(sorted(records))
            report.digests[f"{name} at the end"] = sha256(text.encode()).hexdigest()[:16]
    return report


def followed(days: int) -> Report:
    """By changes."""
    return report_of(by_changes, days)


def windowed(days: int) -> Report:
    """By windows: the other side of this job."""
    return report_of(by_windows, days)


JOBS: dict[str, Job] = {
    "flights": Job((10,), followed, tuple(
        Row(f"{name}, ten days of the demo in steps of {step} h", f"{name}_{step}h_s")
        for name in ("weather-at-departure", "punctuality", "knock-ons", "network")
        for step in STEPS_H
    ), ("windows",), scaled=(0,)),
}  # fmt: skip
