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
    tree = json.loads(row[0])
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

    Instants are in UTC, whatever the zone of the machine. Raises: UsageError with DuckDB's message
    if the query does not fit the tables, or selects an interval of months. UsageError for
    tables, or columns of one table, that SQL cannot tell apart. Exhausted if it needs more than
    `memory`, none of which goes to disk.
    """
    _refuse_alike_names(tables)
    prefix = "_snapshot"
    while any(name.table.lower().startswith(prefix) for name in tables):
        prefix = f"_{prefix}"  # what we register would be found in place of the table
    with duckdb.connect(":memory:") as connection:
        _limit(connection, memory)
        for number, (name, table) in enumerate(tables.items()):
            _refuse_alike(name, table)
            # SQL compares UUIDs as text: 16 bytes would be a blob to it.
            connection.register(f"{prefix}{number}", shown_as_text(table, "uuid"))
            if name.schema:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(name.schema)}")
            place = ".".join(_quoted(part) for part in (name.schema, name.table) if part)
            connection.execute(f"CREATE VIEW {place} AS SELECT * FROM {prefix}{number}")
        connection.execute("SET TimeZone = 'UTC'")  # days and hours of instants, wherever one asks
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        try:
            found: pa.Table = connection.sql(text).to_arrow_table()
        except duckdb.OutOfMemoryException as error:
            raise Exhausted(
                f"SQL refused: it wants more than {memory} of memory (--memory); read fewer rows, or allow more: {error}",
                setting="--memory",
            ) from error
        except duckdb.Error as error:
            raise UsageError(str(error), reason="sql") from error
        return _with_durations(found)


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
    return timedelta(days=value.days, microseconds=value.nanoseconds // 1_000)


def _limit(connection: duckdb.DuckDBPyConnection, memory: str) -> None:
    """Raises: UsageError for what is no size."""
    try:
        connection.execute("SET memory_limit = ?", [memory])
        connection.execute("SET temp_directory = ''")
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
