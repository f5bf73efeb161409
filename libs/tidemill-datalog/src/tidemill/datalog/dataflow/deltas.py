"""Delta plans: the operators that follow from the change of one collection, in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tidemill.arrangement.interval_updates import AT_MOST, DIFFERENT, EQUAL, LESS, JoinShape
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.plan import Clock, Compute, Filter, Join, Operator, Subtract, Untick
from tidemill.datalog.dataflow.rule_columns import RuleColumns
from tidemill.datalog.dataflow.schema import TIME
from tidemill.datalog.logical.forms import (
    WIDEN,
    AbsentForm,
    Call,
    Constant,
    Expression,
    Type,
    Variable,
    Wildcard,
    clock_time,
    variables_of,
)
from tidemill.datalog.logical.linear import NO_LIMITS, limits_of

Pair: TypeAlias = "tuple[int, int]"

_SIGNS = {
    "<": (LESS, False), "<=": (AT_MOST, False), ">": (LESS, True), ">=": (AT_MOST, True),
    "==": (EQUAL, False), "!=": (DIFFERENT, False),
}  # fmt: skip
"""Comparisons as signs of guards, and whether their sides change places."""


def _with_guard(shape: JoinShape, guard: tuple[int, int, int, int]) -> JoinShape:
    return replace(shape, guards=np.concatenate([shape.guards, np.array([guard], np.int64)]))


class Steps:
    """The operators of one delta plan, in their order, and what is bound so far."""

    def __init__(self, lowering: RuleColumns, absent: int | None) -> None:
        self._of = lowering
        self._absent = absent
        self._older = False
        self._bound: set[int] = set(lowering.constants.values())
        self._done: set[int] = set()
        self._alone: Sequence[Expression] | None = None
        self.begin: JoinShape | None = None
        self.steps: list[Operator] = []

    def judge_only(self, conditions: Sequence[Expression]) -> None:
        """Judge these conditions in the place of the rule's, after all atoms."""
        self._alone = conditions

    def bound_places(self, number: int) -> int:
        """Number of columns of an atom that are known."""
        return sum(column in self._bound for column in self._of.named(number))

    def _bind(self, columns: Iterable[Pair], known: Iterable[int]) -> tuple[list[Pair], ...]:
        """Pairs (match, fact) of columns that are looked up, copied and compared; all are bound."""
        before = set(known)
        keys, copies, checks = list[Pair](), list[Pair](), list[Pair]()
        for column, place in columns:
            if column in before:
                keys.append((column, place))
            elif column in self._bound:
                checks.append((column, place))
            else:
                copies.append((column, place))
                self._bound.add(column)
        return keys, copies, checks

    def atom(self, number: int) -> JoinShape:
        """The shape of a match with an atom; its columns are bound then."""
        of = self._of
        atom = of.atoms[number]
        schema = of.schema(atom.predicate)
        known = 1 << TIME if any(name == "time" for name, _ in atom.lattices) else 0
        asked = {place: term for place, term, _ in of.places(number)}
        matched = [at for at, term in asked.items() if not isinstance(term, Wildcard)]
        keys, copies, checks = self._bind(((of.own[number, at], at) for at in matched), self._bound)
        older: list[tuple[int, int, int, int]] = []
        if of.recurs(number) and self._older:
            copies.append((of.ages[1], schema.age))
            older.append((LESS, *of.ages, 0))
        elif of.recurs(number) and schema.ordered:
            copies.append((of.ages[1], schema.order))
        extra = range(schema.expiry, schema.expiry + 1 + len(schema.lattices) + schema.carrying)
        for place in (*schema.key, *extra):
            column = of.own.get((number, place), -1)
            if column >= 0 and column not in self._bound:
                copies.append((column, place))
                self._bound.add(column)
        return JoinShape(
            pairs(keys), pairs(copies), pairs(checks),
            "time" not in atom.suppressed,
            -1 if "expires" in atom.suppressed else schema.expiry, known,
            np.array(older, np.int64).reshape(-1, 4),
        )  # fmt: skip

    def cover(self, number: int) -> JoinShape:
        """The shape of a match that begins with the values of an atom under `not`."""
        of = self._of
        places = [place for place, _ in of.rule.absent[number].columns()]
        asked = [(of.asked[number, place], at) for at, place in enumerate(places, 1)]
        keys, copies, checks = self._bind(asked, of.constants.values())
        return JoinShape(pairs(keys), pairs(copies), pairs(checks), False, -1)

    def begin_with(self, changed: Sequence[int], absent: int | None) -> None:
        """The first match: with a fact of a changed atom, or with what is under a `not`."""
        if absent is not None:
            self.begin = self.cover(absent)
            return
        self.begin = self.atom(changed[0])
        self._see(changed[0])

    def begin_with_head(self, copies: Sequence[tuple[int, int]]) -> None:
        """The first match: with a fact of the head, from pairs of columns (match, fact).

        In the place of its expiry is an age, which all facts of the recursion have to exceed.
        """
        of = self._of
        schema = of.schema(of.rule.head.predicate)
        self._older = True
        keys, taken, checks = self._bind(copies, of.constants.values())
        known = sum(1 << place for _, place in copies if place == TIME)
        taken.append((of.ages[0], schema.expiry))
        self.begin = JoinShape(pairs(keys), pairs(taken), pairs(checks), False, -1, known)

    def join(self, number: int, changed: bool) -> None:
        """Match one more atom."""
        self._conditions()
        predicate = self._of.atoms[number].predicate
        self.steps.append(Join(predicate, self.atom(number), changed))
        self._see(number)

    def _see(self, number: int) -> None:
        """Add the steps that follow a match with an atom: wider numbers, and values of lattices."""
        of = self._of
        for raw, name in of.widened.get(number, ()):
            column, kind = of.variables[name]
            expression = Call(WIDEN, (Variable(raw),))
            self.steps.append(Compute(expression, column, kind, column in self._bound))
            self._bound.add(column)
        for step in of.seen(number):
            terms = []
            for column, kind, _ in step.terms:
                terms.append((column, kind, column in self._bound))
                if column >= 0:
                    self._bound.add(column)
            self.steps.append(replace(step, terms=tuple(terms)))

    def _conditions(self, all_: bool = False) -> None:
        """The conditions that may be judged now: none before one that may fail, but at the end."""
        of = self._of
        if self._alone is not None:
            self.steps += map(Filter, self._alone) if all_ else ()
            return
        clocks = [atom for atom in of.atoms if atom.is_clock]
        if clocks and not all_:
            return
        for at, condition in enumerate(of.rule.conditions):
            if at in self._done:
                continue
            fallible, columns = of.judged(at)
            if all_ or (not fallible and columns <= self._bound):
                self._done.add(at)
                if not self._guarded(condition):
                    self.steps.append(Filter(condition, self._absent is not None))
            elif fallible:
                return

    def _guarded(self, condition: Expression) -> bool:
        """Whether a condition is a guard of the last match with an atom, nothing since then."""
        guard = self._guard(condition)
        last = self.steps[-1] if self.steps else None
        if guard is None or not (last is None or isinstance(last, Join)):
            return False
        if last is None:
            assert self.begin is not None
            self.begin = _with_guard(self.begin, guard)
        else:
            self.steps[-1] = replace(last, shape=_with_guard(last.shape, guard))
        return True

    def _guard(self, condition: Expression) -> tuple[int, int, int, int] | None:
        """A comparison of whole numbers as a guard: sign, column, other column or -1, word."""
        if not isinstance(condition, Call) or condition.name not in _SIGNS:
            return None
        sign, swapped = _SIGNS[condition.name]
        terms = condition.arguments[::-1] if swapped else condition.arguments
        columns, word = [-1, -1], 0
        for at, term in enumerate(terms):
            if isinstance(term, Variable) and self._of.variables[term.name][1] is Type.INT:
                columns[at] = self._of.variables[term.name][0]
            elif isinstance(term, Constant) and type(term.value) is int:
                word = term.value
            else:
                return None
        return (sign, columns[0], columns[1], word) if max(columns) >= 0 else None

    def _clocks(self) -> None:
        of = self._of
        waiting = [number for number, atom in enumerate(of.atoms) if atom.is_clock]
        settled = self._settled() if waiting else set()
        while waiting:
            number = next(n for n in waiting if self._clock_bound(n, settled))  # S106
            waiting.remove(number)
            self._clock(number, settled)

    def _settled(self) -> set[int]:
        """The columns that facts bind, and constants: not those that only a `not` knows here."""
        of = self._of
        found = set(of.constants.values())
        found |= {column for (n, _), column in of.own.items() if not of.atoms[n].is_clock}
        for number in range(len(of.atoms)):
            found |= {column for step in of.seen(number) for column, _, _ in step.terms}
            found |= {of.variables[name][0] for _, name in of.widened.get(number, ())}
        return found

    def _clock_bound(self, number: int, settled: Collection[int]) -> bool:
        clock = self._of.atoms[number].clock
        assert clock is not None
        names = variables_of(clock[0]) | variables_of(clock[1])
        return all(self._of.variables[name][0] in settled for name in names)

    def _clock(self, number: int, settled: set[int]) -> None:
        """One more clock. It has the limits that it has where no `not` changes."""
        of = self._of
        atom = of.atoms[number]
        assert atom.clock is not None
        time, columns = clock_time(atom), tuple(of.own[number, at] for at in range(3))
        limits, bound = NO_LIMITS, columns[0] in self._bound
        withheld = columns[0] not in settled
        if isinstance(time, Variable) and withheld:
            names = {n for n, (column, _) in of.variables.items() if column in settled}
            limits = limits_of(time.name, of.rule.conditions, names, of.moderate())
        self.steps.append(
            Clock(
                atom.clock[0],
                atom.clock[1],
                (columns[0], columns[1], columns[2]),
                bound,
                limits,
                "time" not in atom.suppressed, self._absent is not None, withheld,
            )
        )  # fmt: skip
        self._bound.update(columns)
        settled.update(columns)

    def finish(self) -> None:
        """Clocks, conditions and the atoms under `not`, but for one whose change this is about."""
        of, absent = self._of, self._absent
        self._clocks()
        self._conditions(all_=True)
        for number, form in enumerate(of.rule.absent):
            if form.is_clock:
                self._untick(number, form)
                continue
            columns, theirs = [], []
            for at, (place, term) in enumerate(form.columns(), 1):
                column = of.asked[number, place]
                kind = of.schema(form.predicate).kind(place)
                if not isinstance(term, Variable | Constant) or (
                    isinstance(term, Variable) and of.variables[term.name][0] != column
                ):
                    silent = absent is not None and absent >= number
                    self.steps.append(Compute(term, column, kind, number == absent, silent))
                columns.append(column)
                theirs.append(at)
            if number != absent:
                name = of.cover(number, form)
                self.steps.append(
                    Subtract(name, np.array(columns, np.int64), np.array(theirs, np.int64))
                )

    def _untick(self, number: int, form: AbsentForm) -> None:
        """A clock under `not`, which fails beside the atoms under `not` that come after it."""
        offset, period = form.expressions()[:2]
        asked = tuple((name, terms[0]) for name, terms in form.lattices)
        silent = self._absent is not None and self._absent >= number
        self.steps.append(Untick(offset, period, asked, silent))


def pairs(found: Sequence[tuple[int, int]]) -> I64Array:
    """Pairs of columns as kernels take them. Shapes: (2, n)."""
    return np.array(found, np.int64).reshape(-1, 2).T.copy()
