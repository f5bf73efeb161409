"""Relevance: patterns of the facts that a question can depend on, found from it backwards.

A pattern is a predicate with a value or ANY for each argument. Facts outside the patterns cannot
take part in any derivation of the record, so an explanation never looks at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidemill.arrangement.looks import with_looks
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.logical.forms import AbsentForm, AtomForm, Constant, RuleForm, Variable
from tidemill.datalog.logical.scans import Scan, all_of, any_of, compared
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import ANY
from tidemill.datalog.values import Value, equal

Pattern: TypeAlias = "tuple[Any, ...]"


def relevant_patterns(
    forms: Iterable[RuleForm], predicate: str, arguments: Sequence[Value]
) -> dict[str, set[Pattern]]:
    """Predicate below the record, itself included, → the patterns of facts that may matter."""
    rules: dict[str, list[RuleForm]] = {}
    for form in forms:
        rules.setdefault(form.head.predicate, []).append(form)
    found: dict[str, set[Pattern]] = {}
    waiting: list[tuple[str, Pattern]] = [(predicate, tuple(arguments))]
    while waiting:
        name, pattern = waiting.pop()
        known = found.setdefault(name, set())
        if any(_covers(other, pattern) for other in known):
            continue
        known.add(pattern)
        for form in rules.get(name, ()):
            bound = _bound(form, pattern)
            if bound is None:
                continue
            below: list[AtomForm | AbsentForm] = [*form.atoms, *form.absent]
            waiting += [
                (atom.predicate, _pattern(atom, bound)) for atom in below if not atom.is_clock
            ]
    return found


def _covers(wide: Pattern, narrow: Pattern) -> bool:
    return all(
        a is ANY or (b is not ANY and equal(a, b)) for a, b in zip(wide, narrow, strict=True)
    )


def _bound(form: RuleForm, pattern: Pattern) -> dict[str, Value] | None:
    """The variables that the pattern binds in the head, None if the head fits none of its facts."""
    terms = form.head.terms[1:] if form.sends else form.head.terms
    bound: dict[str, Value] = {}
    for term, value in zip(terms, pattern, strict=True):
        if value is ANY:
            continue
        if isinstance(term, Constant) and not equal(term.value, value):
            return None
        if isinstance(term, Variable):
            bound[term.name] = value
    return bound


def _pattern(atom: AtomForm | AbsentForm, bound: Mapping[str, Value]) -> Pattern:
    values: list[Any] = []
    for term in atom.terms:
        if isinstance(term, Constant):
            values.append(term.value)
        elif isinstance(term, Variable):
            values.append(bound.get(term.name, ANY))
        else:
            values.append(ANY)
    return tuple(values)


def pattern_scan(checked: CheckedProgram, predicate: str, patterns: Iterable[Pattern]) -> Scan:
    """All columns of the rows that fit some pattern, and perhaps of some more."""
    kinds = [kind for _, kind in checked.columns[predicate]]
    wanted = any_of(
        all_of(
            compared(at, kind, "==", value)
            for at, (kind, value) in enumerate(zip(kinds, pattern, strict=True), 1)
            if value is not ANY
        )
        for pattern in patterns
    )
    return Scan(predicate, tuple(range(1, len(kinds) + 1)), wanted)


def relevant_inputs(
    inputs: Mapping[str, Sequence[Presence]], patterns: Mapping[str, set[Pattern]]
) -> dict[str, list[Presence]]:
    """The input facts that fit the patterns.

    Cost: one look at every fact of the predicates below.
    """
    kept: dict[str, list[Presence]] = {}
    for name, wanted in patterns.items():
        presences = inputs.get(name)
        if presences is None:
            continue
        checks = _checks(wanted)
        if any(not check for check in checks):
            kept[name] = list(presences)
        else:
            kept[name] = [p for p in with_looks(presences) if _fits(p.record.arguments, checks)]
    return kept


def fits(arguments: Sequence[Any], wanted: Iterable[Pattern]) -> bool:
    """Whether a fact fits one of the patterns of its predicate."""
    return _fits(arguments, _checks(wanted))


def _checks(wanted: Iterable[Pattern]) -> list[list[tuple[int, Value]]]:
    return [
        [(at, value) for at, value in enumerate(pattern) if value is not ANY] for pattern in wanted
    ]


def _fits(arguments: Sequence[Value], checks: Sequence[Sequence[tuple[int, Value]]]) -> bool:
    return any(all(equal(arguments[at], value) for at, value in check) for check in checks)
