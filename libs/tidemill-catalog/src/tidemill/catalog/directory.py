"""The directory of the query service: every collection that can be asked for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.records import Record
from tidemill.datalog.tick_plan import TickPlan


@dataclass(frozen=True, slots=True)
class Readable:
    """A collection of facts: `columns` are its data columns with their types in the language, the
    first `arguments` of them arguments.

    `records` turns rows of the collection into facts of `predicate`. `late` is the dead-letter
    collection of an event stream, and what turns its rows into the events that came late.
    `arranged` says which collections hold the same rows, sorted by which columns. `tells` has for
    each lattice that some facts may lack the column which is null or false where they do.
    """

    collection: str
    predicate: str
    columns: tuple[tuple[str, ColumnType], ...]
    arguments: int
    records: Callable[[pa.Table], Sequence[Record]]
    late: tuple[str, Callable[[pa.Table], Sequence[Record]]] | None = None
    arranged: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    tells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TicksOf:
    """When and where the ticks of a view run, the collection of what they hand on, and where they
    begin, if that is known.
    """

    plan: TickPlan
    state: str
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class ViewOf:
    """A view with what its program reads and writes, by predicate; `kept` says how, in words.

    `ticks` is there if and only if the program is ticked.
    """

    name: str
    program: CheckedProgram
    inputs: Mapping[str, Readable]
    outputs: Mapping[str, Readable]
    kept: str = ""
    ticks: TicksOf | None = None


@dataclass(frozen=True, slots=True)
class SourceOf:
    """A source: its rows, its bindings and where these begin; where its event time came when, if it
    has one.
    """

    name: str
    collection: str
    remap: str
    begins: int
    event_map: str | None = None


class Directory(Protocol):
    """Finds collections and views by the names that users give them."""

    def find(self, name: str) -> Readable:
        """A source, table or `view/predicate`; a bare predicate if only one view derives it.

        Raises: UnknownCollection naming what is close.
        """

    def view_of(self, predicate: str) -> ViewOf:
        """The view that derives a predicate, named alone or as `view/predicate`."""

    def view(self, name: str) -> ViewOf:
        """A view by its own name. Raises: UnknownCollection."""

    def source(self, name: str) -> SourceOf:
        """A source by its own name. Raises: UsageError for what is none; UnknownCollection."""

    def views(self) -> Sequence[ViewOf]:
        """Every view."""
