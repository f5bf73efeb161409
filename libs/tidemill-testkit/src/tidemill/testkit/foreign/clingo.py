"""Programs over timeless facts in the notation of clingo: joins, guards, `not`, recursion,
aggregates.

An aggregate is written out from its definition. Every solution of a rule contributes a value under
an identity of its own, and contributions are passed along with the facts. The observed value of a
fact is clingo's own aggregate over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import clingo

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.records import Record
from tidemill.testkit.tidelog import Forms

FORMS = Forms(
    guards=("x < y", "x != y", "x <= 1", "x + y >= 2", "z == x + 1", "y - x == 1", "x * y < 3"),
    head_marks=(
        "", "", "", "", "@count(y)", "@sum(x)", "@min(y)", "@max(x) @count(1)", "@count_distinct(y)",
        "~count ~sum ~min ~max",
    ),
    atom_marks=("", "", "", "", "", "", "~count", "@count(y)", "@min(x)", "@sum(z)", "~sum"),
    terms=("x", "x", "x", "y", "y", "z", "_", "1", "x + 1", "0"),
    clocks=(),
    definitions=("z = x + 1", "z = y * 2 - x"),
    whole=(
        "t(x, z) := t(x, y) ^ t(y, z);", "p(y) := p(x) ^ s(x, y);", "q(x + 1) := q(x) if x < 3;",
        "p(1) @count(x) := q(x) ^ not p(x);", "p(x) := t(x, x);", "q(x) := r(x) ^ not p(x);",
        "p(x) := t(x, y) ^ not s(y, x);", "q(x) @max(y) := t(x, y);", "t(x, n) := p(x) @count(n);",
        "t(x, n) := q(x) @max(n) ^ not p(n);", "p(x) @count(y) @sum(y) := s(x, y);",
        "q(n) := p(x) @sum(n) if n > x;", "p(z) := t(x, y) where z = x * 3 - y;",
        "q(x) @count(y) := s(x, y);", "p(n) := q(x) @count(n);", "p(x) := s(x, _) ^ not r(x);",
    ),
    whole_every=2,
    predicates=("r", "s", "p", "q", "t"),
)  # fmt: skip
"""The forms of rules that both sides have."""

_AGGREGATES: Mapping[str, str] = {
    "count": "#count{ I : c(P,A,count,I,_) }",
    "sum": "#sum{ V,I : c(P,A,sum,I,V) }",
    "min": "#min{ V : c(P,A,min,_,V) }",
    "max": "#max{ V : c(P,A,max,_,V) }",
    "count_distinct": "#count{ V : c(P,A,count_distinct,_,V) }",
}
_OPERATORS = {"+", "-", "*", "<", "<=", ">", ">=", "==", "!="}


class NotThere(Exception):
    """The other side has no such form."""


class _Solver(Protocol):
    def add(self, name: str, parameters: list[str], program: str) -> None: ...
    def ground(self, parts: list[tuple[str, list[Any]]]) -> None: ...
    def solve(self, *, yield_: bool) -> Any: ...


def fits(checked: CheckedProgram) -> bool:
    """Whether every rule has a translation.

    A recursion through `min` or `max` has none, and one that computes values has to end for
    certain.
    """
    try:
        list(_translated(checked))
    except NotThere:
        return False
    return not any(
        rule.aggregates or rule.definitions for rule in checked.rules if _recursive(checked, rule)
    )


def _recursive(checked: CheckedProgram, rule: ResolvedRule) -> bool:
    component = next(c for c in checked.components if rule.predicate in c)
    return any(atom.predicate in component for atom in rule.atoms)


def derived(
    checked: CheckedProgram, facts: Iterable[Record]
) -> dict[str, dict[Any, dict[str, int]]]:
    """For each predicate its facts, each with the values of the lattices that it shows.

    Raises: NotThere for programs that do not fit.
    """
    given = [f"f_{fact.predicate}({_row(fact.arguments)})." for fact in facts]
    solver: _Solver = clingo.Control(["--warn=none"])
    solver.add("base", [], "\n".join([*_translated(checked), *given]))
    solver.ground([("base", [])])
    with solver.solve(yield_=True) as handle:
        models = [model.symbols(atoms=True) for model in handle]
    (model,) = models  # stratified: there is exactly one
    found: dict[str, dict[Any, dict[str, int]]] = {name: {} for name in checked.derived}
    for symbol in model:
        name = symbol.name[2:]
        if symbol.name.startswith("f_") and name in found:
            found[name].setdefault(_numbers(symbol.arguments), {})
    for symbol in model:
        if symbol.name == "v":
            predicate, arguments, lattice, value = symbol.arguments
            key = _numbers(arguments.arguments)
            found[predicate.name[2:]][key][lattice.name] = value.number
    return found


def _numbers(symbols: Iterable[Any]) -> tuple[int, ...]:
    return tuple(symbol.number for symbol in symbols)


def _row(values: Iterable[Any]) -> str:
    return ",".join(map(str, values))


def _translated(checked: CheckedProgram) -> Iterator[str]:
    for rule in checked.rules:
        yield from _Rule(checked, rule).lines()
    for lattice, aggregate in _AGGREGATES.items():
        yield f"h(P,A,{lattice}) :- c(P,A,{lattice},_,_)."
        yield f"v(P,A,{lattice},N) :- h(P,A,{lattice}), N = {aggregate}."


class _Rule:
    def __init__(self, checked: CheckedProgram, rule: ResolvedRule) -> None:
        if not rule.deductive or rule.suppressed - set(_AGGREGATES):
            raise NotThere(rule.source.span)
        self._checked = checked
        self._rule = rule
        self._wildcards = itertools.count()
        self._positive = [self._terms(atom) for atom in rule.positive]

    def lines(self) -> Iterator[str]:
        """The rule for its facts, and one for each way in which a contribution comes to them."""
        rule = self._rule
        head = [self._text(term) for term in rule.terms]
        body = list(self._body())
        fact = f"f_{rule.predicate}({','.join(head)})"
        yield f"{fact} :- {', '.join(body)}." if body else f"{fact}."
        place = f"f_{rule.predicate},({','.join(head)},)"
        solution = "".join(f"({','.join(terms)},)," for terms in self._positive)
        for position, parafact in enumerate(rule.parafacts):
            if parafact.lattice not in _AGGREGATES:
                raise NotThere(parafact.span)
            value = self._text(parafact.terms[0])
            identity = f"({rule.number},{position},({solution}))"
            yield f"c({place},{parafact.lattice},{identity},{value}) :- {', '.join(body)}."
        written = {parafact.lattice for parafact in rule.parafacts}
        for atom, terms in zip(rule.positive, self._positive, strict=True):
            for lattice in set(_AGGREGATES) - written - rule.suppressed - atom.suppressed:
                source = f"c(f_{atom.predicate},({','.join(terms)},),{lattice},I,N)"
                yield f"c({place},{lattice},I,N) :- {', '.join([*body, source])}."

    def _body(self) -> Iterator[str]:
        rule = self._rule
        for atom, terms in zip(rule.positive, self._positive, strict=True):
            yield from self._atom(atom, terms)
        for guard in rule.guards:
            yield self._text(guard)
        for atom in rule.atoms:
            if atom.negated:
                if len(atom.parafacts) > 1:
                    raise NotThere(atom.span)
                *_, last = self._atom(atom, [self._text(term) for term in atom.terms])
                yield f"not {last}"

    def _atom(self, atom: ResolvedAtom, terms: list[str]) -> Iterator[str]:
        if atom.clock or atom.suppressed - set(_AGGREGATES):
            raise NotThere(atom.span)
        yield f"f_{atom.predicate}({','.join(terms)})"
        for parafact in atom.parafacts:
            if parafact.lattice not in _AGGREGATES:
                raise NotThere(parafact.span)
            value = self._text(parafact.terms[0])
            yield f"v(f_{atom.predicate},({','.join(terms)},),{parafact.lattice},{value})"

    def _terms(self, atom: ResolvedAtom) -> list[str]:
        """The terms of an atom, wildcards with names, since they are part of the solution."""
        return [
            f"W{next(self._wildcards)}" if isinstance(term, ast.Wildcard) else self._text(term)
            for term in atom.terms
        ]

    def _text(self, term: ast.Expression) -> str:
        match term:
            case ast.Literal(value=int() as value) if not isinstance(value, bool):
                return str(value)
            case ast.Variable(name=name):
                definition = self._rule.definitions.get(name)
                return f"V_{name}" if definition is None else self._text(definition)
            case ast.Wildcard():
                return "_"
            case ast.Binary(operator=operator, left=left, right=right) if operator in _OPERATORS:
                sides = f"{self._text(left)} {operator.replace('==', '=')} {self._text(right)}"
                return sides if operator in "<=>==!=" else f"({sides})"
        raise NotThere(term)
