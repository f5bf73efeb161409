"""From matches to derived rows: atoms under `not`, heads, and what alternative derivations say
together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import (
    FEW_ROWS,
    Groups,
    best_by_run,
    drawn_together,
    few_drawn_together,
    runs_of,
    stacked_words,
    subtract,
    surely_apart,
    uniform_facts,
)
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columnar.columns import (
    END_WORD,
    Columns,
    absent_times,
    aligned_words,
    gathered_ends,
    gathered_time,
    no_ends,
)
from tidemill.datalog.columnar.formulas import Formula
from tidemill.datalog.columnar.joining import Matching, wideness
from tidemill.datalog.columnar.preparing import PreparedRule
from tidemill.datalog.columns.column import Column, Unsuited, words_of
from tidemill.datalog.evaluation.writing import head_expressions
from tidemill.datalog.logical.expressions import Scope
from tidemill.datalog.logical.forms import (
    RuleForm,
    Type,
    matched_variables,
    variables_of,
)
from tidemill.datalog.logical.ranges import Bounds


@dataclass(slots=True, eq=False)  # as columns
class Derived:
    """What the matches of a rule derive, one row for each. Never changed.

    `values` are the aggregated expressions, in the order of the head; `identity` the columns that
    tell solutions apart.
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
            self.start[rows], self.stop[rows], gathered_ends(self.expires, rows),
            gathered_time(self.time, rows),
            tuple([column.take(rows) for column in self.arguments]),
            tuple([column.take(rows) for column in self.values]),
            tuple([column.take(rows) for column in self.identity]),
        )  # fmt: skip


def _head_scope(rule: PreparedRule, matching: Matching) -> Scope:
    """What is known of the variables of the head in these very matches. Raises: Unsuited."""
    bounds: dict[str, Bounds] = {}
    for expression in head_expressions(rule.form.head):
        for name in variables_of(expression):
            column = matching.variable(name)
            if column is None:
                raise Unsuited
            bounds[name] = column.bounds()
    scope = rule.scope
    return Scope(scope.types, bounds, scope.functions, scope.lattices)


def _exactly(rule: PreparedRule, matching: Matching) -> Callable[[Formula, Type | None], Column]:
    """Values of the head where these very matches tell more of what may fail."""
    column = matching.calculator(_head_scope(rule, matching)).column
    return lambda formula, kind: column(formula.expression, kind)


def _instants(column: Column) -> I64Array:
    """Instants, one for each match. Raises: Unsuited where one is null."""
    if column.nulls is not None and bool(column.nulls.any()):
        raise Unsuited
    instants: I64Array = column.values
    return instants


def narrow(
    rule: PreparedRule, matching: Matching, tables: Callable[[str], Arrangements | None]
) -> None:
    """Take away the instants at which an atom under `not` is present. Raises: Unsuited."""
    for predicate, positions, values in rule.absent:
        table = tables(predicate)
        if table is None:
            continue
        wanted = [matching.value(value) for value in values]
        known = [table.columns.key(at) for at in positions]
        for mine, theirs in zip(wanted, known, strict=True):
            if mine.kind is not theirs.kind:
                raise Unsuited
        wide = wideness(wanted, known)
        ids = table.grouped(positions, wide).find(aligned_words(wanted, wide), len(matching))
        cover = table.cover(positions, wide)
        rows, start, stop = subtract(ids, matching.start, matching.stop, cover)
        matching.keep(rows)
        matching.start, matching.stop = start, stop


def derive(rule: PreparedRule, matching: Matching, window: tuple[int, int]) -> Derived:
    """Compute the head of every match. Raises: Unsuited."""
    head, form = rule.head, rule.form
    value = matching.value if head.sure else _exactly(rule, matching)
    arguments = tuple(
        [value(term, kind) for term, kind in zip(head.terms, rule.kinds, strict=True)]
    )
    values = tuple(
        [value(term, kind) for term, kind in zip(head.values, rule.value_kinds, strict=True)]
    )
    identity = _identity(form, matching) if form.outlives else ()
    start, stop = matching.start, matching.stop
    if not (head.expires or head.time):
        return Derived(
            start, stop, _passed_expiry(rule, matching), _passed_time(rule, matching),
            arguments, values, identity,
        )  # fmt: skip
    if head.time:
        times = [_instants(value(expression, Type.INT)) for expression in head.time]
        time = Column(Type.INT, times[0] if len(times) == 1 else np.maximum.reduce(times))
        start = np.maximum(start, time.values)
    else:
        time = _passed_time(rule, matching)
    if head.expires:
        ends = [_instants(value(expression, Type.INT)) for expression in head.expires]
        expires: I64Array = ends[0] if len(ends) == 1 else np.minimum.reduce(ends)
        if bool((expires == END_WORD).any()):
            raise Unsuited  # a number that stands for no end
    else:
        expires = _passed_expiry(rule, matching)
    derived = Derived(start, stop, expires, time, arguments, values, identity)
    rows = kept_heads(derived, *window, bool(head.expires), bool(head.time))
    return derived if len(rows) == len(derived) else derived.take(rows)


