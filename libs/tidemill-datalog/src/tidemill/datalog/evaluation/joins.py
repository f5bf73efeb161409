"""Join plans: in which order the atoms of a rule are matched, through which index, and what is
checked when.

The answer never depends on the plan; the text of an error does depend on the order of the
conditions, so a condition is placed only after every earlier condition that may fail (language.md
9.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.datalog.logical.expressions import Scope, type_of
from tidemill.datalog.logical.forms import (
    AtomForm,
    Call,
    Constant,
    Expression,
    RuleForm,
    Type,
    Variable,
    clock_time,
    variables_of,
)
from tidemill.datalog.logical.linear import NO_LIMITS, Limits, limits_of
from tidemill.datalog.tables import Readable

_TICKS_UNLIMITED = 1e9
_RANGE_ROWS_MIN = 16
LOWER = "#lower"  # the lower end of the window, as a variable of conditions


@dataclass(frozen=True, slots=True)
class Probe:
    """One column that is known before an atom is matched: its position and the expression it
    equals.

    `condition` is the index of the condition it comes from, None for a term of the atom itself.
    """

    position: int
    value: Expression
    condition: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """How one atom is matched after the steps before it."""

    atom: int
    probes: tuple[Probe, ...] = ()
    range_column: int | None = None
    limits: Limits = NO_LIMITS
    conditions: tuple[int, ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """The columns of the index."""
        return tuple(probe.position for probe in self.probes)

    @property
    def match_probes(self) -> tuple[Probe, ...]:
        """The probes that belong to the match itself, without conditions."""
        return tuple(probe for probe in self.probes if probe.condition is None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a join; `first` are conditions without variables; `fallible` those that may
    fail.

    `valid_clocks` are the atoms whose clock arguments are known to be usable.
    """

    steps: tuple[Step, ...]
    first: tuple[int, ...]
    fallible: frozenset[int]
    valid_clocks: frozenset[int]


