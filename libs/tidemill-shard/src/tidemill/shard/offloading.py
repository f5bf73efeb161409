"""Work on many rows happens on a thread, so that the event loop stays free; work on few does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ROWS_INLINE_MAX = 20_000
"""So many rows take about as long as a few hops between threads."""


async def computed(rows: int, work: Callable[[], T]) -> T:
    """What `work` on about so many rows returns."""
    return work() if rows <= ROWS_INLINE_MAX else await asyncio.to_thread(work)
