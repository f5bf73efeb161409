"""Twins of the loops that number rows and list ticks, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence


def numbers(rows: Sequence[tuple[int, ...]]) -> list[int]:
    """The number of each row: rows are numbered as they first come."""
    known: dict[tuple[int, ...], int] = {}
    return [known.setdefault(row, len(known)) for row in rows]


def ticks(offset: int, period: int, low: int, high: int) -> list[int]:
    """The times of a clock between two limits."""
    return [time for time in range(offset, high + 1, period) if time >= low]
