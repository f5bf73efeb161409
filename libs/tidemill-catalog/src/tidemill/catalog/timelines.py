"""Timelines: how far their event streams have come."""

from __future__ import annotations

from contextlib import suppress

from tidemill.catalog.catalog import Catalog
from tidemill.errors import UnknownCollection
from tidemill.shard import Collections
from tidemill.time import sole_time


async def timeline_frontier(catalog: Catalog, collections: Collections, timeline: str) -> int:
    """The upper of the furthest event stream of a timeline; 0 if there is none."""
    uppers = [0]
    for collection in catalog.timeline_of(timeline):
        with suppress(UnknownCollection):
            upper = (await collections.status(collection)).upper
            uppers.append(0 if upper.empty else sole_time(upper))
    return max(uppers)
