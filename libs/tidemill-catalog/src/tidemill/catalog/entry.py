"""Entries of the catalog: collections under their names, as programs and questions see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemill.arrangement.column_types import TYPE_NAMES, arrow_type
from tidemill.catalog.directory import Readable, SourceOf
from tidemill.catalog.late_events import late_events
from tidemill.catalog.record_rows import (
    PredicateShape,
    record_of,
    shape_of_events,
    shape_of_relation,
)
from tidemill.catalog.schemas import event_schema
from tidemill.catalog.store import Stored
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema
from tidemill.datalog.records import Record
from tidemill.datalog.tick_plan import TickPlan
from tidemill.errors import UsageError
from tidemill.runtime.problems import field_name
from tidemill.runtime.resources import ColumnSpec, Resource, SourceSpec, TableSpec

SYSTEM = "system"
ASIDE = "Aside"
ARRANGEMENT = "Arrangement"
CREATED = "Collection"
"""The kind of what users have created by a command, without a resource."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A catalog entry: a collection under the name by which users and programs know it."""

    name: str
    collection: str
    timeline: str
    kind: str
    shape: PredicateShape
    ends: bool = True

    def as_input(self, predicate: str) -> InputSchema:
        """The collection as an input of a program, under a predicate's name.

        Raises: UsageError for one with a column of a type that the language lacks.
        """
        if (unknown := self.shape.unknown) is not None:
            raise UsageError(
                f"{self.name} is read by no program: its column {unknown.name} is {unknown.type}, and "
                f"programs know {', '.join(TYPE_NAMES)} and decimal(p, s); ask for it by SQL, or create "
                "it with those",
                reason="ColumnType",
            )
        columns = self.shape.argument_columns
        lattices: Any = self.shape.lattices
        return InputSchema(
            predicate,
            "events" if self.shape.timed else "relation",
            columns,
            self.timeline,
            self.ends,
            lattices,
            self.shape.sure,
        )

    def readable(self) -> Readable:
        """The collection as the query service reads it."""
        make = record_of(self.shape)
        names = self.shape.schema.names

        def records(table: pa.Table) -> Sequence[Record]:
            rows = zip(*(table[name].to_pylist() for name in names), strict=True)
            return [make(row) for row in rows] if names else [make(())] * table.num_rows

        late = None
        if self.kind == "Source" and self.shape.timed:
            arguments = self.shape.argument_columns
            late = (
                f"{self.collection}/deadletters",
                lambda letters: late_events(letters, self.shape.predicate, arguments),
            )
        lattices = [lattice for lattice, _ in self.shape.lattices]
        told = {name: tells for name in lattices if (tells := self.shape.tells(name)) is not None}
        return Readable(
            self.collection, self.shape.predicate, self.shape.columns, self.shape.arguments, records,
            late, tells=told,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view whose program has been checked: what it reads and writes, by predicate."""

    stored: Stored
    program: CheckedProgram
    inputs: Mapping[str, CatalogEntry]
    outputs: Mapping[str, CatalogEntry]
    ticks: TickPlan | None = None

    @property
    def timeline(self) -> str:
        """The timeline of its inputs and outputs."""
        return self.program.timeline or SYSTEM


def state_of(view: PlannedView) -> str:
    """The collection with what one window of the view hands to the next."""
    return f"{own_prefix(view.stored, int(view.stored.resolved.get('version', 1)))}/state"


PLACES = "places"
"""Of the decisions about a view of several ranges: the columns by which each input is divided."""
READS = "reads"
"""Of what was decided about a resource: the collections that it reads, by the names that it has for
them.
"""

COLLECTION = "collection"
"""The name by which an arrangement or a hold knows the collection that it reads."""


def read_name(stored: Stored, written: str) -> str:
    """The collection that an arrangement or a hold is about: as it was decided, or as it is
    written.
    """
    return str(stored.resolved.get(READS, {}).get(COLLECTION, written))


def own_prefix(stored: Stored, version: int) -> str:
    """The prefix of the names of all collections that belong to one version of a view alone."""
    return stored.prefix if version == 1 else f"{stored.prefix}@{version}"


def row_schema(columns: Sequence[ColumnSpec]) -> pa.Schema:
    """The data columns of a source or table."""
    return pa.schema([pa.field(c.name, arrow_type(c.type), c.nullable) for c in columns])


def columns_of(stored: Stored) -> tuple[ColumnSpec, ...]:
    """The columns of a source or table, inferred ones as they were found at its creation."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec | TableSpec)
    found = stored.resolved.get("columns")
    if found is None:
        return tuple(spec.columns)
    return tuple(ColumnSpec(**column) for column in found)


def named_source(stored: Stored) -> CatalogEntry:
    """A source as programs see it."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    name, prefix = stored.resource.name, stored.prefix
    rows = row_schema(columns_of(stored))
    event = spec.event_time
    if event is None:
        shape = shape_of_relation(name, rows)
        return CatalogEntry(name, prefix, spec.timeline or SYSTEM, "Source", shape)
    ends = event.expires_after is not None or event.expires_column is not None
    shape = shape_of_events(name, event_schema(rows))
    return CatalogEntry(name, prefix, event.timeline, "Source", shape, ends)


def named_table(stored: Stored) -> CatalogEntry:
    """A table as programs see it."""
    spec = stored.resource.spec
    assert isinstance(spec, TableSpec)
    shape = shape_of_relation(stored.resource.name, row_schema(spec.columns))
    return CatalogEntry(stored.resource.name, stored.prefix, spec.timeline, "Table", shape)


def source_of(stored: Stored) -> SourceOf:
    """A source as its offsets are translated."""
    prefix = stored.prefix
    event_map = None if named_source(stored).timeline == SYSTEM else f"{prefix}/eventmap"
    return SourceOf(stored.resource.name, prefix, stored.remap, stored.begins, event_map)


@contextmanager
def located(resource: Resource, *path: str | int) -> Iterator[None]:
    """Add the place of a field of the resource to each UsageError that the body raises."""
    try:
        yield
    except ProgramErrors as error:
        field = path or ("spec", "program")
        raise UsageError(
            f"{resource.place(*field)}: {resource}: {field_name(field)} has mistakes\n{error.render()}",
            reason=error.diagnostics[0].code, located=True, program=error,
        ) from None  # fmt: skip
    except UsageError as error:
        if error.details.get("located"):
            raise
        named = f"{field_name(path)}: " if path else ""
        raise type(error)(
            f"{resource.place(*path)}: {resource}: {named}{error}",
            **{**error.details, "located": True, "position": resource.place(*path)},
        ) from None
