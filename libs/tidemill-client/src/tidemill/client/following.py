"""Changes of a subscription, written as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.csv

from tidemill.client.formats import Rows
from tidemill.client.instants import shown, shown_frontier
from tidemill.client.rendering import binary_output, cell, flat, plain
from tidemill.rpc.messages import Changes, Event, Progress
from tidemill.time import UsageError


@contextmanager
def changes_written(written: Rows) -> Iterator[Callable[[Event], None]]:
    """A function that writes one event; what it has written is out when it returns.

    Only JSON has progress among the changes; in the other formats it goes to standard error.
    """
    match written:
        case Rows.table:
            yield lambda event: _write(event, _print_lines)
        case Rows.json:
            yield _print_json
        case Rows.csv:
            header = [True]

            def print_csv(table: pa.Table) -> None:
                options = pa.csv.WriteOptions(include_header=bool(header and header.pop()))
                pa.csv.write_csv(flat(table), binary_output(), options)

            yield lambda event: _write(event, print_csv)
        case Rows.arrow:
            with _arrow() as write:
                yield lambda event: _write(event, write)


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


def _write(event: Event, write: Callable[[pa.Table], None]) -> None:
    match event:
        case Changes(table):
            write(table)
            sys.stdout.flush()
        case Progress(upper):
            text = f"-- complete before {shown_frontier(upper)}"
            print(text, file=sys.stderr, flush=True)


def _print_lines(table: pa.Table) -> None:
    for row in table.to_pylist():
        time, diff = row.pop("_time"), row.pop("_diff")
        values = ", ".join(f"{name}={cell(value)}" for name, value in row.items())
        print(f"{shown(time)}  {diff:+d}  {values}")


def _print_json(event: Event) -> None:
    match event:
        case Changes(table):
            for row in table.to_pylist():
                print(json.dumps(plain(row), ensure_ascii=False))
            sys.stdout.flush()
        case Progress(upper):
            print(json.dumps({"progress": list(upper)}), flush=True)
