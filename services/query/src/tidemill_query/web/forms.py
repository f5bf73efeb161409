"""Forms of rows over HTTP, chosen by `Accept`: JSON, NDJSON, CSV, Arrow.

JSON has numbers as numbers, instants as RFC 3339, bytes as base64, UUIDs and durations as text, and
null for what is no number.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.arrangement.column_types import column_type, shown_as_text
from tidemill.rpc.codecs import PART_BYTES_MAX, parts
from tidemill.rpc.turns import beside

JSON, NDJSON = "application/json", "application/x-ndjson"
CSV, ARROW = "text/csv", "application/vnd.apache.arrow.stream"
FORMS = (JSON, NDJSON, CSV, ARROW)
"""Content types of rows; the first is of who does not say."""

WEIGHT = 8
"""Text of rows takes as long as so many times more bytes of columns."""

_JSON = msgspec.json.Encoder(decimal_format="number")


def accepted(said: str, forms: tuple[str, ...] = FORMS) -> str | None:
    """The form that a header `Accept` prefers; of equals the first of `forms`. None fits: None."""
    weights: dict[str, float] = {}
    for item in said.split(",")[:100] if said.strip() else ["*/*"]:
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        weights[kind] = _weight(parameters)

    def preference(form: str) -> float:
        main = form.partition("/")[0]
        found = (weights[each] for each in (form, f"{main}/*", "*/*") if each in weights)
        return next(found, 0.0)

    best = max(forms, key=preference)
    return best if preference(best) > 0 else None


def _weight(parameters: list[str]) -> float:
    for each in parameters:
        name, _, value = each.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def json_rows(table: pa.Table) -> bytes:
    """The rows as objects of JSON with commas between."""
    return _JSON.encode(_objects(table))[1:-1]


def _objects(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as objects, in which UUIDs and durations are texts, and JSON is what it is."""
    rows: list[dict[str, Any]] = shown_as_text(table, "uuid", "duration").to_pylist()
    for field in table.schema:
        if column_type(field.type) == "json":
            for row in rows:
                if (text := row[field.name]) is not None:
                    row[field.name] = msgspec.Raw(text.encode())
    return rows


def json_of(value: object) -> bytes:
    """A value as JSON."""
    return _JSON.encode(value)


def written(form: str, head: dict[str, object], table: pa.Table) -> Iterator[bytes]:
    """A table in a form, in pieces of about a MiB of columns; `head` are members beside the rows of
    JSON.
    """
    if form == ARROW:
        yield from _arrow(table)
        return
    if form == JSON:
        yield _JSON.encode(head)[:-1] + (b"," if head else b"") + b'"rows":['
    begun = False
    for part in parts(table):
        if form == CSV:
            options = pa.csv.WriteOptions(include_header=not begun)
            sink = pa.BufferOutputStream()
            pa.csv.write_csv(_flat(part), sink, options)
            yield sink.getvalue().to_pybytes()
        elif form == NDJSON:
            yield _JSON.encode_lines(_objects(part))
        elif part.num_rows:
            yield (b"," if begun else b"") + json_rows(part)
        begun = True
    if form == JSON:
        yield b"]}\n"


async def body(form: str, head: dict[str, object], table: pa.Table) -> bytes | AsyncIterator[bytes]:
    """The whole body if it is short, else its pieces, written beside the event loop."""
    pieces = written(form, head, table)
    if table.nbytes <= PART_BYTES_MAX:
        return await beside(table.nbytes * WEIGHT, lambda: b"".join(pieces))
    return _each(pieces)


async def _each(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await beside(PART_BYTES_MAX, partial(next, pieces, None))) is not None:
        yield piece


def _arrow(table: pa.Table) -> Iterator[bytes]:
    """One Arrow IPC stream."""
    if table.nbytes <= PART_BYTES_MAX:
        yield pack_table(table)
        return
    sink = io.BytesIO()

    def taken() -> bytes:
        data = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return data

    with pa.ipc.new_stream(sink, table.schema) as writer:
        for part in parts(table):
            writer.write_table(part)
            yield taken()
    yield taken()


def _flat(table: pa.Table) -> pa.Table:
    """Columns that CSV can hold; nested ones and bytes as JSON, decimals as text."""
    columns = []
    for column in shown_as_text(table, "uuid", "duration", "bytes").columns:
        kind = column.type
        if pa.types.is_decimal(kind):
            column = column.cast(pa.string())
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            texts = [None if v is None else _JSON.encode(v).decode() for v in column.to_pylist()]
            column = pa.chunked_array([pa.array(texts, pa.string())])
        columns.append(column)
    return pa.table(columns, names=table.column_names)
