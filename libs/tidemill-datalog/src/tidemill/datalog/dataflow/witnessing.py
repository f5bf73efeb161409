"""Rules of which some atoms only have to have a fact: a witness, of which the head says nothing.

A match for each pair would be the square of the facts of a key. All pairs of one fact derive the
same here, so it counts when there is any. A rule has one atom of which its head tells, atoms under
`not` that ask for its values, and others that are witnesses. Conditions limit one whole number of
each witness: `s < t ^ s >= t - 30000`. The time of a witness does not show in the head. Its end
does only where no other witness ends later. An aggregate that a match adds to but once is such a
head too, where no witness ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import starmap

from tidemill.arrangement.interval_updates import JoinShape
from tidemill.datalog.dataflow.deltas import Steps, pairs
from tidemill.datalog.dataflow.plan import DeltaPlan, Witness, WitnessSide
from tidemill.datalog.dataflow.rule_columns import RuleColumns
from tidemill.datalog.dataflow.schema import NUMBERED, TIME
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import (
    AbsentForm,
    Call,
    Constant,
    Expression,
    Type,
    Variable,
    clock_time,
    variables_of,
)
from tidemill.datalog.logical.linear import at_most, conjuncts, limits_of

_ALIKE = frozenset({Type.INT, Type.TEXT})
"""Types whose values differ where their words do."""
_IDEMPOTENT = frozenset({"min", "max", "earliest", "latest", "set", "count_distinct"})
"""Lattices to which a match that comes again adds nothing."""
_ATOMS_MAX = 8
"""Atoms of a rule that are looked at as witnesses: time is the square of their number."""


def witness_of(of: RuleColumns) -> Witness | None:
    """The way of a rule to witnesses of all atoms but one; None where it needs all matches.

    Cost: O(text of the rule, for each of its atoms).
    """
    rule, head = of.rule, of.rule.head
    if not 1 < len(of.atoms) <= _ATOMS_MAX or of.in_loop or not rule.deductive:
        return None
    if not all(name in _IDEMPOTENT for name, _ in head.lattices):
        return None
    if any(atom.is_clock or atom.predicate.startswith("#") for atom in of.atoms):
        return None
    scope = of.moderate()
    if of.schema(head.predicate).carrying or any(map(scope.fallible, _of_head(of))):
        return None
    for number in range(len(of.atoms)):
        found = _Looking(of, number, scope).witness()
        if found is not None:
            return found
    return None


def _of_head(of: RuleColumns) -> Iterable[Expression]:
    head = of.rule.head
    values = (term for _, terms in head.lattices for term in terms)
    return (*head.terms, *head.time, *head.expires, *values)


@dataclass(slots=True)
class _Found:
    """A witness: its atom, the variables that no other atom has, and what limits it."""

    number: int
    names: frozenset[str]
    limited: str = ""
    low: list[Expression] = field(default_factory=list)
    high: list[Expression] = field(default_factory=list)
    apart: list[tuple[str, str]] = field(default_factory=list)


class _Looking:
    """A rule of which all atoms but the one with a number are to be witnesses."""

    def __init__(self, of: RuleColumns, number: int, scope: TypeEnvironment) -> None:
        self._of = of
        self._number = number
        self._scope = scope
        self._mine = set(of.atoms[number].variables())
        self._conditions: list[Expression] = []
        """Those on the one atom alone."""
        self._found = [
            _Found(other, frozenset(set(atom.variables()) - self._mine))
            for other, atom in enumerate(of.atoms)
            if other != number
        ]
        self._theirs = {name for each in self._found for name in each.names}

    def witness(self) -> Witness | None:
        of, theirs = self._of, self._theirs
        named = {name for each in _of_head(of) for name in variables_of(each)}
        named |= {name for absent in of.rule.absent for name in _asked(absent)}
        if named & theirs or not all(map(self._is_plain, range(len(of.atoms)))):
            return None
        if any(of.program.passed(of.rule, of.atoms[each.number]) for each in self._found):
            return None
        if sum(len(each.names) for each in self._found) > len(theirs):
            return None  # two witnesses have to do with each other
        if not (self._are_asked_as_they_are() and self._are_judged() and self._has_ends()):
            return None
        if not all(map(self._is_time_ours, self._found)):
            return None
        plan = self._plan()
        if plan is not None and of.rule.head.aggregates:
            # NB: a group ends with the first of all pairs, and a match with the last witness.
            return None if any(side.expiring >= 0 for side in plan.sides) else plan
        return plan

    def _are_asked_as_they_are(self) -> bool:
        """Whether atoms under `not` ask for values of columns, by which no match fails."""
        of = self._of
        for number, absent in enumerate(of.rule.absent):
            if absent.is_clock:
                return False
            for place, term in absent.columns():
                known = term.name if isinstance(term, Variable) else ""
                column = of.variables[known][0] if known else of.asked[number, place]
                if not isinstance(term, Variable | Constant) or column != of.asked[number, place]:
                    return False
        return True

    def _has_ends(self) -> bool:
        """Whether time and end of the head are no nulls: each pair would be an error of its own."""
        head = self._of.rule.head
        times = (clock_time(atom) for atom in self._of.atoms)
        known = {term.name for term in times if isinstance(term, Variable)}
        return all(set(variables_of(each)) <= known for each in (*head.time, *head.expires))

    def _is_plain(self, number: int) -> bool:
        """Whether a match with an atom is a comparison of words."""
        of, atom = self._of, self._of.atoms[number]
        if any(name != "time" for name, _ in atom.lattices):
            return False
        if of.widened.get(number) or of.typed.get(number) or list(of.seen(number)):
            return False
        return not any(kind in NUMBERED for _, _, kind in of.places(number))

    def _are_judged(self) -> bool:
        """Whether each condition never fails, and is of the one atom or limits one witness."""
        for part in (each for whole in self._of.rule.conditions for each in conjuncts(whole)):
            if self._scope.fallible(part):
                return False
            names = variables_of(part) & self._theirs
            if not names:
                self._conditions.append(part)
                continue
            found = next((each for each in self._found if names <= each.names), None)
            if found is None:
                return False
            if not self._apart(part, found) and not self._limits(part, names, found):
                return False
        return True

    def _apart(self, part: Expression, found: _Found) -> bool:
        """Whether a condition says that a column of both is not the same."""
        if not isinstance(part, Call) or part.name != "!=":
            return False
        names = [each.name for each in part.arguments if isinstance(each, Variable)]
        names.sort(key=found.names.__contains__)
        kinds = {self._of.variables[name][1] for name in names}
        if len(names) != 2 or names[0] not in self._mine or len(kinds) > 1 or not kinds <= _ALIKE:
            return False
        found.apart.append((names[0], names[1]))
        return True

    def _limits(self, part: Expression, names: Iterable[str], found: _Found) -> bool:
        """Whether a condition limits the one number of the witness that is limited."""
        (name, *others) = names
        if others or found.limited not in ("", name):
            return False
        limits = limits_of(name, (part,), self._mine, self._scope)
        found.limited = name
        found.low += limits.low
        found.high += limits.high
        written = (*limits.low, *limits.high)
        return bool(written) and not any(map(self._scope.fallible, written))

    def _is_time_ours(self, found: _Found) -> bool:
        """Whether the time of the head never is that of the witness."""
        of, head = self._of, self._of.rule.head
        ours, theirs = of.atoms[self._number], of.atoms[found.number]
        if head.time or "time" in head.suppressed or "time" in theirs.suppressed:
            return True
        if not of.program.timed(theirs.predicate):
            return True
        time, other = clock_time(ours), clock_time(theirs)
        if "time" in ours.suppressed or not isinstance(time, Variable):
            return False
        if not isinstance(other, Variable):
            return False
        if other.name == time.name:
            return True
        limited = other.name == found.limited
        return limited and any(at_most(each, time.name, self._scope) for each in found.high)

    def _plan(self) -> Witness | None:
        of, found = self._of, self._found
        shapes = [self._shape(each) for each in found]
        if not any(
            (each.limited or each.apart) and self._is_free(each, shape.keys[1].tolist())
            for each, shape in zip(found, shapes, strict=True)
        ):
            return None  # rows of one key are few or alike: both sides need not be kept twice
        own = {
            column
            for each, shape in zip(found, shapes, strict=True)
            for (number, _), column in of.own.items()
            if number == each.number and column in shape.copies[0].tolist()
        }
        whole = (name for name in self._mine if of.variables[name][1] is Type.INT)
        return Witness(
            left=tuple(self._left(each) for each in (None, *range(len(of.rule.absent)))),
            sides=tuple(starmap(self._side, zip(found, shapes, strict=True))),
            numbers=tuple(sorted(of.variables[name][0] for name in whole)),
            limited=tuple(of.variables[each.limited][0] for each in found if each.limited),
            own=tuple(sorted(own)),
        )

    def _left(self, absent: int | None) -> DeltaPlan:
        """From a change of the one atom, or of an atom under `not`, to matches of both."""
        of, steps = self._of, Steps(self._of, absent)
        steps.judge_only(self._conditions)
        steps.begin_with((self._number,), absent)
        source = of.atoms[self._number].predicate
        if absent is not None:
            steps.join(self._number, False)
            source = of.cover(absent, of.rule.absent[absent])
        steps.finish()
        assert steps.begin is not None
        sign = 1 if absent is None else -1
        return DeltaPlan(source, sign, steps.begin, tuple(steps.steps))

    def _shape(self, found: _Found) -> JoinShape:
        """The shape of a match with a witness."""
        steps = Steps(self._of, None)
        steps.begin_with((self._number,), None)
        return steps.atom(found.number)

    def _side(self, found: _Found, shape: JoinShape) -> WitnessSide:
        of = self._of
        head = of.rule.head
        own = bool(head.expires) or "expires" in head.suppressed
        expiring = -1 if own else shape.expiring
        copied = dict(zip(*shape.copies.tolist(), strict=True))

        def column(name: str) -> int:
            return of.variables[name][0]

        return WitnessSide(
            right=of.atoms[found.number].predicate,
            keys=shape.keys,
            same=pairs([(copied[mine], other) for mine, other in shape.checks.T.tolist()]),
            apart=pairs([(column(mine), copied[column(other)]) for mine, other in found.apart]),
            known=shape.known,
            rank=copied[column(found.limited)] if found.limited else -1,
            low=tuple(found.low),
            high=tuple(found.high),
            expiring=expiring,
        )

    def _is_free(self, found: _Found, known: list[int]) -> bool:
        """Whether several facts of an atom may agree with one match."""
        of, predicate = self._of, self._of.atoms[found.number].predicate
        places = [
            at for at in of.schema(predicate).key if at != TIME or of.program.timed(predicate)
        ]
        return any(place not in known for place in places)


def _asked(absent: AbsentForm) -> Iterable[str]:
    """The variables of an atom under `not`."""
    return (name for each in absent.expressions() for name in variables_of(each))
