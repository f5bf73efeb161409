"""A topic of the log as a sink: one record for each key."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.runtime.log import Entry, Log
from tidemill.time import UsageError
from tidemill_compute.outbox import Firing, key_in

RECORDS_PER_POLL = 10_000


class LogSink:
    """Appends each firing as one record under its key; durable when `fire` returns.

    The topic is its own memory: after a crash it is read from its oldest record on, and the keys that
    are in it have fired. Retention of the topic has to be longer than any event lives.
    Delivery: askable.
    """

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic

    at_most_once = False

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        try:
            bounds = await self._log.bounds(self._topic)
        except UsageError:
            await self._log.create_topic(self._topic, 1)
            return frozenset()
        left = sum(high - low for low, high in bounds.values())
        reader = await self._log.reader(self._topic, {p: low for p, (low, _) in bounds.items()})
        keys: set[str] = set()
        try:
            while left > 0:
                records = await reader.poll(min(left, RECORDS_PER_POLL), 5.0)
                left -= len(records)
                for record in records:
                    keys.add(key_in(record.value or b""))
        finally:
            await reader.close()
        return frozenset(keys)

    async def fire(self, firings: Sequence[Firing]) -> None:
        if firings:
            entries = [Entry(f.key.encode(), f.line.encode()) for f in firings]
            await self._log.append(self._topic, entries)

    async def close(self) -> None:
        """The log belongs to the process."""
