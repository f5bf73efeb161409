"""Warnings: what may run, and is likely not meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from difflib import get_close_matches

from tidemill.datalog.ast import AsyncTo, Literal, variables_in
from tidemill.datalog.checked import NON_MONOTONE, CheckedProgram, ResolvedRule
from tidemill.datalog.contradictions import contradiction, ended_at_once
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.graphs import strong_components
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.lattices import TALLIES

_COMPARED_MAX = 100


def lint(checked: CheckedProgram, inputs: InputSchemas) -> CheckedProgram:
    """The program with its warnings: W202 to W207 and W209, in the order of the rules."""
    warnings: list[Diagnostic] = []
    seen: set[str] = set()
    for rule in checked.rules:
        warnings += _unbounded_join(rule, checked)
        if rule.predicate not in seen:
            seen.add(rule.predicate)
            warnings += _derived_input(rule, checked)
        warnings += _never_fires(rule, checked)
        warnings += _used_once(rule, checked)
        warnings += _takes_along(rule, checked)
    if any(not rule.source.has_formula for rule in checked.rules):
        warnings += warn_about_unknown(checked, inputs)
    warnings += _sent_for_ever(checked)
    return replace(checked, warnings=tuple(warnings))


def warn_about_unknown(checked: CheckedProgram, inputs: InputSchemas) -> Iterator[Diagnostic]:
    """W206: predicates that a program reads where nothing but the program itself gives facts."""
    unknown = checked.inputs.keys() - inputs.schemas.keys() - set(checked.derived)
    for rule in checked.rules:
        for atom in rule.atoms:
            if atom.predicate in unknown:
                unknown.remove(atom.predicate)
                close = _close(atom.predicate, checked.derived)
                yield Diagnostic(
                    "W206", f"no rule states or derives `{atom.predicate}`: it is empty here",
                    atom.name_span, checked.program.file,
                    f"did you mean `{close[0]}`?" if close else "state facts of it, or write a rule",
                )  # fmt: skip


def warn_about_unused(checked: CheckedProgram, outputs: Collection[str]) -> Iterator[Diagnostic]:
    """W208: predicates that are derived though no output needs them."""
    first: dict[str, ResolvedRule] = {}
    for rule in checked.rules:
        first.setdefault(rule.predicate, rule)
    needed = checked.below(outputs)
    for predicate, rule in first.items():
        if predicate not in needed:
            yield Diagnostic(
                "W208", f"no output needs `{predicate}`", rule.source.head.application.name_span,
                checked.program.file, "read it in a rule, name it in spec.outputs, or leave it out",
            )  # fmt: skip


def warn_about_goal(checked: CheckedProgram, predicate: str) -> tuple[Diagnostic, ...]:
    """W201: a goal over an aggregate with a time fires at each change of its group."""
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
            "what is derived joins what comes in; give what the rule derives a name of its own",
        )  # fmt: skip


def _used_once(rule: ResolvedRule, checked: CheckedProgram) -> Iterator[Diagnostic]:
    """W205: an argument that is matched and never used: misspelt, or without quotes."""
    used = Counter(part.name for each in rule.source.expressions for part in variables_in(each))
    if 1 not in used.values():
        return
    arguments = (
        part for atom in rule.positive for term in atom.terms for part in variables_in(term)
    )
    for variable in arguments:
        name = variable.name
        if used[name] == 1 and name not in rule.definitions and not name.startswith("_"):
            close = _close(name, {*used} - {name}) if len(name) > 2 else []
            meant = f"did you mean `{close[0]}`? " if close else ""
            yield Diagnostic(
                "W205", f"the variable `{name}` is used once, so it matches anything",
                variable.span, checked.program.file,
                f'{meant}write _ for any value, or "{name}" in quotes for the text',
            )  # fmt: skip


def _close(name: str, known: Collection[str]) -> list[str]:
    """The known name that was likely meant; none of so many that comparing them all takes long."""
    return get_close_matches(name, known, n=1) if len(known) <= _COMPARED_MAX else []


def _sent_for_ever(checked: CheckedProgram) -> Iterator[Diagnostic]:
    """W207: messages that nothing stops from sending themselves again."""
    free = [
        rule for rule in checked.rules if not rule.guards and len(rule.positive) == len(rule.atoms)
    ]
    reads: dict[str, set[str]] = {rule.predicate: set() for rule in free}
    for rule in free:
        reads[rule.predicate] |= {atom.predicate for atom in rule.positive}
    cycles = {
        name: cycle
        for cycle in strong_components(reads, lambda name: sorted(reads.get(name, ())))
        for name in cycle
    }
    for rule in free:
        if not isinstance(rule.temporal, AsyncTo):
            continue
        if any(cycles[atom.predicate] is cycles[rule.predicate] for atom in rule.positive):
            yield Diagnostic(
                "W207", f"`{rule.predicate}` is sent again whenever it arrives: a tick each "
                "millisecond, for ever", rule.source.head.application.name_span,
                checked.program.file, "stop it by a guard or by `not`, or keep facts with @next",
            )  # fmt: skip


def _takes_along(rule: ResolvedRule, checked: CheckedProgram) -> Iterator[Diagnostic]:
    """W209: groups of groups whose facts take all contributions to a tally along."""
    for atom in rule.positive if rule.aggregates else ():
        carried = TALLIES.intersection(checked.lattices_of(atom.predicate))
        passed = sorted(carried - rule.suppressed - atom.suppressed - rule.aggregates)
        if passed and atom.predicate not in checked.inputs and atom.predicate != rule.predicate:
            yield Diagnostic(
                "W209", f"`{rule.predicate}` takes all contributions to @{passed[0]} of "
                f"`{atom.predicate}` along: each change looks at all of its group",
                atom.name_span, checked.program.file,
                f"write ~{passed[0]} after `{atom.predicate}(…)` unless a reader of "
                f"`{rule.predicate}` wants it",
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
                checked.program.file, "leave the rule out, or correct the guard",
            )  # fmt: skip
    if (never := contradiction(rule)) is not None:
        yield Diagnostic(
            "W204", "this guard is never true together with those before it", never.span,
            checked.program.file, "|| within one guard holds if either does",
        )  # fmt: skip
    if (ended := ended_at_once(rule)) is not None:
        yield Diagnostic(
            "W204", "the fact expires no later than its time, so it is never there", ended.span,
            checked.program.file, "write an expiry after the time, such as @expires(t + 1000)",
        )  # fmt: skip
