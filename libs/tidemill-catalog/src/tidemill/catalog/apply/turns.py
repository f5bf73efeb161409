"""Turns for other tasks of the event loop among many resources of one apply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from tidemill.catalog.catalog import Catalog

T = TypeVar("T")

TURN = 50
"""So many resources are planned in a few milliseconds, and then other tasks have their turn."""


async def in_turns(things: Iterable[T], turn: int = TURN) -> AsyncIterator[T]:
    """The things, with a turn for other tasks of the event loop after each `turn` of them."""
    for number, each in enumerate(things, 1):
        yield each
        if number % turn == 0:
            await asyncio.sleep(0)  # noqa: TID251  a turn, no time


async def forget_all(catalog: Catalog, names: Iterable[str]) -> None:
    """Leave all these names out of the catalog, also those that are left when it is cancelled."""
    left = list(names)
    try:
        while left:
            catalog.forget(left.pop())
            if len(left) % TURN == 0:
                await asyncio.sleep(0)  # noqa: TID251  a turn, no time
    finally:
        for name in left:
            catalog.forget(name)
