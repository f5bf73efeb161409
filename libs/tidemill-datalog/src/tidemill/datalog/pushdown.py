"""Scans as reads of a collection: which columns to ask for, and which rows, as filters of Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from itertools import zip_longest
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

LETTERS = 12
"""Letters of a text that count in an estimate, behind those that all texts begin with."""
_ALPHABETS = ("09", "AZ", "az")

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


def share_of(
    test: Test | None, names: Sequence[str], bounds: Mapping[str, Bounds], time: str | None = None
) -> float:
    """About the share of rows that pass, if values lie evenly between the bounds of a column.

    `time` is the column of event times, if there is one. Few rows have one value; null passes no
    range; what nothing is known of passes.
    """
    if test is None:
        return 1.0
    if not isinstance(test, Comparison):
        parts = [share_of(each, names, bounds, time) for each in test.tests]
        return max(parts, default=0.0) if isinstance(test, AnyOf) else min(parts, default=1.0)
    if test.sign == "==":
        return 0.0
    name = time if test.position == TIME_AT else names[test.position - 1]
    least, greatest, _ = bounds.get(name or "", (None, None, False))
    below = _below(test.value, least, greatest)
    if below is None:
        return 1.0
    return min(1.0, max(0.0, below if test.sign in ("<", "<=") else 1.0 - below))


def _below(value: object, least: object, greatest: object) -> float | None:
    """The share of values before `value` of those between two bounds; None if they do not tell."""
    if isinstance(value, str) and isinstance(least, str) and isinstance(greatest, str):
        return _texts_below(value, least, greatest)
    if not (isinstance(least, int | float) and isinstance(greatest, int | float)):
        return None
    if not isinstance(value, int | float) or least == greatest:
        return None
    return (value - least) / (greatest - least)


def _texts_below(value: str, least: str, greatest: str) -> float | None:
    """`_below` for texts: as instants if they are such, else as fractions.

    The digits of a fraction are the letters behind the common beginning. Letters are those between
    the least and the greatest one that is seen, all digits and the whole alphabet if there is one
    of them. Source: `convert_string_to_scalar` of PostgreSQL.
    """
    if value <= least or value >= greatest:
        return 0.0 if value <= least else 1.0
    with suppress(ValueError):
        at, low, high = map(_seconds, (value, least, greatest))
        return (at - low) / (high - low) if low < high else None
    start = next(n for n, (a, b) in enumerate(zip_longest(least, greatest)) if a != b)
    ends = [text[start : start + LETTERS] for text in (value, least, greatest)]
    seen = "".join(ends)
    seen += "".join(kind for kind in _ALPHABETS if any(kind[0] <= c <= kind[1] for c in seen))
    first, base = ord(min(seen)), float(ord(max(seen)) - ord(min(seen)) + 2)
    at, low, high = (
        sum((ord(c) - first + 1) / base ** (place + 1) for place, c in enumerate(end))
        for end in ends
    )
    return (at - low) / (high - low)


def _seconds(text: str) -> float:
    """The instant that a text writes, in seconds. Raises: ValueError if it is none."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
