"""Maintenance of a view, in lines of text: its plan, and one derivation measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tidemill.catalog.directory import ViewOf
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.demand import demanded, pattern_scan
from tidemill.datalog.evaluation.allowance import Allowance
from tidemill.datalog.evaluation.logical import logical_plan
from tidemill.datalog.evaluation.profile import profile_lines
from tidemill.datalog.evaluation.scans import Scan
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.incremental.explaining import explain_analysis, explain_plan
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine


def plan_lines(program: CheckedProgram) -> list[str]:
    """Strata, plan and arrangements, as for tables without facts."""
    return explain_plan(IncrementalEngine(program))


def alike(found: ViewOf, predicate: str, whole: bool, others: Iterable[ViewOf]) -> list[str]:
    """Other views that read an input in the same way, `whole` or as the programs ask.

    One process holds that input once for all of them.
    """
    mine, scan = found.inputs[predicate], logical_plan(found.program).scans.get(predicate)
    names = []
    for other in others:
        same = [p for p, each in other.inputs.items() if each.collection == mine.collection]
        if other.name == found.name or not same:
            continue
        scans = logical_plan(other.program).scans
        theirs = [None if whole or p not in scans else scans[p].nameless for p in same]
        if (None if whole or scan is None else scan.nameless) in theirs:
            names.append(other.name)
    return sorted(names)


def scans_of_proof(program: CheckedProgram, asked: Record) -> dict[str, Scan]:
    """For each input what a proof of the record can depend on: nothing of those that are not
    there.
    """
    patterns = demanded(logical_plan(program).rules, asked.predicate, asked.arguments)
    return {
        name: pattern_scan(program, name, patterns.get(name, ()))
        for name in program.columns
        if name not in program.derived
    }


def analysis_lines(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> list[str]:
    """The plan for the facts that the inputs hold at an instant, with the cost of deriving all.

    Solutions that outlive the facts that established them are not derived. Cost: three derivations
    of everything: as it is followed, as a window does it, and as the dataflow does it.
    """
    engine = IncrementalEngine(program, begin=at, timer=timer, allowance=allowance)
    for predicate, presences in inputs.items():
        engine.feed(predicate, presences)
    engine.advance(at + 1)
    windows = Engine(program, timer=timer, allowance=allowance and allowance.apart())
    found = windows.evaluate(inputs, lower=at, upper=at + 1)
    assert found.profile is not None
    return [
        *explain_plan(engine),
        "", f"followed: derived once from what the inputs hold at {at}", *explain_analysis(engine),
        "", "in a window: the same, evaluated at once",
        *profile_lines(windows.plan, found.tables, found.profile),
        *_dataflow_lines(program, inputs, at, timer, allowance),
    ]  # fmt: skip


def _dataflow_lines(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None,
) -> list[str]:
    """The same by the dataflow, operator by operator; or the construct that it lacks."""
    from tidemill.datalog.dataflow import (  # imports numba, for few questions
        DataflowEngine,
        NotInDataflow,
        explain_figures,
    )

    room = None if allowance is None else allowance.apart()
    try:
        engine = DataflowEngine(program, timer=timer, allowance=room)
        for predicate, presences in inputs.items():
            engine.feed_presences(predicate, presences)
        engine.step(at + 1)
    except NotInDataflow as missing:
        return ["", f"dataflow: does not evaluate {missing}"]
    return ["", "dataflow: the same in one step", *explain_figures(engine)]
