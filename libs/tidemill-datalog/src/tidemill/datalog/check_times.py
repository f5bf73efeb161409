"""Times: which predicates keep one, and which rules lose it (S111)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.datalog.ast import Span
from tidemill.datalog.checked import ResolvedAtom, ResolvedRule
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
