"""Answers on a terminal or in a pipe."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.csv
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemill.arrangement.column_types import column_type, shown_as_text
from tidemill.client.formats import Rows
from tidemill.client.instants import shown, shown_frontier
from tidemill.client.multiplicity import DIFF
from tidemill.errors import UsageError
from tidemill.time import Frontier, unit_doubt
from tidemill.time.typed import write_instant, write_span

GAP = "  "


def printable(text: str) -> str:
    """The text on one line; what would move the cursor or colour the terminal is written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def aligned(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    """A line per row; column i to the right if `right[i]`. All columns have the same length.

    Cost: two passes over the cells, O(1) memory beyond them and one line.
    """
    widths = [max(map(_width, column), default=0) for column in columns]
    last = len(columns) - 1
    for row in zip(*columns, strict=True):
        cells = []
        for index, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(text))
            if right[index]:
                cells.append(space + text)
            else:
                cells.append(text if index == last else text + space)
        yield GAP.join(cells)


def _width(text: str) -> int:
    """Columns of the terminal; signs of East Asia have two."""
    return len(text) if text.isascii() else cell_len(text)


_SUMS = pa.decimal128(38, 0)
"""SQL has whole numbers of 128 bits, and Arrow has not."""


def console() -> Console:
    """Standard output, looked up now; wide enough for all columns when it is no terminal."""
    found = Console(highlight=False, soft_wrap=True)
    return found if found.is_terminal else Console(highlight=False, width=400)


def grid(headings: Sequence[str], right: Iterable[str] = ()) -> Table:
    """An empty table in the one style; columns in `right` are aligned to the right."""
    numbers = set(right)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(
            Text(heading), justify="right" if heading in numbers else "left", overflow="fold"
        )
    return table


def print_rows(
    table: pa.Table,
    written: Rows,
    as_of: int | None,
    frontiers: Mapping[str, tuple[Frontier, Frontier]],
) -> None:
    """Write the rows; the instant and both frontiers are in the JSON, else on standard error."""
    match written:
        case Rows.table:
            _print_table(table)
            _print_footer(table.num_rows, as_of, frontiers)
        case Rows.json:
            head = {
                "as_of": as_of,
                "frontiers": {
                    name: {"since": list(since), "upper": list(upper)}
                    for name, (since, upper) in frontiers.items()
                },
            }
            rows = ", ".join(row_texts(table))
            print(f'{json.dumps(head, ensure_ascii=False)[:-1]}, "rows": [{rows}]}}')
        case Rows.csv:
            pa.csv.write_csv(flat(table), binary_output())
            _print_footer(table.num_rows, as_of, frontiers)
        case Rows.arrow:
            write_arrow(table)
            _print_footer(table.num_rows, as_of, frontiers)


def write_arrow(table: pa.Table) -> None:
    """One Arrow IPC stream on standard output. Raises UsageError on a terminal."""
    if sys.stdout.isatty():
        raise UsageError("Arrow is binary: redirect it to a file or a pipe", reason="terminal")
    output = binary_output()
    with pa.ipc.new_stream(output, table.schema) as writer:
        writer.write_table(table)
    output.flush()


def row_texts(table: pa.Table) -> Iterator[str]:
    """Rows as objects of JSON: UUIDs as text, JSON as it is, the others as `plain` has them.

    Whole numbers that SQL adds up are numbers. They come as decimals that no column can have.
    """
    sums = {field.name for field in table.schema if field.type == _SUMS}
    documents = {field.name for field in table.schema if column_type(field.type) == "json"}

    def written(name: str, value: Any) -> str:
        if value is None or name in documents:
            return value or "null"  # the text of a document has all the digits of its numbers
        return json.dumps(int(value) if name in sums else plain(value), ensure_ascii=False)

    for row in values(shown_as_text(table, "uuid", "bytes")):
        cells = (f"{json.dumps(n, ensure_ascii=False)}: {written(n, v)}" for n, v in row.items())
        yield "{" + ", ".join(cells) + "}"


