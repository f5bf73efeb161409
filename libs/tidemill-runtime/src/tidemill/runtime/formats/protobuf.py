"""Protobuf records, read with the descriptors that `protoc --descriptor_set_out` wrote.

Columns take fields by their names, so a message may gain fields while the columns stay. A table of
docs/reference/sources.md maps types to columns.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from tidemill.errors import UsageError
from tidemill.runtime.formats.columns import NO_VALUE, BadRow, Column, cell_of
from tidemill.runtime.formats.kinds import ProtobufFormat
from tidemill.runtime.formats.typed_cells import is_typed

if TYPE_CHECKING:
    from tidemill.runtime.formats.plain_wire import Field, PlainProtobuf

Take: TypeAlias = Callable[[Any], object]  # a message → a cell; raises BadRow

TIMESTAMP = "google.protobuf.Timestamp"
DURATION = "google.protobuf.Duration"
EPOCH = datetime(1970, 1, 1)
_WELL_KNOWN = "google/protobuf/"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_FITTING = {
    FieldDescriptor.CPPTYPE_BOOL: ("bool",),
    FieldDescriptor.CPPTYPE_STRING: ("text",),
    FieldDescriptor.CPPTYPE_ENUM: ("text", "int"),
    FieldDescriptor.CPPTYPE_DOUBLE: ("float",),
    FieldDescriptor.CPPTYPE_FLOAT: ("float",),
}
"""Types of columns that can hold a field; every other field is a whole number."""


class MessageReader:
    """Reads messages into the cells of columns. Pure.

    A column names a field, or a field of a message in it with dots between: `address.city`.
    """

    def __init__(self, columns: Sequence[Column], written: ProtobufFormat) -> None:
        """Raises: UsageError if there is no such message, or a column is no field of it that
        fits.
        """
        described = _described(written.descriptors, written.message)
        self._make = message_factory.GetMessageClass(described)
        self._framed = written.framed
        self._takes = [_taking(described, column) for column in columns]
        self._described, self._columns = described, tuple(columns)

    def plain_reader(self, values: Sequence[bytes | None]) -> PlainProtobuf | None:
        """The reader of plain messages; None if the columns are not those of a flat message."""
        return self._plain

    @cached_property
    def _plain(self) -> PlainProtobuf | None:
        from tidemill.runtime.formats.plain_wire import PlainProtobuf  # it loads loops

        fields = _plain_fields(self._described, self._columns)
        return None if fields is None else PlainProtobuf(self._columns, fields, framed=self._framed)

    def __call__(self, value: bytes | None) -> list[object]:
        """The cells of a record in the order of the columns. Raises: BadRow."""
        if value is None:
            raise BadRow(NO_VALUE)
        message = self._make()
        try:
            message.ParseFromString(_unframed(value) if self._framed else value)
        except DecodeError as error:
            raise BadRow(f"not such a message: {error}") from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())  # type: ignore[attr-defined]  # the stubs lack it
            raise BadRow(f"not such a message: without {missing}")
        return [take(message) for take in self._takes]


def _described(descriptors: bytes, name: str) -> Descriptor:
    """The message of a serialized descriptor set. Raises: UsageError."""
    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(descriptors)
    except DecodeError as error:
        raise UsageError(f"this is no descriptor set: {error}", reason="Descriptors") from None
    files = {file.name: file for file in found.file}
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: str, wanted_by: str) -> None:
        if file in added:
            return
        added.add(file)
        if file not in files and file.startswith(_WELL_KNOWN):
            module = _well_known(file)
            files[file] = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(files[file])
        if file not in files:
            raise UsageError(
                f"{wanted_by} imports {file}, which the descriptor set does not hold: write it with "
                "protoc --include_imports",
                reason="Descriptors",
            )
        for dependency in files[file].dependency:
            add(dependency, file)
        pool.Add(files[file])

    try:
        for file in list(files):
            add(file, file)
    except UsageError:
        raise
    except Exception as error:  # the pool trusts descriptors, and says TypeError or KeyError
        raise UsageError(f"this is no descriptor set: {error!r}", reason="Descriptors") from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        known = ", ".join(
            f"{file.package}.{message.name}".lstrip(".")
            for file in found.file
            for message in file.message_type
        )
        raise UsageError(
            f"the descriptor set has no message {name}; it has {known or 'none'}",
            reason="Descriptors",
        ) from None


def _well_known(file: str) -> Any:  # a generated module
    """The module of a file that protobuf brings.

    Raises: UsageError if it brings none of the name.
    """
    try:
        return import_module(file.removesuffix(".proto").replace("/", ".") + "_pb2")
    except (ImportError, ValueError) as error:
        raise UsageError(f"protobuf has no file {file}: {error}", reason="Descriptors") from None


def _plain_fields(described: Descriptor, columns: Sequence[Column]) -> dict[int, Field] | None:
    """The flat fields of a message by number; None if a column is another, or one is required.

    A field of which another one of its choice takes the place is not among them.
    """
    from tidemill.runtime.formats import plain_wire as wire  # as above

    kinds = {
        FieldDescriptor.TYPE_INT64: wire.INT, FieldDescriptor.TYPE_INT32: wire.INT32,
        FieldDescriptor.TYPE_UINT32: wire.UINT32, FieldDescriptor.TYPE_UINT64: wire.UINT64,
        FieldDescriptor.TYPE_FLOAT: wire.FLOAT32, FieldDescriptor.TYPE_DOUBLE: wire.FLOAT64,
        FieldDescriptor.TYPE_STRING: wire.TEXT, FieldDescriptor.TYPE_BOOL: wire.BOOL,
    }  # fmt: skip
    places = {column.name: at for at, column in enumerate(columns)}
    found: dict[int, Field] = {}
    for field in described.fields:
        kind, chosen = kinds.get(field.type), field.containing_oneof
        if field.is_required:
            return None
        if kind is None or field.is_repeated or (chosen is not None and len(chosen.fields) > 1):
            continue
        at = places.pop(field.name, -1)
        if at >= 0 and wire.FITTING[kind] != columns[at].kind:
            return None
        found[field.number] = wire.Field(kind, at, optional=field.has_presence)
    return None if places else found


def _taking(described: Descriptor, column: Column) -> Take:
    """The function that takes a column out of a message. Raises: UsageError without a field for
    it.
    """
    fields: list[FieldDescriptor] = []
    inner: Descriptor | None = described
    for step in column.name.split("."):
        field = None if inner is None else inner.fields_by_name.get(step)
        if field is None:
            raise UsageError(
                f"the message {described.full_name} has no field {column.name}", reason="Columns"
            )
        if field.is_repeated:
            raise UsageError(
                f"the column {column.name} is or is in {field.name}, a repeated field, of which "
                "there may be many",
                reason="Columns",
            )
        fields.append(field)
        inner = field.message_type
    convert = _converting(fields[-1], column)

    def take(message: Any) -> object:  # a message of a class made at run time
        for field in fields:
            if field.has_presence and not message.HasField(field.name):
                return cell_of(None, column)
            message = getattr(message, field.name)
        return cell_of(convert(message), column)

    return take


def _converting(field: FieldDescriptor, column: Column) -> Take:
    """From the value of a field to what a cell may be. Raises: UsageError if they do not fit."""
    described = field.message_type
    if described is None:
        return _scalar(field, column)
    if described.full_name == TIMESTAMP:
        _check_fits(column, ("int", "text", "timestamp"), TIMESTAMP)
        return lambda value: _instant(value, column)
    if described.full_name == DURATION:
        _check_fits(column, ("int", "duration"), DURATION)
        return lambda value: _span(value, column)
    if described.full_name in _WRAPPERS:
        inner = _scalar(described.fields_by_name["value"], column)
        return lambda value: inner(value.value)
    raise UsageError(
        f"the column {column.name} is a message: name a field of it, such as "
        f"{column.name}.{described.fields[0].name if described.fields else '…'}",
        reason="Columns",
    )


def _scalar(field: FieldDescriptor, column: Column) -> Take:
    kinds = _FITTING.get(field.cpp_type, ("int", "float"))
    if field.type == FieldDescriptor.TYPE_BYTES:
        kinds = ("text", "bytes")
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING and is_typed(column.kind):
        kinds = (*kinds, column.kind)
    _check_fits(column, kinds, field.full_name)
    if column.kind == "json":
        return lambda value: msgspec.Raw(value.encode())
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: base64.b64encode(value).decode()
    if field.enum_type is not None and column.kind == "text":
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}

        def name_of(value: int) -> str:
            if value not in names:
                raise BadRow(f"the column {column.name} has the number {value}, which has no name")
            return names[value]

        return name_of
    return lambda value: value


def _check_fits(column: Column, kinds: Sequence[str], field: str) -> None:
    if column.kind not in kinds:
        raise UsageError(
            f"the column {column.name} is {column.kind}, the field {field} is {' or '.join(kinds)}",
            reason="Columns",
        )


def _instant(value: Any, column: Column) -> object:  # a Timestamp of a pool of our own
    """Milliseconds in a column of whole numbers, ISO 8601 in one of text."""
    if column.kind == "int":
        return value.seconds * 1_000 + value.nanos // 1_000_000
    try:
        moment = EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    except OverflowError:
        raise BadRow(
            f"the column {column.name} is a time before the year 1 or after the year 9999"
        ) from None
    return f"{moment.isoformat()}Z"


def _span(value: Any, column: Column) -> object:  # a Duration of a pool of our own
    """Milliseconds in a column of whole numbers, else the text of a duration."""
    micros = value.seconds * 1_000_000 + int(value.nanos / 1_000)
    return int(micros / 1_000) if column.kind == "int" else f"{'-' * (micros < 0)}{abs(micros)}us"


def _unframed(value: bytes) -> bytes:
    """The message behind the header of Confluent: a zero byte, a number, a path. Raises: BadRow."""
    if len(value) < 6 or value[0] != 0:
        raise BadRow("does not begin with a zero byte and the number of a schema")
    count, at = _varint(value, 5)
    for _ in range(count >> 1):  # NB: zigzag; a lone zero stands for the path [0]
        _, at = _varint(value, at)
    return value[at:]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """(number, position behind it). Raises: BadRow."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        number |= (value[at] & 0x7F) << shift
        at += 1
        if value[at - 1] < 0x80:
            return number, at
    raise BadRow("the path of its message cannot be read")
