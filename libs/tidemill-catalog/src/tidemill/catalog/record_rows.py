"""Records as rows of a collection and back: arguments, then `time`, `expires`, then lattices and
who carries them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from tidemill.arrangement.column_types import arrow_type, column_type
from tidemill.datalog.carried_lattices import MARK, NEVER_NULL, surely_carried
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.presence import fact_text
from tidemill.datalog.records import Record, format_value, parse_record
from tidemill.datalog.values import OVERFLOW
from tidemill.time.typed import Json, fitting

Row: TypeAlias = "tuple[object, ...]"


def arrow_of(kind: ColumnType) -> pa.DataType:
    """A type of the language as that of a column.

    Sets travel in their text form, lattices of several values too.
    """
    return pa.string() if kind in ("set", "any") else arrow_type(kind)


NODE = "node"
"""The column that says which node of a view derives a row."""


@dataclass(frozen=True, slots=True)
class PredicateShape:
    """The columns of a collection of records: how many are arguments, and which lattices follow,
    with the types of their values.

    `written` are the columns that hold their values in the text form: sets, and lattices of several
    values. Every record carries the lattices that are `sure`: a null there is a value. Those that
    are `marked` have a column of truth values behind all lattices, true where a record carries
    them. Of all others a null says that the record has none.
    """

    predicate: str
    schema: pa.Schema
    arguments: int
    timed: bool
    lattices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    written: frozenset[int] = frozenset()
    sure: frozenset[str] = frozenset()
    marked: tuple[str, ...] = ()

    def tells(self, lattice: str) -> str | None:
        """The column that is null or false where a record does not carry the lattice; None where
        all carry it.
        """
        if lattice in self.marked:
            return MARK + lattice
        carried = lattice in self.sure or not any(name == lattice for name, _ in self.lattices)
        return None if carried else lattice

    @property
    def key_columns(self) -> dict[str, int]:
        """The places of the arguments that hold plain values, from 1 on, by column."""
        names = self.schema.names[: self.arguments]
        return {name: at for at, name in enumerate(names, 1) if at - 1 not in self.written}

    def divides(self, at: int) -> bool:
        """Whether rows can be dealt out by the hash of argument `at`, or of the time, which is 0.

        They can by all values of one type of the language, but not by those in the text form.
        """
        kind = self.schema.types[at - 1]
        plain = column_type(kind) is not None or pa.types.is_null(kind)
        return at == 0 or (plain and at - 1 not in self.written)

    @property
    def argument_columns(self) -> tuple[tuple[str, ColumnType], ...]:
        """Names and language types of the arguments."""
        return self.columns[: self.arguments]

    @property
    def columns(self) -> tuple[tuple[str, ColumnType], ...]:
        """Names of all columns, with their types in the language; `any` for a type that it
        lacks.
        """
        return tuple(
            (field.name, "set" if at in self.written else column_type(field.type) or "any")
            for at, field in enumerate(self.schema)
        )

    @property
    def unknown(self) -> pa.Field | None:
        """The first column of a type that the language lacks."""
        return next((field for field in self.schema if column_type(field.type) is None), None)

    def with_node(self) -> PredicateShape:
        """The shape with the node that says it as first argument."""
        schema = self.schema.insert(0, pa.field(NODE, pa.int64()))
        written = frozenset(at + 1 for at in self.written)
        return replace(self, schema=schema, arguments=self.arguments + 1, written=written)


def shape_of_output(
    checked: CheckedProgram, predicate: str, sure: Mapping[str, frozenset[str]] | None = None
) -> PredicateShape:
    """The shape of what a program derives for `predicate`.

    `sure` is what `surely_carried` says of the program; without it, of inputs that carry nothing.
    Cost: O(columns).
    """
    columns = checked.columns[predicate]
    fields = [pa.field(name, arrow_of(kind)) for name, kind in columns]
    written = {at for at, (_, kind) in enumerate(columns) if kind == "set"}
    arguments = len(fields)
    timed = predicate in checked.carries_time
    if timed:
        fields += [pa.field("time", pa.int64()), pa.field("expires", pa.int64())]
    lattices = []
    for lattice in checked.lattices_of(predicate):
        types = checked.lattice_types[predicate, lattice]
        lattices.append((lattice, types))
        if len(types) > 1 or types[0] == "set":
            written.add(len(fields))
        kind = arrow_of(types[0]) if len(types) == 1 else pa.string()
        fields.append(pa.field(lattice, kind))
    sure = surely_carried(checked, {}) if sure is None else sure
    marked = tuple(
        name
        for name, types in lattices
        if len(types) == 1 and name not in sure[predicate] and name not in NEVER_NULL
    )
    fields += [pa.field(MARK + name, pa.bool_()) for name in marked]
    return PredicateShape(
        predicate, pa.schema(fields), arguments, timed, tuple(lattices), frozenset(written),
        sure[predicate], marked,
    )  # fmt: skip


def shape_of_relation(predicate: str, schema: pa.Schema) -> PredicateShape:
    """Rows as timeless facts: every column is an argument."""
    return PredicateShape(predicate, schema, len(schema), timed=False)


def shape_of_events(predicate: str, schema: pa.Schema) -> PredicateShape:
    """Rows as events: the last two columns are `time` and `expires`."""
    return PredicateShape(predicate, schema, len(schema) - 2, timed=True)


def row_of(shape: PredicateShape) -> Callable[[Record], Row]:
    """A function from a record of this shape to its row."""
    typed = _typed_columns(shape)
    if typed:
        write = row_of(replace(shape, schema=_bare(shape.schema)))

        def row_of_typed(record: Record) -> Row:
            values = list(write(record))
            for at, _ in typed:
                values[at] = _stored(values[at])
            return tuple(values)

        return row_of_typed
    plain = not shape.timed and not shape.lattices
    sets = {i for i in range(shape.arguments) if shape.schema.field(i).type == pa.string()}

    def row(record: Record) -> Row:
        arguments: Row = record.arguments
        if sets and any(isinstance(arguments[i], frozenset) for i in sets):
            arguments = tuple(
                format_value(value) if isinstance(value, frozenset) else value
                for value in record.arguments
            )
        if plain:
            return arguments
        times = (record.time, record.expires) if shape.timed else ()
        values = dict(record.parafacts)
        return (
            *arguments,
            *times,
            *(_column(values.get(lattice), len(types)) for lattice, types in shape.lattices),
            *(lattice in values for lattice in shape.marked),
        )

    return row


def endless(record: Record) -> str | None:
    """The error of a record that no collection holds, because a value of it is infinite; None for
    all others.
    """
    values = [*record.arguments]
    for _, value in record.parafacts:
        values += value if isinstance(value, tuple) else (value,)
    if any(isinstance(value, float) and math.isinf(value) for value in values):
        return f"{OVERFLOW}: {fact_text(record.predicate, (record.time, *record.arguments))}"
    return None


def record_of(shape: PredicateShape) -> Callable[[Row], Record]:
    """A function from a row of this shape to its record."""
    n, predicate, written = shape.arguments, shape.predicate, sorted(shape.written)
    if typed := _typed_columns(shape):
        bare = record_of(replace(shape, schema=_bare(shape.schema)))

        def read_typed(row: Row) -> Record:
            values = list(row)
            for at, make in typed:
                if values[at] is not None:
                    values[at] = make(values[at])
            return bare(tuple(values))

        return read_typed
    if written:
        plain = record_of(replace(shape, written=frozenset()))

        def read(row: Row) -> Record:
            values = list(row)
            for at in written:
                if isinstance(values[at], str):
                    values[at] = _read(values[at])
            return plain(tuple(values))

        return read
    if not shape.timed and not shape.lattices:
        return lambda row: Record(predicate, row)  # type: ignore[arg-type]  # columns hold values
    names = shape.schema.names
    held = [
        (lattice, at, None if (tells := shape.tells(lattice)) is None else names.index(tells, n))
        for at, (lattice, _) in enumerate(shape.lattices, n + 2 if shape.timed else n)
    ]

    def record(row: Row) -> Record:
        time, expires = (row[n], row[n + 1]) if shape.timed else (None, None)
        lattices = tuple(
            (lattice, row[at])
            for lattice, at, tells in held
            if tells is None or not (row[tells] is None or row[tells] is False)
        )
        return Record(predicate, row[:n], time, expires, lattices)  # type: ignore[arg-type]

    return record


_MADE: Mapping[str, Callable[[Any], object]] = {
    "uuid": lambda data: UUID(bytes=data), "json": Json, "decimal": fitting,
    "timestamp": lambda moment: moment.astimezone(UTC),
}  # fmt: skip
"""Values of the language from what Arrow has in their place, by type."""


def _typed_columns(shape: PredicateShape) -> list[tuple[int, Callable[[Any], object]]]:
    """The columns whose values in Arrow are not those of the language, and how these are made."""
    kinds = enumerate(
        (column_type(field.type) or "any").partition("(")[0] for field in shape.schema
    )
    return [(at, _MADE[kind]) for at, kind in kinds if kind in _MADE and at not in shape.written]


def _bare(schema: pa.Schema) -> pa.Schema:
    """The same names without types that have to be made."""
    return pa.schema([pa.field(name, pa.null()) for name in schema.names])


def _stored(value: object) -> object:
    """A value of the language as Arrow takes it."""
    if isinstance(value, UUID):
        return value.bytes
    return value.text if isinstance(value, Json) else value


def table_of(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Rows as a table; values of a float column may be whole."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(values, f.type) for values, f in zip(columns, schema, strict=True)]
    if not len(schema):
        return pa.table({"": pa.nulls(len(rows))}).select([])
    return pa.Table.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=4_096)
def _read(text: str) -> object:
    """The value that a column holds in its text form, or the values of a lattice of several."""
    values = parse_record(f"values({text})").arguments
    return values[0] if len(values) == 1 else values


def _column(value: object, width: int) -> object:
    if value is None:
        return None
    if width > 1 and isinstance(value, tuple):
        return ", ".join(map(format_value, value))
    return format_value(value) if isinstance(value, frozenset) else value
