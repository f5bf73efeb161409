"""Changes of a subscription, written as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv

from tidemill.arrangement.column_types import shown_as_text
from tidemill.client.formats import Rows
from tidemill.client.instants import shown, shown_frontier
from tidemill.client.rendering import binary_output, cell, flat, row_texts, values
from tidemill.errors import UsageError
from tidemill.rpc.messages import Changes, Event, Progress
from tidemill.time import Frontier


@contextmanager
def changes_written(written: Rows) -> Iterator[Callable[[Event], None]]:
    """A function that writes one event; what it has written is out when it returns.

    Only JSON has progress among the changes; in the other formats it goes to standard error.
    """
    if written is Rows.json:
        yield _print_json
        return
    progress = _ProgressLines()
    with _rows_written(written) as write_rows:

        def write(event: Event) -> None:
            match event:
                case Changes(table):
                    write_rows(table)
                    sys.stdout.flush()
                    progress.due = True
                case Progress(upper):
                    progress.reached(upper)

        try:
            yield write
        finally:
            progress.ended()


@dataclass(slots=True)
class _ProgressLines:
    """Says how far the changes are complete: at first, after changes, at the end, not in
    between.
    """

    upper: Frontier | None = None
    due: bool = True

    def reached(self, upper: Frontier) -> None:
        """Take note, and say so if it is due."""
        if self.due:
            _print_progress(upper)
        self.upper = None if self.due else upper
        self.due = False

    def ended(self) -> None:
        """Say what was not said yet."""
        if self.upper is not None:
            _print_progress(self.upper)


@contextmanager
def _rows_written(written: Rows) -> Iterator[Callable[[pa.Table], None]]:
    match written:
        case Rows.csv:
            yield _CsvWriter().write
        case Rows.arrow:
            with _arrow() as write:
                yield write
        case _:
            yield _print_lines


@dataclass(slots=True)
class _CsvWriter:
    """Writes tables of one schema as CSV with one heading."""

    heading: bool = True

    def write(self, table: pa.Table) -> None:
        options = pa.csv.WriteOptions(include_header=self.heading)
        pa.csv.write_csv(flat(table), binary_output(), options)
        self.heading = False


@contextmanager
def _arrow() -> Iterator[Callable[[pa.Table], None]]:
    """Writes tables as one stream, ended at the end. Raises UsageError on a terminal."""
    if sys.stdout.isatty():
        raise UsageError("Arrow is binary: redirect it to a file or a pipe", reason="terminal")
    output = binary_output()
    streams: list[pa.RecordBatchStreamWriter] = []

    def write(table: pa.Table) -> None:
        if not streams:
            streams.append(pa.ipc.new_stream(output, table.schema))
        streams[0].write_table(table)

    try:
        yield write
    finally:
        for stream in streams:
            stream.close()


def _print_progress(upper: Frontier) -> None:
    print(f"-- complete before {shown_frontier(upper)}", file=sys.stderr, flush=True)


def _print_lines(table: pa.Table) -> None:
    for row in values(shown_as_text(table, "uuid", "decimal")):
        time, diff = row.pop("_time"), row.pop("_diff")
        cells = ", ".join(f"{name}={cell(value)}" for name, value in row.items())
        print(f"{shown(time)}  {diff:+d}  {cells}")


def _print_json(event: Event) -> None:
    match event:
        case Changes(table):
            for row in row_texts(table):
                print(row)
            sys.stdout.flush()
        case Progress(upper):
            print(json.dumps({"progress": list(upper)}), flush=True)
