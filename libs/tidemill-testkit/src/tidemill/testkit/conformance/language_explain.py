"""Cases of kind `explain`: why a record is present, why another is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_value, typed_of
from tidemill.datalog.why import why
from tidemill.datalog.why_not import Reason, why_not
from tidemill.testkit.conformance.language_events import arrive, check_events
from tidemill.testkit.conformance.language_inputs import (
    InputError,
    Updates,
    check_program,
    compare_sets,
    known_inputs,
    only_fields,
    only_keys,
    record_of,
    strata_differences,
)
from tidemill.testkit.conformance.registry import Case, Options
from tidemill.testkit.conformance.values import CaseError, Json


def run_explain(case: Case, options: Options) -> list[str]:
    """Differences between the explanation of a case and the expected one."""
    only_keys(
        case, "updates", "inputs", "skew", "late_policy", "partitions", "max_ahead", "wall", "upper",
        "why", "leaves_any", "why_not", "reasons",
    )  # fmt: skip
    checked, inputs, letters = _inputs(case)
    found = strata_differences(case, checked)
    if "why" in case:
        question = case["why"]
        only_fields(question, "at", "record")
        proof = why(checked, inputs, record_of(question["record"]), question["at"])
        if proof is None:
            return [*found, f"why: - a proof of {question['record']}", "+ absent"]
        leaves = proof.leaves()
        if not any(set(wanted) == leaves for wanted in case["leaves_any"]):
            found += compare_sets("leaves_any", case["leaves_any"][0], leaves)
    if "why_not" in case:
        question = case["why_not"]
        only_fields(question, "at", "record")
        reasons = why_not(
            checked, inputs, record_of(question["record"]), question["at"],
            upper=case["upper"], letters=letters,
        )  # fmt: skip
        found += _compare_reasons(case["reasons"], reasons)
    return found


def _inputs(
    case: Case,
) -> tuple[CheckedProgram, Mapping[str, Sequence[Presence]], Sequence[Record]]:
    if "inputs" in case:
        checked = check_events(case)
        arrived = arrive(case)
        return checked, known_inputs(checked, arrived.presences), arrived.late_records
    updates = Updates(case["updates"], case.get("schema"))
    checked = check_program(case, updates.fed, updates.kinds, "relation")
    presences = updates.presences(checked, case["upper"])
    if isinstance(presences, InputError):
        raise CaseError(f"the inputs are refused: {presences}")
    return checked, known_inputs(checked, presences), ()


def _compare_reasons(expected: Sequence[Mapping[str, Json]], found: Sequence[Reason]) -> list[str]:
    """For each expected entry the reason of its rule, compared in the details that it names."""
    differences: list[str] = []
    for entry in expected:
        mine = next((reason for reason in found if reason.rule == entry["rule"]), None)
        if mine is None or any(_detail(mine, name) != _plain(v) for name, v in entry.items()):
            differences += ["reasons:", f"- {dict(entry)}", f"+ {mine}"]
    return differences


def _detail(reason: Reason, name: str) -> Any:
    if not hasattr(reason, name):
        raise CaseError(f"unknown detail {name!r} of a reason")
    value = getattr(reason, name)
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if typed_of(value) is not None:
        return format_value(value)
    return sorted(value) if isinstance(value, list | tuple) else value
