"""SQL over an exact snapshot: DuckDB reads the collections that a query names, all at one
instant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import duckdb
import pyarrow as pa

from tidemill.arrangement.column_types import shown_as_text
from tidemill.errors import Exhausted, UsageError


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as the query writes it: `late`, `"delays/late"`, or `delays.late` for short."""

    schema: str
    table: str

    @property
    def collection(self) -> str:
        """The goal name of the table."""
        return f"{self.schema}/{self.table}" if self.schema else self.table


def tables_named(text: str) -> list[TableName]:
    """The tables that one SELECT reads, each once, in order; names of its WITH are not tables.

    Raises UsageError if the text is not exactly one SELECT.
    """
    with duckdb.connect(":memory:") as connection:
        try:
            row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
        except duckdb.Error as error:
            raise UsageError(f"not SQL: {error}", reason="sql") from error
    try:
        return _tables_of(row[0])
    except RecursionError:
        raise UsageError(
            "the SELECT is too deep: write long chains of operators or joins as lists, such as x in (1, 2), or cut "
            "it into views",
            reason="sql",
        ) from None


def _tables_of(written: str) -> list[TableName]:
    """The tables of a syntax tree. Raises: UsageError as `tables_named`; RecursionError."""
    tree = json.loads(written)
    if tree["error"] and "Only SELECT" in tree["error_message"]:
        raise UsageError("write exactly one SELECT, and nothing beside it", reason="sql")
    if tree["error"]:
        says = f"not one SELECT: {tree['error_message']}; `tidemill query` asks a goal, such as late(p, d)"
        raise UsageError(says, reason="sql")
    if len(tree["statements"]) != 1:
        raise UsageError(f"write exactly one SELECT, not {len(tree['statements'])}", reason="sql")
    return list(dict.fromkeys(_tables(tree["statements"][0], frozenset())))


def select(text: str, tables: Mapping[TableName, pa.Table], memory: str = "4GB") -> pa.Table:
    """The answer of the SELECT over these tables. Nothing else can be read: no file, no network.

    Instants are in UTC, whatever the zone of the machine. A second column `a` of the answer is
    called `a_1`. Raises: UsageError with DuckDB's message if the query does not fit the tables.
    UsageError for an interval of months, or another value that Arrow does not hold. UsageError for
    tables, or columns of one table, that SQL cannot tell apart. Exhausted if the query, or its
    answer, needs more than `memory`, none of which goes to disk.
    """
    _refuse_alike_names(tables)
    prefix = "_snapshot"
    while any(name.table.lower().startswith(prefix) for name in tables):
        prefix = f"_{prefix}"  # what we register would be found in place of the table
    with duckdb.connect(":memory:") as connection:
        room = _limit(connection, memory)
        for number, (name, table) in enumerate(tables.items()):
            _refuse_alike(name, table)
            # SQL compares UUIDs as text: 16 bytes would be a blob to it.
            connection.register(f"{prefix}{number}", shown_as_text(table, "uuid"))
            _name_view(connection, name, f"{prefix}{number}")
        connection.execute("SET TimeZone = 'UTC'")  # days and hours of instants, wherever one asks
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        try:
            found = _answer(connection.sql(text), room)
        except (duckdb.Error, OSError) as error:  # of Arrow where the first rows were good
            if isinstance(error, duckdb.OutOfMemoryException) or str(error).startswith(_NO_ROOM):
                raise Exhausted(
                    f"SQL refused: it wants more than {memory} of memory (--memory); read fewer rows, or allow more: {error}",
                    setting="--memory",
                ) from error
            raise UsageError(str(error), reason="sql") from error
        return _with_durations(found)


_NO_ROOM = "Out of Memory Error"
ANSWER_ROWS = 2_048
"""Rows of an answer that are taken at a time, as many as DuckDB computes together."""

_WITHOUT_FORM = frozenset({"uhugeint", "time with time zone", "time_ns", "bignum", "bit"})
"""Types of which Arrow, or a Python value, would say something else."""


def _answer(found: duckdb.DuckDBPyRelation, room: int) -> pa.Table:
    """The rows of an answer that is at most `room` bytes, each column with a name of its own.

    Raises: UsageError; OSError, and errors of DuckDB.
    """
    for name, kind in zip(found.columns, found.types, strict=True):
        _refuse_without_form(name, kind)
    batches = []
    with found.to_arrow_reader(ANSWER_ROWS) as reader:
        for batch in reader:
            room -= batch.nbytes
            if room < 0:
                raise duckdb.OutOfMemoryException("the answer alone is longer")
            batches.append(batch)
        table = pa.Table.from_batches(batches, reader.schema)
    names: list[str] = []
    for name in table.column_names:
        free = (f"{name}_{number}" for number in range(1, len(table.column_names) + 1))
        taken = {*names, *table.column_names}
        names.append(next(each for each in free if each not in taken) if name in names else name)
    return table.rename_columns(names)


