"""Bringing a collection to an upper with updates that anyone else would have written the same."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.arrangement.updates import between
from tidemill.errors import Fenced, Unavailable
from tidemill.shard import Collections, UpperMismatch, WriteCapability
from tidemill.shard.parts import Part
from tidemill.time import U64_MAX, Frontier, frontier, sole_time

FENCE = U64_MAX - 1
"""Upper of the state of a replaced version: a process that still runs it stops there."""


async def append_through(
    collections: Collections, collection: str, updates: pa.Table, upper: int, writer: str
) -> int:
    """Write the part of `updates` that is missing between the collection's upper and `upper`.

    The updates are a function of definite inputs, so what another writer, or this one before a
    crash, has written of them is the same. Returns how many updates were written. Raises: Fenced at
    a collection of which nobody may write any more. Cost: a commit; where another process has
    written meanwhile, a lost one, which tells how far it has come.
    """
    held = await collections.upper_seen(collection)
    refuse_fenced(collection, held)
    while held.precedes(frontier(upper)) and held != frontier(upper):
        missing = between(updates, sole_time(held), upper)
        outcome = await collections.compare_and_append(
            collection, held, frontier(upper), missing if missing.num_rows else None, writer=writer
        )
        if not isinstance(outcome, UpperMismatch):
            return int(missing.num_rows)
        held = outcome.current
        refuse_fenced(collection, held)
    return 0


async def append_held(
    collections: Collections, writer: WriteCapability, updates: pa.Table, upper: int
) -> WriteCapability:
    """Write the part of `updates` between what a capability holds and `upper`; it as it is then.

    Of two that present it one writes an interval, and the other finds that it holds another
    frontier (UP5). Updates are a function of definite inputs, so that they are the same. Cost: a
    commit, and a look for each that another presenter has made.
    """
    while not frontier(upper).less_equal(sole_time(writer.frontier)):
        missing = between(updates, sole_time(writer.frontier), upper)
        outcome = await collections.update_and_downgrade(
            writer, missing if missing.num_rows else None, frontier(upper)
        )
        if not isinstance(outcome, UpperMismatch):
            return writer.at(outcome.upper)
        writer = writer.at(outcome.current)
    return writer


async def append_stored(
    collections: Collections, collection: str, parts: Sequence[Part], upper: int, writer: str
) -> None:
    """Bring a collection to an upper by parts that are in Blob, unless it is there already.

    Parts are as good as those of any other writer of the same interval. Raises: Fenced; Unavailable
    if the collection stands within the interval, where parts cannot be cut.
    """
    held: Frontier = (await collections.status(collection)).upper
    refuse_fenced(collection, held)
    if frontier(upper).less_equal(sole_time(held)):
        return
    begun = min((part.time_min for part in parts), default=upper)
    if begun >= sole_time(held):
        outcome = await collections.append_parts(
            collection, held, frontier(upper), parts, writer=writer
        )
        if not isinstance(outcome, UpperMismatch) or outcome.current == frontier(upper):
            return
        refuse_fenced(collection, outcome.current)
    raise Unavailable(f"another process writes {collection} within the same interval")


def refuse_fenced(collection: str, upper: Frontier) -> None:
    """Raises: Fenced if the upper is the fence."""
    if upper == frontier(FENCE):
        raise Fenced(f"append refused: another version has taken the place of {collection}")


async def fence(collections: Collections, collection: str, at: int, writer: str) -> bool:
    """End all writers at `at`; whether the collection still stood there, or was fenced already."""
    outcome = await collections.compare_and_append(
        collection, frontier(at), frontier(FENCE), None, writer=writer
    )
    return not isinstance(outcome, UpperMismatch) or outcome.current == frontier(FENCE)
