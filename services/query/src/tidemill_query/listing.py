"""Collections as their readers see them."""

from __future__ import annotations

from tidemill.rpc.messages import CollectionInfo, ColumnInfo
from tidemill.shard import CollectionStatus
from tidemill.time import sole_time
from tidemill_query.storage import holder_info

TURN = 200
"""So many statuses take some milliseconds, as a turn of the tasks of a thousand views does."""

ALONE_AGE_S = 60.0
"""Age of versions in a list of a process that makes all versions itself: it knows the newest.

A look would cost turns of the event loop, which are long where a thousand views run.
"""

NOTHING_BOUND = 1
"""A collection whose upper is not past it has not begun: it has no lag, it hydrates."""


def collection_info(status: CollectionStatus, now_ms: int) -> CollectionInfo:
    """A collection with its frontiers and who holds them; its lag by the clock of the system."""
    lag_ms, upper = None, status.upper
    begun = not upper.empty and sole_time(upper) > NOTHING_BOUND
    if status.timeline == "system" and begun:
        lag_ms = max(0, now_ms - sole_time(upper))
    return CollectionInfo(
        status.id,
        status.kind,
        status.timeline,
        status.since,
        status.upper,
        lag_ms,
        tuple(holder_info(holder) for holder in status.holders),
        status.updates,
        status.batches,
        status.bytes,
        tuple(ColumnInfo(f.name, str(f.type), f.nullable) for f in status.description.schema),
        tuple(holder_info(holder) for holder in status.writing),
        status.moved_by,
    )
