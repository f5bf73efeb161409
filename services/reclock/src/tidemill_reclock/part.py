"""The part of reclock in the work on a source: its rows are written at their instants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidemill.catalog.made.sources import SourceCollections, SourcePart
from tidemill.catalog.own_log import topic_of
from tidemill.catalog.places import check_source
from tidemill.catalog.records.decisions import Decisions
from tidemill.catalog.records.source_decoder import open_book
from tidemill.errors import DeadlinePassed, Unavailable, UsageError
from tidemill.host.speed import Speed
from tidemill.reclock import KeyedRows
from tidemill.rpc.messages import Delivered
from tidemill.runtime.clock import Clock
from tidemill.runtime.formats import LETTER_SCHEMA, AvroFormat
from tidemill.runtime.kafka_access import KafkaFiles, KafkaPlace, egress_of, kafka_files
from tidemill.runtime.logs import get_logger
from tidemill.runtime.metrics import DECODE_ERRORS, RECLOCK_DURATION, Metrics
from tidemill.runtime.places import Places
from tidemill.shard import Collections
from tidemill.spark.launcher import SparkLauncher
from tidemill_reclock.bulk import LogPlace
from tidemill_reclock.driver import ReclockDriver, ReclockTarget
from tidemill_reclock.settings import ReclockSettings

COMMIT_INTERVAL_S = 5.0
SPARK_BACKLOG_ROWS = 5_000_000
"""Records from which on a job pays for its start, if it runs elsewhere."""
log = get_logger("sources")


def is_for_spark(records: int, least: int | None, apart: bool) -> bool:
    """Whether a job writes so many records, where nobody says which engine does.

    Jobs that are not `apart` share the processors of this machine, and are slower there.
    """
    if least is None:
        return apart and records >= SPARK_BACKLOG_ROWS
    return records >= least


class Feed(Protocol):
    """One source, read by the process that has it now."""

    async def deliver_from(
        self, starts: Mapping[int, int], deliver: Callable[[Delivered], Awaitable[None]]
    ) -> None:
        """Deliver everything from `starts` on, in the order of each partition, for ever."""

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell outside tools how far the source has been written."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Dependencies of writing."""

    collections: Collections
    clock: Clock
    metrics: Metrics
    places: Places
    launcher: SparkLauncher
    settings: ReclockSettings
    log_directory: Path
    """The files of the own log, for jobs beside this process."""
    log_brokers: str
    """The brokers of the own log; nothing if it is in files."""
    log_kafka: KafkaFiles


