"""Safety: every variable has a value, every function and lattice exists, heads are what heads may be.

The checks are grouped in the order in which a mistake that shows in several places is reported:
definitions, functions and lattices; clock arguments; body; guard; head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tidemill.datalog.ast import (
    AsyncTo,
    Call,
    Expression,
    Literal,
    Span,
    Unary,
    Variable,
    Wildcard,
    children,
    walk,
)
from tidemill.datalog.checked import LATTICE_ARITY, ResolvedParafact, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction

Check = Callable[["Scope"], Iterator[Diagnostic]]


class Scope:
    """One rule with what binds its variables."""

    def __init__(
        self,
        rule: ResolvedRule,
        file: str,
        functions: Mapping[str, ScalarFunction],
        lattices: Mapping[str, int],
    ) -> None:
        self.rule = rule
        self.file = file
        self.functions = functions
        self.lattices = lattices
        self.bound = _bound_by_atoms(rule)
        self.free_in: dict[str, tuple[Variable, ...]] = {}

    def report(self, code: str, message: str, span: Span, hint: str = "") -> Diagnostic:
        """A mistake at a place of this rule."""
        return Diagnostic(code, message, span, self.file, hint)

    def unbound(self, expression: Expression) -> Iterator[Variable]:
        """Variables that neither a positive atom nor a definition gives a value, in text order."""
        for part in walk(expression):
            if isinstance(part, Variable) and not self.has_value(part.name):
                yield part

    def has_value(self, name: str) -> bool:
        """Whether a match or a definition gives the variable a value."""
        return name in self.bound or name in self.rule.definitions

    def unfolded(self, expression: Expression) -> frozenset[str]:
        """The variables of an expression once definitions are replaced by what they stand for."""
        found: set[str] = set()
        waiting = [part.name for part in walk(expression) if isinstance(part, Variable)]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.rule.definitions:
                value = self.rule.definitions[name]
                waiting += [part.name for part in walk(value) if isinstance(part, Variable)]
            else:
                found.add(name)
        return frozenset(found)


def _bound_by_atoms(rule: ResolvedRule) -> frozenset[str]:
    """Variables that stand alone in a positive atom and are no definition."""
    names: set[str] = set()
    for atom in rule.positive:
        terms = [] if atom.clock else list(atom.terms)
        terms += [term for parafact in atom.parafacts for term in parafact.terms]
        names.update(term.name for term in terms if isinstance(term, Variable))
    return frozenset(names - rule.definitions.keys())


def check_safety(
    rules: tuple[ResolvedRule, ...],
    file: str,
    functions: Mapping[str, ScalarFunction] = FUNCTIONS,
    lattices: Mapping[str, int] = LATTICE_ARITY,
) -> list[Diagnostic]:
    """All mistakes of the first group that has any. Cost: O(length of the program)."""
    scopes = [Scope(rule, file, functions, lattices) for rule in rules]
    groups: tuple[Check, ...] = (
        definitions_functions_lattices, clock_arguments, body, guard, head,
    )  # fmt: skip
    for check in groups:
        found = [mistake for scope in scopes for mistake in check(scope)]
        if found:
            return found
    return []


def definitions_functions_lattices(scope: Scope) -> Iterator[Diagnostic]:
    """S103, S113, S108 and the arity of lattices."""
    yield from _definitions(scope)
    rule = scope.rule
    for expression in _every_expression(rule):
        for part in walk(expression):
            if isinstance(part, Call):
                yield from _function(scope, part)
    for parafact in rule.parafacts:
        yield from _lattice(scope, parafact)
    for mark in rule.source.head.suppressed:
        if mark.lattice not in scope.lattices:
            yield _unknown_lattice(scope, mark.lattice, mark.span)
    for atom, written in zip(rule.atoms, rule.source.atoms, strict=True):
        for parafact in atom.parafacts:
            yield from _lattice(scope, parafact)
        for mark in written.suppressed:
            if mark.lattice not in scope.lattices:
                yield _unknown_lattice(scope, mark.lattice, mark.span)


def _definitions(scope: Scope) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    for definition in scope.rule.source.definitions:
        if definition.name in seen:
            yield scope.report(
                "S103", f"`{definition.name}` is defined twice", definition.name_span,
                "give the second definition another name",
            )  # fmt: skip
        seen.add(definition.name)
        for variable in scope.unbound(definition.value):
            yield scope.report(
                "S103", f"`{variable.name}` has no value here", variable.span,
                "match it in a positive atom, or define it",
            )  # fmt: skip
        for part in walk(definition.value):
            if isinstance(part, Wildcard):
                yield scope.report("S103", "`_` has no value", part.span, "name the value")
        if _reaches_itself(scope.rule, definition.name):
            yield scope.report(
                "S103", f"`{definition.name}` is defined through itself", definition.name_span,
                "a definition may use only variables and other definitions",
            )  # fmt: skip


def _reaches_itself(rule: ResolvedRule, name: str) -> bool:
    waiting, seen = [name], set[str]()
    while waiting:
        for part in walk(rule.definitions[waiting.pop()]):
            if isinstance(part, Variable) and part.name in rule.definitions:
                if part.name == name:
                    return True
                if part.name not in seen:
                    seen.add(part.name)
                    waiting.append(part.name)
    return False


def _every_expression(rule: ResolvedRule) -> Iterator[Expression]:
    """All expressions of a rule in the order of the text."""
    yield from rule.terms
    for parafact in rule.parafacts:
        yield from parafact.terms
    if isinstance(rule.temporal, AsyncTo):
        yield rule.temporal.node
    for atom in rule.atoms:
        yield from atom.terms
        for parafact in atom.parafacts:
            yield from parafact.terms
    yield from rule.guards
    yield from rule.definitions.values()


def _function(scope: Scope, call: Call) -> Iterator[Diagnostic]:
    known = scope.functions.get(call.name)
    given = len(call.arguments)
    if known is None:
        names = ", ".join(sorted(scope.functions))
        yield scope.report(
            "S113", f"there is no function `{call.name}`", call.name_span, f"known are {names}"
        )
    elif given < known.arity_min or (known.arity_max is not None and given > known.arity_max):
        if known.arity_min == known.arity_max:
            wanted = str(known.arity_min)
        else:
            wanted = f"at least {known.arity_min}"
        yield scope.report(
            "S113", f"`{call.name}` takes {wanted} arguments, not {given}", call.name_span
        )


def _unknown_lattice(scope: Scope, name: str, span: Span) -> Diagnostic:
    known = ", ".join(sorted(scope.lattices))
    return scope.report("S108", f"there is no lattice `{name}`", span, f"known are {known}")


def _lattice(scope: Scope, parafact: ResolvedParafact) -> Iterator[Diagnostic]:
    arity = scope.lattices.get(parafact.lattice)
    if arity is None:
        yield _unknown_lattice(scope, parafact.lattice, parafact.name_span)
    elif arity != len(parafact.terms):
        yield scope.report(
            "S109", f"`@{parafact.lattice}` has {arity} values, not {len(parafact.terms)}",
            parafact.name_span,
        )  # fmt: skip


def clock_arguments(scope: Scope) -> Iterator[Diagnostic]:
    """S106 and S116."""
    for atom in scope.rule.atoms:
        if not atom.clock or len(atom.terms) != 2:
            continue
        for term in atom.terms:
            for part in walk(term):
                if isinstance(part, Wildcard):
                    yield scope.report(
                        "S106", "a clock needs its offset and its period", part.span,
                        "write a literal, or bind it in another atom or in `where`",
                    )  # fmt: skip
            for variable in scope.unbound(term):
                yield scope.report(
                    "S106", f"the clock's `{variable.name}` has no value", variable.span,
                    "bind it in another atom or in `where`",
                )  # fmt: skip
        period = _constant(scope, atom.terms[1])
        if period is not None and period <= 0:
            yield scope.report(
                "S116", "the period of a clock is positive", _span_of(atom.terms[1]),
                "write the milliseconds between two events",
            )  # fmt: skip


def _constant(scope: Scope, expression: Expression) -> int | float | None:
    """The number an expression is, as far as signs and definitions show it."""
    seen: set[str] = set()
    sign = 1
    while True:
        match expression:
            case Literal(value=value) if type(value) is int or type(value) is float:
                return sign * value
            case Unary(operand=operand):
                sign, expression = -sign, operand
            case Variable(name=name) if name in scope.rule.definitions and name not in seen:
                seen.add(name)
                expression = scope.rule.definitions[name]
            case _:
                return None


def _span_of(expression: Expression) -> Span:
    return expression.span


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
                yield scope.report(code, "`_` has no value in an expression", part.span)


def guard(scope: Scope) -> Iterator[Diagnostic]:
    """S102."""
    for expression in scope.rule.guards:
        for part in walk(expression):
            if isinstance(part, Wildcard):
                yield scope.report("S102", "`_` has no value in a guard", part.span)
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
                yield scope.report(
                    "S104", f"`{name}` stands in the fact and in its parafact", _span_of(term),
                    "derive the fact in one rule and its parafact in another",
                )  # fmt: skip
