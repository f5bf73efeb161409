"""Changes of rows as Debezium writes them, in JSON or in Avro."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from tidemill.errors import UsageError
from tidemill.reclock import Change, pack_row
from tidemill.reclock.keyed import Op
from tidemill.runtime.formats import AvroFormat, BadRow, RowDecoder
from tidemill.runtime.formats.avro import AvroReader, schema_number
from tidemill.runtime.formats.columns import NOT_JSON, check_nesting
from tidemill.runtime.log import LogRecord
from tidemill.runtime.resources.decoding import RecordShape

OPS = {"c": "create", "r": "read", "u": "update", "d": "delete"}

UNSENT = "__debezium_unavailable_value"
"""A text, or its bytes, in place of a long value that PostgreSQL did not send, since no change was
made to it.
"""
_UNSENT = (UNSENT.encode(), b64encode(UNSENT.encode()))
"""In bytes of records: as text, and as a column of bytes has it in JSON."""
_UNSENT_CELLS = (UNSENT, UNSENT.encode())
"""In columns of text and of bytes; columns of other types refuse it."""

Cells: TypeAlias = "list[object] | None"
Opened: TypeAlias = tuple[str | None, Callable[[str], Cells], Callable[[str], Cells]]
"""The op of a change; the row, and the key of the row, in its member `before` or `after`."""


class _Change(msgspec.Struct, gc=False):
    """A change in JSON, or what the converter of Connect puts around it."""

    op: str | None = None
    before: msgspec.Raw = msgspec.Raw(b"null")
    after: msgspec.Raw = msgspec.Raw(b"null")
    payload: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Change).decode


def change_reader(
    shape: RecordShape, reader: AvroReader | None
) -> Callable[[LogRecord], Change | None]:
    """Reader of one record as a change, a tombstone as None; it raises BadRow for anything else.

    It raises UsageError for a change that concerns more than one row: a truncated table.
    """
    debezium = shape.envelope.debezium
    assert debezium is not None
    names = [column.name for column in shape.columns]
    key_at = [names.index(name) for name in debezium.key]
    key_columns = [shape.columns[at] for at in key_at]
    whole = debezium.before == "full"
    if isinstance(shape.value_format, AvroFormat):
        assert reader is not None
        open_change = _avro_opener(reader, AvroReader(key_columns))
    else:
        open_change = _json_opener(
            RowDecoder(shape.columns, shape.value_format),
            RowDecoder(key_columns, shape.value_format),
        )

    def read(record: LogRecord) -> Change | None:
        if record.value is None:
            return None
        code, row_in, key_in = open_change(record.value)
        op = _op_of(code, record)
        after = None if op == "delete" else row_in("after")
        if op != "delete" and after is None:
            raise BadRow(f"op {code} without after")
        if after is not None and any(mark in record.value for mark in _UNSENT):
            _refuse_unsent(after, names)
        before = row_in("before") if whole and op in ("update", "delete") else None
        if after is not None:
            key = [after[at] for at in key_at]
            if before is not None and key != [before[at] for at in key_at]:
                raise BadRow("the key changes within one record")
        else:
            found = [before[at] for at in key_at] if before is not None else key_in("before")
            if found is None:
                raise BadRow("op d without before: nothing says which row")
            key = found
        return Change(op, pack_row(key), _packed(before), _packed(after))

    return read


def _refuse_unsent(cells: list[object], names: list[str]) -> None:
    """Raises: BadRow for a placeholder in place of a value."""
    for name, cell in zip(names, cells, strict=True):
        if isinstance(cell, str | bytes) and cell in _UNSENT_CELLS:
            raise BadRow(
                f"the column {name} was not sent, as it did not change: give the table REPLICA IDENTITY FULL"
            )


def _packed(row: Cells) -> bytes | None:
    return None if row is None else pack_row(row)


def _op_of(code: str | None, record: LogRecord) -> Op:
    if code == "t":
        raise UsageError(
            f"the table was truncated (record {record.offset} of partition {record.partition}): "
            "which rows that removed cannot be told; make the source anew from a snapshot",
            reason="Truncated",
        )
    if code not in OPS:
        raise BadRow("not a change of Debezium" if code is None else f"op {code} is no change")
    return cast("Op", OPS[code])


def _json_opener(rows: RowDecoder, keys: RowDecoder) -> Callable[[bytes], Opened]:
    def open_change(value: bytes) -> Opened:
        check_nesting(value)
        try:
            change = _decode(value)
            if change.op is None and bytes(change.payload):
                change = _decode(change.payload)
        except NOT_JSON as error:
            raise BadRow(f"not a change of Debezium: {error}") from None

        def part(decoder: RowDecoder, name: str) -> Cells:
            raw = bytes(change.before if name == "before" else change.after)
            if raw == b"null":
                return None
            try:
                return decoder.cells(raw)
            except BadRow as reason:
                raise BadRow(f"{name}: {reason}") from None

        return change.op, lambda name: part(rows, name), lambda name: part(keys, name)

    return open_change


def _avro_opener(rows: AvroReader, keys: AvroReader) -> Callable[[bytes], Opened]:
    keys.share(rows)

    def open_change(value: bytes) -> Opened:
        number = schema_number(value)
        change: Any = rows.value(number, value)  # a value of Avro
        if not isinstance(change, dict) or not isinstance(change.get("op"), str):
            raise BadRow("not a change of Debezium")

        def part(reader: AvroReader, name: str) -> Cells:
            if change.get(name) is None:
                return None
            try:
                return reader.cells(number, change[name], name)
            except BadRow as reason:
                raise BadRow(f"{name}: {reason}") from None

        return change["op"], lambda name: part(rows, name), lambda name: part(keys, name)

    return open_change
