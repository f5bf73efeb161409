"""The port to whoever evaluates windows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from tidemill_compute.views.windows.spec import WindowResult

Ask: TypeAlias = "Callable[[bytes], Awaitable[bytes]]"
"""Evaluates a packed window, and gives the packed answer. Raises: Unavailable, UsageError."""


@dataclass(slots=True)
class WindowCounts:
    """Windows of a view that were evaluated, and ranges that they looked at; of the newest, too.

    `stages` are those of Spark, `exchanged` bytes that fragments dealt out to one another.
    """

    windows: int = 0
    touched: int = 0
    stages: int = 0
    exchanged: int = 0
    newest: int = 0
    changes_max: int = 1 << 62
    """Changes of an input that the next window takes, at most: few after one had no room."""

    def add(self, found: WindowResult) -> None:
        """Count a window."""
        self.windows, self.newest = self.windows + 1, found.touched
        self.touched += found.touched
        self.stages += found.stages
        self.exchanged += found.exchanged
