"""Matches of one rule at one instant, by interpretation: for explanations, with few facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.instants import expiry, tick_at, ticks, usable_clock
from tidemill.datalog.logical.expressions import Evaluate, TypeEnvironment, evaluating
from tidemill.datalog.logical.forms import (
    AbsentForm,
    AtomForm,
    Constant,
    Expression,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    variables_of,
)
from tidemill.datalog.presence import BEGINNING, END, Instant, Interval, normalise
from tidemill.datalog.records import Blank
from tidemill.datalog.tables import (
    ANY_VALUE,
    EXPIRES,
    FIRST,
    PARAFACTS,
    START,
    STOP,
    TIME,
    Key,
    Row,
    Table,
    rows_like,
)
from tidemill.datalog.values import FLOAT_EXACT_MAX, Failed, Value, equal, widen
from tidemill.datalog.vocabulary import Vocabulary

Bindings = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Match:
    """One fact for each positive atom, and what they bind."""

    rows: tuple[Row, ...]
    bound: Bindings

    @property
    def keys(self) -> tuple[Key, ...]:
        """The facts, without their parafacts."""
        return tuple(row[TIME:] for row in self.rows)


class Matcher:
    """Finds matches over tables that hold the facts of one instant.

    `last` is the latest tick of a clock that may match. Each fact that is tried is a look at the
    allowance, so that looking ends once it is called off. `tables` is to hold its keeper weakly, so
    that all of them are gone with their last user.
    """

    def __init__(
        self,
        tables: Callable[[str], Table],
        vocabulary: Vocabulary,
        last: int,
        allowance: Allowance,
    ) -> None:
        self._tables = tables
        self._scope = TypeEnvironment({}, {}, vocabulary.functions, vocabulary.lattices)
        self._compiled: dict[int, tuple[Expression, Evaluate]] = {}
        self._last = last
        self._allowance = allowance

    def matches(self, form: RuleForm, bound: Mapping[str, Value]) -> Iterator[Match]:
        """Every match of the rule's positive atoms that fulfils its conditions and its absences.

        Matches whose evaluation fails are left out: they derive nothing.
        """
        for match in self.atoms_match(form, dict(bound), range(len(form.atoms))):
            if self.conditions_hold(form, match.bound) and self.blocker(form, match.bound) is None:
                yield match

    def matches_of(self, form: RuleForm, i: int, row: Row) -> Iterator[Match]:
        """Every match, as `matches` gives it, that has a row as the fact of an atom."""
        bound = self.agree(form, form.atoms[i], row, {})
        if bound is None or not self._possible(form, bound, {}):
            return
        others = [j for j in range(len(form.atoms)) if j != i]
        for match in self.atoms_match(form, bound, others, {i: row}):
            if self.conditions_hold(form, match.bound) and self.blocker(form, match.bound) is None:
                yield match

    def conditions_hold(self, form: RuleForm, bound: Mapping[str, Value]) -> bool:
        """Whether every condition is true; one that fails is not."""
        try:
            return all(self.value(condition, bound) is True for condition in form.conditions)
        except Failed:
            return False

    def atoms_match(
        self,
        form: RuleForm,
        bound: Bindings,
        atoms: Sequence[int],
        given: Mapping[int, Row] = MappingProxyType({}),
    ) -> Iterator[Match]:
        """Every match of some atoms, by values alone, beside the rows that others are given.

        Conditions are tried as soon as they can be.
        """
        return self._extended(form, dict(given), atoms, bound)

    def _extended(
        self, form: RuleForm, rows: dict[int, Row], waiting: Sequence[int], known: Bindings
    ) -> Iterator[Match]:
        if not waiting:
            yield Match(tuple(rows[i] for i in range(len(form.atoms))), known)
            return
        i = self._next(form, waiting, known)
        rest = [j for j in waiting if j != i]
        for row, further in self.candidates(form, i, known):
            if self._possible(form, further, known):
                rows[i] = row
                yield from self._extended(form, rows, rest, further)

    def _next(self, form: RuleForm, waiting: Sequence[int], known: Bindings) -> int:
        """The atom with the most bound columns; a clock once its arguments are bound."""

        def rank(i: int) -> tuple[int, int, int]:
            atom = form.atoms[i]
            if atom.clock is not None:
                needs = variables_of(atom.clock[0]) | variables_of(atom.clock[1])
                return (1 if needs <= known.keys() else 2, 0, i)
            bound = sum(
                isinstance(term, Constant) or (isinstance(term, Variable) and term.name in known)
                for term in atom.every_term()
            )
            return (0, -bound, i)

        return min(waiting, key=rank)

    def _possible(self, form: RuleForm, bound: Bindings, before: Bindings) -> bool:
        """Whether the conditions that have just become decidable hold."""
        for condition in form.conditions:
            needs = variables_of(condition)
            if needs <= bound.keys() and not needs <= before.keys():
                try:
                    if self.value(condition, bound) is not True:
                        return False
                except Failed:
                    return False
        return True

    def candidates(self, form: RuleForm, i: int, bound: Bindings) -> Iterator[tuple[Row, Bindings]]:
        """The facts that agree with an atom, each with the bindings it adds."""
        atom = form.atoms[i]
        rows = self._ticks(atom, bound) if atom.clock is not None else self._rows(atom, bound)
        for row in rows:
            self._allowance.take(0)
            further = self.agree(form, atom, row, bound)
            if further is not None:
                yield row, further

    def _rows(self, atom: AtomForm, bound: Mapping[str, Value]) -> Sequence[Row]:
        table = self._tables(atom.predicate)
        positions: list[int] = []
        key: list[Value] = []
        for position, term in enumerate(atom.terms, 1):
            if isinstance(term, Constant):
                positions.append(position)
                key.append(term.value)
            elif isinstance(term, Variable) and term.name in bound:
                positions.append(position)
                key.append(bound[term.name])
        if not positions:
            return list(table.rows)
        index = table.index(tuple(positions))
        return index.get(key[0] if len(key) == 1 else tuple(key), [])

    def _ticks(self, atom: AtomForm, bound: Mapping[str, Value]) -> Iterator[Row]:
        assert atom.clock is not None
        try:
            offset, period = usable_clock(*(self.value(term, bound) for term in atom.clock))
        except (Failed, KeyError):
            return
        times: Sequence[int] | Any = ticks(offset, period, None, self._last)
        for name, terms in atom.lattices:
            if name == "time":
                term = terms[0]
                if isinstance(term, Constant):
                    times = tick_at(offset, period, term.value, self._last + 1)
                elif isinstance(term, Variable) and term.name in bound:
                    times = tick_at(offset, period, bound[term.name], self._last + 1)
        for time in times:
            yield clock_row(offset, period, time)

    def agree(
        self, form: RuleForm, atom: AtomForm, row: Row, bound: Mapping[str, Value]
    ) -> Bindings | None:
        """The bindings with those that the row adds, None if it does not match the atom."""
        further = dict(bound)
        pairs: list[tuple[Term, Value]] = list(zip(atom.terms, row[FIRST:], strict=False))
        for name, terms in atom.lattices:
            values = self.parafact(row, name)
            if values is None:
                return None
            pairs += zip(terms, values, strict=True)
        for term, value in pairs:
            if isinstance(term, Constant) and not equal(term.value, value):
                return None
            if isinstance(term, Variable):
                typed = widen(value) if form.types.get(term.name) is Type.FLOAT else value
                if term.name in further and not equal(further[term.name], typed):
                    return None
                further.setdefault(term.name, typed)
        return further

    def parafact(self, row: Row, name: str) -> tuple[Value, ...] | None:
        """The observed value of a row's lattice, None if the row does not carry it."""
        if name == "time":
            return None if row[TIME] is None else (row[TIME],)
        if name == "expires":
            return (row[EXPIRES],)
        return observed(row[PARAFACTS], name)

    def blocker(self, form: RuleForm, bound: Mapping[str, Value]) -> tuple[int, Row] | None:
        """The first atom under `not` with a fact that matches it, and that fact."""
        for number, absent in enumerate(form.absent):
            try:
                row = next(self._blocking(absent, bound), None)
            except Failed:
                return number, (0, END, END, None, None)
            if row is not None:
                return number, row
        return None

    def blocked(self, form: RuleForm, bound: Mapping[str, Value]) -> list[Interval]:
        """When facts match some atom under `not`; always, where that cannot be told."""
        found: list[Interval] = []
        try:
            for absent in form.absent:
                rows = self._blocking(absent, bound)
                # Of a clock the first event is there for ever.
                found += [
                    (r[START], r[STOP]) for r in (islice(rows, 1) if absent.is_clock else rows)
                ]
        except Failed:
            return [(BEGINNING, END)]
        return normalise(found)

    def _blocking(self, absent: AbsentForm, bound: Mapping[str, Value]) -> Iterator[Row]:
        wanted = [self.wanted(term, bound) for term in absent.terms]
        lattices = [
            (name, [self.wanted(term, bound) for term in terms]) for name, terms in absent.lattices
        ]
        if absent.is_clock:
            offset, period = usable_clock(wanted[0], wanted[1])
            rows: Sequence[Row] | Any = (
                clock_row(offset, period, time) for time in ticks(offset, period, None, self._last)
            )
        else:
            rows = rows_like(self._tables(absent.predicate), wanted, absent.widened)
        for row in rows:
            self._allowance.take(0)
            shown = [(self.parafact(row, name), terms) for name, terms in lattices]
            if all(values is not None and _same(terms, values) for values, terms in shown):
                yield row

    def wanted(self, term: Expression | Wildcard, bound: Mapping[str, Value]) -> Any:
        """The value an absence asks for, ANY_VALUE for `_`."""
        return ANY_VALUE if isinstance(term, Wildcard) else self.value(term, bound)

    def value(self, expression: Expression, bound: Mapping[str, Value]) -> Value:
        """The value of an expression. Raises: Failed."""
        known = self._compiled.get(id(expression))
        if known is None:
            known = expression, evaluating(expression, self._scope)
            self._compiled[id(expression)] = known
        return known[1](bound)  # type: ignore[no-any-return]  # a value, as operators give it


