"""Maintenance of a view by the dataflow, and by what keeps views that it cannot: its plan, and one
derivation measured. Importing it imports numba.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import (
    DataflowEngine,
    Document,
    NotInDataflow,
    analysis_document,
    analysis_lines,
    plan_document,
    plan_dot,
    plan_lines,
)
from tidemill.datalog.drawing import dot_of
from tidemill.datalog.evaluation.profile import profile_lines
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.incremental.explaining import explain_analysis, explain_plan
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.logical.words import scan_lines
from tidemill.datalog.presence import Presence
from tidemill.datalog.scratch import Engine
from tidemill.errors import UsageError


def plan_text(program: CheckedProgram) -> list[str]:
    """The plan of the dataflow, or of another engine for a program that it cannot keep."""
    flow = _dataflow_of(program)
    if flow is None:
        return explain_plan(IncrementalEngine(program))
    return _flow_lines(flow, plan_document(flow.plan, flow.checked))


def plan_json(program: CheckedProgram) -> str:
    """The plan of the dataflow as JSON. Raises: UsageError for a program that it cannot keep."""
    flow = _required(_dataflow_of(program))
    return json.dumps(plan_document(flow.plan, flow.checked), indent=2)


def plan_drawn(program: CheckedProgram) -> str:
    """The plan of the dataflow in the language DOT; the strata of another program."""
    flow = _dataflow_of(program)
    if flow is None:
        return dot_of(program)
    return plan_dot(plan_document(flow.plan, flow.checked))


def _dataflow_of(
    program: CheckedProgram,
    timer: Callable[[], float] = lambda: 0.0,
    allowance: Allowance | None = None,
) -> DataflowEngine | None:
    if program.ticked:
        return None
    try:
        return DataflowEngine(program, timer=timer, allowance=allowance)
    except NotInDataflow:
        return None


def _required(flow: DataflowEngine | None) -> DataflowEngine:
    if flow is None:
        raise UsageError(
            "this view is not kept by the dataflow, whose plan JSON is of: ask for text",
            reason="NoSuchEngine",
        )
    return flow


def _flow_lines(flow: DataflowEngine, document: Document) -> list[str]:
    scans = scan_lines(logical_plan(flow.checked))
    reads = ["reads", *scans, ""] if scans else []
    return [*reads, "dataflow", *plan_lines(document)]


def analysis_text(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> list[str]:
    """The plan for the facts that the inputs hold at an instant, with the cost of deriving all.

    Solutions that outlive the facts that established them are not derived. Cost: one derivation of
    everything by the dataflow; of another program two, as it is followed and as a window does it.
    """
    flow = _dataflow_of(program, timer, allowance)
    if flow is not None:
        document = _derived(flow, inputs, at)
        said = f"derived once from what the inputs hold at {at}"
        return [*_flow_lines(flow, document), "", said, *analysis_lines(document)]
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
    ]  # fmt: skip


def analysis_json(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> str:
    """The same as JSON. Raises: UsageError for a program that the dataflow cannot keep."""
    flow = _required(_dataflow_of(program, timer, allowance))
    return json.dumps({"at": at, **_derived(flow, inputs, at)}, indent=2)


def _derived(flow: DataflowEngine, inputs: Mapping[str, Sequence[Presence]], at: int) -> Document:
    for predicate, presences in inputs.items():
        flow.feed_presences(predicate, presences)
    flow.step(at + 1)
    return analysis_document(flow)
