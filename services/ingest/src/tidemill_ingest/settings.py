"""Settings of ingest."""

from __future__ import annotations

import msgspec


class IngestSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reading of sources."""

    records_per_poll: int = 25_000
    """Records taken from the log at once; more of them decode faster and hold more memory."""

    poll_timeout_s: float = 0.05
    """Time that a poll waits for a first record. A delivery without records still reports
    progress."""

    idle_poll_timeout_s: float = 2.0
    """Longest wait of a poll: silence doubles it each time.

    A record ends the wait; a new partition is found at its end.
    """
