"""From what a source says of its records to what decodes them: the only place that chooses a
format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.arrangement.column_types import type_named
from tidemill.runtime.formats import (
    AvroFormat,
    BytesFormat,
    Column,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
    TextFormat,
)
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX
from tidemill.runtime.resources.specs import (
    ColumnSpec,
    EnvelopeSpec,
    FormatSpec,
    RegistrySpec,
    SourceSpec,
)


@dataclass(frozen=True, slots=True)
class RecordShape:
    """Everything that decodes the records of a source: columns and formats of values and of keys.

    `columns` are those of the source, in its order. `value` and `key` are the fields of values and
    keys, in the order in which they are written. Without an envelope that uses keys, `key` is
    empty. With `heartbeats` a record may be one; rows have the column `_heartbeat` then. A record
    whose row has more than `row_bytes` is a dead letter.
    """

    columns: tuple[Column, ...]
    value: tuple[Column, ...]
    value_format: RecordFormat
    key: tuple[Column, ...] = ()
    key_format: RecordFormat | None = None
    envelope: EnvelopeSpec = field(default_factory=EnvelopeSpec)
    heartbeats: bool = False
    row_bytes: int = ROW_BYTES_MAX

    @property
    def schema(self) -> pa.Schema:
        """The columns as those of a collection."""
        return schema_of(self.columns)


def columns_of(stated: Sequence[ColumnSpec]) -> tuple[Column, ...]:
    """The columns that a decoder takes."""
    return tuple(
        Column(column.name, type_named(column.type) or column.type, column.nullable)
        for column in stated
    )


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of the rows."""
    return pa.schema([column.field() for column in columns])


def record_shape(
    spec: SourceSpec,
    columns: Sequence[ColumnSpec],
    header: Sequence[str] = (),
    descriptors: Mapping[str, bytes] | None = None,
    row_bytes: int = ROW_BYTES_MAX,
    texts: bool = True,
) -> RecordShape:
    """Decoding of the records of a source.

    `columns` are the stated or inferred ones, and `header` the names at the start of a file.
    `descriptors` are the descriptor sets of `format` and `keyFormat` by these names. Without
    `texts` a text in a column of JSON is that text, whatever the source.
    """
    stated = columns_of(columns)
    known = {column.name: column for column in stated}
    # Further columns of the file are read as text.
    written = [known.get(name, Column(name, "text", True)) for name in header] or list(stated)
    described = descriptors or {}
    value_format = record_format(spec, described)
    if isinstance(value_format, JsonFormat) and not texts:
        value_format = JsonFormat()
    upsert = spec.envelope.upsert
    if upsert is None or spec.key_format is None:
        return RecordShape(
            stated, tuple(written), value_format,
            envelope=spec.envelope, heartbeats=spec.event_time is not None, row_bytes=row_bytes,
        )  # fmt: skip
    return RecordShape(
        stated,
        tuple(column for column in written if column.name not in upsert.key),
        value_format,
        tuple(known[name] for name in upsert.key),
        _format_of(spec.key_format, described.get("keyFormat", b"")),
        spec.envelope,
        row_bytes=row_bytes,
    )


def record_format(spec: SourceSpec, descriptors: Mapping[str, bytes] | None = None) -> RecordFormat:
    """Format of one record of the source; rows of Parquet files are given as JSON objects.

    Debezium and Parquet give JSON as text.
    """
    if spec.file is not None and spec.file.format == "csv" and spec.format.csv is None:
        return CsvFormat()
    found = _format_of(spec.format, (descriptors or {}).get("format", b""))
    is_parquet = spec.file is not None and spec.file.format == "parquet"
    if isinstance(found, JsonFormat) and (is_parquet or spec.envelope.debezium is not None):
        return JsonFormat(texts=True)
    return found


def has_header(spec: SourceSpec) -> bool:
    """Whether the first line of the file names the columns; records of a log have no such line."""
    if spec.file is None or spec.file.format != "csv":
        return False
    stated = None if spec.format.csv is None else spec.format.csv.header
    return True if stated is None else stated


def delimiter_of(spec: SourceSpec) -> str:
    """Text between the fields of a line."""
    written = record_format(spec)
    return written.delimiter if isinstance(written, CsvFormat) else ","


def descriptor_files(spec: SourceSpec) -> dict[str, str]:
    """The files of descriptor sets that the formats name, by the fields that name them."""
    formats = {"format": spec.format, "keyFormat": spec.key_format}
    return {
        field: written.protobuf.descriptor_set
        for field, written in formats.items()
        if written is not None and written.protobuf is not None
    }


def registries_of(spec: SourceSpec) -> dict[str, RegistrySpec]:
    """The schema registries of the formats, by the fields that name them."""
    formats = {"format": spec.format, "keyFormat": spec.key_format}
    return {
        field: written.avro.registry
        for field, written in formats.items()
        if written is not None and written.avro is not None
    }


def _format_of(written: FormatSpec, descriptors: bytes) -> RecordFormat:
    if written.csv is not None:
        return CsvFormat(written.csv.delimiter)
    if written.text is not None:
        return TextFormat()
    if written.bytes is not None:
        return BytesFormat(written.bytes.encoding)
    if written.avro is not None:
        return AvroFormat()
    if written.protobuf is not None:
        return ProtobufFormat(descriptors, written.protobuf.message, written.protobuf.framed)
    return JsonFormat()
