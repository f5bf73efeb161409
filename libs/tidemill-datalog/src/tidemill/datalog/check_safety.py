"""Safety: every variable has a value, every function and lattice exists, heads are well formed.

A mistake that shows in several places is reported once, in the order of the groups of checks. First
comes the length of a rule; then definitions, functions and lattices; clock arguments; body; guard;
head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidemill.datalog.ast import (
    AsyncTo,
    Expression,
    Literal,
    Unary,
    Variable,
    Wildcard,
    children,
    walk,
)
from tidemill.datalog.check_definitions import definitions_functions_lattices
from tidemill.datalog.checked import ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.scope import Scope, bound_alone, bound_names, resolved
from tidemill.datalog.vocabulary import STANDARD, Vocabulary

ATOMS_MAX = 64
"""Atoms of one rule: each is a loop in the one before, and Python indents a hundred levels deep."""
Check = Callable[[Scope], Iterator[Diagnostic]]
_EXAMPLE = "pair(x, x) := e(x); p(x) @{0}(y) := pair(x, y);"
_EXAMPLES = {
    "time": "seen(t) := e(_) @time(t); p(t) @time(u + 5) := seen(t) @time(u);",
    "expires": "pair(x, x) := e(x); p(x) @expires(y) := pair(x, y);",
}


def check_safety(
    rules: tuple[ResolvedRule, ...],
    file: str,
    vocabulary: Vocabulary = STANDARD,
) -> list[Diagnostic]:
    """All mistakes of the first group that has any. Cost: O(length of the program)."""
    arities = vocabulary.arities
    scopes = [Scope(rule, file, vocabulary.functions, arities) for rule in rules]
    groups: tuple[Check, ...] = (
        atoms, definitions_functions_lattices, clock_arguments, body, guard, head,
    )  # fmt: skip
    for check in groups:
        found = [mistake for scope in scopes for mistake in check(scope)]
        if found:
            return found
    return []


def atoms(scope: Scope) -> Iterator[Diagnostic]:
    """S128: a rule has no more positive atoms than engines nest."""
    matched = [atom for atom in scope.rule.atoms if not atom.negated]
    for atom in matched[ATOMS_MAX : ATOMS_MAX + 1]:
        yield scope.report(
            "S128", f"this is one atom more than the {ATOMS_MAX} that a rule may match",
            atom.span, "derive what some of them match together in a rule of its own",
        )  # fmt: skip


def clock_arguments(scope: Scope) -> Iterator[Diagnostic]:
    """S106 and S116: what a clock needs comes from other atoms, not from its own events."""
    waiting = [atom for atom in scope.rule.atoms if atom.clock]
    if not waiting:
        return
    known = set(bound_alone(scope.rule, clocks=False))
    while True:
        ready = [atom for atom in waiting if _needs(scope, atom) <= known]
        if not ready:
            break
        for atom in ready:
            waiting.remove(atom)
            if not atom.negated:
                known |= bound_names(atom)
    for atom in scope.rule.atoms:
        if atom.clock:
            yield from _clock(scope, atom, known)


def _needs(scope: Scope, clock: ResolvedAtom) -> frozenset[str]:
    """The variables without which a clock's offset and period have no value."""
    return frozenset().union(*(scope.unfolded(term) for term in clock.terms))


def _clock(scope: Scope, atom: ResolvedAtom, known: set[str]) -> Iterator[Diagnostic]:
    for term in atom.terms:
        for part in walk(term):
            if isinstance(part, Wildcard):
                yield scope.report(
                    "S106", "a clock needs its offset and its period", part.span,
                    "write a literal, or bind it in another atom or in `where`",
                )  # fmt: skip
            elif isinstance(part, Variable) and not scope.unfolded(part) <= known:
                yield scope.report(
                    "S106", f"the clock's `{part.name}` has no value", part.span,
                    "bind it in another atom or in `where`",
                )  # fmt: skip
    if len(atom.terms) == 2:
        period = _constant(scope, atom.terms[1])
        if period is not None and period <= 0:
            yield scope.report(
                "S116", "the period of a clock is positive", atom.terms[1].span,
                "write the milliseconds between two events",
            )  # fmt: skip


def _constant(scope: Scope, expression: Expression) -> int | float | None:
    """The number an expression is, as far as signs and definitions show it."""
    sign = 1
    while True:
        match resolved(expression, scope.rule.definitions):
            case Literal(value=value) if type(value) is int or type(value) is float:
                return sign * value
            case Unary(operand=operand):
                sign, expression = -sign, operand
            case _:
                return None


