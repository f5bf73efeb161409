"""Running a source: log or files → ingest → remap → reclock → collection, and the event stage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from tidemill.catalog.entry import SYSTEM, columns_of, row_schema
from tidemill.catalog.own_log import topic_of
from tidemill.catalog.places import check_source
from tidemill.catalog.record_shape import shape_of
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA, event_schema
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.reclock import CHANGE_SCHEMA, REMAP_SCHEMA, KeyedRows
from tidemill.rpc.messages import Delivered
from tidemill.rpc.status import DeadlinePassed
from tidemill.rpc.turns import in_turn
from tidemill.runtime.formats import LETTER_SCHEMA, AvroFormat
from tidemill.runtime.formats.rows import HEARTBEAT
from tidemill.runtime.kafka_access import KafkaPlace, egress_of, kafka_files
from tidemill.runtime.log import Entry, Log, LogRecord
from tidemill.runtime.logs import get_logger
from tidemill.runtime.metrics import (
    DECODE_ERRORS,
    EVENT_TIME_MOVES,
    LATE_EVENTS,
    RECLOCK_DURATION,
    SOURCE_BYTES,
    SOURCE_RECORDS,
)
from tidemill.runtime.resources import SourceSpec, retained_ms
from tidemill.shard import Description
from tidemill.shard.conforming import refuse_long
from tidemill.shard.offloading import ROWS_INLINE_MAX
from tidemill.time import Unavailable, UsageError, frontier, is_heartbeat
from tidemill_compute.events.fold import MOVERS
from tidemill_compute.events.reference import ReferenceStage, ReferenceTarget
from tidemill_compute.events.source_streams import stream_of
from tidemill_compute.events.stage import EventStage
from tidemill_embedded.replicas.feeds import Feed
from tidemill_embedded.replicas.roles import share_of, shares_of
from tidemill_embedded.running.source_files import file_origin
from tidemill_embedded.world import World
from tidemill_ingest.decisions import DECISIONS_SCHEMA, Decisions
from tidemill_ingest.driver import WHOLE, Origin, Share, SourceReader
from tidemill_ingest.file_registry import FILES_SCHEMA, CollectionRegistry
from tidemill_ingest.files import names_many
from tidemill_ingest.source_decoder import open_book, open_decoder
from tidemill_reclock.bulk import LogPlace
from tidemill_reclock.driver import ReclockDriver, ReclockTarget
from tidemill_remap.driver import RemapDriver
from tidemill_remap.resting import Rest

COMMIT_INTERVAL_S = 5.0
HEARTBEAT_FIELD = pa.field(HEARTBEAT, pa.int64())
log = get_logger("sources")


class SourceRunner:
    """One source with everything behind it. What it makes is held by no process."""

    def __init__(self, stored: Stored, world: World, store: ResourceStore) -> None:
        """Who shares its bindings is in the `store`."""
        spec = stored.resource.spec
        assert isinstance(spec, SourceSpec)
        self.name = f"Source/{stored.resource.name}"
        self.item = f"Source/{stored.prefix}"
        self._stored = stored
        self._spec = spec
        self._world = world
        self._store = store
        self._source = stored.resource.name
        prefix = stored.prefix
        self._rows = row_schema(columns_of(stored))
        self._staged = spec.event_time is not None or spec.timeline not in (None, SYSTEM)
        self.collection = prefix
        self._raw = f"{prefix}/raw" if self._staged else prefix
        self._letters = f"{prefix}/deadletters"
        self._raw_letters = f"{prefix}/raw/deadletters" if self._staged else self._letters
        self._remap = stored.remap
        self._map = f"{prefix}/eventmap"
        self._files = f"{prefix}/files"
        self._decided = f"{prefix}/decided"
        self._shape = shape_of(stored)
        keyed = None
        if spec.envelope.key:
            keyed = KeyedRows(self._rows, spec.envelope.key)
        self.reclock = ReclockDriver(
            ReclockTarget(
                self._source, self._remap, self._raw, self._raw_letters, self._raw_schema(),
                LETTER_SCHEMA, stored.begins,
            ),
            world.collections, world.clock, world.settings.reclock, keyed,
        )  # fmt: skip
        self.reclock.broke = lambda count: world.metrics.increment(
            DECODE_ERRORS, count, source=self._source
        )
        self._stage = self._make_stage()
        self.remap = RemapDriver(
            self._source, self._remap, world.collections, world.clock, int(spec.timestamp_interval),
            stored.bound_from, self._rest(), shared=stored.shares is not None,
        )  # fmt: skip
        self._reading = False
        self._prepared = False
        self._preparing = asyncio.Lock()
        self.backfilled = 0
        self.reclock.timed = lambda seconds: world.metrics.observe(
            RECLOCK_DURATION, seconds, source=self._source
        )

    def _rest(self) -> Rest | None:
        """How the source rests; not at all where something else than its rows changes what is written of it.

        A pace lets all that is bound together leave at one upper, so what others share does not follow one.
        """
        if self._stored.shares is not None:
            return None
        bound = [self._remap, self._raw, self._raw_letters]
        if isinstance(self._stage, ReferenceStage):
            return None
        if self._stage is not None:
            if not self._stage.follows_rows_alone:
                return None
            bound += [self._map, self._letters]
        pace = self._world.paces.of(int(self._spec.timestamp_interval))
        return Rest(self._stored.prefix, bound, self._world.collections, pace)

    def _raw_schema(self) -> pa.Schema:
        """Rows of an event stream keep their place, so that a refused one can be named; heartbeats are such."""
        if self._spec.envelope.key:
            return CHANGE_SCHEMA
        if not self._staged:
            return self._rows
        placed = self._rows.append(pa.field("_partition", pa.int64())).append(
            pa.field("_offset", pa.uint64())
        )
        return placed.append(HEARTBEAT_FIELD) if self._shape.heartbeats else placed

    def _make_stage(self) -> EventStage | ReferenceStage | None:
        world, event = self._world, self._spec.event_time
        if event is not None:
            target, policy = stream_of(self._stored)
            return EventStage(
                target, policy, world.collections, world.clock, world.settings.compute,
                lambda: world.timeline_frontier(event.timeline),
            )  # fmt: skip
        if not self._staged:
            return None
        timeline = self._spec.timeline or SYSTEM
        reference = ReferenceTarget(
            self._source,
            self._raw,
            self._raw_letters,
            self._remap,
            self._map,
            self._letters,
            self.collection,
            self._rows,
            self._stored.begins,
        )  # fmt: skip
        return ReferenceStage(
            reference, world.collections, lambda: world.timeline_frontier(timeline), world.clock,
            world.settings.compute,
        )  # fmt: skip

    def made(self) -> dict[str, Description]:
        """Every collection of this source."""
        retain = retained_ms(self._spec)
        found = {
            # NB: where there is one reclocking, who writes the rows holds the bindings of all that can be read.
            self._remap: Description(
                REMAP_SCHEMA, kind="remap", retain_ms=retain if self._staged else 0
            ),
            self._letters: Description(LETTER_SCHEMA, kind="deadletters"),
        }
        if self._spec.kafka is not None:
            found[self._decided] = Description(DECISIONS_SCHEMA, kind="catalog", retain_ms=1)
        if self._spec.file is not None and names_many(self._spec.file.path):
            found[self._files] = Description(FILES_SCHEMA, kind="catalog", retain_ms=1)
        if not self._staged:
            return {**found, self._raw: Description(self._rows, kind="source", retain_ms=retain)}
        event = self._spec.event_time
        rows = self._rows if event is None else event_schema(self._rows)
        timeline = (event.timeline if event is not None else self._spec.timeline) or SYSTEM
        return {
            **found,
            self._raw: Description(self._raw_schema(), kind="source", retain_ms=0),
            self._raw_letters: Description(LETTER_SCHEMA, kind="deadletters", retain_ms=0),
            self._map: Description(EVENT_MAP_SCHEMA, kind="eventmap", retain_ms=retain),
            self.collection: Description(rows, kind="source", timeline=timeline, retain_ms=retain),
        }

    @property
    def rows(self) -> pa.Schema:
        """The data columns of its records."""
        return self._rows

    def owners(self) -> frozenset[str]:
        """The names of its holds."""
        kinds = ("reclock", "events", "reference", "remap")
        return frozenset(f"{kind}:{self._source}" for kind in kinds)

    async def prepare(self) -> None:
        """Create the collections; hold what a restart of the stage and of reclock will read."""
        for counter in (SOURCE_RECORDS, SOURCE_BYTES, DECODE_ERRORS, LATE_EVENTS):
            # From 0 on: whoever asks for an increase does not see a counter appear.
            self._world.metrics.increment(counter, 0, source=self._source)
        if isinstance(self._stage, EventStage):
            self._count_moves(dict.fromkeys(MOVERS, 0))
        for collection, description in self.made().items():
            # NB: what an event stream was at an instant of its own timeline, the new one says anew; notes are
            # counted, not timed.
            timed = description.timeline == SYSTEM and description.kind != "catalog"
            begins = self._stored.begins if timed else 0
            if collection == self._remap:
                begins = self._stored.bound_from
            await self._world.ensure(collection, description, frontier(begins))
            if collection in (self.collection, self._raw):
                # A source may have gained columns since it was created.
                await self._world.collections.extend_schema(collection, description.schema)
        if self._stage is not None:
            await self._stage.prepare()
        await self._world.collections.read_hold(
            self._remap, owner=f"reclock:{self._source}", lease_ms=None
        )
        self._prepared = True

    async def release(self) -> None:
        """Close everything but what others share: the source is deleted."""
        shared = self._store.bound_by_others(self._stored)
        for collection in self.made():
            if collection in shared:
                await self._world.release(collection, self.owners())
            else:
                await self._world.close(collection, self.owners())

    async def prepare_shared(self, again: bool) -> None:
        """As `prepare`, once for the parts that begin together; `again` after a failure."""
        async with self._preparing:
            if again or not self._prepared:
                self._prepared = False
                await self.prepare()

    async def read(self, ready: Callable[[], None], number: int | None = None) -> None:
        """The part of ingest: offer the source's records to those that bind and write them.

        With a `number`, those of one share of the partitions.
        """
        item = self.item if number is None else share_of(self.item, number)
        share = WHOLE if number is None else Share(number, shares_of(self._stored.resource))
        origin, topic, kafka = await self._origin()
        decisions = Decisions(self._world.collections, self._decided)
        decoder = open_decoder(self._spec, self._shape, decisions, self._world.places)

        async def decode(records: Sequence[LogRecord]) -> tuple[pa.Table, pa.Table]:
            rows, letters = await decoder.decode(records)
            self._count(records, letters)
            return rows, letters

        reader = SourceReader(
            self._source, origin, topic, decode, self._world.clock,
            self._world.settings.ingest, decisions if self._spec.kafka is not None else None, share,
        )  # fmt: skip

        async def commit(offsets: Mapping[int, int]) -> None:
            if self._spec.file is None:
                told = kafka or self._world.log
                await told.commit(self._group(), topic, dict(offsets))

        try:
            reader.expect(await self.remap.bound_before())
            self._world.readers.offer(item, reader, commit)
            ready()
            await asyncio.get_running_loop().create_future()
        finally:
            self._world.readers.withdraw(item)
            await decoder.close()
            if kafka is not None:
                await kafka.close()

    def _group(self) -> str:
        """The consumer group under whose name people and tools see how far it is."""
        kafka = self._spec.kafka
        return (kafka and kafka.group) or f"tidemill-{self._source}"

    async def bind(self, ready: Callable[[], None]) -> None:
        """The part of remap: a binding each interval."""
        ready()
        await self.remap.mint_forever(self._feed().probe)

    def _feed(self) -> Feed:
        return self._world.feeds.of(self.item, shares_of(self._stored.resource))

    async def write(self, ready: Callable[[], None]) -> None:
        """The part of reclock: rows at their instants; a backlog first."""
        feed = self._feed()
        try:
            await self._world.collections.wait_for_upper(self._remap, self._stored.begins + 1, 60.0)
            starts = await self._write_backlog(await self.reclock.resume())
            self._reading = True
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.reclock.write_forever())
                tasks.create_task(feed.deliver_from(self._from(starts), self._take))
                tasks.create_task(self._commit_forever(feed))
                ready()
        finally:
            self._reading = False

    async def _take(self, delivered: Delivered) -> None:
        """Hand rows on to be written. Raises: Unavailable if who reads them knows more columns, or fewer.

        A source gains columns in one process after the other; none of them writes rows as they were before.
        """
        expected = {*self._raw_schema().names, "_partition", "_offset"}
        if expected.symmetric_difference(delivered.rows.column_names):
            raise Unavailable(
                f"the rows of {self.name} have the columns {', '.join(delivered.rows.column_names)}: "
                "not every process knows those that it has now",
                reason="elsewhere",
            )
        await self.reclock.take(delivered)

    async def stage(self, ready: Callable[[], None]) -> None:
        """The part of compute: the second reclocking, of a source that has one."""
        assert self._stage is not None
        ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stage.advance_forever())
            tasks.create_task(self._count_late_forever())

    def progress(self) -> dict[str, object]:
        """How far event time has come and what moved it last, where this process does that part."""
        stage = self._stage
        if not isinstance(stage, EventStage) or not stage.moved_by:
            return {}
        return {"eventFrontier": stage.reached, "movedBy": stage.moved_by}

    def sharing(self) -> dict[str, object]:
        """Which bindings it shares, and whether another source makes them now."""
        name = self._stored.shares
        if name is None:
            return {}
        return {"remap": f"{name}/remap", "standsBy": self.remap.stands_by}

    @property
    def staged(self) -> bool:
        """Whether its rows are reclocked a second time."""
        return self._stage is not None

    def committed(self) -> dict[int, int]:
        """The offsets up to which everything is written; none before the source has begun."""
        return self.reclock.committed() if self._reading else {}

    @property
    def writing(self) -> bool:
        """Whether this process writes its rows now."""
        return self._reading

    def unbound(self) -> int:
        """Rows that wait for a binding."""
        return self.reclock.unbound if self._reading else 0

    def _from(self, starts: dict[int, int]) -> dict[int, int]:
        """Where reading goes on: not before the offset at which the source was told to begin."""
        first = self._stored.resolved.get("first", {})
        wanted = {int(p): offset for p, offset in first.items()}
        places = {int(p): offset for p, offset in starts.items()}
        return {p: max(places.get(p, 0), wanted.get(p, 0)) for p in places | wanted}

    async def _origin(self) -> tuple[Origin, str, Log | None]:
        """The log, or the files, to read from; the topic; and the log again if it is to be closed."""
        spec, world = self._spec, self._world
        check_source(spec, world.places)  # settings may have changed since it was applied
        if spec.file is not None:
            registry = CollectionRegistry(world.collections, self._files)
            return file_origin(self._stored, world, registry), spec.file.path, None
        topic = topic_of(self._stored)
        if spec.kafka is not None and spec.kafka.bootstrap is not None:
            kafka = await world.open_kafka(spec.kafka)
            return kafka, topic, kafka
        return world.log, topic, None

    def _count(self, records: Sequence[LogRecord], letters: pa.Table) -> None:
        self._world.metrics.increment(SOURCE_RECORDS, len(records), source=self._source)
        size = sum(len(record.value or b"") for record in records)
        self._world.metrics.increment(SOURCE_BYTES, size, source=self._source)
        self._world.metrics.increment(DECODE_ERRORS, letters.num_rows, source=self._source)

    async def _write_backlog(self, starts: dict[int, int]) -> dict[int, int]:
        """Let Spark write what is bound and not written, if that is much or asked for."""
        spec, settings = self._spec, self._world.settings
        place = self._log_place()
        if spec.engine == "local" or place is None or not self._spark_reads():
            return starts
        backlog = self.reclock.backlog(await self._kept_from(starts))
        if backlog is None or not backlog.records:
            return starts
        if self._spec.envelope.key and backlog.lower > self._stored.begins:
            return starts  # what is held of earlier rows is in this process
        if spec.engine == "auto" and backlog.records < settings.reclock.spark_backlog_rows:
            return starts
        # few processes launch jobs
        from tidemill_embedded.running.keyed_job import keyed_job
        from tidemill_reclock.bulk_spark import PLAIN, SparkBulkReclock

        decisions = Decisions(self._world.collections, self._decided)
        book = open_book(self._spec, self._shape, decisions, self._world.places)
        bulk = SparkBulkReclock(
            self._world.launcher, self._world.collections, place, self._shape.value,
            self._shape.value_format, book,
            keyed_job(self._shape) if spec.envelope.key else PLAIN, self._shape.heartbeats,
            self._shape.row_bytes,
        )  # fmt: skip
        try:
            await bulk.write(backlog)
        finally:
            if book is not None:
                await book.close()
        self.backfilled += backlog.records
        return await self.reclock.resume()

    async def _kept_from(self, starts: dict[int, int]) -> dict[int, int]:
        """Where a job may begin: not with what a retention took before the source first saw it."""
        wanted = self._from(starts)
        if self._spec.kafka is None:
            return wanted
        made = await Decisions(self._world.collections, self._decided).all()
        first = {d.partition: d.first for d in made if d.about == "first-offset"}
        return {p: max(wanted.get(p, 0), first.get(p, 0)) for p in wanted | first}

    def _log_place(self) -> LogPlace | None:
        """Where a job finds the records, by names of files; None if it cannot reach them."""
        spec, world = self._spec, self._world
        check_source(spec, world.places)
        if spec.file is not None:
            return None
        bootstrap = spec.kafka.bootstrap if spec.kafka is not None else None
        bootstrap = bootstrap or world.settings.log.partition(":")[2] or None
        if bootstrap is None and world.launcher.remote:
            return None
        topic = topic_of(self._stored)
        if bootstrap is None:
            return LogPlace(topic, world.root / "log")
        if spec.kafka is None or not spec.kafka.bootstrap:
            own = KafkaPlace(topic, bootstrap, world.settings.log_kafka)
            return LogPlace(topic, kafka=own)
        files, egress = kafka_files(spec.kafka, world.places), egress_of(spec.kafka, world.places)
        return LogPlace(topic, kafka=KafkaPlace(topic, bootstrap, files, egress))

    def _spark_reads(self) -> bool:
        """Whether a job can decode the records."""
        if not self._spec.envelope.key:
            return True
        shape = self._shape
        return not any(isinstance(f, AvroFormat) for f in (shape.value_format, shape.key_format))

    async def _commit_forever(self, feed: Feed) -> None:
        """Tell outside tools how far the source has been written, when it has got further."""
        told: dict[int, int] = {}
        while True:
            await self._world.clock.sleep(COMMIT_INTERVAL_S)
            committed = self.reclock.committed()
            if committed == told:
                continue
            # Nothing depends on it: a reader that moves is told the next time.
            with suppress(Unavailable, DeadlinePassed):
                try:
                    await feed.commit(committed)
                    told = committed
                except UsageError as error:
                    log.warning("offsets are not told", resource=self.name, error=str(error))
                    return

    async def _count_late_forever(self) -> None:
        """Tell the counters what came late, and what moved the event frontier."""
        known, moved = 0, Counter[str]()
        while True:
            await self._world.clock.sleep(COMMIT_INTERVAL_S)
            if not isinstance(self._stage, EventStage):
                continue
            if self._stage.late > known:
                late = self._stage.late - known
                self._world.metrics.increment(LATE_EVENTS, late, source=self._source)
                known = self._stage.late
            self._count_moves(self._stage.moves - moved)
            moved = Counter(self._stage.moves)

    def _count_moves(self, moves: Mapping[str, int]) -> None:
        for mover, count in moves.items():
            self._world.metrics.increment(EVENT_TIME_MOVES, count, source=self._source, mover=mover)


def kept_with(stored: Stored) -> list[str]:
    """What says where the rows of a source came from, and is kept by the clock of the system as long as they are."""
    spec = stored.resource.spec
    assert isinstance(spec, SourceSpec)
    if spec.event_time is None and spec.timeline in (None, SYSTEM):
        return []
    return [f"{stored.prefix}/{aside}" for aside in ("remap", "eventmap")]


async def entries_of(
    stored: Stored, rows: Sequence[bytes], into: Log, row_bytes_max: int
) -> list[Entry]:
    """Rows as entries of the own topic of a source; a heartbeat goes to each partition.

    Raises: UsageError for a row that is too long, and for a heartbeat to a source without event time.
    """
    plain = partial(_plain_entries, rows, row_bytes_max)
    found = plain() if len(rows) <= ROWS_INLINE_MAX else await in_turn(plain)
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


def _plain_entries(rows: Sequence[bytes], row_bytes_max: int) -> list[Entry] | None:
    """The rows as they are; None if there is a heartbeat among them. Raises: UsageError for a long one."""
    refuse_long(map(len, rows), row_bytes_max)
    return None if any(map(is_heartbeat, rows)) else [Entry(None, row) for row in rows]
