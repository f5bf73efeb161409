"""The joins of one rule over tables that change: planned for their sizes, compiled once per shape,
kept bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.evaluation.compiled import Fail, Handover, scope_of, write_rule
from tidemill.datalog.evaluation.joins import Plan, Planner, Step
from tidemill.datalog.evaluation.runtime import names_of_rule
from tidemill.datalog.incremental.facts import FactTable
from tidemill.datalog.incremental.surroundings import TICK, TICKS_MAX, Present
from tidemill.datalog.logical.forms import (
    AtomForm,
    Call,
    Constant,
    RuleForm,
    Variable,
    Wildcard,
    clock_time,
)
from tidemill.datalog.logical.ranges import UNBOUNDED, Bounds
from tidemill.datalog.presence import BEGINNING
from tidemill.datalog.tables import Readable, Row, Traits

Found = Callable[[tuple[Row, ...], tuple[Any, ...], Any, Any], None]
_REPLAN_FACTOR = 8
_REPLAN_ROWS_MIN = 32


class _TickTable:
    """What is known of the ticks that come now: whole numbers far from overflow."""

    rows: Sequence[Row] = ((),)
    grows = False
    traits = Traits(timed=True, timeless=False, expiring=False, decorated=False)

    def index(self, positions: tuple[int, ...]) -> Mapping[Any, Iterable[Row]]:
        raise AssertionError("ticks are where a join begins")

    def ranged(self, positions: tuple[int, ...], column: int) -> Mapping[Any, Any]:
        raise AssertionError("ticks are where a join begins")

    def bounds(self, column: int) -> Bounds:
        return Bounds(-TICKS_MAX, TICKS_MAX, False)

    def expiry_bounds(self) -> Bounds:
        return UNBOUNDED

    def distinct(self, column: int) -> int:
        return 1


@dataclass(slots=True)
class Join:
    """One plan bound to the tables: run it with the rows that its first step reads."""

    plan: Plan
    text: str
    names: Mapping[str, Any]
    fast: list[Any]
    slow: list[Any]
    watched: list[tuple[FactTable, int, int, int]]
    allowance: Allowance
    """Where matches are counted."""
    bounded: bool
    """Whether the join says of every clock which ticks can match, so that future ones may be
    matched now.
    """

    def stale(self) -> bool:
        """Whether the tables have outgrown what the plan was made for."""
        for table, shape, fewest, most in self.watched:
            if table.shape != shape or not fewest <= len(table) <= most:
                return True
        return False

    def run(
        self,
        rows: Iterable[Row] | None,
        found: Found,
        fail: Fail,
        fail_clock: Fail,
        absent: Sequence[None],
        upper: Any,
    ) -> None:
        """Find every match that has one of `rows` in the first step (or every match at all)."""
        if rows is not None:
            self.fast[0] = self.slow[0] = rows
        self.names["match"](
            self.fast, self.slow, absent, found, fail, fail_clock, BEGINNING, upper, self.allowance
        )
        if rows is not None:
            self.fast[0] = self.slow[0] = None  # they may be many


class Joins:
    """The joins of one rule, one for each atom that may change, and the functions that look at a
    match.
    """

    def __init__(self, form: RuleForm, present: Present) -> None:
        self.form = form
        self._present = present
        self._joins: dict[tuple[int | None, bool], Join] = {}
        self._code: dict[str, dict[str, Any]] = {}
        self.absent = [None] * len(form.absent)
        self.ordinary = [i for i, atom in enumerate(form.atoms) if not atom.is_clock]
        self.clocks = [i for i, atom in enumerate(form.atoms) if atom.is_clock]
        self.tables = {i: present.table(form.atoms[i].predicate) for i in self.ordinary}

    @property
    def empty(self) -> bool:
        """Whether some atom has no facts at all, so that nothing matches."""
        return any(not len(table) for table in self.tables.values())

    def join(self, atom: int | None, tick: bool = False) -> Join:
        """The join that begins with an atom (with none: in any order), planned anew if need be."""
        known = self._joins.get((atom, tick))
        if known is None or known.stale():
            known = self._joins[atom, tick] = self._prepare(atom, tick)
        return known

    def shape(self) -> int:
        """Changes when the functions that look at a match may be void."""
        return sum(table.shape for table in self.tables.values())

    def names(self) -> Mapping[str, Any]:
        """The functions that look at one match: `head`, `identity`, `wanted0`, …"""
        for join in self._joins.values():
            if not join.stale():
                return join.names
        return self.join(self.ordinary[0] if self.ordinary else None).names

    def beginning_with_ticks(self, atom: int) -> RuleForm | None:
        """The rule with a clock atom read as the ticks that come now; None where ticks cannot lead."""
        clock = self.form.atoms[atom].clock
        assert clock is not None
        if len(self.clocks) > 1 or any(isinstance(argument, Call) for argument in clock):
            return None
        terms = tuple(
            argument if isinstance(argument, Constant | Variable) else Wildcard()
            for argument in clock
        )
        known = self.form.atoms[atom]
        ticking = AtomForm(TICK, terms, known.lattices, known.suppressed)
        atoms = (*self.form.atoms[:atom], ticking, *self.form.atoms[atom + 1 :])
        return replace(self.form, atoms=atoms)

    def _prepare(self, atom: int | None, tick: bool) -> Join:
        form = self.form
        of_atoms: dict[int, Readable] = dict(self.tables)
        if tick:
            assert atom is not None
            ticking = self.beginning_with_ticks(atom)
            assert ticking is not None
            form = ticking
            of_atoms[atom] = _TickTable()
        around = self._present.around
        scope = scope_of(form, of_atoms, around)
        plan = Planner(form, of_atoms, scope, atom).plan()
        text = write_rule(form, plan, scope, of_atoms, around, Handover.STORE)
        names = self._code.get(text)
        if names is None:
            names = names_of_rule(text, form.number, scope.constants, around.lattices)
            self._code[text] = names
        return Join(
            plan,
            text,
            names,
            [_rows_of(step, of_atoms, False, atom) for step in plan.steps],
            [
                _rows_of(step, of_atoms, True, atom) if plan.fallible else None
                for step in plan.steps
            ],
            [_watched(table) for table in self.tables.values()],
            around.allowance,
            _bounded(form, plan),
        )


def _bounded(form: RuleForm, plan: Plan) -> bool:
    """Whether each clock of a join has a last tick that can match; failures on the way would need
    all.
    """
    if plan.fallible or _reads_expiries(form):
        return False
    bound: set[str] = set()
    for step in plan.steps:
        atom = form.atoms[step.atom]
        if atom.is_clock:
            time = clock_time(atom)
            known = isinstance(time, Constant) or (
                isinstance(time, Variable) and (time.name in bound or bool(step.limits.high))
            )
            if not known:
                return False
        bound.update(atom.variables())
    return True


def _reads_expiries(form: RuleForm) -> bool:
    """Whether a variable stands for an expiry: what has none gives it no end, and so no last tick."""
    return any(
        name == "expires" and isinstance(term, Variable)
        for atom in form.atoms
        for name, terms in atom.lattices
        for term in terms
    )


def _watched(table: FactTable) -> tuple[FactTable, int, int, int]:
    size = len(table)
    fewest = size // _REPLAN_FACTOR if size > _REPLAN_ROWS_MIN else 0
    return table, table.shape, fewest, max(_REPLAN_ROWS_MIN, size * _REPLAN_FACTOR)


def _rows_of(
    step: Step, of_atoms: Mapping[int, Readable], match_only: bool, first: int | None
) -> Any:
    """What the loop of a step looks into: an index, all rows, or nothing yet for the first step."""
    table = of_atoms.get(step.atom)
    if table is None or step.atom == first:
        return None
    if match_only:
        positions = tuple(probe.position for probe in step.match_probes)
        return table.index(positions) if positions else table.rows
    if step.range_column is not None:
        return table.ranged(step.positions, step.range_column)
    return table.index(step.positions) if step.positions else table.rows
