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

    def require_rows(self, predicate: str, rows: int) -> None:
        """Raises: LimitPassed for more rows of a predicate than it may have."""
        if rows > self.rows:
            raise LimitPassed(
                f"evaluation given up: {predicate} has more than {self.rows} rows",
                reason="LimitPassed", limit="rows", predicate=predicate,
            )  # fmt: skip

    def require_rounds(self, rounds: int, predicates: int = 1) -> None:
        """Raises: LimitPassed for more rounds of a recursion of so many predicates."""
        if rounds > self.rounds * predicates:
            raise LimitPassed(
                f"evaluation given up: a recursion took more than {self.rounds} rounds",
                reason="LimitPassed", limit="rounds",
            )  # fmt: skip


class LimitPassed(UsageError):
    """The evaluation was given up; no partial answer exists. `limit` names what was passed."""
