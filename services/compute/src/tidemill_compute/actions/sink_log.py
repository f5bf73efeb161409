"""A topic of the log as a sink: one record for each key."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import Fenced, UsageError
from tidemill.runtime.log import Entry, FencedWriter, Log
from tidemill_compute.actions.outbox import Firing, Took, key_in, untold

RECORDS_PER_POLL = 10_000


class LogSink:
    """Appends each firing as one record under its key; durable when `fire` returns.

    The topic is its own memory: after a crash it is read from its oldest record on, and the keys in
    it have fired. Retention of the topic has to be longer than any event lives. Each start opens
    the writer of the action and so ends those before: a paused and replaced process is refused at
    any point. On Kafka effects are transactions, which readers see once if they ask for committed
    records (`isolation.level=read_committed`). Delivery: askable.
    """

    def __init__(self, log: Log, topic: str, action: str) -> None:
        self._log = log
        self._topic = topic
        self._name = f"tidemill/{action}/{topic}"
        self._writer: FencedWriter | None = None

    at_most_once = False

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """The keys in the topic, once a new writer has ended those before."""
        await self.close()
        # IMPORTANT: first the writer, then the look: nobody else appends for the action from then
        # on.
        self._writer = await self._log.open_fenced_writer(self._name)
        bounds = await self._bounds()
        reader = await self._log.reader(self._topic, {p: low for p, (low, _) in bounds.items()})
        keys: set[str] = set()
        try:
            # By position: ends of transactions have offsets and are no records.
            while any(reader.positions()[p] < high for p, (_, high) in bounds.items()):
                for record in await reader.poll(RECORDS_PER_POLL, 5.0):
                    keys.add(key_in(record.value or b""))
        finally:
            await reader.close()
        return frozenset(keys)

    async def _bounds(self) -> dict[int, tuple[int, int]]:
        """First and next offset of each partition of the topic; a missing topic is made."""
        try:
            return await self._log.bounds(self._topic)
        except UsageError as error:
            if error.details.get("reason") != "unknown-topic":
                raise
        try:
            await self._log.create_topic(self._topic, 1)
        except UsageError as error:
            if error.details.get("reason") != "partitions":
                raise
        # IMPORTANT: looked at all the same. While its leader is away a topic is said to be unknown;
        # it may be full.
        return await self._log.bounds(self._topic)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Raises: Fenced if another process has started since; Indeterminate; UsageError."""
        if firings:
            if self._writer is None:
                raise Fenced(f"the sink {self._topic} of {self._name} is closed")
            entries = [Entry(f.key.encode(), f.line.encode()) for f in firings]
            await self._writer.append(self._topic, entries)
            took(firings)

    async def close(self) -> None:
        """Close the writer; the log belongs to the process."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
