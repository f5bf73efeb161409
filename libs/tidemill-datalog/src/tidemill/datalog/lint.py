"""Warnings: what may run, and is likely not meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tidemill.datalog.ast import Literal
from tidemill.datalog.checked import NON_MONOTONE, CheckedProgram, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic


def lint(checked: CheckedProgram) -> CheckedProgram:
    """The program with its warnings: W202, W203 and W204, in the order of the rules."""
    warnings: list[Diagnostic] = []
    seen: set[str] = set()
    for rule in checked.rules:
        warnings += _unbounded_join(rule, checked)
        if rule.predicate not in seen:
            seen.add(rule.predicate)
            warnings += _derived_input(rule, checked)
        warnings += _never_fires(rule, checked)
    return replace(checked, warnings=tuple(warnings))


def warn_about_goal(checked: CheckedProgram, predicate: str) -> tuple[Diagnostic, ...]:
    """W201: a goal over an aggregate with an explicit time fires for every time its group changes."""
    return tuple(
        Diagnostic(
            "W201", f"the goal reads `{predicate}`, an aggregate with its own @time",
            rule.source.head.span, checked.program.file,
            "its value may still change after the goal has fired",
        )
        for rule in checked.rules
        if rule.predicate == predicate and rule.aggregates & NON_MONOTONE and rule.mentions("time")
    )  # fmt: skip


def _unbounded_join(rule: ResolvedRule, checked: CheckedProgram) -> Iterator[Diagnostic]:
    if len(rule.positive) < 2 or rule.guards:
        return
    for atom in rule.positive:
        schema = checked.inputs.get(atom.predicate)
        if schema is not None and schema.kind == "events" and not schema.rows_expire:
            yield Diagnostic(
                "W202", f"events of `{atom.predicate}` never expire: this join keeps them all",
                atom.name_span, checked.program.file,
                "give the source an expiry, or bound the times in the guard",
            )  # fmt: skip


def _derived_input(rule: ResolvedRule, checked: CheckedProgram) -> Iterator[Diagnostic]:
    if rule.predicate in checked.inputs:
        yield Diagnostic(
            "W203", f"`{rule.predicate}` is an input and derived as well",
            rule.source.head.application.name_span, checked.program.file,
        )  # fmt: skip


def _never_fires(rule: ResolvedRule, checked: CheckedProgram) -> Iterator[Diagnostic]:
    for atom in rule.positive:
        if atom.clock or atom.predicate in checked.carries_time:
            continue
        for parafact in atom.parafacts:
            if parafact.lattice == "time":
                yield Diagnostic(
                    "W204", f"`{atom.predicate}` has no time to match, so the rule never fires",
                    parafact.span, checked.program.file, "leave @time out",
                )  # fmt: skip
    for guard in rule.guards:
        if isinstance(guard, Literal) and guard.value is not True:
            yield Diagnostic(
                "W204", "this guard is never true, so the rule never fires", guard.span,
                checked.program.file,
            )  # fmt: skip
