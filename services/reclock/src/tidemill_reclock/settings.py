"""Settings of reclock."""

from __future__ import annotations

import msgspec


class ReclockSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When rows are written and who writes a backlog."""

    unbound_rows_max: int = 200_000
    """Rows that may wait for a binding before ingest is asked to pause."""

    spark_backlog_rows: int = 5_000_000
    """With engine `auto`, a backlog of at least this many records is written by Spark."""

    hold_interval_s: float = 10.0
    """How often the hold on the bindings moves on, and offsets are committed for outside tools."""

    poll_timeout_s: float = 5.0
    """How long to wait for a binding before looking again; a source that advances never waits so long."""
