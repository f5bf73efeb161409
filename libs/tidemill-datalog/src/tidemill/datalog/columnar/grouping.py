"""Aggregates over columns: the record of every group on every stretch in which the same solutions live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.relational import (
    Groups,
    Runs,
    add_up,
    best_by_group,
    best_by_run,
    limbs_of,
    quotients,
    runs_of,
    total_of,
    uniform_groups,
)
from tidemill.datalog.columnar.columns import (
    END_WORD,
    LATTICES_SEEN,
    Column,
    Columns,
    Texts,
    Unsuited,
    concatenated,
    words_of,
)
from tidemill.datalog.columnar.deriving import Derived
from tidemill.datalog.evaluation.forms import RuleForm, Type
from tidemill.datalog.values import INT_MAX, INT_MIN


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Records of groups: their first solution, start and stop, and the solutions that live in each."""

    rows: I64Array
    start: I64Array
    stop: I64Array
    runs: Runs | None
    ids: I64Array
    living: I64Array

    def best(self, ranks: I64Array, known: BoolArray) -> I64Array:
        """Of each record the solution with the least rank among the known ones, -1 for none."""
        if self.runs is None:
            return best_by_group(self.ids, ranks, known, len(self.rows))
        return best_by_run(self.runs, ranks, known)[self.living]

    def added(self, column: Column) -> tuple[I64Array, I64Array, int]:
        """Exact sums: limbs, how many numbers, exponent. Raises: Unsuited."""
        known = column.known
        if self.runs is None:
            found = add_up(
                column.values, known, self.ids, np.ones(len(known), np.int64), len(self.rows)
            )
            if found is None:
                raise Unsuited
            return found
        events = self.runs.events
        rows = np.where(events >= 0, events, ~events)
        signs = np.where(events >= 0, 1, -1)
        moved = add_up(
            column.values[rows], known[rows], self.runs.of_events(), signs, len(self.runs.group)
        )
        if moved is None:
            raise Unsuited
        limbs, counts, exponent = moved
        limbs_of(limbs, counts, self.runs.firsts)
        return limbs[self.living], counts[self.living], exponent


def aggregated(form: RuleForm, derived: Derived, texts: Texts) -> Columns:
    """The records that the solutions of a rule make together. Raises: Unsuited."""
    names = [name for name, _ in form.head.lattices]
    if not LATTICES_SEEN.issuperset(names) or len(set(names)) < len(names):
        raise Unsuited
    keys = (*derived.arguments, derived.time) if form.head.time else derived.arguments
    groups = Groups.of(words_of(keys), len(derived))
    same = uniform_groups(groups.ids, derived.start, derived.stop, groups.firsts)
    if same.all():
        return _records(names, derived, _together(derived, groups), texts)
    parts = []
    alike = same[groups.ids]
    for rows in (np.flatnonzero(alike), np.flatnonzero(~alike)):
        if len(rows):
            mine = derived.take(rows)
            again = Groups.of([groups.ids[rows]], len(rows))
            stretches = _together(mine, again) if bool(alike[rows[0]]) else _apart(mine, again)
            records = _records(names, mine, stretches, texts)
            parts.append(records if stretches.runs is None else _coalesced(records))
    return parts[0] if len(parts) == 1 else stacked(parts)


