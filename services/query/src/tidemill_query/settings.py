"""Settings of query."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidemill.host.settings import LimitSettings


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


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """Limits on the length of a question, and on its answer."""

    question_bytes: int = 16 << 10
    answer_bytes: int = 256 << 20
    memory_bytes: int = 1 << 30
    seconds: float = 60.0
    offsets: int = 20_000

    @classmethod
    def of(cls, limits: LimitSettings) -> QuestionLimits:
        """Those of a process."""
        return cls(
            limits.question_bytes,
            limits.answer_bytes,
            limits.question_memory_bytes,
            limits.question_s,
            limits.question_offsets,
        )