class Planner:
    """Plans one rule for the tables as they are now.

    `extra` are conditions that every solution of interest fulfils, read for bounds only. Of atoms
    that cost the same the `preferred` ones come first, in their order, then the others in the order
    of the text.
    """

    def __init__(
        self,
        form: RuleForm,
        tables: Mapping[int, Readable],
        scope: Scope,
        delta: int | None,
        extra: Sequence[Expression] = (),
        preferred: Sequence[int] = (),
    ) -> None:
        self._form = form
        self._rank = {atom: rank for rank, atom in enumerate(preferred)}
        self._extra = extra
        self._tables = tables
        self._scope = scope
        self._delta = delta
        self._names = [frozenset(atom.variables()) for atom in form.atoms]
        self._needs = [variables_of(condition) for condition in form.conditions]
        self._fallible = frozenset(
            i for i, condition in enumerate(form.conditions) if scope.fallible(condition)
        )
        self._valid_clocks = frozenset(
            i for i, atom in enumerate(form.atoms) if atom.clock and self._usable(atom.clock)
        )
        self._doubtful_clocks = {
            i for i, atom in enumerate(form.atoms) if atom.is_clock and i not in self._valid_clocks
        }
        self._bound: set[str] = set()
        self._placed: set[int] = set()

    def plan(self) -> Plan:
        """The plan: greedy, the atom with the fewest expected rows next."""
        waiting = list(range(len(self._form.atoms)))
        first = self._place()
        steps: list[Step] = []
        while waiting:
            if not steps and self._delta is not None:
                chosen = self._delta
            else:
                most = len(self._form.atoms)
                chosen = min(
                    waiting, key=lambda i: (self._cost(i, waiting), self._rank.get(i, most), i)
                )
            waiting.remove(chosen)
            self._doubtful_clocks.discard(chosen)
            step = self._step(chosen)
            self._bound |= self._names[chosen]
            self._placed |= {p.condition for p in step.probes if p.condition is not None}
            conditions = self._place()
            steps.append(Step(step.atom, step.probes, step.range_column, step.limits, conditions))
        return Plan(tuple(steps), first, self._fallible, self._valid_clocks)

    def _usable(self, clock: tuple[Expression, Expression]) -> bool:
        ranges = [self._scope.bounds_of(argument) for argument in clock]
        if any(type_of(argument, self._scope.types) is not Type.INT for argument in clock):
            return False
        if any(known is None or known.nullable for known in ranges):
            return False
        period = ranges[1]
        return period is not None and period.low > 0

    def _place(self) -> tuple[int, ...]:
        """The conditions that can be evaluated now, in their order."""
        ready: list[int] = []
        if self._doubtful_clocks:
            return ()  # a clock that cannot be used is an error before any condition
        for i, needs in enumerate(self._needs):
            if i in self._placed:
                continue
            if needs <= self._bound:
                ready.append(i)
                self._placed.add(i)
            elif i in self._fallible:
                break
        return tuple(ready)

    def _open(self, i: int) -> bool:
        """Whether everything before condition `i` that may fail has been evaluated."""
        if self._doubtful_clocks:
            return False
        return all(j in self._placed for j in self._fallible if j < i)

    def _cost(self, i: int, waiting: Sequence[int]) -> float:
        atom = self._form.atoms[i]
        if atom.clock is not None:
            return self._clock_cost(atom, i, waiting)
        table = self._tables[i]
        rows = len(table.rows)
        probes = self._probes(i)
        distinct = 1
        for probe in probes:
            distinct *= table.distinct(probe.position)
        expected = rows / max(1, min(distinct, rows))
        if self._bound and not probes:
            expected *= 4  # a product with what is matched already
        if expected > _RANGE_ROWS_MIN and self._range(i)[0] is not None:
            expected /= 10
        return expected

    def _clock_cost(self, atom: AtomForm, i: int, waiting: Sequence[int]) -> float:
        assert atom.clock is not None
        needs = variables_of(atom.clock[0]) | variables_of(atom.clock[1])
        if not needs <= self._bound:
            return float("inf")
        others = any(not self._form.atoms[j].is_clock for j in waiting)
        if self._doubtful_clocks:
            return (
                float("inf") if others else 0.0
            )  # clocks in the order of the text: the first fails
        time = clock_time(atom)
        if not isinstance(time, Variable) or time.name in self._bound:
            return 1.0 if time is not None else _TICKS_UNLIMITED
        limits = self._limits(time.name)
        return 2.0 if limits.both else _TICKS_UNLIMITED

    def _limits(self, variable: str) -> Limits:
        """Bounds from the guards and conditions that may be read now."""
        conditions = (*self._form.conditions, *self._extra)
        readable = [condition for i, condition in enumerate(conditions) if self._open(i)]
        return limits_of(variable, readable, self._bound | {LOWER}, self._scope)

    def _probes(self, i: int) -> tuple[Probe, ...]:
        atom = self._form.atoms[i]
        if atom.is_clock:
            return ()
        probes: list[Probe] = []
        columns = _columns(atom)
        for position, term in columns:
            if (i, position) in self._scope.inexact:
                continue
            if isinstance(term, Constant) or (
                isinstance(term, Variable) and term.name in self._bound
            ):
                probes.append(Probe(position, term))
        known = {probe.position for probe in probes}
        for position, term in columns:
            if (
                position not in known
                and isinstance(term, Variable)
                and (i, position) not in self._scope.inexact
            ):
                probe = self._probe_of_condition(position, term.name)
                if probe is not None:
                    probes.append(probe)
                    known.add(position)
        probes.sort(key=lambda probe: probe.position)
        return tuple(probes)

    def _probe_of_condition(self, position: int, variable: str) -> Probe | None:
        for i, condition in enumerate(self._form.conditions):
            if i in self._placed or not isinstance(condition, Call) or condition.name != "==":
                continue
            for mine, other in (condition.arguments, tuple(reversed(condition.arguments))):
                if (
                    isinstance(mine, Variable)
                    and mine.name == variable
                    and variable not in variables_of(other)
                    and variables_of(other) <= self._bound
                    and type_of(other, self._scope.types)
                    is self._scope.types.get(variable)
                    is not Type.ANY
                    and self._open(i)
                ):
                    return Probe(position, other, i)
        return None

    def _range(self, i: int) -> tuple[int | None, Limits]:
        """A column of the atom that the guards bound, and its bounds."""
        if self._tables[i].grows:
            return None, Limits()
        best: tuple[int | None, Limits] = None, Limits()
        for position, term in _columns(self._form.atoms[i]):
            if (
                isinstance(term, Variable)
                and term.name not in self._bound
                and (i, position) not in self._scope.inexact
            ):
                limits = self._limits(term.name)
                if limits.both:
                    return position, limits
                if limits and best[0] is None:
                    best = position, limits
        return best

    def _step(self, i: int) -> Step:
        atom = self._form.atoms[i]
        if atom.clock is not None:
            time = clock_time(atom)
            if isinstance(time, Variable) and time.name not in self._bound:
                return Step(i, limits=self._limits(time.name))
            return Step(i)
        if i == self._delta:
            return Step(i)
        probes = self._probes(i)
        if len(self._tables[i].rows) > _RANGE_ROWS_MIN:
            column, limits = self._range(i)
            if column is not None:
                return Step(i, probes, column, limits)
        return Step(i, probes)


def _columns(atom: AtomForm) -> list[tuple[int, Expression | object]]:
    """The terms that stand for columns of the key, each with its position."""
    columns: list[tuple[int, Expression | object]] = [
        (position, term) for position, term in enumerate(atom.terms, 1)
    ]
    for name, terms in atom.lattices:
        if name == "time":
            columns.append((0, terms[0]))
            break
    return columns
