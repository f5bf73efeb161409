"""Times: which predicates keep one, and which rules lose it (S111)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.datalog.ast import Span
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.graphs import reached
from tidemill.datalog.inputs import InputSchema


def check_times(
    rules: tuple[ResolvedRule, ...], inputs: Mapping[str, InputSchema], file: str
) -> tuple[frozenset[str], list[Diagnostic]]:
    """(predicates whose facts may have a time, S111 for rules that lose it). Cost: O(atoms)."""
    events = {name for name, schema in inputs.items() if schema.kind == "events"}
    timed = _closure(events, rules)
    mistakes = []
    for rule in rules:
        over_events = any(_may_carry(atom, timed) for atom in rule.positive)
        if over_events and not _derives_time(rule, timed):
            mistakes.append(
                Diagnostic(
                    "S111", f"nothing gives `{rule.predicate}` a time", _suppression_of(rule), file,
                    "write @time(…) in the head, or keep the time of one atom",
                )
            )  # fmt: skip
    return frozenset(timed), mistakes


def rule_without_time(program: CheckedProgram, predicate: str) -> ResolvedRule | None:
    """A rule that may derive a fact of the predicate without a time; None where all facts have one.

    Cost: O(atoms) for each predicate.
    """
    lacking = {name for name, schema in program.inputs.items() if schema.kind != "events"}
    while True:
        found = [rule for rule in program.rules if _may_lack(rule, lacking)]
        if lacking.issuperset(rule.predicate for rule in found):
            return next((rule for rule in found if rule.predicate == predicate), None)
        lacking.update(rule.predicate for rule in found)


def _may_lack(rule: ResolvedRule, lacking: set[str]) -> bool:
    """Whether no atom need give the head a time."""
    giving = (atom for atom in rule.positive if "time" not in atom.suppressed)
    return not rule.mentions("time") and all(
        not atom.clock and atom.predicate in lacking for atom in giving
    )


def _closure(events: set[str], rules: Iterable[ResolvedRule]) -> set[str]:
    """The predicates that some chain of rules gives a time."""
    passing: dict[str, list[str]] = {}
    timed = set(events)
    for rule in rules:
        if _derives_time(rule, events):
            timed.add(rule.predicate)
        elif "time" not in rule.suppressed:
            for atom in rule.positive:
                if "time" not in atom.suppressed:
                    passing.setdefault(atom.predicate, []).append(rule.predicate)
    return reached(timed, lambda predicate: passing.get(predicate, ()))


def _may_carry(atom: ResolvedAtom, timed: set[str]) -> bool:
    return atom.clock or atom.predicate in timed


def _derives_time(rule: ResolvedRule, timed: set[str]) -> bool:
    if rule.mentions("time"):
        return True
    if "time" in rule.suppressed:
        return False
    return any(_may_carry(atom, timed) and "time" not in atom.suppressed for atom in rule.positive)


def _suppression_of(rule: ResolvedRule) -> Span:
    marks = [*rule.source.head.suppressed]
    for atom in rule.source.atoms:
        marks += atom.suppressed
    return next((mark.span for mark in marks if mark.lattice == "time"), rule.source.head.span)
