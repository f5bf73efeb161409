"""Limits of questions."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.host.settings import LimitSettings


@dataclass(frozen=True, slots=True)
class QuestionLimits:
    """Limits on the length of a question, and on its answer."""

    question_bytes: int = 16 << 10
    record_bytes: int = 1 << 20
    answer_bytes: int = 256 << 20
    memory_bytes: int = 1 << 30
    seconds: float = 60.0
    offsets: int = 20_000

    @classmethod
    def of(cls, limits: LimitSettings) -> QuestionLimits:
        """Those of a process."""
        return cls(
            limits.question_bytes,
            limits.record_bytes,
            limits.answer_bytes,
            limits.question_memory_bytes,
            limits.question_s,
            limits.question_offsets,
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """Reach of a proof: milliseconds before its instant, views one behind the other, and facts of
    all of them.
    """

    history_ms: int = 172_800_000
    views: int = 10
    facts: int = 100
