"""Records of a source as rows, or as changes of rows, or as dead letters: what runs the formats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tidemill.catalog.records.debezium import change_reader
from tidemill.reclock import CHANGE_SCHEMA, Change, pack_row
from tidemill.runtime.formats import LETTER_SCHEMA, AvroFormat, BadRow, RowDecoder
from tidemill.runtime.formats.lengths import long_records, too_long
from tidemill.runtime.formats.rows import HEARTBEAT, shown
from tidemill.runtime.log import LogRecord, columns_of
from tidemill.runtime.resources.decoding import RecordShape

Decoded: TypeAlias = tuple[pa.Table, pa.Table]
"""Rows or changes with their places, and dead letters."""


class Schemas(Protocol):
    """Knows schemas of records before they are decoded;
    tidemill.catalog.records.schemas.SchemaBook.
    """

    async def prepare(
        self, records: Sequence[LogRecord], values: Sequence[bytes | None]
    ) -> dict[int, str]:
        """Look up the schemas of these values; index of a value → reason to refuse it."""

    async def close(self) -> None:
        """Close the connections."""


class RecordDecoder:
    """Decoder of the records of one source, for every format and envelope.

    A record becomes a row or a dead letter. In an envelope it becomes a change or a dead letter,
    and a tombstone of Debezium neither. A record that is decoded again becomes the same.
    """

    def __init__(
        self,
        shape: RecordShape,
        open_schemas: Callable[[str, Any], Schemas] | None = None,  # a reader of the format
    ) -> None:
        """`open_schemas` gives what teaches the reader of "format" or "keyFormat" its schemas.

        Raises: UsageError if the columns cannot be those of the formats.
        """
        self._shape = shape
        self._schemas: dict[str, Schemas] = {}
        self._values, value_reader = self._part("format", open_schemas)
        self._keys = None
        self._change: Callable[[LogRecord], Change | None] | None = None
        if shape.envelope.upsert is not None:
            self._keys, _ = self._part("keyFormat", open_schemas)
            self._change = self._upsert
        elif shape.envelope.debezium is not None:
            self._change = change_reader(shape, value_reader)

    def _part(
        self, field: str, open_schemas: Callable[[str, Any], Schemas] | None
    ) -> tuple[RowDecoder, Any]:
        """The decoder of values or of keys, and the reader that has to be taught schemas, if
        any.
        """
        shape = self._shape
        columns, written = shape.value, shape.value_format
        if field == "keyFormat":
            assert shape.key_format is not None
            columns, written = shape.key, shape.key_format
        if not isinstance(written, AvroFormat):
            decoder = RowDecoder(columns, written, None, shape.heartbeats, shape.row_bytes)
            return decoder, None
        from tidemill.runtime.formats.avro import AvroReader

        assert open_schemas is not None
        reader = AvroReader(columns)
        self._schemas[field] = open_schemas(field, reader)
        return RowDecoder(columns, written, reader, shape.heartbeats, shape.row_bytes), reader

    async def decode(self, records: Sequence[LogRecord]) -> Decoded:
        """Everything that `records` are.

        Raises: Unavailable if a registry has to be asked, and is away.
        """
        refused: dict[int, str] = {}
        for field, schemas in self._schemas.items():
            parts = [r.key if field == "keyFormat" else r.value for r in records]
            refused |= await schemas.prepare(records, parts)
        return await asyncio.to_thread(self._decoded, records, refused)

    def decode_now(self, records: Sequence[LogRecord]) -> Decoded:
        """Everything that `records` are, where no format names schemas that have to be learned."""
        assert not self._schemas
        return self._decoded(records, {})

    async def close(self) -> None:
        """Release the registries."""
        for schemas in self._schemas.values():
            await schemas.close()

    def _decoded(self, records: Sequence[LogRecord], refused: Mapping[int, str]) -> Decoded:
        if self._change is not None:
            return self._changes(records, refused, self._change)
        columns = columns_of(records)
        if refused:
            kept = [at for at in range(len(records)) if at not in refused]
            values = [columns.values[at] for at in kept]
            found = (columns.partitions[kept], columns.offsets[kept], values)
        rows, letters = self._values.decode(*(found if refused else columns))
        beats = [HEARTBEAT] if self._shape.heartbeats else []
        rows = rows.select([*self._shape.schema.names, "_partition", "_offset", *beats])
        if refused:
            told = self._values.letters(*columns, refused)
            letters = pa.concat_tables([letters, told])
        return rows, letters

    def _changes(
        self,
        records: Sequence[LogRecord],
        refused: Mapping[int, str],
        change_of: Callable[[LogRecord], Change | None],
    ) -> Decoded:
        found: list[tuple[object, ...]] = []
        bad: list[tuple[LogRecord, str]] = []
        refused = {**long_records([record.value for record in records]), **refused}
        most = self._shape.row_bytes
        for at, record in enumerate(records):
            if at in refused:
                bad.append((record, refused[at]))
                continue
            try:
                change = change_of(record)
                if change is not None and change.after is not None and len(change.after) > most:
                    raise BadRow(too_long(len(change.after), most))
            except BadRow as reason:
                bad.append((record, str(reason)))
                continue
            if change is not None:
                found.append((*change, record.partition, record.offset))
        columns = zip(*found, strict=True) if found else ([] for _ in CHANGE_SCHEMA)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, CHANGE_SCHEMA, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=CHANGE_SCHEMA), self._letters(bad)

    def _upsert(self, record: LogRecord) -> Change:
        """The row that a key has from now on. Raises: BadRow."""
        assert self._keys is not None
        if record.key is None:
            raise BadRow("the record has no key")
        try:
            key = self._keys.cells(record.key)
        except BadRow as reason:
            raise BadRow(f"its key: {reason}") from None
        packed = pack_row(key)
        if record.value is None:
            return Change("set", packed, None, None)
        cells = dict(zip(self._values.names, self._values.cells(record.value), strict=True))
        cells |= dict(zip(self._keys.names, key, strict=True))
        row = pack_row([cells[column.name] for column in self._shape.columns])
        return Change("set", packed, None, row)

    def _letters(self, bad: Sequence[tuple[LogRecord, str]]) -> pa.Table:
        written = self._shape.value_format
        return pa.table(
            {
                "partition": [record.partition for record, _ in bad],
                "offset": [record.offset for record, _ in bad],
                "reason": [reason for _, reason in bad],
                "raw": [shown(record.value, written) for record, _ in bad],
            },
            schema=LETTER_SCHEMA,
        )
