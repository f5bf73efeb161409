"""The kinds of language cases: `events`, `pointwise`, `ticks`, `reject`, `explain`."""

from __future__ import annotations

from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.testkit.conformance.language_events import run_events
from tidemill.testkit.conformance.language_explain import run_explain
from tidemill.testkit.conformance.language_inputs import only_keys
from tidemill.testkit.conformance.language_pointwise import run_pointwise
from tidemill.testkit.conformance.language_reject import run_reject
from tidemill.testkit.conformance.language_ticks import run_ticks
from tidemill.testkit.conformance.registry import Case, Options

_KINDS = {
    "events": run_events,
    "pointwise": run_pointwise,
    "ticks": run_ticks,
    "explain": run_explain,
}


def run_case(case: Case, options: Options) -> list[str]:
    """Differences when the case is run on the engine of the options; empty if it passes."""
    kind = case["kind"]
    if kind == "reject":
        only_keys(case, "inputs", "error")
        return run_reject(case)
    try:
        return _KINDS[kind](case, options)
    except ProgramErrors as refused:
        return ["program: refused", *refused.render().splitlines()]
