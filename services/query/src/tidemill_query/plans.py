"""How a view is kept up to date, in lines of text: its plan, and one derivation measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.incremental.explaining import explain_analysis, explain_plan
from tidemill.datalog.presence import Presence


def plan_lines(program: CheckedProgram) -> list[str]:
    """Strata, plan and arrangements, as for tables without facts."""
    return explain_plan(IncrementalEngine(program))


def analysis_lines(
    program: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    at: int,
    timer: Callable[[], float],
) -> list[str]:
    """The plan for the facts that the inputs hold at an instant, and what deriving all from them took.

    What lives on without the facts that established it is not derived. Cost: one derivation of everything.
    """
    engine = IncrementalEngine(program, begin=at, timer=timer)
    for predicate, presences in inputs.items():
        engine.feed(predicate, presences)
    engine.advance(at + 1)
    title = f"derived once from what the inputs hold at {at}"
    return [*explain_plan(engine), "", title, *explain_analysis(engine)]
