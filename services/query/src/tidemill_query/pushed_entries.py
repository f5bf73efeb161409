"""Pushed rows as entries of the log: what is checked before they are written ahead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidemill.arrangement.looks import with_looks
from tidemill.catalog.own_log import topic_of
from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.rpc.turns import in_turn, let_go_beside
from tidemill.runtime.log import Entry, Log
from tidemill.runtime.resources import SourceSpec
from tidemill.shard.conforming import refuse_long
from tidemill.shard.offloading import OBJECT_ROWS, ROWS_INLINE_MAX
from tidemill.time import is_heartbeat


async def entries_of(
    stored: Stored, rows: Sequence[bytes], into: Log, row_bytes_max: int
) -> list[Entry]:
    """Rows as entries of the own topic of a source; a heartbeat goes to each partition.

    Raises: UsageError for a row that is too long, and for a heartbeat to a source without event
    time.
    """
    plain = partial(_plain_entries, rows, row_bytes_max)
    few = OBJECT_ROWS * len(rows) <= ROWS_INLINE_MAX
    found = plain() if few else await in_turn(plain)
    if found is not None:
        return found
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if spec.event_time is None:
        raise UsageError(
            f"heartbeat refused, {stored.resource} has no eventTime: nothing waits for its rows",
            reason="Heartbeat",
        )
    count = (await into.topics()).get(topic_of(stored), 1)
    return [
        Entry(None, row, partition)
        for row in rows
        for partition in (range(count) if is_heartbeat(row) else [None])
    ]


async def append_entries(into: Log, topic: str, entries: list[Entry]) -> None:
    """Append entries, durably on return; they are let go, beside the event loop if they are many.

    Raises: as `Log.append`.
    """
    places = await into.append(topic, entries)
    await let_go_beside(entries)
    await let_go_beside(places)


def _plain_entries(rows: Sequence[bytes], row_bytes_max: int) -> list[Entry] | None:
    """The rows as they are; None if there is a heartbeat among them. Raises: UsageError for a long
    one.
    """
    refuse_long(map(len, with_looks(rows)), row_bytes_max)
    return (
        None
        if any(map(is_heartbeat, with_looks(rows)))
        else [Entry(None, row) for row in with_looks(rows)]
    )
