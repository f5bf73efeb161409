"""Scans as reads of a collection: which columns to ask for, and which rows, as filters of Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.datalog.logical.scans import TIME_AT, AllOf, AnyOf, Comparison, Scan, Test

TESTS_MAX = 1_000
"""Tests in one filter of Arrow: it takes quadratic time and goes down them on its stack.

Ten thousand tests, as of a program with that many rules over one input, would end the process.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """A read of a collection: rows with the values `equal` for which `where` is true, in `columns`.

    None asks for all. `whole` fills in the columns that are left out.
    """

    schema: pa.Schema | None = None
    columns: tuple[str, ...] | None = None
    equal: Mapping[str, object] = field(default_factory=dict)
    where: pc.Expression | None = None

    def whole(self, rows: pa.Table) -> pa.Table:
        """The rows with null in the columns that were not asked for, and the lanes after them."""
        if self.columns is None or self.schema is None:
            return rows
        known = set(rows.column_names)
        arrays = [
            rows[each.name] if each.name in known else pa.nulls(rows.num_rows, each.type)
            for each in self.schema
        ]
        lanes = [name for name in rows.column_names if name not in self.schema.names]
        names = [*self.schema.names, *lanes]
        return pa.Table.from_arrays([*arrays, *(rows[lane] for lane in lanes)], names=names)


EVERYTHING = Reading()

Bounds: TypeAlias = "tuple[int | float | str | None, int | float | str | None, bool]"
"""Least and greatest value of a column (None: unknown), and whether there are nulls."""


def reading_of(scan: Scan, schema: pa.Schema, arguments: int, *, columns: bool = True) -> Reading:
    """The read of a collection of which a program needs only the scan.

    `schema` are its data columns, the first `arguments` of them arguments. The others (time,
    expiry, parafacts) are always read. Without `columns` all columns are.
    """
    names = schema.names
    timed = len(names) > arguments and names[arguments] == "time"
    wanted = scan.wanted
    equal: dict[str, object] = {}
    where = None
    if wanted is not None:
        for test in wanted.tests if isinstance(wanted, AllOf) else (wanted,):
            if isinstance(test, Comparison) and test.sign == "==" and test.position != TIME_AT:
                equal.setdefault(names[test.position - 1], test.value)
        # NB: what is not filtered here is filtered by who derives: it only reads more.
        if _tests(wanted) <= TESTS_MAX:
            where = expression_of(wanted, names, names[arguments] if timed else None)
    kept = None
    if columns and len(scan.columns) < arguments:
        kept = (*(names[at - 1] for at in scan.columns), *names[arguments:]) or (names[0],)
    return Reading(schema, kept, equal, where)


def _tests(test: Test) -> int:
    """Of how many comparisons a test is made."""
    return 1 if isinstance(test, Comparison) else sum(map(_tests, test.tests))


def expression_of(test: Test, names: Sequence[str], time: str | None) -> pc.Expression | None:
    """The test as a filter; None where it says nothing of the rows.

    Null fails every comparison by order.
    """
    if isinstance(test, Comparison):
        if test.position == TIME_AT and time is None:
            return None
        column = pc.field(time if test.position == TIME_AT else names[test.position - 1])
        if test.value is None:
            return column.is_null()
        return {
            "==": column == test.value, "<": column < test.value, "<=": column <= test.value,
            ">": column > test.value, ">=": column >= test.value,
        }[test.sign]  # fmt: skip
    parts = [expression_of(part, names, time) for part in test.tests]
    if isinstance(test, AnyOf):
        if any(part is None for part in parts):
            return None
        return reduce(or_, parts) if parts else pc.scalar(False)
    known = [part for part in parts if part is not None]
    return reduce(and_, known) if known else None


def share_of(test: Test | None, names: Sequence[str], bounds: Mapping[str, Bounds]) -> float:
    """About the share of rows that pass, if numbers lie evenly between the bounds of a column.

    Few rows have one value; what nothing is known of passes.
    """
    if test is None:
        return 1.0
    if not isinstance(test, Comparison):
        parts = [share_of(each, names, bounds) for each in test.tests]
        return max(parts, default=0.0) if isinstance(test, AnyOf) else min(parts, default=1.0)
    if test.sign == "==":
        return 0.0
    known = None if test.position == TIME_AT else bounds.get(names[test.position - 1])
    least, greatest, value = *(known or (None, None))[:2], test.value
    if not (isinstance(least, int | float) and isinstance(greatest, int | float)):
        return 1.0
    if not isinstance(value, int | float) or least == greatest:
        return 1.0
    below = (value - least) / (greatest - least)
    return min(1.0, max(0.0, below if test.sign in ("<", "<=") else 1.0 - below))
