"""Cases of kind `pointwise`: inputs with exact instants, every presence of the named predicates."""

from __future__ import annotations

from tidemill.testkit.conformance.language_engines import by_instant, evaluate_case
from tidemill.testkit.conformance.language_inputs import (
    InputError,
    Updates,
    check_program,
    compare_lists,
    compare_sets,
    known_inputs,
    only_keys,
    presence_lines,
    strata_differences,
)
from tidemill.testkit.conformance.registry import Case, Options


def run_pointwise(case: Case, options: Options) -> list[str]:
    """Differences between the presences of a case and the expected ones."""
    only_keys(case, "updates", "upper", "expect", "errors", "input_error")
    updates = Updates(case["updates"], case.get("schema"))
    checked = check_program(case, updates.fed, updates.kinds, "relation")
    upper = case["upper"]
    inputs = updates.presences(checked, upper)
    found = strata_differences(case, checked)
    if isinstance(inputs, InputError) or "input_error" in case:
        return found + _input_error(case, inputs if isinstance(inputs, InputError) else None)
    deliveries = by_instant(known_inputs(checked, inputs))
    evaluation = evaluate_case(options, checked, deliveries, upper)
    for predicate, expected in case.get("expect", {}).items():
        presences = evaluation.presences.get(predicate, [])
        found += compare_sets(f"expect.{predicate}", expected, presence_lines(presences))
    errors = [
        f"[{_instant(e.start)},{'-' if e.end == float('inf') else e.end}) {e.text}"
        for e in evaluation.errors
    ]
    return found + compare_sets("errors", case.get("errors", []), errors)


def _instant(start: float) -> str:
    return "-inf" if start == float("-inf") else str(start)


def _input_error(case: Case, refused: InputError | None) -> list[str]:
    expected = case.get("input_error")
    got = refused and {
        "input": refused.predicate,
        "row": list(refused.row),
        "time": refused.time,
    }
    return compare_lists("input_error", [expected], [got])