def _coalesced(records: Columns) -> Columns:
    """The same records with touching stretches that look alike drawn together."""
    ends = Column(Type.INT, records.expires)
    lattices = [records.lattices[name] for name in sorted(records.lattices)]
    groups = Groups.of(words_of((*records.keys, ends, *lattices)), len(records))
    order = np.lexsort((records.start, groups.ids))
    ids, start, stop = groups.ids[order], records.start[order], records.stop[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (ids[1:] != ids[:-1]) | (start[1:] != stop[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    drawn = records.take(order[first])
    return Columns(
        start[first], stop[last], drawn.expires, drawn.time, drawn.arguments, drawn.texts,
        drawn.lattices,
    )  # fmt: skip


def _together(derived: Derived, groups: Groups) -> _Stretches:
    firsts = groups.firsts
    return _Stretches(
        firsts, derived.start[firsts], derived.stop[firsts], None, groups.ids, np.empty(0, np.int64)
    )


def _apart(derived: Derived, groups: Groups) -> _Stretches:
    runs = runs_of(groups.ids, derived.start, derived.stop)
    living = np.flatnonzero(runs.present > 0)
    rows = groups.firsts[runs.group[living]]
    return _Stretches(rows, runs.start[living], runs.stop[living], runs, groups.ids, living)


def _records(
    names: Sequence[str], derived: Derived, stretches: _Stretches, texts: Texts
) -> Columns:
    rows = stretches.rows
    latest = stretches.best(~derived.time.values, derived.time.known)
    time = _chosen(derived.time, latest)
    ends = derived.expires != END_WORD
    if ends.any():
        soonest = stretches.best(derived.expires, ends)
        expires = np.where(soonest >= 0, derived.expires[soonest], END_WORD)
    else:
        expires = np.full(len(rows), END_WORD, np.int64)
    return Columns(
        stretches.start, stretches.stop, expires, time,
        tuple(column.take(rows) for column in derived.arguments), texts,
        {
            name: _aggregate(name, column, stretches)
            for name, column in zip(names, derived.values, strict=True)
        },
    )  # fmt: skip


def _chosen(column: Column, rows: I64Array) -> Column:
    """The values of the rows, null where there is no row."""
    none = rows < 0
    if not none.any():
        return Column(column.kind, column.values[rows])
    if not len(column):
        return Column(column.kind, np.zeros(len(rows), column.values.dtype), none)
    values = np.where(none, column.values.dtype.type(0), column.values[rows])
    return Column(column.kind, values, none)


def _aggregate(name: str, column: Column, stretches: _Stretches) -> Column:
    if name in ("min", "earliest", "max", "latest"):
        ranks = _ranks(column)
        if name in ("max", "latest"):
            ranks = ~ranks
        return _chosen(column, stretches.best(ranks, column.known))
    if name == "count":
        numbers = Column(Type.INT, np.zeros(len(column), np.int64), column.nulls)
        return Column(Type.INT, stretches.added(numbers)[1])
    if column.kind not in (Type.INT, Type.FLOAT):
        raise Unsuited
    limbs, counts, exponent = stretches.added(column)
    nulls = counts == 0
    divisor = np.maximum(counts, 1) if name == "average" else np.ones_like(counts)
    whole = name == "sum" and column.kind is Type.INT
    values = _whole(limbs) if whole else _quotients(limbs, divisor, exponent)
    kind = Type.INT if whole else Type.FLOAT
    return Column(kind, values, nulls if nulls.any() else None)


def _ranks(column: Column) -> I64Array:
    """Words in the order of the numbers."""
    if column.kind is Type.INT:
        return column.values.astype(np.int64, copy=False)
    if column.kind is not Type.FLOAT:
        raise Unsuited
    bits: I64Array = (column.values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(INT_MAX))


def _small(limbs: I64Array) -> BoolArray:
    """Where the two lowest limbs say everything, in less than 2**53."""
    small: BoolArray = (limbs[:, 2:] == 0).all(axis=1)
    small &= (np.abs(limbs[:, 1]) < 1 << 20) & (np.abs(limbs[:, 0]) < 1 << 51)
    return small


def _whole(limbs: I64Array) -> I64Array:
    """Sums of whole numbers. Raises: Unsuited for one that overflows: the row engine reports it."""
    sums = limbs[:, 0] + (limbs[:, 1] << 32)
    for at in np.flatnonzero(~_small(limbs)).tolist():
        total = total_of(limbs[at].tolist())
        if not INT_MIN <= total <= INT_MAX:
            raise Unsuited
        sums[at] = total
    return sums


def _quotients(
    limbs: I64Array, divisors: I64Array, exponent: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sums of multiples of 2**exponent, divided and rounded once. Raises: Unsuited for an overflow."""
    found, exact = quotients(limbs, divisors, exponent)
    up, down = max(exponent, 0), max(-exponent, 0)
    rest = np.flatnonzero(~exact)
    for at, row, divisor in zip(
        rest.tolist(), limbs[rest].tolist(), divisors[rest].tolist(), strict=True
    ):
        try:
            found[at] = (total_of(row) << up) / (divisor << down)
        except OverflowError:
            raise Unsuited from None
    return found


def stacked(parts: Sequence[Columns]) -> Columns:
    """The rows of several column sets of one predicate. Raises: Unsuited if their types differ."""
    first = parts[0]
    if any(set(part.lattices) != set(first.lattices) for part in parts):
        raise Unsuited
    by_column = list(zip(*(part.keys for part in parts), strict=True))
    lattices = {name: [part.lattices[name] for part in parts] for name in first.lattices}
    for columns in (*by_column, *lattices.values()):
        if len({column.kind for column in columns}) > 1:
            raise Unsuited
    keys = [concatenated(columns) for columns in by_column]
    return Columns(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.stop for part in parts]),
        np.concatenate([part.expires for part in parts]),
        keys[0], tuple(keys[1:]), first.texts,
        {name: concatenated(columns) for name, columns in lattices.items()},
    )  # fmt: skip


__all__ = ["aggregated", "stacked"]
