"""From matches to derived rows: atoms under `not`, heads, and what alternative derivations say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import (
    Groups,
    best_by_run,
    drawn_together,
    runs_of,
    sorted_apart,
    subtract,
    uniform_facts,
)
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columnar.columns import (
    END_WORD,
    Column,
    Columns,
    Unsuited,
    aligned_words,
    words_of,
)
from tidemill.datalog.columnar.expressions import Calculator
from tidemill.datalog.columnar.joining import Matching, wideness
from tidemill.datalog.evaluation.expressions import Scope, type_of
from tidemill.datalog.evaluation.forms import Expression, RuleForm, Type, Variable, variables_of
from tidemill.datalog.evaluation.tables import Bounds, Traits
from tidemill.datalog.evaluation.writing import head_expressions


@dataclass(frozen=True, slots=True)
class Derived:
    """What the matches of a rule derive, one row for each.

    `values` are the aggregated expressions, in the order of the head; `identity` the columns that tell
    solutions apart.
    """

    start: I64Array
    stop: I64Array
    expires: I64Array
    time: Column
    arguments: tuple[Column, ...]
    values: tuple[Column, ...]
    identity: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: I64Array) -> Derived:
        """The rows with these numbers."""
        return Derived(
            self.start[rows], self.stop[rows], self.expires[rows], self.time.take(rows),
            *(
                tuple(column.take(rows) for column in columns)
                for columns in (self.arguments, self.values, self.identity)
            ),
        )  # fmt: skip


def check_passed(form: RuleForm, carried: Mapping[int, frozenset[str]]) -> None:
    """Raises: Unsuited where a head passes on more than time and expiry.

    `carried` are the lattices that the facts of each atom carry.
    """
    dropped = form.head.suppressed | {name for name, _ in form.head.lattices}
    for i, names in carried.items():
        if not names <= dropped | form.atoms[i].suppressed:
            raise Unsuited


def head_scope(form: RuleForm, matching: Matching, scope: Scope) -> Scope:
    """What is known of the variables of the head in these very matches. Raises: Unsuited."""
    bounds: dict[str, Bounds] = {}
    for expression in head_expressions(form.head):
        for name in variables_of(expression):
            column = matching.variable(name)
            if column is None:
                raise Unsuited
            bounds[name] = column.bounds()
    known = Scope(scope.types, bounds, scope.functions, scope.lattices)
    for expression in (*form.head.time, *form.head.expires):
        if type_of(expression, known.types) is not Type.INT:
            raise Unsuited
    return known


def _instants(calculator: Calculator, expression: Expression) -> I64Array:
    """Instants, one for each match. Raises: Unsuited where one is null."""
    column = calculator.column(expression, Type.INT)
    if column.nulls is not None and bool(column.nulls.any()):
        raise Unsuited
    instants: I64Array = column.values
    return instants


def narrow(
    form: RuleForm, matching: Matching, tables: Callable[[str], Arrangements | None]
) -> None:
    """Take away the instants at which an atom under `not` is present. Raises: Unsuited."""
    for absent in form.absent:
        if not absent.by_columns:
            raise Unsuited
        table = tables(absent.predicate)
        if table is None:
            continue
        positions = tuple(position for position, _ in absent.columns())
        calculator = matching.calculator()
        wanted = [calculator.column(value) for _, value in absent.columns()]
        known = [table.columns.keys[at] for at in positions]
        if any(a.kind is not b.kind for a, b in zip(wanted, known, strict=True)):
            raise Unsuited
        wide = wideness(wanted, known)
        groups = table.grouped(positions, wide)
        ids = groups.find(aligned_words(wanted, wide), len(matching))
        cover = table.cover(positions, wide)
        rows, start, stop = subtract(ids, matching.start, matching.stop, cover)
        matching.keep(rows)
        matching.start, matching.stop = start, stop


def derive(
    form: RuleForm,
    matching: Matching,
    scope: Scope,
    traits: Sequence[Traits],
    kinds: tuple[Sequence[Type], Mapping[str, Sequence[Type]]],
    window: tuple[int, int],
) -> Derived:
    """Compute the head of every match. `kinds`: of the arguments, and of the lattices. Raises: Unsuited."""
    head = form.head
    lower, upper = window
    calculator = matching.calculator(head_scope(form, matching, scope))
    arguments = tuple(
        calculator.column(term, kind) for term, kind in zip(head.terms, kinds[0], strict=True)
    )
    values = []
    for name, terms in head.lattices:
        if len(terms) != 1:
            raise Unsuited
        kind = kinds[1].get(name, (Type.ANY,))[0]
        values.append(calculator.column(terms[0], Type.FLOAT if kind is Type.FLOAT else None))
    time = _time(form, matching, traits, calculator)
    expires = _expires(form, matching, traits, calculator)
    start, stop = matching.start, matching.stop
    if head.time:
        start = np.maximum(start, time.values)
    derived = Derived(
        start, stop, expires, time, arguments, tuple(values), _identity(form, matching)
    )
    if not (head.expires or head.time):
        return derived
    rows = kept_heads(derived, lower, upper, bool(head.expires), bool(head.time))
    return derived if len(rows) == len(derived) else derived.take(rows)


def kept_heads(derived: Derived, lower: int, upper: int, expiring: bool, timed: bool) -> I64Array:
    """The rows that hold somewhere in the window, of heads with an expiry or a time of their own."""
    kept = np.ones(len(derived), np.bool_)
    if expiring:
        kept &= derived.expires > lower
    if timed:
        kept &= (derived.start < derived.stop) & (derived.start < upper)
    return kept.nonzero()[0]


def _time(
    form: RuleForm, matching: Matching, traits: Sequence[Traits], calculator: Calculator
) -> Column:
    if form.head.time:
        times = [_instants(calculator, expression) for expression in form.head.time]
        return Column(Type.INT, np.maximum.reduce(times))
    latest = np.zeros(len(matching), np.int64)
    nulls = np.ones(len(matching), np.bool_)
    if "time" not in form.head.suppressed:
        for i, atom in enumerate(form.atoms):
            if "time" in atom.suppressed or not traits[i].timed:
                continue
            mine = matching.key(i)[0]
            better = mine.known & (nulls | (mine.values > latest))
            latest = np.where(better, mine.values, latest)
            nulls = nulls & ~mine.known
    return Column(Type.INT, latest, nulls if nulls.any() else None)


def _expires(
    form: RuleForm, matching: Matching, traits: Sequence[Traits], calculator: Calculator
) -> I64Array:
    head = form.head
    if head.expires:
        ends = [_instants(calculator, expression) for expression in head.expires]
        soonest: I64Array = np.minimum.reduce(ends)
        if bool((soonest == END_WORD).any()):
            raise Unsuited  # a number that stands for no end
        return soonest
    expires = np.full(len(matching), END_WORD, np.int64)
    if "expires" in head.suppressed:
        return expires
    for i, atom in enumerate(form.atoms):
        if "expires" not in atom.suppressed and traits[i].expiring and not atom.is_clock:
            expires = np.minimum(expires, matching.field(i, lambda known: known.expires))
    return expires


def _identity(form: RuleForm, matching: Matching) -> tuple[Column, ...]:
    """The facts of a solution and the parafacts it matched, where somebody asks for them."""
    if not form.outlives:
        return ()
    columns = [column for i in range(len(form.atoms)) for column in matching.key(i)]
    for expression in matched_variables(form):
        column = matching.variable(expression.name)
        if column is None:
            raise Unsuited
        columns.append(column)
    return tuple(columns)


def matched_variables(form: RuleForm) -> list[Variable]:
    """The variables for parafacts other than the time, in the order in which identities have them."""
    found: list[Variable] = []
    for atom in form.atoms:
        for name, terms in atom.lattices:
            if name != "time":
                found += [term for term in terms if isinstance(term, Variable)]
    return found


def merged(columns: Columns) -> Columns:
    """The same facts with what alternative derivations of one say together: at each instant the latest expiry.

    Rows of one fact do not overlap afterwards, and touching ones differ. Cost: O(n), O(n log n) for facts
    that several rows derive.
    """
    if columns.apart:
        return columns
    words = words_of(columns.keys)
    if sorted_apart(words, len(columns)):
        return replace(columns, apart=True)
    groups = Groups.of(words, len(columns))
    if len(groups) == len(columns):
        return replace(columns, apart=True)
    drawn = drawn_together(groups.ids, len(groups), columns.start, columns.stop, columns.expires)
    if drawn is not None:
        rows, start, stop = drawn
        apart = len(rows) == len(groups)
        return replace(columns.take(rows), start=start, stop=stop, apart=apart)
    same, _ = uniform_facts(groups.ids, columns.start, columns.stop, columns.expires, groups.firsts)
    several = np.flatnonzero(~same[groups.ids])
    start, stop, expires, row = _swept(columns, groups.ids, several)
    alone = groups.firsts[same]
    rows = np.concatenate([alone, row])
    chosen = columns.take(rows)
    return Columns(
        np.concatenate([columns.start[alone], start]),
        np.concatenate([columns.stop[alone], stop]),
        np.concatenate([columns.expires[alone], expires]),
        chosen.time, chosen.arguments, columns.texts, chosen.lattices,
    )  # fmt: skip


def _swept(
    columns: Columns, ids: I64Array, rows: I64Array
) -> tuple[I64Array, I64Array, I64Array, I64Array]:
    runs = runs_of(ids[rows], columns.start[rows], columns.stop[rows])
    known = np.ones(len(rows), np.bool_)
    best = best_by_run(runs, ~columns.expires[rows], known)
    living = np.flatnonzero(runs.present > 0)
    start, stop, group = runs.start[living], runs.stop[living], runs.group[living]
    row = rows[best[living]]
    expires = columns.expires[row]
    begins = np.ones(len(living), np.bool_)
    begins[1:] = (
        (group[1:] != group[:-1]) | (start[1:] != stop[:-1]) | (expires[1:] != expires[:-1])
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(living)) - 1
    return start[first], stop[last], expires[first], row[first]


__all__ = [
    "Derived", "check_passed", "derive", "matched_variables", "merged", "narrow",
]  # fmt: skip
