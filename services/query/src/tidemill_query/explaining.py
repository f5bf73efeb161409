"""Maintenance of a view by the dataflow: its plan, and one derivation measured.

Importing it imports numba.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import (
    DataflowEngine,
    Document,
    analysis_document,
    analysis_lines,
    plan_document,
    plan_dot,
    plan_lines,
)
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.logical.plan_text import scan_lines
from tidemill.datalog.placement import (
    Live,
    live_line,
    live_of,
    placement_document,
    placement_lines,
    placement_of,
)
from tidemill.datalog.presence import Presence
from tidemill.errors import UsageError


def plan_text(program: CheckedProgram, rows: Mapping[str, int]) -> list[str]:
    """The plan of a program; of one tick, if it is ticked. `rows` are about those of its inputs."""
    return _flow_lines(program, _document(program, rows))


def plan_json(program: CheckedProgram, rows: Mapping[str, int]) -> str:
    """The plan as JSON."""
    return json.dumps(_document(program, rows), indent=2)


def plan_drawn(program: CheckedProgram) -> str:
    """The plan in the language DOT."""
    return plan_dot(_document(program, {}))


def _document(program: CheckedProgram, rows: Mapping[str, int]) -> Document:
    flow = DataflowEngine(program, ticked=program.ticked)
    return {**plan_document(flow.plan, flow.checked), **_placed(program, rows)}


def _placed(program: CheckedProgram, rows: Mapping[str, int]) -> Document:
    placement = placement_of(program, rows=rows)
    live = live_of(placement, program.derived)
    document = placement_document(placement, program, rows)
    document |= {"live": {"lacking": live.lacking, "whole": live.whole, "moves": live.moves}}
    return {"placement": document}


def _flow_lines(program: CheckedProgram, document: Document) -> list[str]:
    scans = scan_lines(logical_plan(program))
    reads = ["reads", *scans, ""] if scans else []
    placement = document["placement"]
    placed = ["", "placement on Spark", *placement_lines(placement)]
    placed += [live_line(Live(**placement["live"]))]
    return [*reads, "dataflow", *plan_lines(document), *placed]


def analysis_text(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> list[str]:
    """The plan for the facts that the inputs hold at an instant, with the cost of deriving all.

    Solutions that outlive the facts that established them are not derived. Raises: UsageError for a
    program with ticks. Cost: one derivation of everything.
    """
    document = _derived(program, inputs, at, timer, allowance)
    said = f"derived once from what the inputs hold at {at}"
    return [*_flow_lines(program, document), "", said, *analysis_lines(document)]


def analysis_json(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None = None,
) -> str:
    """The same as JSON. Raises: UsageError for a program with ticks."""
    return json.dumps({"at": at, **_derived(program, inputs, at, timer, allowance)}, indent=2)


def _derived(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
    allowance: Allowance | None,
) -> Document:
    if program.ticked:
        raise UsageError(
            "a program with ticks is not derived from one instant: ask for its plan",
            reason="TickedProgram",
        )
    flow = DataflowEngine(program, timer=timer, allowance=allowance)
    for predicate, presences in inputs.items():
        flow.feed_presences(predicate, presences)
    flow.step(at + 1)
    return {**analysis_document(flow), **_placed(program, {})}