def observed(parafacts: Iterable[tuple[str, Any]], name: str) -> tuple[Value, ...] | None:
    """The values of one lattice among parafacts as they are seen; None without it."""
    for mine, value in parafacts or ():
        if mine == name:
            return value if isinstance(value, tuple) else (value,)
    return None


def _same(wanted: Sequence[Any], values: Sequence[Value]) -> bool:
    return all(
        each is ANY_VALUE or equal(each, value) for each, value in zip(wanted, values, strict=True)
    )


def clock_row(offset: int, period: int, time: int) -> Row:
    """A clock event as a row."""
    return (time, END, END, None, time, offset, period)


def head_bindings(form: RuleForm, arguments: Sequence[Value], time: int | None) -> Bindings | None:
    """Values of a rule's variables in a derived fact, None if the head cannot be it.

    Only lone variables and constants are read; other expressions are compared after the match.
    """
    bound: Bindings = {}
    pairs: list[tuple[Expression, Value]] = list(zip(form.head.terms, arguments, strict=True))
    if len(form.head.time) == 1:
        if time is None:
            return None
        pairs.append((form.head.time[0], time))
    for expression, value in pairs:
        if isinstance(value, Blank):
            continue
        if isinstance(expression, Constant) and not equal(expression.value, value):
            return None
        if isinstance(expression, Variable):
            if type(value) is float and form.types.get(expression.name) is Type.INT:
                if not value.is_integer():
                    return None
                if abs(value) >= FLOAT_EXACT_MAX:
                    continue  # of several whole numbers that became this one
                value = int(value)
            if expression.name in bound and not equal(bound[expression.name], value):
                return None
            bound[expression.name] = value
    return bound


def derived_time(form: RuleForm, match: Match, matcher: Matcher) -> int | None:
    """The time that a match gives the head: written, or the latest that a fact passes."""
    if form.head.time:
        times = [matcher.value(expression, match.bound) for expression in form.head.time]
        return max(time for time in times if isinstance(time, int))
    if "time" in form.head.suppressed:
        return None
    passed = [
        row[TIME]
        for atom, row in zip(form.atoms, match.rows, strict=True)
        if "time" not in atom.suppressed and row[TIME] is not None
    ]
    return max(passed, default=None)


def own_expiry(form: RuleForm, match: Match, matcher: Matcher) -> Instant:
    """The end that a match gives the head: the least of those written; none without.

    Raises: Failed.
    """
    ends = [matcher.value(expression, match.bound) for expression in form.head.expires]
    return min((expiry(end) for end in ends), default=END)


def derives(form: RuleForm, match: Match, matcher: Matcher, arguments: Sequence[Value]) -> bool:
    """Whether the head of a match has these arguments; a head that fails derives nothing."""
    try:
        found = [matcher.value(expression, match.bound) for expression in form.head.terms]
    except Failed:
        return False
    return all(equal(a, b) for a, b in zip(found, arguments, strict=True))
