"""Settings of query."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class QuerySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long sessions hold history."""

    session_lease_ms: int = 900_000
    """How long a subscriber that went away silently keeps since back."""

    arranged_wait_s: float = 0.2
    """How long a question waits for an arrangement that is a little behind, before it reads the whole collection."""

    proof_history_ms: int = 172_800_000
    """How far before and after the asked instant why-not looks for facts that were never present together; reasons go as far back over ticks."""

    proof_views_max: int = 10
    """How many borders of views a proof crosses, one behind the other."""

    proof_facts_max: int = 100
    """How many facts that other views derive a proof goes on into."""


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """How long a question may be, and what it may be answered."""

    question_bytes: int = 16 << 10
    answer_bytes: int = 256 << 20
    memory_bytes: int = 1 << 30
    seconds: float = 60.0
    offsets: int = 20_000
