"""Limits of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an evaluation that might not end, or not fit.

    Rounds of one fixed point, rows of one predicate, values that one `set` collects.
    """

    rounds: int = 1_000_000
    rows: int = 100_000_000
    set_values: int = 1_000_000


class LimitPassed(UsageError):
    """The evaluation was given up; no partial answer exists. `limit` names what was passed."""
