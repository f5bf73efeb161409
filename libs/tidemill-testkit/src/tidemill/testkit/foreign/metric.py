"""Programs over intervals in DatalogMTL, for MeTeoR: windows, joins and recursion over presences.

The rule `h(x) ~expires := …` holds from some instant on: the operator `Diamondminus[0,inf)`. A rule
over one event, `h(x) @expires(u + k) := e(x) @time(u)`, is a window of k instants:
`Diamondminus[0,k-1]` over the beginnings of events. MeTeoR's time is dense, so both are compared at
whole instants.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.presence import END, Presence
from tidemill.testkit.foreign.clingo import NotThere
from tidemill.testkit.tidelog import NUMBERS, Forms

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its patterns have escapes that Python warns of
    from meteor_reasoner.materialization.coalesce import coalescing_d
    from meteor_reasoner.materialization.materialize import materialize
    from meteor_reasoner.utils.loader import load_dataset, load_program

FORMS = Forms(
    guards=(),
    head_marks=("", "", "", "", "~expires", "@expires(u + 2)", "@expires(u + 4)"),
    atom_marks=("", "", "@time(u)"),
    terms=("x", "x", "x", "y", "y", "z", "_", "1"),
    clocks=(),
    definitions=(),
    whole=(
        "t(x, z) := t(x, y) ^ t(y, z);", "p(y) := p(x) ^ b(x, y);", "q(x) := t(x, _) ^ p(x);",
        "p(x) @expires(u + 3) := a(x) @time(u);", "q(y) @expires(u + 2) := b(_, y) @time(u);",
        "t(x, y) ~expires := b(x, y);",
    ),
    predicates=NUMBERS,
)  # fmt: skip
"""The forms of rules that both sides have."""

STEPS_MAX = 60
"""More rounds than any fixed point over these few values takes."""


def fits(checked: CheckedProgram) -> bool:
    """Whether every rule has a translation."""
    try:
        list(_translated(checked))
    except NotThere:
        return False
    return True


def derived(
    checked: CheckedProgram, given: Mapping[str, Sequence[Presence]], instants: Iterable[int]
) -> list[dict[str, set[tuple[int, ...]]]]:
    """For each instant the arguments of the facts of each predicate. Raises: NotThere."""
    dataset = load_dataset(list(_facts(given)))
    coalescing_d(dataset)
    rules = load_program(list(_translated(checked)))
    with contextlib.redirect_stdout(io.StringIO()):
        settled = materialize(dataset, rules, mode="naive", K=STEPS_MAX)
    assert settled
    return [
        {name: _at(dataset.get(name.upper(), {}), at) for name in checked.derived}
        for at in instants
    ]


def _at(facts: Mapping[Any, Sequence[Any]], at: int) -> set[tuple[int, ...]]:
    return {
        tuple(int(term.name) for term in entity)
        for entity, intervals in facts.items()
        if any(_holds(interval, at) for interval in intervals)
    }


def _holds(interval: Any, at: int) -> bool:
    begun = interval.left_value < at or (interval.left_value == at and not interval.left_open)
    ended = interval.right_value < at or (interval.right_value == at and interval.right_open)
    return begun and not ended


def _facts(given: Mapping[str, Sequence[Presence]]) -> Iterator[str]:
    for name, presences in given.items():
        for presence in presences:
            row = ",".join(map(str, presence.record.arguments))
            end = "+inf)" if presence.end == END else f"{presence.end})"
            yield f"{name.upper()}({row})@[{presence.start},{end}"
            if presence.record.time is not None:
                yield f"BEGUN{name.upper()}({row})@{presence.record.time}"


def _translated(checked: CheckedProgram) -> Iterator[str]:
    for rule in checked.rules:
        yield from _rule(rule)


def _rule(rule: ResolvedRule) -> Iterator[str]:
    marks = [p for p in rule.parafacts if p.lattice != "expires"]
    if not rule.deductive or rule.guards or rule.definitions or marks or not rule.atoms:
        raise NotThere(rule.source.span)
    head = f"{rule.predicate.upper()}({','.join(_term(term, iter(())) for term in rule.terms)})"
    if rule.parafacts:
        yield f"{head} :- {_window(rule)}"
        return
    if sum(bool(atom.parafacts) for atom in rule.atoms) > 1:
        raise NotThere(rule.source.span)  # equal times
    fresh = itertools.count()
    body = ",".join(_atom(atom, fresh) for atom in rule.atoms)
    if not rule.suppressed:
        yield f"{head} :- {body}"
    elif rule.suppressed == {"expires"}:
        aside = head.replace("(", f"RULE{rule.number}(", 1)
        yield f"{aside} :- {body}"
        yield f"{head} :- Diamondminus[0,+inf){aside}"
    else:
        raise NotThere(rule.source.span)


def _window(rule: ResolvedRule) -> str:
    """The body of a rule with an end of its own, over the beginnings of one event."""
    if rule.suppressed or len(rule.atoms) != 1 or len(rule.parafacts) != 1:
        raise NotThere(rule.source.span)
    (atom,), end = rule.atoms, rule.parafacts[0].terms[0]
    match end, atom.parafacts:
        case ast.Binary(operator="+", left=ast.Variable("u"), right=ast.Literal(int() as life)), (
            time,
        ) if time.lattice == "time" and time.terms[0] == ast.Variable("u", time.terms[0].span):
            if atom.predicate in ("a", "b") and not atom.negated and not atom.suppressed:
                fresh = itertools.count()
                terms = ",".join(_term(term, fresh) for term in atom.terms)
                return f"Diamondminus[0,{life - 1}]BEGUN{atom.predicate.upper()}({terms})"
    raise NotThere(rule.source.span)


def _atom(atom: ResolvedAtom, fresh: Iterator[int]) -> str:
    if atom.negated or atom.clock or atom.suppressed:
        raise NotThere(atom.span)
    if atom.parafacts and (atom.predicate not in ("a", "b") or len(atom.parafacts) > 1):
        raise NotThere(atom.span)  # the time of an event is always there, and only bound here
    terms = ",".join(_term(term, fresh) for term in atom.terms)
    return f"{atom.predicate.upper()}({terms})"


def _term(term: ast.Expression, fresh: Iterator[int]) -> str:
    match term:
        case ast.Literal(value=int() as value):
            return str(value)
        case ast.Variable(name=name):
            return name.upper()
        case ast.Wildcard():
            return f"W{next(fresh)}"
    raise NotThere(term)
