"""Keeping the demo's views up to date by windows and by changes: python -m bench.views [--months N].

Both engines go through the same month in steps of the same length; their answers at the last instant are
compared before any time is printed. Figures are seconds of the processor, medians of the repetitions, which take
turns; a step of an hour is a stream that is followed closely, one of sixty hours a backlog.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

from bench.views.flights import Inputs, inputs, programs
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation import Engine, EngineState
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import format_record
from tidemill_embedded.demo.prepare import HOUR_MS

RESULTS = Path("bench/results")
STEPS_H = (60, 6, 1)
Run = Callable[[CheckedProgram, Inputs, list[int]], tuple[float, set[str]]]


def by_windows(program: CheckedProgram, given: Inputs, stops: list[int]) -> tuple[float, set[str]]:
    """Seconds, and the records at the end, when each step is evaluated over all that is alive in it."""
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


def main() -> int:
    """Exit code 1 if the two disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=1)
    parser.add_argument("--days", type=int, default=10, help="how much of the month is used")
    parser.add_argument("--repetitions", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        given = inputs(Path(directory), chosen.months)
    begin = int(min(p.start for p in given["flights"]))
    end = begin + chosen.days * 24 * HOUR_MS
    lines = ["| view | step | by windows, s | by changes, s | ratio |", "|---|---|---|---|---|"]
    rows = []
    for name, program in programs().items():
        for step in STEPS_H:
            stops = [*range(begin, end, step * HOUR_MS), end]
            times: dict[Run, list[float]] = {by_windows: [], by_changes: []}
            for _ in range(chosen.repetitions):
                answers = []
                for run, found in times.items():
                    seconds, records = run(program, given, stops)
                    found.append(seconds)
                    answers.append(records)
                if answers[0] != answers[1]:
                    sys.stderr.write(f"{name}: the two differ at the end of {step} h steps\n")
                    return 1
            windows, changes = (statistics.median(found) for found in times.values())
            ratio = windows / changes
            lines.append(f"| {name} | {step} h | {windows:.2f} | {changes:.2f} | {ratio:.1f} |")
            rows.append({"view": name, "step_h": step, "windows_s": windows, "changes_s": changes})
            print(lines[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "views.md").write_text("\n".join(lines) + "\n")
    (RESULTS / "views.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
