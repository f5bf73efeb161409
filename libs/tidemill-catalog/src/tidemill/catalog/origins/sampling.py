"""The places that sources read, as a plan of an apply looks at them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tidemill.catalog.origins.origin import Origin
from tidemill.catalog.origins.source_files import file_origin, header_of
from tidemill.catalog.own_log import topic_of
from tidemill.catalog.record_shape import shape_of
from tidemill.catalog.records.source_decoder import refuse_undecodable
from tidemill.catalog.store import Stored
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Log
from tidemill.runtime.places import Places
from tidemill.runtime.resources import KafkaOrigin, SourceSpec

_SAMPLE_WAIT_S = 2.0
"""Seconds that the first rows of a source are waited for."""


@dataclass(frozen=True, slots=True)
class SourceOrigins:
    """Origins of this process: guarantees of `tidemill.catalog.apply.context.Origins`."""

    places: Places
    log: Log
    open_kafka: Callable[[KafkaOrigin], Awaitable[Log]]
    clock: Clock
    topic_partitions: int
    cells_max: int

    def header(self, stored: Stored) -> Sequence[str]:
        """The column names in the first line of a CSV file; none for other sources. Raises:
        UsageError.
        """
        return header_of(stored, self.places.read)

    def refuse_undecodable(self, stored: Stored) -> None:
        """Raises: UsageError if the columns of a source cannot be those of its records."""
        refuse_undecodable(shape_of(stored))

    async def ensure_topic(self, stored: Stored) -> None:
        """Create the topic of a source in the log of this system, if it is not there."""
        topic, log = topic_of(stored), self.log
        if topic not in await log.topics():
            # Pushed rows are one stream in one order; a silent partition would hold events back.
            pushed = _spec(stored).kafka is None
            await log.create_topic(topic, 1 if pushed else self.topic_partitions)

    async def sample(self, stored: Stored, rows: int) -> Sequence[bytes]:
        """The first `rows` records of a source, or fewer; none if there are none yet."""
        async with self._opened(stored) as (origin, topic):
            bounds = await origin.bounds(topic)
            reader = await origin.reader(topic, {p: low for p, (low, _) in bounds.items()})
            try:
                records = await reader.poll(rows, _SAMPLE_WAIT_S)
            finally:
                await reader.close()
        return [record.value for record in records if record.value is not None]

    async def bounds(self, stored: Stored) -> dict[int, tuple[int, int]]:
        """Partition → its first offset and the one behind its last, of a source on a log."""
        async with self._opened(stored) as (origin, topic):
            return await origin.bounds(topic)

    @asynccontextmanager
    async def _opened(self, stored: Stored) -> AsyncIterator[tuple[Origin, str]]:
        """The log or the files of a source, with the topic in it."""
        spec = _spec(stored)
        if spec.file is not None:
            yield (
                file_origin(
                    stored, self.places.read, self.clock,
                    self.cells_max,
                ),
                spec.file.path,
            )  # fmt: skip
        elif spec.kafka is not None and spec.kafka.bootstrap is not None:
            log: Log = await self.open_kafka(spec.kafka)
            try:
                yield log, topic_of(stored)
            finally:
                await log.close()
        else:
            yield self.log, topic_of(stored)


def _spec(stored: Stored) -> SourceSpec:
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    return spec
