"""Which instant of one collection an answer is about."""

from __future__ import annotations

from tidemill.errors import NotYet, UsageError
from tidemill.shard import Collections
from tidemill.time import sole_time


async def definite_instant(
    collections: Collections, collection: str, as_of: int | None, wait_s: float | None
) -> int:
    """The asked instant once it is definite, or the latest one that is. Raises: NotYet."""
    if as_of is None:
        status = await collections.status(collection)
        if status.upper.empty:
            return sole_time(status.since) if not status.since.empty else 0
        if status.upper == status.since:
            return await _first_instant(collections, collection, sole_time(status.since), wait_s)
        return sole_time(status.upper) - 1
    if not collections.known_past(collection, as_of):
        await _wait(collections, collection, as_of, wait_s)
    return as_of


async def _first_instant(
    collections: Collections, collection: str, since: int, wait_s: float | None
) -> int:
    """The first instant that is definite.

    Raises: NotYet, with reason `first`, if there is none yet.
    """
    try:
        return await _wait(collections, collection, since, wait_s) - 1
    except NotYet as error:
        if error.details.get("reason") == "waited":
            raise
        raise NotYet(
            f"no instant of {collection} is definite yet, so there is nothing to answer from: its work has "
            "just begun, or moves to another process; ask again in some seconds, or wait for it",
            **{**error.details, "reason": "first"},
        ) from None


async def _wait(
    collections: Collections, collection: str, beyond: int, wait_s: float | None
) -> int:
    """The upper. Raises: NotYet, with reason `waited` if it was waited for in vain."""
    try:
        upper = await collections.wait_for_upper(collection, beyond, wait_s or 0.0)
    except NotYet as error:
        if not wait_s:
            raise
        waited = f"{error}, after {wait_s:g} s of waiting"
        raise NotYet(waited, **{**error.details, "reason": "waited"}) from None
    return sole_time(upper) if not upper.empty else beyond + 1


def refuse_early_end(at: int, until: int | None, snapshot: bool) -> None:
    """Raises: UsageError for a subscription that ends before its snapshot, which it would lack."""
    if snapshot and until is not None and until <= at:
        raise UsageError(
            f"subscription refused: its snapshot is as of {at}, and it ends before {until}: ask for a "
            "later end, or begin at an earlier instant",
            reason="Until",
        )
