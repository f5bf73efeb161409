"""What decodes the records of a source: the shape from its resource, schemas from where they are."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.runtime.formats import AvroFormat
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.kafka_access import trusting
from tidemill.runtime.log import LogRecord
from tidemill.runtime.resources import RegistrySpec, SourceSpec
from tidemill.runtime.resources.decoding import (
    RecordShape,
    descriptor_files,
    record_shape,
    registries_of,
)
from tidemill.time import UsageError
from tidemill_embedded.resources.resource_store import Stored
from tidemill_embedded.resources.shapes import columns_of
from tidemill_ingest.decisions import Decisions
from tidemill_ingest.decoding import RecordDecoder, Schemas

if TYPE_CHECKING:
    from tidemill_ingest.schemas import SchemaBook


def shape_of(stored: Stored) -> RecordShape:
    """How the records of a source are decoded, with what was resolved when it was made."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    resolved = stored.resolved
    descriptors = {
        field: base64.b64decode(text) for field, text in resolved.get("descriptors", {}).items()
    }
    return record_shape(spec, columns_of(stored), resolved.get("header", ()), descriptors)


def read_descriptors(spec: SourceSpec) -> dict[str, str]:
    """The descriptor sets that the formats name, in base64, to be kept. Raises: UsageError."""
    return {
        field: base64.b64encode(_read(path)).decode()
        for field, path in descriptor_files(spec).items()
    }


def open_decoder(stored: Stored, shape: RecordShape, decisions: Decisions) -> RecordDecoder:
    """The decoder of a source; what registries say is kept in `decisions`. Raises: UsageError."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    registries = registries_of(spec)

    def open_schemas(field: str, reader: Any) -> Schemas:  # an AvroReader
        return _book(registries[field], field, decisions, reader)

    return RecordDecoder(shape, open_schemas)


def open_book(stored: Stored, shape: RecordShape, decisions: Decisions) -> SchemaBook | None:
    """What decides about the schemas of values, for who decodes them elsewhere; None if they name none."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if not isinstance(shape.value_format, AvroFormat):
        return None
    from tidemill.runtime.formats.avro import AvroReader

    return _book(registries_of(spec)["format"], "format", decisions, AvroReader(shape.value))


def _book(
    registry: RegistrySpec, field: str, decisions: Decisions, reader: Any
) -> SchemaBook:  # an AvroReader
    from tidemill_ingest.schemas import SchemaBook

    # Values and keys are decided apart, also by one registry.
    return SchemaBook(HttpRegistry(_access(registry)), f"{field} {registry.url}", decisions, reader)


class _Untaught:
    """Teaches nothing: for a decoder that is only made to see whether it can be."""

    async def prepare(
        self, records: Sequence[LogRecord], values: Sequence[bytes | None]
    ) -> dict[int, str]:
        return {}

    async def close(self) -> None:
        """Nothing is open."""


def untaught(field: str, reader: object) -> Schemas:
    """What teaches a reader no schema."""
    return _Untaught()


def _access(registry: RegistrySpec) -> RegistryAccess:
    password = None
    if registry.password_file is not None:
        password = _text(registry.password_file).strip()
    tls = None
    if registry.ca_file is not None:
        tls = trusting(registry.ca_file, _text(registry.ca_file))
    return RegistryAccess(registry.url, registry.username, password, tls)


def _text(path: str) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the file {path} is no UTF-8: {error.reason} at byte {error.start}",
            reason="FileMissing",
        ) from None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        said = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the file {path!r} cannot be read: {said}", reason="FileMissing"
        ) from error
