"""The collections that a view writes, from the meaning of its program instant by instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.record_rows import (
    PredicateShape,
    record_of,
    row_of,
    shape_of_output,
    table_of,
)
from tidemill.catalog.schemas import ERROR_SCHEMA
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import parse_record
from tidemill.testkit.twins.pointwise import answers

Row: TypeAlias = "tuple[object, ...]"


def presences_of(updates: pa.Table, shape: PredicateShape) -> list[Presence]:
    """The presences of the rows of an input, from its updates: each while a copy of it is there."""
    moves: dict[Row, dict[int, int]] = {}
    for *values, time, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        at = moves.setdefault(tuple(values), {})
        at[time] = at.get(time, 0) + diff
    make, found = record_of(shape), []
    for row, at in moves.items():
        copies = 0
        for time in sorted(at):
            before, copies = copies, copies + at[time]
            if before == 0 < copies:
                since = time
            elif copies == 0 < before:
                found.append(Presence(make(row), since, time))
        if copies:
            found.append(Presence(make(row), since))
    return found


def written(
    program: CheckedProgram, inputs: Mapping[str, Sequence[Presence]], upper: int
) -> dict[str, pa.Table]:
    """Updates below `upper` of each derived predicate, and of `errors`.

    Cost: that of the twin.
    """
    said = answers(program, inputs, 0, upper)[1:]
    found = {}
    for predicate in program.derived:
        shape = shape_of_output(program, predicate)
        row, read = row_of(shape), lru_cache(parse_record)
        rows = [{row(read(text)) for text in at.records.get(predicate, ())} for at in said]
        found[predicate] = _updates(rows, shape.schema)
    found["errors"] = _updates([{(text,) for text in at.errors} for at in said], ERROR_SCHEMA)
    return found


def _updates(instants: Sequence[AbstractSet[Row]], schema: pa.Schema) -> pa.Table:
    """The changes from each instant to the next, from nothing on."""
    changes: list[tuple[Row, int, int]] = []
    before: AbstractSet[Row] = frozenset()
    for at, rows in enumerate(instants):
        changes += [(row, at, -1) for row in before - rows]
        changes += [(row, at, 1) for row in rows - before]
        before = rows
    table = table_of([row for row, _, _ in changes], schema)
    times = pa.array([at for _, at, _ in changes], pa.uint64())
    diffs = pa.array([diff for _, _, diff in changes], pa.int64())
    return table.append_column(TIME, times).append_column(DIFF, diffs)
