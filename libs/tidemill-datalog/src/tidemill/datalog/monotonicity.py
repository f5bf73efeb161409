"""Monotone uses of `min`, `max` and `set` inside their own recursion (S117).

While a recursion runs, its values are unfinished: a `min` only falls, a `max` only rises, a `set`
only grows. So a value may occur only where a better one gives a better result. These places are the
head parafact of the same lattice, and guards that stay true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemill.datalog.ast import (
    AsyncTo,
    Binary,
    Call,
    Expression,
    Literal,
    Span,
    Variable,
    Wildcard,
)
from tidemill.datalog.checked import SEMILATTICES, ResolvedAtom, ResolvedParafact, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.scope import names_in, resolved

_FALLING = frozenset(("<", "<="))
_RISING = frozenset((">", ">="))


class Unfinished:
    """One rule of a recursion with the lattice variables that it binds inside that recursion."""

    def __init__(self, rule: ResolvedRule, inside: Iterable[ResolvedAtom], file: str) -> None:
        self._rule = rule
        self._file = file
        self._matches = [
            (atom, parafact)
            for atom in inside
            for parafact in atom.parafacts
            if parafact.lattice in SEMILATTICES
        ]
        self._variables = frozenset(
            term.name
            for _, parafact in self._matches
            for term in parafact.terms
            if isinstance(term, Variable)
        )
        self._monotone_definitions: dict[tuple[str, str], bool] = {}
        self._lasting_definitions: dict[tuple[str, str], bool] = {}

    def mistakes(self, timed: frozenset[str]) -> Iterator[Diagnostic]:
        """S117 for each use of an unfinished value that is not monotone."""
        for atom, parafact in self._matches:
            if atom.predicate in timed:
                yield self._refuse(
                    f"`@{parafact.lattice}` in a recursion over events", parafact.name_span,
                    "min, max and set may be recursive over timeless facts only",
                )  # fmt: skip
            else:
                yield from self._match(parafact)

    def _refuse(self, message: str, span: Span, hint: str = "") -> Diagnostic:
        hint = hint or "use the value in a rule after the recursion is finished"
        return Diagnostic("S117", message, span, self._file, hint)

    def _match(self, parafact: ResolvedParafact) -> Iterator[Diagnostic]:
        """An unfinished value is bound to a fresh variable, or to nothing."""
        for term in parafact.terms:
            if isinstance(term, Wildcard):
                continue
            if not isinstance(term, Variable) or term.name in self._rule.definitions:
                yield self._refuse("an unfinished value is compared", parafact.span)
            elif self._places(term.name) > 1:
                yield self._refuse(
                    f"the unfinished value `{term.name}` is matched elsewhere", term.span
                )
            else:
                yield from self._uses(parafact.lattice, term.name)

    def _places(self, name: str) -> int:
        """In how many terms of the body's atoms a variable stands."""
        terms: list[Expression] = []
        for atom in self._rule.atoms:
            terms += atom.terms
            terms += [term for parafact in atom.parafacts for term in parafact.terms]
        return sum(self._has(term, name) for term in terms)

    def _has(self, expression: Expression, name: str) -> bool:
        return name in names_in(expression, self._rule.definitions)

    def _uses(self, lattice: str, name: str) -> Iterator[Diagnostic]:
        rule = self._rule
        for term in rule.terms:
            if self._has(term, name):
                yield self._refuse(
                    f"the unfinished {lattice} `{name}` becomes part of a fact", term.span
                )
        if isinstance(rule.temporal, AsyncTo) and self._has(rule.temporal.node, name):
            yield self._refuse(
                f"the unfinished {lattice} `{name}` names a node", rule.temporal.span
            )
        for parafact in rule.parafacts:
            for term in parafact.terms:
                if not self._has(term, name):
                    continue
                if parafact.lattice != lattice:
                    message = f"an unfinished {lattice} becomes a {parafact.lattice}"
                    yield self._refuse(message, parafact.span)
                elif not self._monotone(term, name):
                    yield self._refuse(f"`{name}` does not occur monotonely", parafact.span)
        for condition in rule.guards:
            if self._has(condition, name) and not self._lasting(condition, lattice, name):
                message = f"this guard may turn false as `{name}` improves"
                yield self._refuse(message, condition.span)

    def _free(self, expression: Expression) -> bool:
        """Whether no unfinished value occurs."""
        return self._variables.isdisjoint(names_in(expression, self._rule.definitions))

    def _resolved(self, expression: Expression) -> Expression:
        return resolved(expression, self._rule.definitions)

    def _monotone(self, term: Expression, name: str) -> bool:
        """Whether a term grows with the variable (or does not depend on it)."""
        if isinstance(term, Variable) and term.name in self._rule.definitions:
            key = (term.name, name)
            if key not in self._monotone_definitions:
                self._monotone_definitions[key] = self._monotone(self._resolved(term), name)
            return self._monotone_definitions[key]
        if not self._has(term, name):
            return True
        match term:
            case Variable():
                return True
            case Binary(operator="+"):
                return self._monotone(term.left, name) and self._monotone(term.right, name)
            case Binary(operator="-"):
                return self._monotone(term.left, name) and self._free(term.right)
            case Binary(operator="*"):
                return any(
                    _not_negative(self._resolved(factor)) and self._monotone(other, name)
                    for factor, other in ((term.left, term.right), (term.right, term.left))
                )
            case Call(name="least" | "greatest"):
                return all(self._monotone(argument, name) for argument in term.arguments)
            case _:
                return False

    def _lasting(self, guard: Expression, lattice: str, name: str) -> bool:
        """Whether a guard that is true stays true as the value improves."""
        if isinstance(guard, Variable) and guard.name in self._rule.definitions:
            key = (guard.name, name)
            if key not in self._lasting_definitions:
                resolved = self._resolved(guard)
                self._lasting_definitions[key] = self._lasting(resolved, lattice, name)
            return self._lasting_definitions[key]
        if not self._has(guard, name):
            return True
        match guard:
            case Binary(operator="&&" | "||"):
                return all(self._lasting(side, lattice, name) for side in (guard.left, guard.right))
            case Binary() if lattice == "set":
                return self._grown(guard.left, guard.right, guard.operator in _RISING, name) or (
                    self._grown(guard.right, guard.left, guard.operator in _FALLING, name)
                )
            case Binary():
                improving, other = (_FALLING, _RISING) if lattice == "min" else (_RISING, _FALLING)
                if self._free(guard.right):
                    return guard.operator in improving and self._monotone(guard.left, name)
                if self._free(guard.left):
                    return guard.operator in other and self._monotone(guard.right, name)
                return False
            case Call(name="contains", arguments=(held, element)):
                return lattice == "set" and self._is(held, name) and self._free(element)
            case _:
                return False

    def _grown(self, sized: Expression, bound: Expression, rises: bool, name: str) -> bool:
        """Whether `length(set)` is compared from below with something finished."""
        match self._resolved(sized):
            case Call(name="length", arguments=(held,)):
                return rises and self._is(held, name) and self._free(bound)
            case _:
                return False

    def _is(self, expression: Expression, name: str) -> bool:
        resolved = self._resolved(expression)
        return isinstance(resolved, Variable) and resolved.name == name


def _not_negative(expression: Expression) -> bool:
    return (
        isinstance(expression, Literal)
        and type(expression.value) in (int, float)
        and expression.value >= 0  # type: ignore[operator]  # a number, as just tested
    )