def body(scope: Scope) -> Iterator[Diagnostic]:
    """S118: what a `not` matches is bound; and conditions of positive atoms have values (S102)."""
    for atom in scope.rule.atoms:
        parafact_terms = [term for parafact in atom.parafacts for term in parafact.terms]
        if atom.negated:
            terms = parafact_terms if atom.clock else [*atom.terms, *parafact_terms]
            for term in terms:
                for variable in scope.unbound(term):
                    yield scope.report(
                        "S118", f"`{variable.name}` has no value under `not`", variable.span,
                        "bind it in a positive atom, or write _",
                    )  # fmt: skip
                yield from _inner_wildcards(scope, term, "S118")
            continue
        for term in [*([] if atom.clock else atom.terms), *parafact_terms]:
            if isinstance(term, Variable | Wildcard):
                continue
            for variable in scope.unbound(term):
                yield scope.report(
                    "S102", f"`{variable.name}` has no value in this condition", variable.span,
                    "a variable is bound where it stands alone in an atom",
                )  # fmt: skip
            yield from _inner_wildcards(scope, term, "S102")


def _inner_wildcards(scope: Scope, term: Expression, code: str) -> Iterator[Diagnostic]:
    """`_` inside an expression has no value."""
    if isinstance(term, Wildcard):
        return
    for outer in walk(term):
        for part in children(outer):
            if isinstance(part, Wildcard):
                hint = "name the value and match it in an atom"
                yield scope.report(code, "`_` has no value in an expression", part.span, hint)


def guard(scope: Scope) -> Iterator[Diagnostic]:
    """S102."""
    for expression in scope.rule.guards:
        for part in walk(expression):
            if isinstance(part, Wildcard):
                hint = "name the value and match it in an atom"
                yield scope.report("S102", "`_` has no value in a guard", part.span, hint)
            elif isinstance(part, Variable) and not scope.has_value(part.name):
                yield scope.report(
                    "S102", f"`{part.name}` has no value in this guard", part.span,
                    "a guard compares values; bind them in an atom",
                )  # fmt: skip


def head(scope: Scope) -> Iterator[Diagnostic]:
    """S105, S101, S114, S122, S104."""
    rule = scope.rule
    fact = list(rule.terms)
    values = [term for parafact in rule.parafacts for term in parafact.terms]
    if isinstance(rule.temporal, AsyncTo):
        values.append(rule.temporal.node)
    for term in [*fact, *values]:
        for part in walk(term):
            if isinstance(part, Wildcard):
                hint = "write the value that the fact has"
                yield scope.report("S105", "a head has no `_`", part.span, hint)
            elif isinstance(part, Variable) and not scope.has_value(part.name):
                yield _unbound_head(scope, part)
    if rule.temporal is not None:
        for parafact in rule.parafacts:
            if parafact.lattice == "time":
                yield scope.report(
                    "S122", "a head that moves to another tick keeps its event time",
                    parafact.name_span, "leave @time out",
                )  # fmt: skip
    if rule.parafacts:
        yield from _fact_and_parafact(scope)


def _unbound_head(scope: Scope, variable: Variable) -> Diagnostic:
    if not scope.rule.source.has_formula:
        return scope.report(
            "S114", f"`{variable.name}` has no value in a stated fact", variable.span,
            f'write a value, or a text in quotes: "{variable.name}"',
        )  # fmt: skip
    return scope.report(
        "S101", f"`{variable.name}` has no value in the head", variable.span,
        "bind it in a positive atom, or define it in `where`",
    )  # fmt: skip


def _fact_and_parafact(scope: Scope) -> Iterator[Diagnostic]:
    rule = scope.rule
    of_fact = frozenset().union(*(scope.unfolded(term) for term in rule.terms)) & scope.bound
    for parafact in rule.parafacts:
        for term in parafact.terms:
            both = scope.unfolded(term) & of_fact
            if both:
                name = min(both)
                example = _EXAMPLES.get(parafact.lattice, _EXAMPLE).format(parafact.lattice)
                yield scope.report(
                    "S104", f"`{name}` stands in the fact and in its parafact", term.span,
                    "derive the fact in one rule and its parafact in another, as in: " + example,
                )  # fmt: skip
