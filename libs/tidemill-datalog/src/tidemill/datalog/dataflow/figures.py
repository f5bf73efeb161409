"""Figures of the work of operators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Figures:
    """Work of one operator so far: changed rows in and out, and seconds."""

    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0

    def add(self, rows_in: int, rows_out: int, seconds: float) -> None:
        """One piece of work more."""
        self.rows_in += rows_in
        self.rows_out += rows_out
        self.seconds += seconds
