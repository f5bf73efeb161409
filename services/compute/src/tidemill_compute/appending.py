"""Bringing a collection to an upper with updates that anyone else would have written the same."""

from __future__ import annotations

import pyarrow as pa

from tidemill.arrangement.updates import between
from tidemill.shard import Collections, UpperMismatch
from tidemill.time import Frontier, frontier, sole_time


async def append_through(
    collections: Collections, collection: str, updates: pa.Table, upper: int, writer: str
) -> int:
    """Write the part of `updates` that is missing between the collection's upper and `upper`.

    The updates are a function of definite inputs, so what another writer, or this one before a
    crash, has written of them is the same. Returns how many updates were written.
    """
    held: Frontier = (await collections.status(collection)).upper
    while held.precedes(frontier(upper)) and held != frontier(upper):
        missing = between(updates, sole_time(held), upper)
        outcome = await collections.compare_and_append(
            collection, held, frontier(upper), missing, writer=writer
        )
        if not isinstance(outcome, UpperMismatch):
            return int(missing.num_rows)
        held = outcome.current
    return 0
