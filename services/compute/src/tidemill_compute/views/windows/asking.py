"""The port to whoever evaluates windows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

Ask: TypeAlias = "Callable[[bytes], Awaitable[bytes]]"
"""Evaluates a packed window, and gives the packed answer. Raises: Unavailable, UsageError."""


@dataclass(slots=True)
class WindowCounts:
    """Windows of a view that were evaluated, and ranges that they looked at; of the newest, too."""

    windows: int = 0
    touched: int = 0
    newest: int = 0
    changes_max: int = 1 << 62
    """Changes of an input that the next window takes, at most: few after one had no room."""

    def add(self, touched: int) -> None:
        """Count a window."""
        self.windows, self.touched, self.newest = self.windows + 1, self.touched + touched, touched
