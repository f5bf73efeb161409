"""Settings of reclock."""

from __future__ import annotations

import msgspec


class ReclockSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Writing of rows, and of backlogs."""

    unbound_rows_max: int = 200_000
    """Rows that may wait for a binding, or to be written, before ingest is asked to pause."""

    spark_backlog_rows: int | None = None
    """Records of a backlog from which on, with engine `auto`, Spark writes it.

    Unset, 5,000,000 where jobs are pods. On one machine this process is faster than a job.
    """

    hold_interval_s: float = 10.0
    """Time between two moves of the hold on the bindings, and of committed offsets for outside
    tools."""

    poll_timeout_s: float = 5.0
    """Longest wait for a binding before another look; a source that advances never waits so
    long."""
