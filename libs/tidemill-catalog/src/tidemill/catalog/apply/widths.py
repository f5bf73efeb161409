"""Refusal of sources and tables that would have too many columns, before anything is made."""

from __future__ import annotations

import pyarrow as pa

from tidemill.arrangement.arrow_bytes import refuse_wide
from tidemill.catalog.entry import located, named_source, named_table
from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.runtime.resources import SourceSpec, TableSpec


def refuse_wide_rows(stored: Stored) -> None:
    """Refuse a source or table if nobody could send rows as wide as its own.

    Outputs of views have far fewer columns. Raises: UsageError with its place. Cost: O(columns).
    """
    resource = stored.resource
    if not isinstance(resource.spec, SourceSpec | TableSpec):
        return
    rows = named_source if isinstance(resource.spec, SourceSpec) else named_table
    schema = rows(stored).shape.schema
    try:
        refuse_wide(schema)
    except pa.ArrowInvalid as error:
        with located(resource, "spec", "columns"):
            raise UsageError(
                f"{resource} would have {len(schema):,} columns, and {error}; state fewer of them, or "
                "shorter names",
                reason="Width",
            ) from error
