"""The collection of calls that changed something: its name and its columns."""

from __future__ import annotations

import pyarrow as pa

from tidemill.rpc.identity import SYSTEM_RESOURCE

AUDIT = f"{SYSTEM_RESOURCE}/audit"
"""The collection of calls that changed something, or were refused."""

AUDIT_SCHEMA = pa.schema(
    [
        ("at", pa.int64()),
        ("who", pa.string()),
        ("address", pa.string()),
        ("action", pa.string()),
        ("target", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("calls", pa.int64()),
        ("process", pa.string()),
    ]
)
"""Rows of AUDIT: one for equal calls of one batch, with their number."""
