"""Formats of records: one value for each, with the parameters of its reader.

The values are plain data that travel: the same one decodes on the live path and in a job.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class JsonFormat(msgspec.Struct, frozen=True, tag="json"):
    """One JSON object a record; members that no column names are ignored.

    With `texts` a text in a column of JSON is the text of its value. Writers without a type for
    JSON give it so: connectors of databases, and Parquet.
    """

    texts: bool = False


class CsvFormat(msgspec.Struct, frozen=True, tag="csv"):
    """One line of comma-separated values a record, in the order of the columns; empty is null."""

    delimiter: str = ","


class TextFormat(msgspec.Struct, frozen=True, tag="text"):
    """A record is UTF-8 text, and fills the only column."""


class BytesFormat(msgspec.Struct, frozen=True, tag="bytes"):
    """A record is any bytes; the only column holds them as base64, or as hexadecimal digits."""

    encoding: Literal["base64", "hex"] = "base64"


class AvroFormat(msgspec.Struct, frozen=True, tag="avro"):
    """A zero byte, the number of a schema in four bytes, and a value of that schema."""


class ProtobufFormat(msgspec.Struct, frozen=True, tag="protobuf"):
    """A message, described by a serialized descriptor set.

    With `framed` the prefix of a message is skipped: a zero byte, a schema's number in four bytes,
    the path in its file.
    """

    descriptors: bytes
    message: str
    framed: bool = False


RecordFormat: TypeAlias = (
    JsonFormat | CsvFormat | TextFormat | BytesFormat | AvroFormat | ProtobufFormat
)
