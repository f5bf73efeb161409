"""Plans of joins run over columns: one pass for each step instead of one loop for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.relational import (
    Buckets,
    counting,
    extent,
    join_buckets,
    join_ranges,
    tick_pairs,
    within,
)
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columnar.columns import (
    BEGIN_WORD,
    END_WORD,
    Columns,
    aligned_words,
    gathered_time,
)
from tidemill.datalog.columnar.formulas import Formula, Limit, over
from tidemill.datalog.columnar.prefixes import Found, FoundOnce, Piece, Prefix
from tidemill.datalog.columnar.preparing import PreparedRule, PreparedStep, Source
from tidemill.datalog.columns.calculator import Calculator, Failing
from tidemill.datalog.columns.column import Column, Unsuited, Values
from tidemill.datalog.evaluation.joins import LOWER
from tidemill.datalog.logical.expressions import Scope
from tidemill.datalog.logical.forms import Constant, Type, Variable, clock_time

_CLOCK_MAX = 1 << 61
_TICKS_MAX = 1 << 26
_WORD = 8


class Matching:
    """The matches of one rule so far: a row of each atom, and when all of them are present."""

    def __init__(
        self, rule: PreparedRule, tables: Mapping[int, Arrangements], window: tuple[int, int],
        allowance: Allowance,
    ) -> None:  # fmt: skip
        self._rule = rule
        self._allowance = allowance
        self._scope = rule.scope
        self._tables = tables
        self._lower, self._upper = window
        first = tables[rule.steps[0].plan.atom].columns
        self._texts = first.texts
        self._rows: dict[int, I64Array | None] = {}
        self._clocks: dict[int, tuple[I64Array, I64Array, I64Array]] = {}
        self._made: dict[str, Column] = {}
        self.start = first.start
        self.stop = first.stop
        self._common: tuple[dict[str, Column], Mapping[str, str]] | None = None
        """Columns gathered from the very matches of now, for other rules too, and their names for
        variables.
        """
        self.taken: int | None = None
        """The rule whose matches these were at first, if another had them."""

    def __len__(self) -> int:
        return len(self.start)

    def run(self, once: FoundOnce | None = None, first: Piece | None = None) -> None:
        """Find all matches, or go on from those found `once` over the same `first` piece.

        Raises: Unsuited.
        """
        done = -1 if once is None or first is None else self._resume(once, first)
        for number, step in enumerate(self._rule.steps):
            if number < done:
                continue
            if number > done:
                if step.form.is_clock:
                    self._clock(step)
                elif not self._rows:
                    self._first(step)
                else:
                    self._join(step)
                if once is not None and first is not None:
                    self._offer(once, number, first)
            for condition in step.conditions:
                self.filter(self.truth(condition))
        plan = self._rule.plan
        if plan.first:
            calculator = Calculator(self._scope, {}, 1, self._texts, self._allowance)
            conditions = self._rule.form.conditions
            if not all(bool(calculator.truth(conditions[i])[0]) for i in plan.first):
                self.keep(np.empty(0, np.int64))

    def _resume(self, once: FoundOnce, first: Piece) -> int:
        """Go on from the most steps that another rule has done; the last of them, -1 where there is
        none.
        """
        steps = self._rule.steps
        for number in range(len(steps) - 1, 0, -1):
            prefix = self._rule.prefixes[number]
            found = None if prefix is None else once.get(self._key_of(prefix, number, first))
            if found is None or prefix is None:
                continue
            atoms = [step.plan.atom for step in steps[: number + 1]]
            self._rows = dict(zip(atoms, found.rows, strict=True))
            self.start, self.stop = found.start, found.stop
            self._common = found.made, prefix.names
            self.taken = found.rule
            once.taken += 1
            return number
        return -1

    def _offer(self, once: FoundOnce, number: int, first: Piece) -> None:
        """Let other rules have the matches of the steps up to this one."""
        prefix = self._rule.prefixes[number] if number else None
        if prefix is None:
            return
        names = prefix.names
        made = {names[name]: column for name, column in self._made.items() if name in names}
        atoms = [step.plan.atom for step in self._rule.steps[: number + 1]]
        found = Found(
            self._rule.form.number, [self._rows[atom] for atom in atoms], self.start, self.stop,
            made, [first[0], *(self._tables[atom] for atom in atoms)],
        )  # fmt: skip
        if once.put(self._key_of(prefix, number, first), found) is not None:
            self._common = made, names

    def _key_of(self, prefix: Prefix, number: int, first: Piece) -> object:
        """The steps, and what they read; the first table comes in pieces, each of which is the same
        for all.
        """
        others = [id(self._tables[s.plan.atom]) for s in self._rule.steps[1 : number + 1]]
        return prefix.key, id(first[0]), first[1], *others

    # What a match is made of.

    def calculator(self, scope: Scope | None = None) -> Calculator:
        """Evaluates expressions over the variables of the matches, of which `scope` may know more."""
        scope, texts, allowance = scope or self._scope, self._texts, self._allowance
        return Calculator(scope, _Lazy(self), len(self), texts, allowance, self._failing)

    def _failing(self, failed: BoolArray) -> Failing:
        """The facts at the first atom whose matches have failed."""
        matches, rows = failed.nonzero()[0], self._rows[self._rule.steps[0].plan.atom]
        return Failing(np.unique(matches if rows is None else rows[matches]))

    def variable(self, name: str) -> Column | None:
        """The values of a variable in the matches."""
        known = self._made.get(name)
        if known is None:
            atom, source = self._rule.sources.get(name, (-1, None))
            if source is None or not (atom in self._rows or atom in self._clocks):
                return None
            known = self._made[name] = self._gathered(name, source)
        return known

    def _gathered(self, name: str, source: Source) -> Column:
        made, names = self._common or (None, {})
        if made is None or name not in names:
            return source(self)
        known = made.get(names[name])
        if known is None:
            known = made[names[name]] = source(self)
        return known

    def value(self, formula: Formula, kind: Type | None = None) -> Column:
        """An expression over the variables of the matches, as a calculator has it.

        Raises: Unsuited.
        """
        expression = formula.expression
        if isinstance(expression, Variable):
            known = self.variable(expression.name)
            if known is not None and (kind is None or known.kind is kind):
                return known
            if known is not None and known.kind is Type.INT and kind is Type.FLOAT:
                return Column(kind, known.values.astype(np.float64), known.nulls)
        elif formula.code is not None and (kind is None or kind is formula.kind):
            values = self._over(formula.code, formula.variables)
            if values is not None:
                return Column(formula.kind, values)
        return self.calculator().column(expression, kind)

    def truth(self, formula: Formula) -> BoolArray:
        """Where a condition is true; null counts as false. Raises: Unsuited."""
        if formula.code is not None and formula.kind is Type.BOOL:
            values = self._over(formula.code, formula.variables)
            if values is not None:
                return values
        return self.calculator().truth(formula.expression)

    def _over(self, code: CodeType, variables: Sequence[tuple[str, str, Type]]) -> Values | None:
        """What code says of the matches; None where a column is not as it takes it."""
        values = {}
        for python, name, kind in variables:
            column = self.variable(name)
            if column is None or column.nulls is not None or column.kind is not kind:
                return None
            values[python] = column.values
        found: Values = over(code, values)
        return found

    def field(self, atom: int, of: Callable[[Columns], Any]) -> Any:
        """A column of the facts that the matches have at an atom."""
        rows = self._rows[atom]
        whole = of(self._tables[atom].columns)
        if rows is None:
            return whole
        return whole.take(rows) if isinstance(whole, Column) else whole[rows]

    def ticks(self, atom: int) -> I64Array:
        """The times of a clock in the matches."""
        return self._clocks[atom][0]

    def time(self, atom: int) -> Column:
        """The time of the fact at an atom, or of the clock."""
        clock = self._clocks.get(atom)
        if clock is not None:
            return Column(Type.INT, clock[0])
        time, rows = self._tables[atom].columns.time, self._rows[atom]
        return time if rows is None else gathered_time(time, rows)

    def _key(self, atom: int, position: int) -> Column:
        column, rows = self._tables[atom].columns.key(position), self._rows[atom]
        return column if rows is None else column.take(rows)

    def key(self, atom: int) -> list[Column]:
        """The columns of the key of the fact at an atom."""
        clock = self._clocks.get(atom)
        if clock is not None:
            return [Column(Type.INT, values) for values in clock]
        keys = self._tables[atom].columns.keys
        rows = self._rows[atom]
        return [column if rows is None else column.take(rows) for column in keys]

    def keep(self, rows: I64Array) -> bool:
        """Go on with these matches; a number may come several times.

        Whether they are others than before.
        """
        if len(rows) == len(self) and counting(rows):
            return False
        self._common = None
        self._rows = {
            atom: rows if known is None else known[rows] for atom, known in self._rows.items()
        }
        self._clocks = {
            atom: (a[rows], b[rows], c[rows]) for atom, (a, b, c) in self._clocks.items()
        }
        self._made = {name: column.take(rows) for name, column in self._made.items()}
        self.start, self.stop = self.start[rows], self.stop[rows]
        return True

    def filter(self, kept: BoolArray) -> None:
        """Go on with the matches whose flag is set."""
        rows = kept.nonzero()[0]
        if len(rows) < len(kept):
            self.keep(rows)

    # Steps.

    @property
    def _width(self) -> int:
        """Bytes that a match takes while it is found: its pair, its rows, its instants, what is
        made of them.
        """
        return _WORD * (4 + 2 * (len(self._rows) + 1 + 2 + len(self._made)))

    def _room(self) -> int:
        """How many matches may be found. Raises: Exhausted."""
        return self._allowance.room(self._width)

    def _first(self, step: PreparedStep) -> None:
        atom, at = step.plan.atom, step.plan.range_column
        self._rows[atom] = None
        for position, wanted in step.probes:
            self.filter(same(self._key(atom, position), self.value(wanted)))
        if at is not None:
            column = self._key(atom, at)
            if column.kind is not Type.INT:
                raise Unsuited
            if step.between is None:
                low, high = self._limits(step)
                self.filter((column.values >= low) & (column.values <= high) & column.known)
            else:
                rows = within(column.values, *step.between)
                self.keep(rows if column.nulls is None else rows[~column.nulls[rows]])
        self._test(step)

    def _join(self, step: PreparedStep) -> None:
        table = self._tables[step.plan.atom]
        columns = table.columns
        right = [columns.key(at) for at in step.positions]
        left = [self.value(wanted) for _, wanted in step.probes]
        for mine, theirs in zip(left, right, strict=True):
            if mine.kind is not theirs.kind:
                raise Unsuited
        wide = wideness(left, right)
        groups = table.grouped(step.positions, wide)
        ids = groups.find(aligned_words(left, wide), len(self))
        present, others_present = (self.start, self.stop), (columns.start, columns.stop)
        at = step.plan.range_column
        if at is None:
            buckets = table.buckets(step.positions, wide)
            pairs = join_buckets(ids, buckets, present, others_present, self._room())
        else:
            column = columns.key(at)
            if column.kind is not Type.INT:
                raise Unsuited
            ids_of_rows = groups.ids
            known = column.known.nonzero()[0]
            order = known[np.lexsort((column.values[known], ids_of_rows[known]))]
            starts = np.searchsorted(ids_of_rows[order], np.arange(len(groups) + 1))
            limits = self._limits(step)
            sorted_buckets = Buckets(starts.astype(np.int64), order)
            values = column.values[order]
            pairs = join_ranges(
                ids, sorted_buckets, values, limits, present, others_present, self._room()
            )
        if pairs is None:
            self._allowance.refuse(self._allowance.held + (self._room() + 1) * self._width)
            return
        rows, others, start, stop = pairs
        self.keep(rows)
        self._rows[step.plan.atom] = others
        self.start, self.stop = start, stop
        self._test(step)

    def _test(self, step: PreparedStep) -> None:
        """Keep the matches in which the atom's fact is as its terms say. Raises: Unsuited."""
        atom = step.plan.atom
        if step.timed:
            time = self.time(atom)
            if time.nulls is not None:
                self.filter(time.known)
        if step.expiring and bool((self.field(atom, _expiry_of) == END_WORD).any()):
            raise Unsuited
        if step.never:
            self.keep(np.empty(0, np.int64))
        for source, term in step.tests:
            self.filter(same(source(self), self.value(term)))

    def _clock(self, step: PreparedStep) -> None:
        atom, number = step.form, step.plan.atom
        if number not in self._rule.plan.valid_clocks or step.clock is None:
            raise Unsuited
        offset, period = self._whole(step.clock[0]), self._whole(step.clock[1])
        time = clock_time(atom)
        if isinstance(time, Constant) or (
            isinstance(time, Variable) and self.variable(time.name) is not None
        ):
            times = self.calculator().column(time, Type.INT)
            in_reach = times.known & (times.values >= offset) & (times.values < self._upper)
            ticks = in_reach & (
                (times.values - np.where(in_reach, offset, times.values)) % period == 0
            )
            rows = ticks.nonzero()[0]
            found = times.values[rows]
        else:
            low, high = self._limits(step)
            pairs = tick_pairs(offset, period, low, high, (self.stop, self._upper), _TICKS_MAX)
            if pairs is None:
                raise Unsuited
            rows, found = pairs
        if self.keep(rows):
            offset, period = offset[rows], period[rows]
        self._clocks[number] = (found, offset, period)
        self.start = np.maximum(self.start, np.maximum(found, self._lower))
        for source, term in step.tests:
            self.filter(same(source(self), self.value(term)))
        self.filter(self.start < self.stop)

    def _whole(self, formula: Formula) -> I64Array:
        """The offset or the period of a clock in each match.

        Raises: Unsuited for one that words may be too small for.
        """
        expression = formula.expression
        if isinstance(expression, Constant) and type(expression.value) is int:
            least = greatest = expression.value
            words = np.empty(len(self), np.int64)
            words.fill(expression.value)
        else:
            words = np.ascontiguousarray(self.value(formula, Type.INT).values)
            least, greatest = extent(words) if len(words) else (0, 0)
        if least < -_CLOCK_MAX or greatest > _CLOCK_MAX:
            raise Unsuited
        return words

    # Ranges.

    def _limits(self, step: PreparedStep) -> tuple[I64Array, I64Array]:
        """The least and greatest value that each match leaves to a column or a clock."""
        low, high = step.limits
        return self._limited(low, np.maximum, BEGIN_WORD + 1), self._limited(
            high, np.minimum, END_WORD - 1
        )

    def _limited(
        self, limits: Sequence[Limit | None], nearest: Callable[..., Any], otherwise: int
    ) -> I64Array:
        """The nearest of some limits. Raises: Unsuited if words are too small."""
        found: I64Array = np.empty(len(self), np.int64)
        if not limits:
            found.fill(otherwise)
            return found
        found[:] = self._limit(limits[0])
        for limit in limits[1:]:
            nearest(found, self._limit(limit), out=found)
        return found

    def _limit(self, limit: Limit | None) -> Any:
        """A linear expression over columns. Raises: Unsuited."""
        if limit is None:
            raise Unsuited
        values: dict[str, Any] = {}
        for python, name in limit.variables:
            if name == LOWER:
                values[python] = self._lower
                continue
            column = self.variable(name)
            if column is None or column.kind is not Type.INT:
                raise Unsuited
            values[python] = column.values
        return over(limit.code, values)


def _expiry_of(columns: Columns) -> I64Array:
    return columns.expires


class _Lazy(Mapping[str, Column]):
    """The variables of matches, gathered when they are asked for."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching

    def __getitem__(self, name: str) -> Column:
        known = self._matching.variable(name)
        if known is None:
            raise KeyError(name)
        return known

    def __iter__(self) -> Any:
        raise AssertionError("variables are asked for by name")

    def __len__(self) -> int:
        raise AssertionError("variables are asked for by name")


def wideness(left: Sequence[Column], right: Sequence[Column]) -> tuple[bool, ...]:
    """Which columns may be null on either side."""
    return tuple(
        [a.nulls is not None or b.nulls is not None for a, b in zip(left, right, strict=True)]
    )


def same(left: Column, right: Column) -> BoolArray:
    """Where two columns of one type have the same value. Raises: Unsuited for two types."""
    if left.kind is not right.kind:
        raise Unsuited
    equal: BoolArray = left.values == right.values
    if left.nulls is not None or right.nulls is not None:
        equal &= left.known == right.known
    return equal


__all__ = ["Matching", "same", "wideness"]
