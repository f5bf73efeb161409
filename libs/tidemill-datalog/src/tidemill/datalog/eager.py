"""Eager goals (S129): may a goal fire before its events are definite?

It may if more events only ever add to its matches. Then a match of a part of the events is a match
of all of them too, and an early key will be definite. So nothing below the goal may look for an
absence, at a value that more events change, or at an input with deletions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemill.datalog.ast import Span
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.goals import Goal

CODE = "S129"
_HINT = "leave eager out: the goal then fires what is definite"


def eager_refusal(
    checked: CheckedProgram, goal: Goal, unfit: Mapping[str, str]
) -> Diagnostic | None:
    """The reason that keeps the goal from firing early, with its place; None if there is none.

    `unfit` are the inputs whose rows are not events that stay until they expire, with the kind of
    each. Cost: O(program).
    """
    for rule in checked.rules:
        if rule.temporal is not None:
            # A view with ticks speaks at its ticks alone, whatever the goal is about.
            return _refuse(checked, "a program with ticks", rule.temporal.span)
    for lattice, _ in goal.parafacts:
        if lattice != "time":
            end = max(map(len, goal.text.split("\n"))) + 1
            lines = goal.text.count("\n") + 1
            message = f"the goal asks for `@{lattice}`, which more events change"
            return Diagnostic(CODE, message, Span(1, 1, lines, end), "<goal>", _HINT)
    for rule in rules_below(checked, goal.predicate):
        for diagnostic in _of_rule(checked, rule, unfit):
            return diagnostic
    return None


def rules_below(checked: CheckedProgram, predicate: str) -> list[ResolvedRule]:
    """The rules that what is derived for a predicate depends on, in the order of the text."""
    needed = checked.below([predicate])
    return [rule for rule in checked.rules if rule.predicate in needed]


def inputs_below(checked: CheckedProgram, predicate: str) -> list[str]:
    """The inputs that what is derived for a predicate depends on, by name."""
    return sorted(checked.below([predicate]) & checked.inputs.keys())


def _of_rule(
    checked: CheckedProgram, rule: ResolvedRule, unfit: Mapping[str, str]
) -> Iterator[Diagnostic]:
    for parafact in rule.parafacts:
        if parafact.lattice not in ("time", "expires"):
            message = f"`@{parafact.lattice}` in a head changes with more events"
            yield _refuse(checked, message, parafact.span)
    if rule.predicate in unfit:
        named = rule.source.head.application.name_span
        yield _refuse(checked, f"`{rule.predicate}` is {unfit[rule.predicate]}", named)
    for atom in rule.atoms:
        yield from _of_atom(checked, atom, unfit)


def _of_atom(
    checked: CheckedProgram, atom: ResolvedAtom, unfit: Mapping[str, str]
) -> Iterator[Diagnostic]:
    if atom.negated:
        message = f"what is absent now may come: `not {atom.predicate}`"
        yield _refuse(checked, message, atom.span)
    elif atom.clock:
        yield _refuse(checked, "a clock ticks when time has come, not before", atom.span)
    elif atom.predicate in unfit:
        yield _refuse(checked, f"`{atom.predicate}` is {unfit[atom.predicate]}", atom.name_span)
    for parafact in atom.parafacts:
        if parafact.lattice != "time":
            message = f"`@{parafact.lattice}` is matched, which more events change"
            yield _refuse(checked, message, parafact.span)


def _refuse(checked: CheckedProgram, what: str, span: Span) -> Diagnostic:
    message = f"this goal cannot be eager: {what}"
    return Diagnostic(CODE, message, span, checked.program.file, _HINT)
