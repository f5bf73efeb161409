"""The port to whoever evaluates windows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

Ask: TypeAlias = "Callable[[bytes], Awaitable[bytes]]"
"""Evaluates a packed window, and gives the packed answer. Raises: Unavailable, UsageError."""
