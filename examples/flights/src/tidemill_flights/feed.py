"""Bringing records to the log: the backlog before the start, the stream piece by piece after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemill.runtime.log import Entry, Log
from tidemill_flights.prepare import Arrivals

RECORDS_PER_APPEND = 20_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Raw rows by topic that arrive before `until_ms`, and not before the piece in front."""

    until_ms: int
    rows: Mapping[str, Sequence[bytes]]

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows.values())


async def fill_backlog(log: Log, feeds: Sequence[Arrivals], until_ms: int) -> int:
    """Create the topics and append everything that arrives before `until_ms`; returns how many."""
    appended = 0
    for feed in feeds:
        await log.create_topic(feed.topic, feed.partitions)
        stop = feed.before(until_ms)
        for first in range(0, stop, RECORDS_PER_APPEND):
            last = min(first + RECORDS_PER_APPEND, stop)
            entries = [
                Entry(key, value, timestamp_ms=at)
                for key, value, at in zip(
                    feed.keys[first:last],
                    feed.values[first:last],
                    feed.at_ms[first:last],
                    strict=True,
                )
            ]
            await log.append(feed.topic, entries)
        appended += stop
    return appended


def pieces(feeds: Sequence[Arrivals], from_ms: int, width_ms: int) -> Iterator[Piece]:
    """Everything that arrives from `from_ms` on, in pieces of `width_ms`, the last one whole."""
    at = {feed.topic: feed.before(from_ms) for feed in feeds}
    end_ms = max((feed.at_ms[-1] for feed in feeds if len(feed)), default=from_ms) + 1
    until_ms = from_ms
    while until_ms < end_ms:
        until_ms = min(until_ms + width_ms, end_ms)
        rows = {}
        for feed in feeds:
            stop = feed.before(until_ms)
            if stop > at[feed.topic]:
                rows[feed.topic] = feed.values[at[feed.topic] : stop]
                at[feed.topic] = stop
        yield Piece(until_ms, rows)
