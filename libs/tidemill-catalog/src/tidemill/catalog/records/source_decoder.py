"""The decoder of the records of a source, with what its registries teach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill.catalog.places import check_registry
from tidemill.catalog.records.decisions import Decisions
from tidemill.catalog.records.decoding import RecordDecoder, Schemas
from tidemill.runtime.formats import AvroFormat
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.kafka_access import tls_context
from tidemill.runtime.log import LogRecord
from tidemill.runtime.places import Places
from tidemill.runtime.resources import RegistrySpec, SourceSpec
from tidemill.runtime.resources.decoding import (
    RecordShape,
    registries_of,
)

if TYPE_CHECKING:
    from tidemill.catalog.records.schemas import SchemaBook


def open_decoder(
    spec: SourceSpec, shape: RecordShape, decisions: Decisions, places: Places
) -> RecordDecoder:
    """The decoder of a source; what registries say is kept in `decisions`. Raises: UsageError."""
    registries = registries_of(spec)

    def open_schemas(field: str, reader: Any) -> Schemas:  # an AvroReader
        return _book(registries[field], field, decisions, reader, places)

    return RecordDecoder(shape, open_schemas)


def open_book(
    spec: SourceSpec, shape: RecordShape, decisions: Decisions, places: Places
) -> SchemaBook | None:
    """Schemas of values, for decoders elsewhere; None if the values name none."""
    if not isinstance(shape.value_format, AvroFormat):
        return None
    from tidemill.runtime.formats.avro import AvroReader

    registry = registries_of(spec)["format"]
    return _book(registry, "format", decisions, AvroReader(shape.value), places)


def _book(
    registry: RegistrySpec, field: str, decisions: Decisions, reader: Any, places: Places
) -> SchemaBook:  # an AvroReader
    from tidemill.catalog.records.schemas import SchemaBook

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


def _untaught(field: str, reader: object) -> Schemas:
    return _Untaught()


def refuse_undecodable(shape: RecordShape) -> None:
    """Raises: UsageError if the columns of a source cannot be those of its records."""
    RecordDecoder(shape, _untaught)


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