class WritePart(SourcePart):
    """Writes rows of a feed at their instants; a big backlog by a Spark job first."""

    def __init__(
        self, made: SourceCollections, part: str, feed: Feed, context: WriteContext
    ) -> None:
        super().__init__(made, part)
        self._feed = feed
        self._context = context
        key = made.spec.envelope.key
        self.driver = ReclockDriver(
            ReclockTarget(
                made.source, made.remap, made.raw, made.raw_letters, made.raw_schema,
                LETTER_SCHEMA, made.stored.begins,
            ),
            context.collections, context.clock, context.settings,
            KeyedRows(made.rows, key) if key else None,
        )  # fmt: skip
        self.driver.broke = lambda count: context.metrics.increment(
            DECODE_ERRORS, count, source=made.source
        )
        self.driver.timed = self._measure
        self.writing = False
        """Whether this process writes the rows now."""
        self._backfilled = 0
        self._began: dict[int, int] = {}
        """The offset at which this process began to read each partition."""
        self._speed = Speed(context.clock)

    def details(self) -> dict[str, object]:
        """Count of records that jobs have written; offsets and speed of those that this process
        writes.
        """
        found: dict[str, object] = {"backfilled": self._backfilled}
        if self.writing and self._began:
            written = sorted(self._written().items())
            found["offsetsWritten"] = {str(p): offset for p, offset in written}
            found["writesPerSecond"] = round(self._speed.per_s(), 1)
        return found

    def _written(self) -> dict[int, int]:
        """Offset of each partition that is read, before which all is written or was never there."""
        committed = self.driver.committed()
        return {p: max(first, committed.get(p, 0)) for p, first in self._began.items()}

    def _measure(self, seconds: float) -> None:
        """Note an append and how long it took."""
        self._context.metrics.observe(RECLOCK_DURATION, seconds, source=self.made.source)
        self._note_speed()

    def _note_speed(self) -> None:
        written, began = self._written(), self._began
        self._speed.note(sum(written[p] - began[p] for p in began))

    def committed(self) -> dict[int, int]:
        """The offsets up to which everything is written; none before the source has begun."""
        return self.driver.committed() if self.writing else {}

    def unbound(self) -> int:
        """Rows that wait for a binding."""
        return self.driver.unbound if self.writing else 0

    async def work(self, ready: Callable[[], None]) -> None:
        """Write until cancelled."""
        made = self.made
        self._began = {}
        try:
            await self._context.collections.wait_for_upper(made.remap, made.stored.begins + 1, 60.0)
            starts = await self._write_backlog(await self.driver.resume())
            self.writing = True
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.driver.write_forever())
                tasks.create_task(self._feed.deliver_from(self._from(starts), self._take))
                tasks.create_task(self._commit_forever())
                ready()
        finally:
            self.writing = False

    async def _take(self, delivered: Delivered) -> None:
        """Hand rows on to be written.

        A source gains columns in one process after the other; none of them writes rows as they
        were before. Raises: Unavailable if the reader knows more columns, or fewer.
        """
        expected = {*self.made.raw_schema.names, "_partition", "_offset"}
        if expected.symmetric_difference(delivered.rows.column_names):
            raise Unavailable(
                f"the rows of {self.made.name} have the columns "
                f"{', '.join(delivered.rows.column_names)}: not every process knows those that it "
                "has now",
                reason="elsewhere",
            )
        if not delivered.positions.keys() <= self._began.keys():
            self._began = {**delivered.positions, **self._began}
            self._note_speed()
        await self.driver.take(delivered)

    def _from(self, starts: dict[int, int]) -> dict[int, int]:
        """Offsets at which reading resumes: not before the offset at which the source was told to
        begin.
        """
        first = self.made.stored.resolved.get("first", {})
        wanted = {int(p): offset for p, offset in first.items()}
        places = {int(p): offset for p, offset in starts.items()}
        return {p: max(places.get(p, 0), wanted.get(p, 0)) for p in places | wanted}

    async def _write_backlog(self, starts: dict[int, int]) -> dict[int, int]:
        """Write what is bound and not written by Spark, if that is much or asked for."""
        made, context = self.made, self._context
        spec, shape = made.spec, made.shape
        place = self._log_place()
        if spec.engine == "local" or place is None or not self._spark_reads():
            return starts
        backlog = self.driver.backlog(await self._find_kept(starts))
        if backlog is None or not backlog.records:
            return starts
        if spec.envelope.key and backlog.lower > made.stored.begins:
            return starts  # earlier rows are held by this process
        least, apart = context.settings.spark_backlog_rows, context.launcher.remote
        if spec.engine == "auto" and not is_for_spark(backlog.records, least, apart):
            return starts
        # few processes launch jobs
        from tidemill_reclock.bulk_spark import PLAIN, SparkBulkReclock
        from tidemill_reclock.keyed_job import keyed_job

        decisions = Decisions(context.collections, made.decided)
        book = open_book(spec, shape, decisions, context.places)
        bulk = SparkBulkReclock(
            context.launcher, context.collections, place, shape.value, shape.value_format, book,
            keyed_job(shape) if spec.envelope.key else PLAIN, shape.heartbeats, shape.row_bytes,
        )  # fmt: skip
        try:
            await bulk.write(backlog)
        finally:
            if book is not None:
                await book.close()
        self._backfilled += backlog.records
        return await self.driver.resume()

    async def _find_kept(self, starts: dict[int, int]) -> dict[int, int]:
        """First offsets of a job: not with what a retention took before the source first saw it."""
        wanted = self._from(starts)
        if self.made.spec.kafka is None:
            return wanted
        decided = await Decisions(self._context.collections, self.made.decided).all()
        first = {d.partition: d.first for d in decided if d.about == "first-offset"}
        return {p: max(wanted.get(p, 0), first.get(p, 0)) for p in wanted | first}

    def _log_place(self) -> LogPlace | None:
        """The place of the records for a job, by names of files; None if it cannot reach them."""
        spec, context = self.made.spec, self._context
        check_source(spec, context.places)
        if spec.file is not None:
            return None
        bootstrap = spec.kafka.bootstrap if spec.kafka is not None else None
        bootstrap = bootstrap or context.log_brokers or None
        if bootstrap is None and context.launcher.remote:
            return None
        topic = topic_of(self.made.stored)
        if bootstrap is None:
            return LogPlace(topic, context.log_directory)
        if spec.kafka is None or not spec.kafka.bootstrap:
            return LogPlace(topic, kafka=KafkaPlace(topic, bootstrap, context.log_kafka))
        files = kafka_files(spec.kafka, context.places)
        egress = egress_of(spec.kafka, context.places)
        return LogPlace(topic, kafka=KafkaPlace(topic, bootstrap, files, egress))

    def _spark_reads(self) -> bool:
        """Whether a job can decode the records."""
        if not self.made.spec.envelope.key:
            return True
        shape = self.made.shape
        return not any(isinstance(f, AvroFormat) for f in (shape.value_format, shape.key_format))

    async def _commit_forever(self) -> None:
        """Tell outside tools how far the source has been written, when it has got further."""
        told: dict[int, int] = {}
        while True:
            await self._context.clock.sleep(COMMIT_INTERVAL_S)
            committed = self.driver.committed()
            if committed == told:
                continue
            # Nothing depends on it: a reader that moves is told the next time.
            with suppress(Unavailable, DeadlinePassed):
                try:
                    await self._feed.commit(committed)
                    told = committed
                except UsageError as error:
                    log.warning("offsets are not told", resource=self.made.name, error=str(error))
                    return
