"""Rules of which one atom only has to have a fact: its witness, of which the head says nothing.

A match for each pair would be the square of the facts of a key. All pairs of one fact derive the
same here, so it counts when there is any. The rule has two atoms, and conditions that limit one
whole number of the witness: `s < t ^ s >= t - 30000`. The time of the witness does not show
in the head. Its end does only where no other witness ends later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.datalog.dataflow.deltas import Steps, pairs
from tidemill.datalog.dataflow.plan import Begin, Witness
from tidemill.datalog.dataflow.rule_columns import RuleColumns
from tidemill.datalog.dataflow.schema import NUMBERED, TIME
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import (
    AtomForm,
    Call,
    Expression,
    Type,
    Variable,
    clock_time,
    variables_of,
)
from tidemill.datalog.logical.linear import at_most, conjuncts, limits_of

_ALIKE = frozenset({Type.INT, Type.TEXT})
"""Types whose values differ where their words do."""


def witness_of(of: RuleColumns) -> Witness | None:
    """The way of a rule to a witness of one of its atoms; None where it needs all matches.

    Cost: O(text of the rule).
    """
    rule, head = of.rule, of.rule.head
    if len(of.atoms) != 2 or rule.absent or of.in_loop or head.aggregates or not rule.deductive:
        return None
    if any(atom.is_clock or atom.predicate.startswith("#") for atom in of.atoms):
        return None
    scope = of.moderate()
    if of.schema(head.predicate).carrying or any(map(scope.fallible, _of_head(of))):
        return None
    for number in (1, 0):
        found = _Looking(of, number, scope).witness()
        if found is not None:
            return found
    return None


def _of_head(of: RuleColumns) -> Iterable[Expression]:
    head = of.rule.head
    return (*head.terms, *head.time, *head.expires)


@dataclass(slots=True)
class _Found:
    """Conditions of a rule: those on the other atom alone, and limits of the witness."""

    limited: str = ""
    low: list[Expression] = field(default_factory=list)
    high: list[Expression] = field(default_factory=list)
    conditions: list[Expression] = field(default_factory=list)
    apart: list[tuple[str, str]] = field(default_factory=list)


class _Looking:
    """A rule of which the atom `number` is to be a witness of the other one."""

    def __init__(self, of: RuleColumns, number: int, scope: TypeEnvironment) -> None:
        self._of = of
        self._number = number
        self._scope = scope
        self._mine = set(of.atoms[1 - number].variables())
        self._theirs = set(of.atoms[number].variables()) - self._mine

    def witness(self) -> Witness | None:
        of, number, atom = self._of, self._number, self._of.atoms[self._number]
        named = {name for each in _of_head(of) for name in variables_of(each)}
        if named & self._theirs or of.program.passed(of.rule, atom):
            return None
        if not all(map(self._is_plain, (0, 1))):
            return None
        found = self._conditions()
        if found is None or not (found.limited or found.apart):
            return None  # rows of one key are few or alike: both sides need not be kept twice
        if not self._is_time_ours(found):
            return None
        return self._plan(number, found)

    def _is_plain(self, number: int) -> bool:
        """Whether a match with an atom is a comparison of words."""
        of, atom = self._of, self._of.atoms[number]
        if any(name != "time" for name, _ in atom.lattices):
            return False
        if of.widened.get(number) or of.typed.get(number) or list(of.seen(number)):
            return False
        return not any(kind in NUMBERED for _, _, kind in of.places(number))

    def _conditions(self) -> _Found | None:
        """None for a condition that is none of these, or may fail."""
        found = _Found()
        for part in (each for whole in self._of.rule.conditions for each in conjuncts(whole)):
            names = variables_of(part) & self._theirs
            if self._scope.fallible(part):
                return None
            if not names:
                found.conditions.append(part)
            elif not self._apart(part, found) and not self._limits(part, names, found):
                return None
        return found

    def _apart(self, part: Expression, found: _Found) -> bool:
        """Whether a condition says that a column of both is not the same."""
        if not isinstance(part, Call) or part.name != "!=":
            return False
        names = [each.name for each in part.arguments if isinstance(each, Variable)]
        names.sort(key=self._theirs.__contains__)
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
        ours, theirs = of.atoms[1 - self._number], of.atoms[self._number]
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

    def _plan(self, number: int, found: _Found) -> Witness | None:
        of = self._of
        steps = Steps(of, None)
        steps.begin_with((1 - number,), None)
        assert steps.begin is not None
        shape = steps.atom(number)
        ours, theirs = of.atoms[1 - number], of.atoms[number]
        own = {
            column: place
            for (each, place), column in of.own.items()
            if each == number and column in shape.copies[0].tolist()
        }  # fmt: skip
        if not self._is_free(theirs, shape.keys[1].tolist()):
            return None
        words = of.template()
        words[-1] |= sum(1 << column for column in own)

        def column(name: str) -> int:
            return of.variables[name][0]

        copied = dict(zip(*shape.copies.tolist(), strict=True))
        expiring = shape.expiring if not of.rule.head.expires else -1
        if "expires" in of.rule.head.suppressed:
            expiring = -1
        return Witness(
            left=ours.predicate,
            right=theirs.predicate,
            begin=Begin(words, steps.begin),
            conditions=tuple(found.conditions),
            keys=shape.keys,
            same=pairs([(copied[mine], other) for mine, other in shape.checks.T.tolist()]),
            apart=pairs([(column(mine), copied[column(other)]) for mine, other in found.apart]),
            known=shape.known,
            rank=copied[column(found.limited)] if found.limited else -1,
            low=tuple(found.low),
            high=tuple(found.high),
            expiring=expiring,
            numbers=tuple(sorted(column(n) for n in self._mine if of.variables[n][1] is Type.INT)),
            limited=column(found.limited) if found.limited else -1,
            own=tuple(sorted(own)),
        )

    def _is_free(self, atom: AtomForm, known: list[int]) -> bool:
        """Whether several facts of an atom may agree with one match."""
        of = self._of
        schema = of.schema(atom.predicate)
        places = [at for at in schema.key if at != TIME or of.program.timed(atom.predicate)]
        return any(place not in known for place in places)