def values(rows: pa.Table | pa.ChunkedArray) -> list[Any]:
    """The rows of a table, or the values of a column, as Python has them.

    Raises: UsageError for instants that Python has not; SQL knows an infinite one.
    """
    try:
        return rows.to_pylist()  # type: ignore[no-any-return]  # of Arrow, which has no types
    except (OverflowError, ValueError) as error:
        raise UsageError(
            f"a value cannot be shown: {error}; the years of instants are 1 to 9999: select it ::varchar, or ask for "
            "--format arrow",
            reason="value",
        ) from error


def plain(value: object) -> Any:
    """`value` as JSON can hold it: dates as ISO-8601, bytes and decimals as text.

    A float that is no number is null.
    """
    match value:
        case dict():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case Decimal():
            return f"{value:f}"
        case timedelta():
            return write_span(value)
        case datetime() if value.tzinfo is not None:
            return write_instant(value.astimezone(UTC))
        case datetime() | date() | time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return None
        case bytes():
            return value.decode(errors="backslashreplace")
        case _:
            return value


def cell(value: object) -> str:
    """A value as a person reads it."""
    match value if isinstance(value, float) else plain(value):
        case None:
            return "null"
        case bool() as flag:
            return str(flag).lower()
        case str() as text:
            return printable(text)
        case float() as number:
            text = f"{number:.6g}" if abs(number) < 1e15 else repr(number)
            return f"{text}.0" if text.lstrip("-").isdigit() else text
        case list() | dict() as nested:
            return json.dumps(nested, ensure_ascii=False)
        case other:
            return str(other)


def counted(rows: int) -> str:
    """So many rows, in words."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _print_table(table: pa.Table) -> None:
    if not table.num_columns:
        return
    if table.column_names == [
        DIFF
    ]:  # a fact without columns has nothing to show but that it is there
        sys.stdout.writelines("()\n" for copies in table[DIFF].to_pylist() if copies > 0)
        return
    columns = [
        [printable(name), *(cell(value) for value in values(column))]
        for name, column in zip(
            table.column_names, shown_as_text(table, "uuid", "decimal").columns, strict=True
        )
    ]
    lines = aligned(columns, [_numeric(field.type) for field in table.schema])
    console().print(Text(next(lines), style="bold"), no_wrap=True, overflow="ignore", crop=False)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _numeric(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _print_footer(
    rows: int, as_of: int | None, frontiers: Mapping[str, tuple[Frontier, Frontier]]
) -> None:
    instant = f" as of {shown(as_of)}" if as_of is not None else ""
    sys.stdout.flush()  # the rows come first where both go to one place
    # Standard error, so that a pipe gets rows alone.
    footer = Console(stderr=True, highlight=False, soft_wrap=True)
    footer.print(Text(counted(rows) + instant, style="dim"))
    for name, (since, upper) in frontiers.items():
        text = f"  {name}: since {shown_frontier(since)}, upper {shown_frontier(upper)}"
        footer.print(Text(text, style="dim"))
    doubt = "" if as_of is None else unit_doubt(as_of, *chain(*frontiers.values()))
    if doubt:
        footer.print(Text(f"  {doubt}", style="yellow"))


def flat(table: pa.Table) -> pa.Table:
    """Columns that CSV can hold; nested ones and decimals as text."""
    columns = []
    for column in shown_as_text(table, "uuid", "duration", "bytes", "decimal").columns:
        kind = column.type
        if pa.types.is_nested(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind):
            texts = [None if value is None else cell(value) for value in values(column)]
            columns.append(pa.chunked_array([pa.array(texts, pa.string())]))
        else:
            columns.append(column)
    return pa.table(columns, names=table.column_names)


def binary_output() -> Any:
    """Standard output for bytes, once what was written as text is out."""
    sys.stdout.flush()
    return sys.stdout.buffer
