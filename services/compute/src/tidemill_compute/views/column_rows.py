"""Rows of collections as columns of an evaluation and back, without an object for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.record_rows import COLUMN_TYPES, PredicateShape, Row
from tidemill.datalog.columnar import Column, Columns, Texts, Unsuited
from tidemill.datalog.columnar.columns import END_WORD
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.scratch.changing import column_changes

INSTANT_MAX = 1 << 53
"""Instants from here on are left to rows: a number on columns stands for no end."""


def columns_of(
    rows: pa.Table, shape: PredicateShape, times: npt.NDArray[Any], texts: Texts
) -> Columns:
    """Rows without lattices, present from `times` on without an end. Raises: Unsuited.

    Cost: O(rows), and a look-up for each different text.
    """
    _check_instants(times)
    schema = shape.schema
    arguments = []
    for at in range(shape.arguments):
        kind = COLUMN_TYPES.get(schema.field(at).type)
        if kind is None:
            raise Unsuited
        arguments.append(Column.of_arrow(Type(kind), _array(rows, schema.names[at]), texts))
    n = rows.num_rows
    ends = np.full(n, END_WORD, np.int64)
    time = Column(Type.INT, np.zeros(n, np.int64), np.ones(n, np.bool_))
    expires = ends
    if shape.timed:
        time = Column.of_arrow(Type.INT, _array(rows, schema.names[-2]), texts)
        until = Column.of_arrow(Type.INT, _array(rows, schema.names[-1]), texts)
        _check_instants(time.values)
        _check_instants(until.values)
        expires = (
            until.values if until.nulls is None else np.where(until.nulls, END_WORD, until.values)
        )
    begins = times.astype(np.int64)
    return Columns(begins, ends, expires, time, tuple(arguments), texts)


def rows_of_columns(columns: Columns, shape: PredicateShape) -> list[Row]:
    """The rows that `columns_of` was given."""
    texts = columns.texts
    fields = [column.python(texts) for column in columns.arguments]
    if shape.timed:
        ended = Column(Type.INT, columns.expires, columns.expires == END_WORD)
        fields += [columns.time.python(texts), ended.python(texts)]
    return list(zip(*fields, strict=True)) if fields else [()] * len(columns)


def column_updates(
    columns: Columns, shape: PredicateShape, seen: int, lower: int, upper: int
) -> pa.Table:
    """Begins and ends at instants in [lower, upper), for facts of a window from `seen` on.

    The same updates as `differences` of their rows, in another order. Cost: O(facts).
    """
    changes = column_changes(columns, seen, lower, upper)
    facts = changes.facts
    arrays = [column.to_arrow(facts.texts) for column in facts.arguments]
    if shape.timed:
        arrays.append(facts.time.to_arrow(facts.texts))
        arrays.append(pa.array(facts.expires, mask=np.asarray(facts.expires == END_WORD)))
    for name, _ in shape.lattices:
        known = facts.lattices.get(name)
        arrays.append(pa.nulls(len(facts)) if known is None else known.to_arrow(facts.texts))
    # Facts on columns all carry a lattice, or none of them does.
    arrays += [pa.repeat(pa.scalar(name in facts.lattices), len(facts)) for name in shape.marked]
    arrays = [array.cast(f.type) for array, f in zip(arrays, shape.schema, strict=True)]
    arrays += [pa.array(changes.times.astype(np.uint64)), pa.array(changes.diffs)]
    fields = [*shape.schema, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _check_instants(times: npt.NDArray[Any]) -> None:
    """Raises: Unsuited where a number might be taken for the beginning or the end."""
    if len(times) and not (int(times.min()) > -INSTANT_MAX and int(times.max()) < INSTANT_MAX):
        raise Unsuited
