"""Which rules run on columns, and the run of one predicate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tidemill.datalog.columnar.columns import (
    LATTICES_SEEN,
    Columns,
    Texts,
    Unsuited,
    instant_word,
)
from tidemill.datalog.columnar.deriving import Derived, check_passed, derive, merged, narrow
from tidemill.datalog.columnar.established import (
    EstablishedColumns,
    Shape,
    joined,
    solutions_of,
)
from tidemill.datalog.columnar.grouping import aggregated, stacked
from tidemill.datalog.columnar.joining import Arrangements, Matching
from tidemill.datalog.columnar.tables import ColumnTable, Rounded, Statistics
from tidemill.datalog.evaluation.compiled import (
    CLOCK_TRAITS,
    Surroundings,
    extra_conditions,
    scope_of,
)
from tidemill.datalog.evaluation.expressions import Scope
from tidemill.datalog.evaluation.forms import RuleForm, Type
from tidemill.datalog.evaluation.joins import Plan, Planner
from tidemill.datalog.evaluation.state import EngineState
from tidemill.datalog.evaluation.tables import Readable, Table
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.presence import BEGINNING

_TEXTS_MAX = 1 << 22
_PIECE_ROWS = 1 << 17
_PLANS_MAX = 1 << 12
_FAR = 1 << 53
_KINDS = frozenset({Type.INT, Type.FLOAT, Type.TEXT, Type.BOOL})


@dataclass(slots=True)
class Taken:
    """What the columns made of a predicate: its table, and the solutions that live on by rule number."""

    table: ColumnTable
    established: dict[int, EstablishedColumns]


class Bulk:
    """Runs rules on columns, for one engine; keeps the numbers of texts between windows.

    `rows_min`: how many rows the atoms of a rule must have, to be worth it. `taken` and `refused` count
    predicates that ran on columns, and that could have but for what they compute or hold.
    """

    def __init__(self, forms: Sequence[RuleForm], rows_min: int) -> None:
        self.rows_min = rows_min
        self.taken = 0
        self.refused = 0
        self.texts = Texts()
        self.plans: dict[Any, tuple[Plan, Scope]] = {}
        self._forms = forms
        self._suited: dict[str, bool] = {}

    def begin(self) -> None:
        """A window of rows begins, which hold their texts: forget the numbers if they are too many to keep."""
        if len(self.texts) > _TEXTS_MAX:
            self.forget_texts()

    def forget_texts(self) -> Texts:
        """Begin with new numbers for texts; columns made before are of no use afterwards."""
        self.texts = Texts()
        return self.texts

    def window(
        self, around: Surroundings, tables: Mapping[str, Table], state: EngineState
    ) -> BulkWindow:
        """The run over one window."""
        return BulkWindow(self, around, tables, state)

    def suits(self, predicate: str, forms: Sequence[RuleForm], around: Surroundings) -> bool:
        """Whether the rules of a predicate may run on columns, as far as their text can tell."""
        known = self._suited.get(predicate)
        if known is None:
            known = all(self._suits(form, around) for form in forms) and self._apart(forms)
            self._suited[predicate] = known
        return known

    def _suits(self, form: RuleForm, around: Surroundings) -> bool:
        ordinary = [atom for atom in form.atoms if not atom.is_clock]
        if form.lingers or not form.deductive or not ordinary:
            return False
        checked = around.checked
        read = {form.head.predicate, *form.reads}
        kinds = {Type(kind) for name in read for _, kind in checked.columns[name]}
        if not kinds <= _KINDS or not all(absent.by_columns for absent in form.absent):
            return False
        return LATTICES_SEEN.issuperset(name for name, _ in form.head.lattices)

    def _apart(self, forms: Sequence[RuleForm]) -> bool:
        """Whether records with aggregates come from one rule, and no tally of theirs can meet another."""
        names = {name for form in forms for name, _ in form.head.lattices}
        if not names:
            return True
        if len(forms) > 1:
            return False
        tallies = names & TALLIES
        predicate = forms[0].head.predicate
        for form in self._forms:
            dropped = form.head.suppressed | {name for name, _ in form.head.lattices}
            for atom in form.atoms:
                if atom.predicate == predicate and not tallies <= dropped | atom.suppressed:
                    return False
        return True


class BulkWindow:
    """One window: columns of the tables as they are asked for, arrangements shared by its rules."""

    def __init__(
        self, bulk: Bulk, around: Surroundings, tables: Mapping[str, Table], state: EngineState
    ) -> None:
        self._bulk = bulk
        self._around = around
        self._tables = tables
        self._state = state
        self._arranged: dict[str, Arrangements | None] = {}
        self._statistics: dict[str, Statistics] = {}
        self._rounds: dict[str, Rounded] = {}

    def run(self, predicate: str, forms: Sequence[RuleForm], limit: int) -> Taken | None:
        """Derive a predicate that does not read itself; None where the row engine is to do it."""
        bulk, around = self._bulk, self._around
        if around.frozen or not forms or not bulk.suits(predicate, forms, around):
            return None
        if max(self._size(form) for form in forms) < bulk.rows_min:
            return None
        established: dict[int, EstablishedColumns] = {}
        try:
            parts = [part for form in forms for part in self._rule(form, established)]
            if not parts:
                return None
            columns = stacked(parts) if len(parts) > 1 else parts[0]
            if not columns.lattices:
                columns = merged(columns)
            if len(columns) > limit:
                raise Unsuited
        except Unsuited:
            bulk.refused += 1
            return None
        bulk.taken += 1
        return Taken(ColumnTable(columns), established)

    def _size(self, form: RuleForm) -> int:
        names = [atom.predicate for atom in form.atoms if not atom.is_clock]
        return sum(_length(self._tables[name]) for name in names if name in self._tables)

    def _rule(
        self, form: RuleForm, established: dict[int, EstablishedColumns]
    ) -> Iterable[Columns]:
        """What one rule derives, alternative derivations side by side. Raises: Unsuited."""
        carried = self._state.established.get(form.number, ())
        found = self._matches(form)
        if found is None:
            if carried:
                raise Unsuited
            return []
        derived, shape = found
        if form.outlives:
            texts = self._bulk.texts
            before = solutions_of(carried, shape, derived, texts) if carried else None
            if before is not None and not len(derived):
                derived = before.take(np.empty(0, np.int64))  # with the types of what there is
            known = EstablishedColumns(shape, (carried, before), derived, texts, self._window)
            established[form.number] = known
            derived = known.parts()
        if form.head.aggregates:
            return [aggregated(form, derived, self._bulk.texts)]
        return [
            Columns(
                derived.start, derived.stop, derived.expires, derived.time, derived.arguments,
                self._bulk.texts,
            )
        ]  # fmt: skip

    @property
    def _window(self) -> tuple[int, int]:
        return instant_word(self._around.lower), self._around.upper

    def _matches(self, form: RuleForm) -> tuple[Derived, Shape] | None:
        """The heads of all matches of a rule, None where some atom has no facts. Raises: Unsuited."""
        tables: dict[int, Arrangements] = {}
        of_atoms: dict[int, Rounded] = {}
        for i, atom in enumerate(form.atoms):
            if not atom.is_clock:
                table = self.arranged(atom.predicate)
                if table is None:
                    return None
                tables[i] = table
                of_atoms[i] = self._rounded(atom.predicate, table)
        plan, scope = self._planned(form, of_atoms)
        traits = [
            CLOCK_TRAITS if atom.is_clock else of_atoms[i].traits
            for i, atom in enumerate(form.atoms)
        ]
        carried = {i: frozenset(table.columns.lattices) for i, table in tables.items()}
        check_passed(form, carried)
        if plan.steps[0].atom not in tables:
            raise Unsuited  # a clock comes first
        parts = []
        for piece in _pieces(tables[plan.steps[0].atom].columns):
            mine = {**tables, plan.steps[0].atom: Arrangements(piece)}
            matching = Matching(form, plan, scope, mine, self._window)
            matching.run()
            narrow(form, matching, self.arranged)
            kinds = self._kinds(form.head.predicate)
            parts.append(derive(form, matching, scope, traits, kinds, self._window))
        derived = joined(parts)
        widths = tuple(len(matching.key(i)) for i in range(len(form.atoms)))
        return derived, Shape(form.number, widths, tuple(c.kind for c in derived.identity))

    def _kinds(self, predicate: str) -> tuple[Sequence[Type], Mapping[str, Sequence[Type]]]:
        checked = self._around.checked
        return (
            [Type(kind) for _, kind in checked.columns[predicate]],
            {
                name: tuple(map(Type, of))
                for (mine, name), of in checked.lattice_types.items()
                if mine == predicate
            },
        )

    def _rounded(self, predicate: str, table: Arrangements) -> Rounded:
        """What plans are made for."""
        known = self._rounds.get(predicate)
        if known is None:
            known = Rounded(self._statistics[predicate], len(table.columns.keys))
            self._rounds[predicate] = known
        return known

    def _planned(self, form: RuleForm, of_atoms: Mapping[int, Rounded]) -> tuple[Plan, Scope]:
        """A plan for rows like these; kept from window to window."""
        around = self._around
        begun = around.lower != BEGINNING
        top = 1 << around.upper.bit_length() if around.upper > 0 else 0
        key = (form.number, begun, top, tuple(known.key for known in of_atoms.values()))
        known = self._bulk.plans.get(key)
        if known is None:
            wide = replace(around, lower=-_FAR if begun else BEGINNING, upper=top)
            readable: Mapping[int, Readable] = of_atoms  # type: ignore[assignment]  # planners ask no more
            scope = scope_of(form, readable, wide)
            plan = Planner(form, readable, scope, None, extra_conditions(form, scope)).plan()
            if len(self._bulk.plans) >= _PLANS_MAX:
                self._bulk.plans.clear()
            known = self._bulk.plans[key] = (plan, scope)
        return known

    def arranged(self, predicate: str) -> Arrangements | None:
        """The rows of a predicate as columns, None if there are none. Raises: Unsuited."""
        if predicate not in self._arranged:
            table = self._tables.get(predicate)
            if table is None or not _length(table):
                self._arranged[predicate] = None
            else:
                columns = self._columns(predicate, table)
                self._arranged[predicate] = Arrangements(columns)
                self._statistics[predicate] = (
                    table.statistics if isinstance(table, ColumnTable) else Statistics(columns)
                )
        return self._arranged[predicate]

    def _columns(self, predicate: str, table: Table) -> Columns:
        if isinstance(table, ColumnTable) and table.columns.texts is self._bulk.texts:
            return table.columns
        checked = self._around.checked
        kinds = [Type(kind) for _, kind in checked.columns[predicate]]
        return Columns.of_rows(table.rows, kinds, self._bulk.texts, checked.lattices_of(predicate))


def _length(table: Table) -> int:
    return len(table.columns) if isinstance(table, ColumnTable) else len(table.rows)


def _pieces(columns: Columns) -> Iterator[Columns]:
    """The rows in pieces whose intermediate columns stay in the cache of the processor."""
    for first in range(0, len(columns), _PIECE_ROWS):
        yield columns.part(first, first + _PIECE_ROWS)


__all__ = ["Bulk", "BulkWindow", "Taken"]
