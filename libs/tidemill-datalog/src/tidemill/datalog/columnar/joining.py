"""Plans of joins run over columns: one pass for each step instead of one loop for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import CodeType
from typing import Any

import numpy as np

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.relational import (
    Buckets,
    counting,
    join_buckets,
    join_ranges,
    tick_pairs,
)
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columnar.columns import (
    BEGIN_WORD,
    END_WORD,
    Column,
    Columns,
    Unsuited,
    aligned_words,
)
from tidemill.datalog.columnar.expressions import Calculator
from tidemill.datalog.evaluation.expressions import Scope
from tidemill.datalog.evaluation.forms import (
    AtomForm,
    Constant,
    Expression,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
)
from tidemill.datalog.evaluation.joins import LOWER, Plan, Step, clock_time

_LIMIT_MAX = 1 << 62
_TICKS_MAX = 1 << 26


class Matching:
    """The matches of one rule so far: a row of each atom, and when all of them are present."""

    def __init__(
        self,
        form: RuleForm,
        plan: Plan,
        scope: Scope,
        tables: Mapping[int, Arrangements],
        window: tuple[int, int],
    ) -> None:
        self._form = form
        self._plan = plan
        self._scope = scope
        self._tables = tables
        self._lower, self._upper = window
        self._texts = next(iter(tables.values())).columns.texts
        self._rows: dict[int, I64Array | None] = {}
        self._clocks: dict[int, tuple[I64Array, I64Array, I64Array]] = {}
        # They take the matches, and do not hold them: what is in no cycle is freed at once, its columns with it.
        self._sources: dict[str, Callable[[Matching], Column]] = {}
        self._made: dict[str, Column] = {}
        self.start = np.empty(0, np.int64)
        self.stop = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.start)

    def run(self) -> None:
        """Find all matches. Raises: Unsuited."""
        for step in self._plan.steps:
            if self._form.atoms[step.atom].is_clock:
                self._clock(step)
            elif not self._rows and not self._clocks:
                self._first(step)
            else:
                self._join(step)
            self._require(step.conditions)
        if self._plan.first:
            calculator = Calculator(self._scope, {}, 1, self._texts)
            if not all(
                bool(calculator.truth(self._form.conditions[i])[0]) for i in self._plan.first
            ):
                self.keep(np.empty(0, np.int64))

    # What a match is made of.

    def calculator(self, scope: Scope | None = None) -> Calculator:
        """Evaluates expressions over the variables of the matches, of which `scope` may know more."""
        return Calculator(scope or self._scope, _Lazy(self), len(self), self._texts)

    def variable(self, name: str) -> Column | None:
        """The values of a variable in the matches."""
        known = self._made.get(name)
        if known is None:
            source = self._sources.get(name)
            if source is None:
                return None
            known = self._made[name] = source(self)
        return known

    def field(self, atom: int, of: Callable[[Columns], Any]) -> Any:
        """A column of the facts that the matches have at an atom."""
        rows = self._rows[atom]
        whole = of(self._tables[atom].columns)
        if rows is None:
            return whole
        return whole.take(rows) if isinstance(whole, Column) else whole[rows]

    def key(self, atom: int) -> list[Column]:
        """The columns of the key of the fact at an atom."""
        clock = self._clocks.get(atom)
        if clock is not None:
            return [Column(Type.INT, values) for values in clock]
        keys = self._tables[atom].columns.keys
        rows = self._rows[atom]
        return [column if rows is None else column.take(rows) for column in keys]

    def keep(self, rows: I64Array) -> None:
        """Go on with these matches; a number may come several times."""
        if len(rows) == len(self) and counting(rows):
            return
        self._rows = {
            atom: rows if known is None else known[rows] for atom, known in self._rows.items()
        }
        self._clocks = {
            atom: (a[rows], b[rows], c[rows]) for atom, (a, b, c) in self._clocks.items()
        }
        self._made = {name: column.take(rows) for name, column in self._made.items()}
        self.start, self.stop = self.start[rows], self.stop[rows]

    def filter(self, kept: BoolArray) -> None:
        """Go on with the matches whose flag is set."""
        rows = kept.nonzero()[0]
        if len(rows) < len(kept):
            self.keep(rows)

    def _require(self, conditions: Sequence[int]) -> None:
        for condition in conditions:
            self.filter(self.calculator().truth(self._form.conditions[condition]))

    # Steps.

    def _first(self, step: Step) -> None:
        columns = self._tables[step.atom].columns
        self._rows[step.atom] = None
        self.start, self.stop = columns.start, columns.stop
        for probe in step.probes:
            at = probe.position
            wanted = self.calculator().column(probe.value)
            found: Column = self.field(step.atom, _key_column(at))
            self.filter(same(found, wanted))
        if step.range_column is not None:
            position = step.range_column
            column: Column = self.field(step.atom, _key_column(position))
            if column.kind is not Type.INT:
                raise Unsuited
            low, high = self._limits(step)
            self.filter((column.values >= low) & (column.values <= high) & column.known)
        self._bind(step)

    def _join(self, step: Step) -> None:
        table = self._tables[step.atom]
        right = [table.columns.keys[at] for at in step.positions]
        calculator = self.calculator()
        left = [calculator.column(probe.value) for probe in step.probes]
        if any(a.kind is not b.kind for a, b in zip(left, right, strict=True)):
            raise Unsuited
        wide = wideness(left, right)
        groups = table.grouped(step.positions, wide)
        ids = groups.find(aligned_words(left, wide), len(self))
        buckets = table.buckets(step.positions, wide)
        mine, theirs = (self.start, self.stop), (table.columns.start, table.columns.stop)
        if step.range_column is None:
            rows, others, start, stop = join_buckets(ids, buckets, mine, theirs)
        else:
            column = table.columns.keys[step.range_column]
            if column.kind is not Type.INT:
                raise Unsuited
            ids_of_rows = groups.ids
            known = np.flatnonzero(column.known)
            order = known[np.lexsort((column.values[known], ids_of_rows[known]))]
            starts = np.searchsorted(ids_of_rows[order], np.arange(len(groups) + 1))
            limits = self._limits(step)
            sorted_buckets = Buckets(starts.astype(np.int64), order)
            rows, others, start, stop = join_ranges(
                ids, sorted_buckets, column.values[order], limits, mine, theirs
            )
        self.keep(rows)
        self._rows[step.atom] = others
        self.start, self.stop = start, stop
        self._bind(step)

    def _bind(self, step: Step) -> None:
        """Bind or compare every term of an atom that no probe has decided."""
        atom = self._form.atoms[step.atom]
        covered = {probe.position for probe in step.match_probes}
        for position, term in enumerate(atom.terms, 1):
            if position not in covered:
                self._term(step.atom, term, _key_column(position))
        for name, terms in atom.lattices:
            if all(isinstance(term, Wildcard) for term in terms) and name == "expires":
                continue
            self._lattice(step.atom, atom, name, terms, covered)

    def _lattice(
        self, i: int, atom: AtomForm, name: str, terms: Sequence[Term], covered: set[int]
    ) -> None:
        if name == "time":
            if 0 in covered:
                covered.discard(0)
                return
            time: Column = self.field(i, lambda known: known.time)
            if time.nulls is not None:
                self.filter(time.known)
            self._term(i, terms[0], lambda known: Column(Type.INT, known.time.values))
        elif name == "expires":
            if bool((self.field(i, lambda known: known.expires) == END_WORD).any()):
                raise Unsuited
            self._term(i, terms[0], lambda known: Column(Type.INT, known.expires))
        else:
            if len(terms) != 1:
                raise Unsuited
            if name not in self._tables[i].columns.lattices:
                self.keep(np.empty(0, np.int64))
                for term in terms:
                    self._unmatched(term)
                return
            self._term(i, terms[0], lambda known: known.lattices[name])

    def _unmatched(self, term: Term) -> None:
        if isinstance(term, Variable) and term.name not in self._sources:
            raise Unsuited

    def _term(self, atom: int, term: Term, of: Callable[[Columns], Column]) -> None:
        if isinstance(term, Wildcard):
            return
        widens = isinstance(term, Variable) and self._scope.types.get(term.name) is Type.FLOAT

        def source(matching: Matching) -> Column:
            column: Column = matching.field(atom, of)
            if widens and column.kind is Type.INT:
                return Column(Type.FLOAT, column.values.astype(np.float64), column.nulls)
            return column

        if isinstance(term, Variable) and term.name not in self._sources:
            self._sources[term.name] = source
            return
        wanted: Expression = term
        self.filter(same(source(self), self.calculator().column(wanted)))

    def _clock(self, step: Step) -> None:
        atom = self._form.atoms[step.atom]
        if step.atom not in self._plan.valid_clocks or atom.clock is None or not self._rows:
            raise Unsuited
        calculator = self.calculator()
        offset, period = (
            np.ascontiguousarray(calculator.column(argument, Type.INT).values)
            for argument in atom.clock
        )
        time = clock_time(atom)
        if len(self) and (
            int(period.max()) > _LIMIT_MAX >> 1 or int(np.abs(offset).max()) > _LIMIT_MAX >> 1
        ):
            raise Unsuited
        if isinstance(time, Constant) or (
            isinstance(time, Variable) and time.name in self._sources
        ):
            times = calculator.column(time, Type.INT)
            in_reach = times.known & (times.values >= offset) & (times.values < self._upper)
            ticks = in_reach & (
                (times.values - np.where(in_reach, offset, times.values)) % period == 0
            )
            rows = np.flatnonzero(ticks)
            found = times.values[rows]
        else:
            low, high = self._limits(step)
            high = np.minimum(high, np.minimum(self._upper, self.stop) - 1)
            span = np.maximum(high - np.maximum(low, offset), 0).sum(dtype=np.float64)
            if len(self) and span / int(period.min()) > _TICKS_MAX:
                raise Unsuited
            rows, found = tick_pairs(offset, period, low, high)
        self.keep(rows)
        self._clocks[step.atom] = (found, offset[rows], period[rows])
        self.start = np.maximum(self.start, np.maximum(found, self._lower))
        for name, terms in atom.lattices:
            if name == "time":
                self._tick_term(step.atom, terms[0])
            elif not all(isinstance(term, Wildcard) for term in terms):
                raise Unsuited
        self.filter(self.start < self.stop)

    def _tick_term(self, atom: int, term: Term) -> None:
        if isinstance(term, Variable) and term.name not in self._sources:
            self._sources[term.name] = lambda found: Column(Type.INT, found._clocks[atom][0])
        elif not isinstance(term, Wildcard):
            ticks = Column(Type.INT, self._clocks[atom][0])
            self.filter(same(ticks, self.calculator().column(term)))

    # Ranges.

    def _limits(self, step: Step) -> tuple[I64Array, I64Array]:
        """The least and greatest value that each match leaves to a column or a clock."""
        low = np.full(len(self), BEGIN_WORD + 1, np.int64)
        high = np.full(len(self), END_WORD - 1, np.int64)
        for source in step.limits.low:
            low = np.maximum(low, self._limit(source))
        for source in step.limits.high:
            high = np.minimum(high, self._limit(source))
        return low, high

    def _limit(self, source: str) -> Any:
        """A linear expression, written for numbers, over columns. Raises: Unsuited if words are too small."""
        if " is not " in source:
            raise Unsuited
        code, most = _limit_code(source)
        named = {python: name for name, python in self._scope.names.items()}
        corners: list[list[tuple[str, int]]] = []
        values: dict[str, Any] = {}
        for python in code.co_names:
            name = named[python]
            if name == LOWER:
                values[python] = np.int64(self._lower)
                corners.append([(python, self._lower)])
                continue
            column = self.variable(name)
            bounds = self._scope.bounds.get(name)
            if column is None or column.kind is not Type.INT or bounds is None:
                raise Unsuited
            if not (abs(bounds.low) < _LIMIT_MAX and abs(bounds.high) < _LIMIT_MAX):
                raise Unsuited
            values[python] = column.values
            corners.append([(python, int(bounds.low)), (python, int(bounds.high))])
        for corner in product(*corners):
            if abs(eval(most, {}, dict(corner))) >= _LIMIT_MAX:  # our own text
                raise Unsuited
        return eval(code, {}, values)  # our own text


@lru_cache(1 << 10)
def _limit_code(source: str) -> tuple[CodeType, CodeType]:
    """The text of a limit as code, and code for a number that is no less than any on the way to it."""
    most = source.replace("//", "*")
    return compile(source, "<limit>", "eval"), compile(most, "<limit>", "eval")


def _key_column(position: int) -> Callable[[Columns], Column]:
    return lambda columns: columns.keys[position]


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
        a.nulls is not None or b.nulls is not None for a, b in zip(left, right, strict=True)
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
