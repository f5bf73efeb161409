"""Settings of query."""

from __future__ import annotations

import msgspec

from tidemill.host.questions.limits import Reach


class QuerySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sessions, waits of questions, and reach of proofs."""

    session_lease_ms: int = 900_000
    """Time for which a subscriber that left silently holds since back."""

    arranged_wait_s: float = 0.2
    """Wait for an arrangement that lags, before a question reads the whole collection instead."""

    proof_history_ms: int = 172_800_000
    """Time before and after the asked instant in which why-not looks for facts that never met;
    reasons over ticks go back as far."""

    proof_views_max: int = 10
    """Views that a proof goes through, one behind the other."""

    proof_facts_max: int = 100
    """Facts of other views that a proof explains in turn."""

    @property
    def reach(self) -> Reach:
        """Reach of the proofs of users."""
        return Reach(self.proof_history_ms, self.proof_views_max, self.proof_facts_max)
