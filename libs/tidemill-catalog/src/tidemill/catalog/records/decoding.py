"""Records of a source as rows, or as changes of rows, or as dead letters: what runs the formats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.looks import looking
from tidemill.catalog.records.debezium import change_reader
from tidemill.reclock import CHANGE_SCHEMA, Change, pack_row
from tidemill.runtime.formats import LETTER_SCHEMA, AvroFormat, BadRow, RowDecoder
from tidemill.runtime.formats.lengths import long_records, too_long
from tidemill.runtime.formats.rows import HEARTBEAT, shown
from tidemill.runtime.log import LogRecord, columns_of, keys_of
from tidemill.runtime.packed_values import PackedValues, lengths_of
from tidemill.runtime.resources.decoding import RecordShape

_ANY_BYTES = 1 << 62
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
        options = (shape.heartbeats, shape.row_bytes)
        if shape.envelope.upsert is not None:  # the length of the packed row decides
            options = (False, _ANY_BYTES)
        if not isinstance(written, AvroFormat):
            return RowDecoder(columns, written, None, *options), None
        from tidemill.runtime.formats.avro import AvroReader

        assert open_schemas is not None
        reader = AvroReader(columns)
        self._schemas[field] = open_schemas(field, reader)
        return RowDecoder(columns, written, reader, *options), reader

    async def decode(self, records: Sequence[LogRecord]) -> Decoded:
        """Everything that `records` are.

        Raises: Unavailable if a registry has to be asked, and is away.
        """
        refused: dict[int, str] = {}
        for field, schemas in self._schemas.items():
            parts = keys_of(records) if field == "keyFormat" else columns_of(records).values
            refused |= await schemas.prepare(records, parts)
        return await asyncio.to_thread(looking, partial(self._decoded, records, refused))

    def decode_now(self, records: Sequence[LogRecord]) -> Decoded:
        """Everything that `records` are, where no format names schemas that have to be learned."""
        assert not self._schemas
        return self._decoded(records, {})

    async def close(self) -> None:
        """Release the registries."""
        for schemas in self._schemas.values():
            await schemas.close()

    def _decoded(self, records: Sequence[LogRecord], refused: Mapping[int, str]) -> Decoded:
        if self._keys is not None:
            return self._upserts(records, refused, self._keys)
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

    def _upserts(
        self, records: Sequence[LogRecord], refused: Mapping[int, str], decoder: RowDecoder
    ) -> Decoded:
        """The row that each key has from now on; of a record without a value none.

        Cost: some two microseconds a record whose key and value are plain.
        """
        columns, keys = columns_of(records), keys_of(records)
        keyless = np.flatnonzero(lengths_of(keys) < 0).tolist()
        bad = dict.fromkeys(keyless, "the record has no key")
        bad |= {**long_records(columns.values), **refused}
        named, unnamed = _rows_at(decoder, keys, [at not in bad for at in range(len(records))])
        bad |= {at: f"its key: {reason}" for at, reason in unnamed.items()}
        valued = lengths_of(columns.values) >= 0
        valued[list(bad)] = False
        found, unread = _rows_at(self._values, columns.values, valued)
        bad |= unread
        places = named["_offset"].to_numpy()
        of_found = np.searchsorted(places, found["_offset"].to_numpy())
        theirs = named.take(of_found)
        cells = [
            (theirs if column.name in decoder.names else found)[column.name].to_pylist()
            for column in self._shape.columns
        ]
        after: list[bytes | None] = [None] * len(places)
        for row, packed in zip(
            of_found.tolist(), map(pack_row, zip(*cells, strict=True)), strict=True
        ):
            after[row] = packed
            if len(packed) > self._shape.row_bytes:
                bad[int(places[row])] = too_long(len(packed), self._shape.row_bytes)
        packed_keys = map(
            pack_row, zip(*(named[name].to_pylist() for name in decoder.names), strict=True)
        )
        changes = pa.Table.from_arrays(
            [
                pa.repeat("set", len(places)), pa.array(list(packed_keys), pa.binary()),
                pa.nulls(len(places), pa.binary()), pa.array(after, pa.binary()),
                pa.array(columns.partitions[places]), pa.array(columns.offsets[places]),
            ],
            schema=CHANGE_SCHEMA,
        )  # fmt: skip
        if bad:
            changes = changes.filter(pa.array(~np.isin(places, list(bad))))
        return changes, self._letters([(records[at], bad[at]) for at in sorted(bad)])

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


def _rows_at(
    decoder: RowDecoder,
    values: Sequence[bytes | None],
    wanted: Sequence[bool] | npt.NDArray[np.bool_],
) -> tuple[pa.Table, dict[int, str]]:
    """Rows of the wanted values, in order, with their places as `_offset`; why others are none."""
    places = np.flatnonzero(np.asarray(wanted, np.bool_))
    some = PackedValues.of(values).take(places)
    rows, letters = decoder.decode(np.zeros(len(places), np.int64), places, some)
    found = rows["_offset"].to_numpy()
    if bool((found[1:] < found[:-1]).any()):
        rows = rows.take(pa.array(np.argsort(found)))
    return rows, dict(
        zip(letters["offset"].to_pylist(), letters["reason"].to_pylist(), strict=True)
    )
