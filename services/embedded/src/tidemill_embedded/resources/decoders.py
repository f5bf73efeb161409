"""What decodes the records of a source: the shape from its resource, schemas from where they are."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill.runtime.formats import AvroFormat
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.kafka_access import tls_context
from tidemill.runtime.log import LogRecord
from tidemill.runtime.places import Places
from tidemill.runtime.resources import RegistrySpec, SourceSpec
from tidemill.runtime.resources.decoding import (
    RecordShape,
    descriptor_files,
    record_shape,
    registries_of,
)
from tidemill.time import UsageError
from tidemill_embedded.resources.named import columns_of
from tidemill_embedded.resources.placing import check_registry
from tidemill_embedded.resources.resource_store import Stored
from tidemill_ingest.decisions import Decisions
from tidemill_ingest.decoding import RecordDecoder, Schemas

if TYPE_CHECKING:
    from tidemill_ingest.schemas import SchemaBook

DESCRIPTOR_BYTES_MAX = 16 << 20
"""No descriptor set is larger: what is, is another file."""


def shape_of(stored: Stored) -> RecordShape:
    """How the records of a source are decoded, with what was resolved when it was made."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    resolved = stored.resolved
    descriptors = {
        field: base64.b64decode(text) for field, text in resolved.get("descriptors", {}).items()
    }
    # What was made before there was a limit has none: a record has its first fate for ever.
    row_bytes = resolved.get("rowBytes", ROW_BYTES_MAX)
    header = resolved.get("header", ())
    return record_shape(spec, columns_of(stored), header, descriptors, row_bytes)


def read_descriptors(spec: SourceSpec, places: Places) -> dict[str, str]:
    """The descriptor sets that the formats name, in base64, to be kept. Raises: UsageError."""
    return {
        field: base64.b64encode(_read(path, places)).decode()
        for field, path in descriptor_files(spec).items()
    }


def open_decoder(
    stored: Stored, shape: RecordShape, decisions: Decisions, places: Places
) -> RecordDecoder:
    """The decoder of a source; what registries say is kept in `decisions`. Raises: UsageError."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    registries = registries_of(spec)

    def open_schemas(field: str, reader: Any) -> Schemas:  # an AvroReader
        return _book(registries[field], field, decisions, reader, places)

    return RecordDecoder(shape, open_schemas)


def open_book(
    stored: Stored, shape: RecordShape, decisions: Decisions, places: Places
) -> SchemaBook | None:
    """What decides about the schemas of values, for who decodes them elsewhere; None if they name none."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if not isinstance(shape.value_format, AvroFormat):
        return None
    from tidemill.runtime.formats.avro import AvroReader

    registry = registries_of(spec)["format"]
    return _book(registry, "format", decisions, AvroReader(shape.value), places)


def _book(
    registry: RegistrySpec, field: str, decisions: Decisions, reader: Any, places: Places
) -> SchemaBook:  # an AvroReader
    from tidemill_ingest.schemas import SchemaBook

    # Values and keys are decided apart, also by one registry.
    found = HttpRegistry(_access(registry, places))
    return SchemaBook(found, f"{field} {registry.url}", decisions, reader)


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


def _access(registry: RegistrySpec, places: Places) -> RegistryAccess:
    check_registry(registry, places)
    password, tls, egress = None, None, places.egress
    if registry.secret is not None:
        password = places.secret(registry.secret).text()
        egress = places.sending(registry.secret)
    if registry.authority is not None:
        file = str(places.secret(registry.authority).file)
        tls = tls_context(file, "", "", f"TLS with the registry, secret {registry.authority}")
    return RegistryAccess(registry.url, registry.username, password, tls, egress)


def _read(path: str, places: Places) -> bytes:
    try:
        return places.read.content(path, DESCRIPTOR_BYTES_MAX)
    except OSError as error:
        said = error.strerror or error
        raise UsageError(
            f"the file {path!r} cannot be read: {said}", reason="FileMissing"
        ) from error
