"""The shape of the records of a source: from its resource, and from what was decided when it was
applied.
"""

from __future__ import annotations

import base64

from tidemill.catalog.entry import columns_of
from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX
from tidemill.runtime.places import Places
from tidemill.runtime.resources import SourceSpec
from tidemill.runtime.resources.decoding import RecordShape, descriptor_files, record_shape

DESCRIPTOR_BYTES_MAX = 16 << 20
"""No descriptor set is larger: what is, is another file."""

TEXTS = "texts"
"""Of what was decided about a source: texts in columns of JSON are read, where its writer has no
type for JSON.
"""


def shape_of(stored: Stored) -> RecordShape:
    """The shape by which the records of a source are decoded, with the decisions made at its
    creation.
    """
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    resolved = stored.resolved
    descriptors = {
        field: base64.b64decode(text) for field, text in resolved.get("descriptors", {}).items()
    }
    # A source that is older than the limit has none: each record keeps its first fate.
    row_bytes = resolved.get("rowBytes", ROW_BYTES_MAX)
    header = resolved.get("header", ())
    # Likewise cells of JSON: a change of a row repeats the cells that the row has.
    texts = bool(resolved.get(TEXTS, False))
    return record_shape(spec, columns_of(stored), header, descriptors, row_bytes, texts)


def read_descriptors(spec: SourceSpec, places: Places) -> dict[str, str]:
    """The descriptor sets that the formats name, in base64, to be kept. Raises: UsageError."""
    return {
        field: base64.b64encode(_read(path, places)).decode()
        for field, path in descriptor_files(spec).items()
    }


def _read(path: str, places: Places) -> bytes:
    try:
        return places.read.content(path, DESCRIPTOR_BYTES_MAX)
    except OSError as error:
        said = error.strerror or error
        raise UsageError(
            f"the file {path!r} cannot be read: {said}", reason="FileMissing"
        ) from error
