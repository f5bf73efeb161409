"""What the solutions of a rule contribute to its aggregates: added up piece by piece where they
live together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.relational import (
    Groups,
    Runs,
    Sums,
    add_sums,
    add_up,
    best_by_group,
    best_by_run,
    limbs_of,
    stacked_sums,
)
from tidemill.datalog.allowance import column_bytes
from tidemill.datalog.columnar.columns import (
    END_WORD,
    LATTICES_SEEN,
    absent_times,
    concatenated,
    no_ends,
    surely_absent,
    surely_endless,
)
from tidemill.datalog.columnar.deriving import Derived
from tidemill.datalog.columnar.established import joined
from tidemill.datalog.columns.column import Column, Unsuited, words_of
from tidemill.datalog.logical.forms import RuleForm, Type
from tidemill.datalog.values import INT_MAX

_WORTH = 2
"""Solutions are drawn together where that makes them so many times fewer."""
EXTREMES = frozenset({"min", "earliest", "max", "latest"})


@dataclass(frozen=True, slots=True)
class Added:
    """What several solutions contribute to a sum, a count or an average, exactly: one row for those
    that live together.
    """

    kind: Type
    sums: Sums

    def take(self, rows: I64Array) -> Added:
        """The rows with these numbers."""
        return Added(self.kind, self.sums.take(rows))


@dataclass(frozen=True, slots=True)
class Contributions:
    """Solutions, and what each contributes to every aggregate of the head; a row may stand for
    several of them.
    """

    solutions: Derived
    values: tuple[Column | Added, ...]

    def __len__(self) -> int:
        return len(self.solutions)

    def take(self, rows: I64Array) -> Contributions:
        """The rows with these numbers."""
        return Contributions(
            self.solutions.take(rows), tuple(value.take(rows) for value in self.values)
        )


@dataclass(frozen=True, slots=True)
class Stretches:
    """Records of groups: their first row, start and stop, and the rows that live in each."""

    rows: I64Array
    start: I64Array
    stop: I64Array
    runs: Runs | None
    ids: I64Array
    living: I64Array

    def best(self, ranks: I64Array, known: BoolArray) -> I64Array:
        """Of each record the row with the least rank among the known ones, -1 for none."""
        if self.runs is None:
            return best_by_group(self.ids, ranks, known, len(self.rows))
        return best_by_run(self.runs, ranks, known)[self.living]

    def added(self, values: Column | Added) -> Sums:
        """Exact sums over the rows of each record. Raises: Unsuited."""
        if self.runs is None:
            count = len(self.rows)
            if isinstance(values, Added):
                return add_sums(values.sums, _all(values), self.ids, _ones(len(self.ids)), count)
            found = add_up(values.values, values.known, self.ids, _ones(len(self.ids)), count)
            if found is None:
                raise Unsuited
            return found
        events, of_events = self.runs.events, self.runs.of_events()
        rows = np.where(events >= 0, events, ~events)
        signs = np.where(events >= 0, 1, -1)
        count = len(self.runs.group)
        if isinstance(values, Added):
            moved: Sums | None = add_sums(values.sums, rows, of_events, signs, count)
        else:
            moved = add_up(values.values[rows], values.known[rows], of_events, signs, count)
        if moved is None:
            raise Unsuited
        limbs_of(moved.limbs, moved.counts, self.runs.firsts)
        return moved.take(self.living)

    def counted(self) -> I64Array:
        """How many rows live in each record."""
        if self.runs is None:
            return np.bincount(self.ids, minlength=len(self.rows)).astype(np.int64, copy=False)
        return self.runs.present[self.living]

    def times(self, solutions: Derived, told_apart: bool) -> tuple[Column, I64Array]:
        """Of each record the latest time and the soonest expiry; `told_apart` by time, it has one."""
        rows = len(self.rows)
        if surely_absent(solutions.time):
            time = absent_times(rows)
        elif told_apart:
            time = solutions.time.take(self.rows)
        else:
            time = chosen(solutions.time, self.best(~solutions.time.values, solutions.time.known))
        if surely_endless(solutions.expires):
            return time, no_ends(rows)
        ends = solutions.expires != END_WORD
        if not ends.any():
            return time, no_ends(rows)
        soonest = self.best(solutions.expires, ends)
        return time, np.where(soonest >= 0, solutions.expires[soonest], END_WORD)

    def extreme(self, name: str, column: Column) -> Column:
        """Of each record the least or the greatest value, as `name` says. Raises: Unsuited."""
        ranks = _ranks(column)
        if name in ("max", "latest"):
            ranks = ~ranks
        return chosen(column, self.best(ranks, column.known))


def together(solutions: Derived, groups: Groups) -> Stretches:
    """One record for each group, all rows of which come and go together."""
    firsts = groups.firsts
    return Stretches(
        firsts, solutions.start[firsts], solutions.stop[firsts], None, groups.ids,
        np.empty(0, np.int64),
    )  # fmt: skip


def chosen(column: Column, rows: I64Array) -> Column:
    """The values of the rows, null where there is no row."""
    none = rows < 0
    if not none.any():
        return Column(column.kind, column.values[rows])
    if not len(column):
        return Column(column.kind, np.zeros(len(rows), column.values.dtype), none)
    values = np.where(none, column.values.dtype.type(0), column.values[rows])
    return Column(column.kind, values, none)


def group_keys(form: RuleForm, solutions: Derived) -> tuple[Column, ...]:
    """The columns that tell the groups of a rule apart."""
    return (*solutions.arguments, solutions.time) if form.head.time else solutions.arguments


def numbers_of(name: str, column: Column) -> Column:
    """What a tally adds up of a column; a count adds nothing but counts. Raises: Unsuited."""
    if name == "count":
        return Column(Type.INT, np.zeros(len(column), np.int64), column.nulls)
    if column.kind not in (Type.INT, Type.FLOAT):
        raise Unsuited
    return column


class Gathering:
    """The solutions of a rule as they are found, piece by piece.

    With `several` pieces of a rule that aggregates, the solutions of a piece that live together
    become one row at once, where that makes the first piece much shorter: then the memory is that
    of the groups and not that of the solutions.
    """

    def __init__(self, form: RuleForm, several: bool) -> None:
        self._form = form
        self._parts: list[Contributions] = []
        self._names = [name for name, _ in form.head.lattices]
        seen = LATTICES_SEEN.issuperset(self._names)
        self._drawing = several and form.head.aggregates and not form.outlives and seen

    @property
    def bytes_held(self) -> int:
        """What those found so far take."""
        return sum(
            len(part) * column_bytes(
                len(part.solutions.arguments) + len(part.values) + len(part.solutions.identity)
            )
            for part in self._parts
        )  # fmt: skip

    @property
    def drawing(self) -> bool:
        """Whether solutions of one piece may become one row."""
        return self._drawing

    def shortens(self, solutions: Derived) -> bool:
        """Whether a piece of these would become much shorter."""
        return len(self._living_together(solutions)) * _WORTH <= len(solutions)

    def add(self, solutions: Derived) -> None:
        """Some more of them. Raises: Unsuited."""
        raw = Contributions(solutions, solutions.values)
        self._parts.append(self._drawn(raw) if self._drawing else raw)

    def solutions(self) -> Derived:
        """All of them, where no rows were drawn together."""
        return joined([part.solutions for part in self._parts])

    def contributions(self) -> Contributions:
        """All of them. Raises: Unsuited."""
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return parts[0]
        values = list(zip(*(part.values for part in parts), strict=True))
        return Contributions(
            joined([part.solutions for part in parts]), tuple(map(_stacked, values))
        )

    def _drawn(self, found: Contributions) -> Contributions:
        solutions = found.solutions
        groups = self._living_together(solutions)
        if not self._parts and len(groups) * _WORTH > len(solutions):
            self._drawing = False
            return found
        stretches = together(solutions, groups)
        time, expires = stretches.times(solutions, bool(self._form.head.time))
        arguments = tuple(column.take(stretches.rows) for column in solutions.arguments)
        drawn = Derived(stretches.start, stretches.stop, expires, time, arguments, (), ())
        values = zip(self._names, solutions.values, strict=True)
        return Contributions(drawn, tuple(_drawn(name, each, stretches) for name, each in values))

    def _living_together(self, solutions: Derived) -> Groups:
        ends = (Column(Type.INT, solutions.start), Column(Type.INT, solutions.stop))
        return Groups.of(words_of((*group_keys(self._form, solutions), *ends)), len(solutions))


def _drawn(name: str, column: Column, stretches: Stretches) -> Column | Added:
    if name in EXTREMES:
        return stretches.extreme(name, column)
    numbers = numbers_of(name, column)
    return Added(numbers.kind, stretches.added(numbers))


def _stacked(parts: Sequence[Column | Added]) -> Column | Added:
    """The values of one aggregate in all parts. Raises: Unsuited if their types differ."""
    if len({part.kind for part in parts}) > 1:
        raise Unsuited
    added = [part.sums for part in parts if isinstance(part, Added)]
    if not added:
        return concatenated([part for part in parts if isinstance(part, Column)])
    sums = stacked_sums(added)
    if sums is None:
        raise Unsuited
    return Added(parts[0].kind, sums)


def _all(values: Added) -> I64Array:
    return np.arange(len(values.sums))


def _ones(count: int) -> I64Array:
    return np.ones(count, np.int64)


def _ranks(column: Column) -> I64Array:
    """Words in the order of the numbers."""
    if column.kind is Type.INT:
        return column.values.astype(np.int64, copy=False)
    if column.kind is not Type.FLOAT:
        raise Unsuited
    bits: I64Array = (column.values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(INT_MAX))


__all__ = [
    "EXTREMES", "Added", "Contributions", "Gathering", "Stretches", "group_keys", "numbers_of", "together",
]  # fmt: skip
