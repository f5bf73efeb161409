"""Aggregates over columns: the record of every group on every stretch in which the same solutions
live.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import (
    Groups,
    Sums,
    quotients,
    runs_of,
    total_of,
    uniform_groups,
)
from tidemill.datalog.columnar.columns import LATTICES_SEEN, Columns, concatenated, joined_ends
from tidemill.datalog.columnar.contributing import (
    EXTREMES,
    Added,
    Contributions,
    Stretches,
    group_keys,
    numbers_of,
    together,
)
from tidemill.datalog.columnar.deriving import Derived
from tidemill.datalog.columns.column import Column, Unsuited, words_of
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import RuleForm, Type


def aggregated(form: RuleForm, found: Contributions, texts: Texts) -> Columns:
    """The records that the solutions of a rule make together. Raises: Unsuited."""
    names = [name for name, _ in form.head.lattices]
    if not LATTICES_SEEN.issuperset(names) or len(set(names)) < len(names):
        raise Unsuited
    solutions = found.solutions
    groups = Groups.of(words_of(group_keys(form, solutions)), len(found))
    same = uniform_groups(groups.ids, solutions.start, solutions.stop, groups.firsts)
    if same.all():
        return _records(form, found, together(solutions, groups), texts)
    parts = []
    alike = same[groups.ids]
    for rows in (alike.nonzero()[0], (~alike).nonzero()[0]):
        if len(rows):
            mine = found.take(rows)
            again = Groups.of([groups.ids[rows]], len(rows))
            stretches = (together if bool(alike[rows[0]]) else _apart)(mine.solutions, again)
            records = _records(form, mine, stretches, texts)
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
    first = begins.nonzero()[0]
    last = np.append(first[1:], len(order)) - 1
    drawn = records.take(order[first])
    return Columns(
        start[first], stop[last], drawn.expires, drawn.time, drawn.arguments, drawn.texts,
        drawn.lattices,
    )  # fmt: skip


def _apart(solutions: Derived, groups: Groups) -> Stretches:
    runs = runs_of(groups.ids, solutions.start, solutions.stop)
    living = (runs.present > 0).nonzero()[0]
    rows = groups.firsts[runs.group[living]]
    return Stretches(rows, runs.start[living], runs.stop[living], runs, groups.ids, living)


def _records(form: RuleForm, found: Contributions, stretches: Stretches, texts: Texts) -> Columns:
    solutions = found.solutions
    time, expires = stretches.times(solutions, bool(form.head.time))
    return Columns(
        stretches.start, stretches.stop, expires, time,
        tuple([column.take(stretches.rows) for column in solutions.arguments]), texts,
        {
            name: _aggregate(name, values, stretches)
            for (name, _), values in zip(form.head.lattices, found.values, strict=True)
        },
    )  # fmt: skip


def _aggregate(name: str, values: Column | Added, stretches: Stretches) -> Column:
    if isinstance(values, Column):
        if name in EXTREMES:
            return stretches.extreme(name, values)
        if name == "count" and values.nulls is None:
            return Column(Type.INT, stretches.counted())
        values = numbers_of(name, values)
    sums = stretches.added(values)
    if name == "count":
        return Column(Type.INT, sums.counts)
    nulls = sums.counts == 0
    divisor = np.maximum(sums.counts, 1) if name == "average" else np.ones_like(sums.counts)
    whole = name == "sum" and values.kind is Type.INT
    column = _whole(sums.limbs) if whole else _quotients(sums, divisor)
    kind = Type.INT if whole else Type.FLOAT
    return Column(kind, column, nulls if nulls.any() else None)


def _whole(limbs: I64Array) -> I64Array:
    """Sums of whole numbers. Raises: Unsuited for one that overflows: the row engine reports it."""
    upper = limbs[:, 1] + (limbs[:, 0] >> 32)
    if len(upper) and not -(1 << 31) <= upper.min() <= upper.max() < 1 << 31:
        raise Unsuited
    return (upper << 32) | (limbs[:, 0] & 0xFFFF_FFFF)


def _quotients(sums: Sums, divisors: I64Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sums divided and rounded once. Raises: Unsuited for an overflow."""
    exponent = sums.exponent
    found, exact = quotients(sums.limbs, divisors, exponent)
    up, down = max(exponent, 0), max(-exponent, 0)
    rest = (~exact).nonzero()[0]
    for at, row, divisor in zip(
        rest.tolist(), sums.limbs[rest].tolist(), divisors[rest].tolist(), strict=True
    ):
        try:
            found[at] = (total_of(row) << up) / (divisor << down)
        except OverflowError:
            raise Unsuited from None
    return found


def stacked(parts: Sequence[Columns]) -> Columns:
    """The rows of several column sets of one predicate. Raises: Unsuited if their types differ."""
    first, lattices = parts[0], {}
    for part in parts[1:]:
        if part.lattices.keys() != first.lattices.keys():
            raise Unsuited
    for name in first.lattices:
        lattices[name] = _joined([part.lattices[name] for part in parts])
    arguments = [_joined(columns) for columns in zip(*[p.arguments for p in parts], strict=True)]
    return Columns(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.stop for part in parts]),
        joined_ends([part.expires for part in parts]),
        _joined([part.time for part in parts]), tuple(arguments), first.texts, lattices,
    )  # fmt: skip


def _joined(columns: Sequence[Column]) -> Column:
    kind = columns[0].kind
    for column in columns:
        if column.kind is not kind:
            raise Unsuited
    return concatenated(columns)


__all__ = ["aggregated", "stacked"]
