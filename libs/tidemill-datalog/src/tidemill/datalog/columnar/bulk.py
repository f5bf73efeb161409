"""Which rules run on columns, and the run of one predicate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tidemill.arrangement.relational import range_buckets
from tidemill.datalog.allowance import column_bytes
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columnar.columns import LATTICES_SEEN, Columns, instant_word
from tidemill.datalog.columnar.contributing import Contributions, Gathering
from tidemill.datalog.columnar.deriving import Derived, derive, merged, narrow
from tidemill.datalog.columnar.established import EstablishedColumns, Shape, solutions_of
from tidemill.datalog.columnar.grouping import aggregated, stacked
from tidemill.datalog.columnar.joining import Matching
from tidemill.datalog.columnar.prefixes import ROWS_MAX, FoundOnce, Piece, commonly, prefixes
from tidemill.datalog.columnar.preparing import PreparedRule, prepared, weighed
from tidemill.datalog.columnar.recursion import RecursionLimits, TooDeep, fixed_point
from tidemill.datalog.columnar.tables import ColumnTable, Rounded, Statistics, power
from tidemill.datalog.columns.calculator import Failing
from tidemill.datalog.columns.column import Unsuited
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.evaluation.compiled import Surroundings, extra_conditions, scope_of
from tidemill.datalog.evaluation.in_bulk import Beside
from tidemill.datalog.evaluation.joins import Planner
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.forms import RuleForm, Type
from tidemill.datalog.logical.plan import Component
from tidemill.datalog.presence import BEGINNING
from tidemill.datalog.state import EngineState
from tidemill.datalog.tables import Readable, Table

_TEXTS_MAX = 1 << 22
_PIECE_ROWS = 1 << 17
_RANGES = 8
"""Ranges of times in a piece, about."""
_PLANS_MAX = 1 << 12
_ROUNDS_WORTH = 8
"""A recursion looks at its rows about so often, so fewer of them are worth columns."""
_SPARED_MOST = 4
"""Where more than one in so many facts fails, the row engine does them all."""
_FAR = 1 << 53
_KINDS = frozenset({Type.INT, Type.FLOAT, Type.TEXT, Type.BOOL})


@dataclass(slots=True)
class Taken:
    """What the columns made of predicates: their tables, and the solutions that live on by rule
    number.
    """

    tables: dict[str, Table]
    established: dict[int, EstablishedColumns]


@dataclass(frozen=True, slots=True)
class Asked:
    """The rows of a predicate as rules ask for them, and what plans are made for."""

    table: Arrangements
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Spared:
    """Facts at one atom of a rule, of all of whose matches the row engine is to say what becomes."""

    form: RuleForm
    atom: int
    facts: Columns


class Bulk:
    """Runs rules on columns, for one engine; keeps the numbers of texts between windows.

    `rows_min`: how many rows the atoms of a rule must have, to be worth it. `taken` and `refused`
    count predicates that ran on columns, and that could have but for what they compute or hold,
    `spared` facts that were left to the row engine since something fails for them. `alike` are the
    atoms that rules have in common, by rule; `shared` counts joins that began with what another
    rule had found. Recursions that are done sooner row by row are remembered as `deep`, by their
    first predicate.
    """

    def __init__(
        self,
        forms: Sequence[RuleForm],
        rows_min: int,
        alike: Mapping[int, Sequence[tuple[int, ...]]] = MappingProxyType({}),
    ) -> None:
        self.rows_min = rows_min
        self.alike = alike
        self.shared = 0
        self.found_max = ROWS_MAX
        """How many matches a window holds for other rules."""
        self.taken = 0
        self.refused = 0
        self.spared = 0
        self.texts = Texts()
        self.plans: dict[Any, PreparedRule] = {}
        self.weighed = {form.number: weighed(form) for form in forms}
        self.deep: set[str] = set()
        self._forms = forms
        self._suited: dict[str, bool] = {}

    def begin(self) -> None:
        """A window of rows begins, which hold their texts: forget the numbers if they are too many
        to keep.
        """
        if len(self.texts) > _TEXTS_MAX:
            self.forget_texts()

    def forget_texts(self, texts: Texts | None = None) -> Texts:
        """Go on with other numbers for texts, or new ones; columns made before are of no use
        afterwards.
        """
        self.texts = texts if texts is not None else Texts()
        return self.texts

    def window(
        self, around: Surroundings, tables: Mapping[str, Table], state: EngineState
    ) -> BulkWindow:
        """The run over one window."""
        return BulkWindow(self, around, tables, state)

    def suits(self, predicate: str, forms: Sequence[RuleForm], around: Surroundings) -> bool:
        """Whether those of the rules that derive a predicate may run on columns, as far as their
        text can tell.
        """
        known = self._suited.get(predicate)
        if known is None:
            mine = [form for form in forms if form.head.predicate == predicate]
            known = all(self._suits(form, around) for form in mine) and self._apart(mine)
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
        """Whether records with aggregates come from one rule, and no tally of theirs can meet
        another.
        """
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
        self._asked: dict[str, Asked | None] = {}
        self._sizes: dict[str, int] = {}
        self._begun = around.lower != BEGINNING
        self._top = int(power(around.upper))
        self._window = instant_word(around.lower), around.upper
        self._once = FoundOnce(bulk.found_max)

    def run(
        self, component: Component, limits: RecursionLimits, beside: Beside | None = None
    ) -> Taken | None:
        """Derive the predicates of a component; None where the row engine is to do it.

        A few facts for which something fails are left to `beside`, the rest stays here.
        """
        if not self._may_run(component):
            return None
        bulk, established = self._bulk, dict[int, EstablishedColumns]()
        try:
            if component.recursive:
                facts = fixed_point(
                    self, component.predicates, component.rules, established, limits
                )
            else:
                facts = self._alone(component, established, limits, beside)
        except Unsuited as unsuited:
            for predicate in component.predicates:
                self._asked.pop(predicate, None)
            if isinstance(unsuited, TooDeep):
                bulk.deep.add(component.predicates[0])
            else:
                bulk.refused += 1
            if self._around.profile is not None:
                self._around.profile.forget(form.number for form in component.rules)
            return None
        if not facts:
            return None
        bulk.taken += len(facts)
        tables: dict[str, Table] = {name: Table([]) for name in component.predicates}
        return Taken(
            tables | {name: ColumnTable(columns) for name, columns in facts.items()}, established
        )

    def _may_run(self, component: Component) -> bool:
        """Whether a component is large, and its rules are of the kind that columns do."""
        bulk, around, forms = self._bulk, self._around, component.rules
        if around.frozen or not forms or component.predicates[0] in bulk.deep:
            return False
        least = bulk.rows_min // _ROUNDS_WORTH if component.recursive else bulk.rows_min
        if least and max(self._size(form) for form in forms) < least:
            return False
        return all(bulk.suits(name, forms, around) for name in component.predicates)

    def _alone(
        self,
        component: Component,
        established: dict[int, EstablishedColumns],
        limits: RecursionLimits,
        beside: Beside | None,
    ) -> dict[str, Columns]:
        """The facts of a predicate that does not read itself. Raises: Unsuited."""
        parts: list[Columns] = []
        for form in component.rules:
            spared = None if beside is None or form.outlives else list[Spared]()
            parts += self.derived(form, established, spared=spared)
            for each in spared or ():
                assert beside is not None
                parts += self._beside(each, beside)
        if not parts:
            return {}
        columns = stacked(parts) if len(parts) > 1 else parts[0]
        if not columns.lattices:
            columns = merged(columns)
        if len(columns) > limits.rows:
            raise Unsuited
        return {component.predicates[0]: columns}

    def _beside(self, spared: Spared, beside: Beside) -> Sequence[Columns]:
        """What the row engine derives of facts that were left to it. Raises: Unsuited."""
        found = beside(spared.form, spared.atom, Table(spared.facts.to_rows()))
        if found is None:
            raise Unsuited
        self._bulk.spared += len(spared.facts)
        rows = [(*part, *key) for key, parts in found.items() for part in parts]
        kinds, _ = self._kinds(spared.form.head.predicate)
        return [Columns.of_rows(rows, kinds, self._bulk.texts, ())] if rows else []

    def _size(self, form: RuleForm) -> int:
        names = [atom.predicate for atom in form.atoms if not atom.is_clock]
        return sum(_length(self._tables[name]) for name in names if name in self._tables)

    def derived(
        self,
        form: RuleForm,
        established: dict[int, EstablishedColumns],
        fresh: Mapping[int, Columns] | None = None,
        spared: list[Spared] | None = None,
    ) -> Sequence[Columns]:
        """What one rule derives, alternative derivations side by side. Raises: Unsuited.

        At the atoms that are keys of `fresh` it reads those rows alone. A few facts for which
        something fails are left out and added to `spared`, where that is given.
        """
        profile = self._around.profile
        if profile is None:
            return self._derived(form, established, fresh, spared)
        found: list[Columns] = []
        with profile.rule(form.number, lambda: sum(map(len, found))):
            found.extend(self._derived(form, established, fresh, spared))
        profile.work(form.number).on_columns = True
        return found

    def _derived(
        self,
        form: RuleForm,
        established: dict[int, EstablishedColumns],
        fresh: Mapping[int, Columns] | None,
        spared: list[Spared] | None,
    ) -> Sequence[Columns]:
        carried = self._state.established.get(form.number, ())
        matched = self._matches(form, fresh or {}, spared)
        if matched is None:
            if carried:
                raise Unsuited
            return []
        found, shape, different = matched
        texts = self._bulk.texts
        if form.outlives:
            derived = found.solutions()
            before = solutions_of(carried, shape, derived, texts) if carried else None
            known = EstablishedColumns(
                shape, (carried, before), derived, texts, self._window, different=different
            )
            established[form.number] = known
            derived = known.parts()
            contributions = Contributions(derived, derived.values)
        elif form.head.aggregates:
            contributions = found.contributions()
        else:
            derived = found.solutions()
        if form.head.aggregates:
            return [aggregated(form, contributions, texts)]
        return [
            Columns(
                derived.start, derived.stop, derived.expires, derived.time, derived.arguments, texts
            )
        ]

    def show(self, predicate: str, columns: Columns) -> None:
        """From now on these are the facts of a predicate."""
        allowance, size = (
            self._around.allowance,
            len(columns) * column_bytes(len(columns.arguments)),
        )
        allowance.settle(allowance.held + size - self._sizes.get(predicate, 0))
        self._sizes[predicate] = size
        self._asked[predicate] = _shown(columns)

    def _matches(
        self, form: RuleForm, fresh: Mapping[int, Columns], spared: list[Spared] | None
    ) -> tuple[Gathering, Shape, bool] | None:
        """The heads of all matches of a rule, None where some atom has no facts. Raises: Unsuited.

        And whether all of them are surely matches of different facts.
        """
        tables: dict[int, Arrangements] = {}
        of_atoms: dict[int, Rounded] = {}
        matters = self._bulk.weighed[form.number]
        for i, atom in enumerate(form.atoms):
            if not atom.is_clock:
                asked = _shown(fresh[i]) if i in fresh else self._ask(atom.predicate)
                if asked is None:
                    return None
                tables[i], of_atoms[i] = asked.table, asked.statistics.rounded(matters[i])
        rule = self._prepared(form, of_atoms)
        before = self._around.allowance.held
        first = rule.steps[0].plan.atom
        found = Gathering(form, len(tables[first].columns) > _PIECE_ROWS)
        once = None if fresh or not any(rule.prefixes) else self._once
        pieces = _pieces
        if found.drawing and not self._shortens(found, rule, tables, spared):
            pieces, once = _pieces_by_time, None  # others share the pieces of rows as they stand
        for number, piece in enumerate(pieces(tables[first])):
            mine = {**tables, first: piece}
            derived = self._of_piece(rule, mine, once, (tables[first], number), spared)
            found.add(derived)
            self._around.allowance.settle(before + found.bytes_held)
        different = not form.absent and all(table.columns.apart for table in tables.values())
        shape = Shape(form.number, rule.widths, tuple([c.kind for c in derived.identity]))
        return found, shape, different

    def _shortens(
        self,
        found: Gathering,
        rule: PreparedRule,
        tables: dict[int, Arrangements],
        spared: list[Spared] | None,
    ) -> bool:
        """Whether the first rows as they stand make a piece that becomes much shorter.

        Raises: Unsuited.
        """
        first = rule.steps[0].plan.atom
        mine = {**tables, first: next(_pieces(tables[first]))}
        tried: list[Spared] | None = None if spared is None else []
        return found.shortens(self._of_piece(rule, mine, None, (tables[first], 0), tried))

    def _of_piece(
        self,
        rule: PreparedRule,
        tables: dict[int, Arrangements],
        once: FoundOnce | None,
        of: Piece,
        spared: list[Spared] | None,
    ) -> Derived:
        """The heads of the matches that begin with some facts of the first atom.

        Raises: Unsuited.
        """
        first = rule.steps[0].plan.atom
        while True:
            try:
                matching = Matching(rule, tables, self._window, self._around.allowance)
                matching.run(once, of)
                if matching.taken is not None:
                    self._note(rule.form, matching.taken)
                narrow(rule, matching, self.arranged)
                return derive(rule, matching, self._window)
            except Failing as failing:
                facts, rows = tables[first].columns, failing.rows
                if spared is None or len(rows) * _SPARED_MOST > len(facts):
                    raise
                spared.append(Spared(rule.form, first, facts.kept(rows)))
                rest = np.delete(np.arange(len(facts)), rows)
                tables = {**tables, first: Arrangements(facts.kept(rest))}
                once = None  # the others begin with all facts

    def _note(self, form: RuleForm, other: int) -> None:
        """A rule has begun with what another one had found."""
        self._bulk.shared += 1
        if self._around.profile is not None:
            self._around.profile.work(form.number).joined_by = other

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

    def _prepared(self, form: RuleForm, of_atoms: Mapping[int, Rounded]) -> PreparedRule:
        """A rule ready for rows like these; kept from window to window. Raises: Unsuited."""
        key = (form.number, self._begun, self._top, *[known.key for known in of_atoms.values()])
        known = self._bulk.plans.get(key)
        if known is None:
            begun, around = self._begun, self._around
            wide = replace(around, lower=-_FAR if begun else BEGINNING, upper=self._top)
            readable: Mapping[int, Readable] = of_atoms  # type: ignore[assignment]  # planners ask no more
            scope = scope_of(form, readable, wide)
            alike = self._bulk.alike.get(form.number, ())
            extra, first = extra_conditions(form, scope), alike[0] if alike else ()
            plan = Planner(form, readable, scope, None, extra, first).plan()
            plan = commonly(form, plan, alike)
            carried = {i: (each.traits, each.lattices) for i, each in of_atoms.items()}
            if len(self._bulk.plans) >= _PLANS_MAX:
                self._bulk.plans.clear()
            kinds = self._kinds(form.head.predicate)
            common = prefixes(around.checked, form, plan, scope, alike)
            begins = instant_word(wide.lower), instant_word(wide.upper)
            known = prepared(form, plan, scope, carried, kinds, common, begins)
            self._bulk.plans[key] = known
        return known

    def arranged(self, predicate: str) -> Arrangements | None:
        """The rows of a predicate as columns, None if there are none. Raises: Unsuited."""
        asked = self._ask(predicate)
        return None if asked is None else asked.table

    def _ask(self, predicate: str) -> Asked | None:
        if predicate not in self._asked:
            table = self._tables.get(predicate)
            if table is None or not _length(table):
                self._asked[predicate] = None
            else:
                self._asked[predicate] = self._arranged(predicate, table)
        return self._asked[predicate]

    def _arranged(self, predicate: str, table: Table) -> Asked:
        if isinstance(table, ColumnTable) and table.columns.texts is self._bulk.texts:
            return Asked(table.arranged, table.statistics)
        checked = self._around.checked
        kinds = [Type(kind) for _, kind in checked.columns[predicate]]
        texts, lattices = self._bulk.texts, checked.lattices_of(predicate)
        return _shown(Columns.of_rows(table.rows, kinds, texts, lattices))


def _shown(columns: Columns) -> Asked:
    return Asked(Arrangements(columns), Statistics(columns))


def _length(table: Table) -> int:
    return len(table.columns) if isinstance(table, ColumnTable) else len(table.rows)


def _pieces(table: Arrangements) -> Iterator[Arrangements]:
    """The rows in pieces whose intermediate columns stay in the cache of the processor."""
    rows = len(table.columns)
    if rows <= _PIECE_ROWS:
        yield table
        return
    for first in range(0, rows, _PIECE_ROWS):
        yield Arrangements(table.columns.part(first, first + _PIECE_ROWS))


def _pieces_by_time(table: Arrangements) -> Iterator[Arrangements]:
    """The rows in such pieces, in each of them rows of about one time, as groups often are."""
    columns = table.columns
    buckets = range_buckets(columns.time.values, _RANGES * (len(columns) // _PIECE_ROWS))
    end = 0
    while end < len(columns):
        begin, most = end, end + _PIECE_ROWS
        last = int(buckets.starts[np.searchsorted(buckets.starts, most, "right") - 1])
        end = last if last > begin else min(most, len(columns))
        yield Arrangements(columns.take(buckets.order[begin:end]))


__all__ = ["Bulk", "BulkWindow", "Taken"]