def kept_heads(derived: Derived, lower: int, upper: int, expiring: bool, timed: bool) -> I64Array:
    """The rows that hold somewhere in the window, of heads with an expiry or a time of their own."""
    if not timed:
        return (derived.expires > lower).nonzero()[0]
    kept = derived.start < np.minimum(derived.stop, upper)
    if expiring:
        kept &= derived.expires > lower
    return kept.nonzero()[0]


def _passed_time(rule: PreparedRule, matching: Matching) -> Column:
    """The latest time of the facts of a match."""
    if not rule.timed:
        return absent_times(len(matching))
    first = matching.time(rule.timed[0])
    if len(rule.timed) == 1:
        return first
    latest, known = first.values, first.known
    for atom in rule.timed[1:]:
        mine = matching.time(atom)
        better = mine.known & (~known | (mine.values > latest))
        latest = np.where(better, mine.values, latest)
        known = known | mine.known
    return Column(Type.INT, latest, None if known.all() else ~known)


def _passed_expiry(rule: PreparedRule, matching: Matching) -> I64Array:
    """The soonest expiry of the facts of a match."""
    if not rule.expiring:
        return no_ends(len(matching))
    soonest: I64Array = np.minimum.reduce(
        [matching.field(atom, lambda known: known.expires) for atom in rule.expiring]
    )
    return soonest


def _identity(form: RuleForm, matching: Matching) -> tuple[Column, ...]:
    """The facts of a solution and the parafacts it matched."""
    columns = [column for i in range(len(form.atoms)) for column in matching.key(i)]
    for expression in matched_variables(form):
        column = matching.variable(expression.name)
        if column is None:
            raise Unsuited
        columns.append(column)
    return tuple(columns)


def merged(columns: Columns) -> Columns:
    """The same facts with what alternative derivations of one say together: at each instant the
    latest expiry.

    Rows of one fact do not overlap afterwards, and touching ones differ. Cost: O(n), O(n log n) for
    facts that several rows derive.
    """
    rows = len(columns)
    if columns.apart or not rows:
        return columns
    words = words_of(columns.telling)
    if rows <= FEW_ROWS:
        block = stacked_words(words, rows)
        different, out = few_drawn_together(block, columns.start, columns.stop, columns.expires)
        if different == rows:
            return columns.placed(columns.start, columns.stop, apart=True)
        if out is not None:
            return columns.at(out[0], out[1], out[2], apart=out.shape[1] == different)
    elif surely_apart(words, rows):
        return columns.placed(columns.start, columns.stop, apart=True)
    groups = Groups.of(words, rows)
    if len(groups) == rows:
        return columns.placed(columns.start, columns.stop, apart=True)
    drawn = drawn_together(groups.ids, len(groups), columns.start, columns.stop, columns.expires)
    if drawn is not None:
        return columns.at(*drawn, apart=len(drawn[0]) == len(groups))
    same, _ = uniform_facts(groups.ids, columns.start, columns.stop, columns.expires, groups.firsts)
    several = (~same[groups.ids]).nonzero()[0]
    start, stop, expires, row = _swept(columns, groups.ids, several)
    alone = groups.firsts[same]
    chosen = columns.take(np.concatenate([alone, row]))
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
    living = (runs.present > 0).nonzero()[0]
    start, stop, group = runs.start[living], runs.stop[living], runs.group[living]
    row = rows[best[living]]
    expires = columns.expires[row]
    begins = np.ones(len(living), np.bool_)
    begins[1:] = (
        (group[1:] != group[:-1]) | (start[1:] != stop[:-1]) | (expires[1:] != expires[:-1])
    )
    first = begins.nonzero()[0]
    last = np.append(first[1:], len(living)) - 1
    return start[first], stop[last], expires[first], row[first]


__all__ = [
    "Derived", "derive", "merged", "narrow",
]  # fmt: skip
