"""The part of ingest in the work on a source: its records are read, and offered to other parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidemill.catalog.bindings import read_bound_offsets
from tidemill.catalog.made.sources import SourceCollections, SourcePart
from tidemill.catalog.origins.origin import Origin
from tidemill.catalog.origins.source_files import file_origin
from tidemill.catalog.own_log import topic_of
from tidemill.catalog.places import check_source
from tidemill.catalog.records.decisions import Decisions
from tidemill.catalog.records.source_decoder import open_decoder
from tidemill.host.readers import Readers
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Log, LogRecord, values_of
from tidemill.runtime.metrics import DECODE_ERRORS, SOURCE_BYTES, SOURCE_RECORDS, Metrics
from tidemill.runtime.packed_values import lengths_of
from tidemill.runtime.places import Places
from tidemill.runtime.resources import KafkaOrigin
from tidemill.shard import Collections
from tidemill.shard.offloading import OBJECT_ROWS, compute_beside
from tidemill_ingest.driver import Share, SourceReader
from tidemill_ingest.file_registry import CollectionRegistry
from tidemill_ingest.settings import IngestSettings


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Dependencies of reading. `log` is its own one, `open_kafka` gives that of a broker."""

    collections: Collections
    log: Log
    open_kafka: Callable[[KafkaOrigin], Awaitable[Log]]
    clock: Clock
    metrics: Metrics
    places: Places
    readers: Readers
    settings: IngestSettings
    cells_max: int
    """Cells of a row group of Parquet at most."""


class ReadPart(SourcePart):
    """Offers the records of a source, or of one share of its partitions, as the item `item`."""

    def __init__(
        self, made: SourceCollections, part: str, item: str, share: Share, context: ReadContext
    ) -> None:
        super().__init__(made, part)
        self._item = item
        self._share = share
        self._context = context

    async def work(self, ready: Callable[[], None]) -> None:
        """Offer the records until cancelled. Raises: Unavailable if they cannot be read."""
        made, context = self.made, self._context
        for counter in (SOURCE_RECORDS, SOURCE_BYTES, DECODE_ERRORS):
            context.metrics.increment(counter, 0, source=made.source)
        origin, topic, kafka = await self._origin()
        decisions = Decisions(context.collections, made.decided)
        decoder = open_decoder(made.spec, made.shape, decisions, context.places)

        async def decode(records: Sequence[LogRecord]) -> tuple[pa.Table, pa.Table]:
            with context.collections.stages.timed("decode", len(records)):
                rows, letters = await decoder.decode(records)
            size = await compute_beside(OBJECT_ROWS * len(records), partial(_bytes_of, records))
            self._count(len(records), size, letters)
            return rows, letters

        reader = SourceReader(
            made.source, origin, topic, decode, context.clock, context.settings,
            decisions if made.spec.kafka is not None else None, self._share,
        )  # fmt: skip

        async def commit(offsets: Mapping[int, int]) -> None:
            if made.spec.file is None:
                await (kafka or context.log).commit(self._group(), topic, dict(offsets))

        try:
            begins = made.stored.bound_from
            bound = await read_bound_offsets(context.collections, made.remap, begins, made.source)
            reader.expect(bound)
            failed = context.readers.offer(self._item, reader, commit)
            ready()
            await failed
        finally:
            context.readers.withdraw(self._item)
            await decoder.close()
            if kafka is not None:
                await kafka.close()

    def _group(self) -> str:
        """The consumer group under whose name people and tools see how far it is."""
        kafka = self.made.spec.kafka
        return (kafka and kafka.group) or f"tidemill-{self.made.source}"

    async def _origin(self) -> tuple[Origin, str, Log | None]:
        """The log or the files to read from; the topic; the log again if it is to be closed."""
        stored, spec, context = self.made.stored, self.made.spec, self._context
        check_source(spec, context.places)  # settings may have changed since it was applied
        if spec.file is not None:
            registry = CollectionRegistry(context.collections, self.made.files)
            files = file_origin(
                stored, context.places.read, context.clock, context.cells_max, registry
            )
            return files, spec.file.path, None
        topic = topic_of(stored)
        if spec.kafka is not None and spec.kafka.bootstrap is not None:
            kafka = await context.open_kafka(spec.kafka)
            return kafka, topic, kafka
        return context.log, topic, None

    def _count(self, records: int, size: int, letters: pa.Table) -> None:
        metrics, source = self._context.metrics, self.made.source
        metrics.increment(SOURCE_RECORDS, records, source=source)
        metrics.increment(SOURCE_BYTES, size, source=source)
        metrics.increment(DECODE_ERRORS, letters.num_rows, source=source)


def _bytes_of(records: Sequence[LogRecord]) -> int:
    """Bytes of the values of records."""
    lengths = lengths_of(values_of(records))
    return int(lengths[lengths > 0].sum())