def _refuse_without_form(name: str, kind: Any) -> None:
    """Raises: UsageError for a column whose values would be told as others."""
    if kind.id in _WITHOUT_FORM:
        raise UsageError(
            f"the column {name} has values of the type {kind}, of which Arrow has none: select them ::varchar",
            reason="sql",
        )
    if kind.id in ("list", "struct", "map", "array", "union"):
        for _, inner in kind.children:
            if not isinstance(inner, int):  # the length of an array
                _refuse_without_form(name, inner)


def _name_view(connection: duckdb.DuckDBPyConnection, name: TableName, rows: str) -> None:
    """Give rows the name that the query has for them.

    Raises: UsageError if it has a schema of SQL's own.
    """
    place = ".".join(_quoted(part) for part in (name.schema, name.table) if part)
    try:
        if name.schema:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(name.schema)}")
        connection.execute(f"CREATE VIEW {place} AS SELECT * FROM {rows}")
    except duckdb.Error as error:
        raise UsageError(
            f"{name.schema} is a name that SQL keeps for itself: write {_quoted(name.collection)} with "
            "its quotes",
            reason="sql",
        ) from error


def _with_durations(table: pa.Table) -> pa.Table:
    """The table with intervals of SQL as durations. Raises: as `_span_of`."""
    for at, field in enumerate(table.schema):
        if field.type == pa.month_day_nano_interval():
            spans = [None if v is None else _span_of(v) for v in table[at].to_pylist()]
            table = table.set_column(at, field.name, pa.array(spans, pa.duration("us")))
    return table


def _span_of(value: pa.MonthDayNano) -> timedelta:
    """Raises: UsageError for months, which have no length."""
    if value.months:
        raise UsageError(
            "an interval of months or years has no length: select it ::varchar, or add it to a time",
            reason="sql",
        )
    try:
        return timedelta(days=value.days, microseconds=value.nanoseconds // 1_000)
    except OverflowError:
        raise UsageError(
            "an interval of more than 999,999,999 days is none of ours: select it ::varchar",
            reason="sql",
        ) from None


def _limit(connection: duckdb.DuckDBPyConnection, memory: str) -> int:
    """Set the limit of memory; its bytes. Raises: UsageError for what is no size."""
    try:
        connection.execute("SET memory_limit = ?", [memory])
        connection.execute("SET temp_directory = ''")
        asked = connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))")
        return int(asked.fetchall()[0][0])
    except duckdb.Error as error:
        raise UsageError(f"no size of memory: {memory}; write as 4GB", reason="sql") from error


def _refuse_alike_names(names: Iterable[TableName]) -> None:
    """Refuse collections whose names differ by the case of letters alone: DuckDB takes them for
    one.
    """
    first: dict[tuple[str, str], TableName] = {}
    for name in names:
        other = first.setdefault((name.schema.lower(), name.table.lower()), name)
        if other != name:
            raise UsageError(
                f"the collections {other.collection} and {name.collection} are one to SQL: ask for each by "
                "itself, or give one another name by a view",
                reason="sql",
            )


def _refuse_alike(name: TableName, table: pa.Table) -> None:
    """Refuse columns that differ by the case of ASCII letters alone: DuckDB takes the first for all
    of them.
    """
    first: dict[bytes, str] = {}
    for column in table.column_names:
        other = first.setdefault(column.encode().lower(), column)
        if other != column:
            raise UsageError(
                f"the columns {other} and {column} of {name.collection} are one to SQL: ask for the goal, "
                "or give one another name by a view",
                reason="sql",
            )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables(node: Any, hidden: frozenset[str]) -> Iterator[TableName]:
    """Tables below a node of the syntax tree; `hidden` are the names of WITH in force."""
    if isinstance(node, list):
        for child in node:
            yield from _tables(child, hidden)
        return
    if not isinstance(node, dict):
        return
    if node.get("type") == "BASE_TABLE":
        if node["schema_name"] or node["table_name"].lower() not in hidden:
            yield TableName(node["schema_name"], node["table_name"])
        return
    if node.get("type") == "RECURSIVE_CTE_NODE":
        hidden |= {node["cte_name"].lower()}
    for entry in node.get("cte_map", {}).get("map", ()):
        # A name is in force for those after it; in its own definition it means the table.
        yield from _tables(entry["value"], hidden)
        hidden |= {entry["key"].lower()}
    for key, child in node.items():
        if key != "cte_map":
            yield from _tables(child, hidden)
