"""Collections of resources are created, closed and released, each step again without harm."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tidemill.errors import UnknownCapability, UnknownCollection
from tidemill.shard import Collections, Description
from tidemill.shard.state import KEEP_ALL_MS
from tidemill.time import Frontier, frontier


async def ensure_collection(
    collections: Collections,
    collection: str,
    description: Description,
    start: Frontier | None = None,
) -> None:
    """Create a missing collection that begins at `start`; nobody holds it."""
    kept = description
    if kept.retain_ms is None:
        kept = replace(kept, retain_ms=KEEP_ALL_MS)
    if await collections.bind(collection, kept, start or frontier(0)):
        return
    if description.retain_ms is None:
        await collections.retain(collection, None)


async def close_collection(
    collections: Collections, collection: str, owners: frozenset[str]
) -> None:
    """Close a collection for good and give up the holds that `owners` have on it.

    Other holders keep the history that they hold; its storage is free after the last of them.
    """
    with suppress(UnknownCollection):
        await release_holds(collections, collection, owners)
        await collections.retire(collection)


async def release_holds(collections: Collections, collection: str, owners: frozenset[str]) -> None:
    """Give up the holds without lease, and the write capabilities, that `owners` have."""
    status = await collections.status(collection)
    for holder in status.writing:
        if holder.owner in owners and holder.named:
            writer = await collections.write_hold(collection, owner=holder.owner, users=False)
            with suppress(UnknownCapability):
                await collections.drop(writer)
    for holder in status.holders:
        if holder.owner in owners and holder.lease_end_ms is None:
            held = await collections.read_hold(collection, owner=holder.owner, lease_ms=None)
            with suppress(UnknownCapability):
                await collections.drop(held)
