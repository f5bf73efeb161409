"""The log port on Kafka, through aiokafka.

Settings that differ from the defaults of the client, on purpose:

* acks=all and an idempotent producer;
* every call under a deadline, because an idempotent batch never expires by itself;
* no consumer group for reading, no commit of offsets by itself;
* `read_committed`, so that records of aborted transactions are never seen;
* no reset of offsets: positions come from the caller, and a position that is gone is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from tidemill.errors import Fenced, TidemillError, UsageError
from tidemill.runtime.clock import Clock, SystemClock
from tidemill.runtime.kafka_access import KafkaAccess
from tidemill.runtime.kafka_batches import (
    Batch,
    BatchedRecords,
    prepare_reading,
    read_by_batches,
)
from tidemill.runtime.kafka_committing import forget_commits_given_up
from tidemill.runtime.kafka_errors import FOREIGN, translate, translated
from tidemill.runtime.kafka_fencing import KafkaFencedWriter
from tidemill.runtime.kafka_gate import closing_given_up
from tidemill.runtime.kafka_producer import (
    discard_producer,
    know_partitions,
    new_producer,
    send_run,
)
from tidemill.runtime.kafka_topic_ids import topic_id
from tidemill.runtime.log import (
    Entry,
    LogRecord,
    check_entries,
    check_topic_name,
    offset_out_of_range,
    unknown_partition,
    unknown_topic,
)
from tidemill.runtime.log_groups import GroupCommit, Outcome, Place
from tidemill.runtime.log_partitioner import partition_of

FETCH_BYTES_PER_PARTITION = 4 << 20
POLL_BYTES_MAX = 64 << 20
"""Unpacked bytes after which a poll takes no further batch."""
METADATA_AGE_S_MAX = 5.0
"""For how long the list of topics is believed; new partitions are seen after at most this time."""
METADATA_POLL_S = 0.05

TOPIC_CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
"""Topics made through the port keep everything; who wants less sets it on the broker."""


@dataclass(frozen=True, slots=True)
class _Described:
    """The partition counts of all topics, and when they were asked for."""

    partitions: Mapping[str, int]
    at_s: float


REPLICATION = -1
"""Of topics that are created: the broker's own number."""


class KafkaLog:
    """The log port on a Kafka cluster. Connects at the first call; belongs to one event loop."""

    def __init__(
        self,
        bootstrap: str,
        clock: Clock | None = None,
        *,
        deadline_s: float = 30.0,
        client_id: str = "tidemill",
        access: KafkaAccess | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._clock: Clock = clock or SystemClock()
        self._deadline_s = deadline_s
        self._access = access or KafkaAccess()
        self._client_id = self._access.client_id(client_id)
        self._options = self._access.options()
        self._starting = asyncio.Lock()
        self._admin: AIOKafkaAdminClient | None = None
        self._prober: AIOKafkaConsumer | None = None
        self._producer: AIOKafkaProducer | None = None
        self._committers: dict[str, AIOKafkaConsumer] = {}
        self._groups: dict[str, GroupCommit] = {}
        self._readers: set[KafkaReader] = set()
        self._writers: set[KafkaFencedWriter] = set()
        self._described: _Described | None = None
        self._keyless = 0
        self._closed = False

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create the topic with so many partitions, or check that it has them."""
        check_topic_name(topic)
        if partitions < 1:
            raise UsageError(f"topic {topic} refused: {partitions} partitions", reason="partitions")
        tried = f"creating topic {topic}"
        with translated(tried):
            async with asyncio.timeout(self._deadline_s):
                if topic not in await self._partition_counts(fresh=True):
                    await self._send_creation(topic, partitions)
                while (found := (await self._partition_counts(fresh=True)).get(topic)) is None:
                    # The broker that answers may not have heard of the topic yet.
                    await self._clock.sleep(METADATA_POLL_S)
        if found != partitions:
            raise UsageError(
                f"topic {topic} has {found} partitions, not {partitions}",
                reason="partitions",
                topic=topic,
                partitions=found,
            )

    async def topics(self) -> dict[str, int]:
        """Topic → number of its partitions."""
        with translated("listing topics"):
            return dict(await self._partition_counts(fresh=True))

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Partition → (oldest offset, offset of the next record)."""
        places = [TopicPartition(topic, number) for number in range(await self._count(topic))]
        with translated(f"asking for the bounds of {topic}"):
            async with asyncio.timeout(self._deadline_s):
                prober = await self._start_prober()
                lows = await prober.beginning_offsets(places)
                highs = await prober.end_offsets(places)
        return {place.partition: (lows[place], highs[place]) for place in places}

    async def identity(self, topic: str) -> str | None:
        """The broker's id of the topic; None for brokers that have none."""
        with translated(f"looking up topic {topic}"):
            async with asyncio.timeout(self._deadline_s):
                try:
                    return await topic_id(await self._start_admin(), topic)
                except UnknownTopicOrPartitionError as error:
                    raise unknown_topic(topic) from error

    async def append(self, topic: str, records: Sequence[Entry]) -> list[tuple[int, int]]:
        """Append `records`, acknowledged by all in-sync replicas on return."""
        count = await self._count(topic)
        check_entries(topic, records, count)
        group = self._groups.setdefault(topic, GroupCommit(self._write_runs))
        return await group.append(topic, records, [self._place(entry, count) for entry in records])

    async def open_fenced_writer(self, name: str) -> KafkaFencedWriter:
        """A transactional writer; earlier ones of its name are fenced by the broker."""
        self._check_open()
        producer = new_producer(
            self._bootstrap, self._client_id, self._deadline_s, self._options, name
        )
        with translated(f"opening the writer {name}"):
            await self._start(producer)
        writer = KafkaFencedWriter(
            name,
            producer,
            self._place_records,
            self._clock,
            self._deadline_s,
            self._writers.discard,
        )
        self._writers.add(writer)
        return writer

    async def reader(self, topic: str, starts: Mapping[int, int]) -> KafkaReader:
        """A reader of the partitions of `starts`, each from its offset on."""
        await self._check_positions(topic, starts)
        await asyncio.to_thread(prepare_reading)
        consumer = self._consumer(None)
        with translated(f"opening a reader of {topic}"):
            await self._start(consumer)
        if self._closed:
            await consumer.stop()
            self._check_open()
        reader = KafkaReader(self, consumer, topic, starts)
        self._readers.add(reader)
        return reader

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets of a group, for people and tools."""
        await self._count(topic)
        places = {TopicPartition(topic, number): offset for number, offset in offsets.items()}
        with translated(f"committing offsets of group {group}"):
            async with asyncio.timeout(self._deadline_s):
                committer = await self._committer(group)
                assigned = committer.assignment()
                if not assigned >= places.keys():
                    committer.assign(sorted(assigned | places.keys()))
                    committer.pause(*committer.assignment())  # it commits, it never reads
                await committer.commit(places)

    async def read_committed(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group."""
        count = await self._count(topic)
        found: dict[int, int] = {}
        with translated(f"asking for the committed offsets of group {group}"):
            async with asyncio.timeout(self._deadline_s):
                committer = await self._committer(group)
                for number in range(count):
                    offset = await committer.committed(TopicPartition(topic, number))
                    if offset is not None:
                        found[number] = offset
        return found

    async def close(self) -> None:
        """Finish running appends, end all clients."""
        if self._closed:
            return
        self._closed = True
        for group in self._groups.values():
            await group.drain()
        async with self._starting:  # what is being opened is closed as well
            stops = [reader.close() for reader in tuple(self._readers)]
            stops += [writer.close() for writer in tuple(self._writers)]
            stops.append(self._discard_producer())
            stops += [committer.stop() for committer in self._committers.values()]
            if self._prober is not None:
                stops.append(self._prober.stop())
            if self._admin is not None:
                stops.append(self._admin.close())
            # Each in a task: a client whose broker is gone may fail, or cancel whoever stops it.
            await asyncio.gather(*stops, return_exceptions=True)

    # Topics

    async def _partition_counts(self, *, fresh: bool = False) -> Mapping[str, int]:
        """All topics; asked for without naming one, so that no broker makes a missing one."""
        self._check_open()
        now_s = self._clock.monotonic_s()
        known = self._described
        if not fresh and known is not None and now_s - known.at_s < METADATA_AGE_S_MAX:
            return known.partitions
        async with asyncio.timeout(self._deadline_s):
            admin = await self._start_admin()
            described = await admin.describe_topics()
        counts = {
            topic["topic"]: len(topic["partitions"])
            for topic in described
            if not topic["is_internal"] and topic["partitions"]
            if all(partition["leader"] >= 0 for partition in topic["partitions"])
        }
        self._described = _Described(counts, now_s)
        return counts

    async def _count(self, topic: str) -> int:
        with translated(f"looking up topic {topic}"):
            count = (await self._partition_counts()).get(topic)
            if count is None:
                count = (await self._partition_counts(fresh=True)).get(topic)
        if count is None:
            raise unknown_topic(topic)
        return count

    async def _check_positions(self, topic: str, starts: Mapping[int, int]) -> None:
        bounds = await self.bounds(topic)
        for partition, offset in starts.items():
            if partition not in bounds:
                raise unknown_partition(topic, partition, len(bounds))
            low, high = bounds[partition]
            if not low <= offset <= high:
                raise offset_out_of_range(topic, partition, offset, low, high)

    async def _send_creation(self, topic: str, partitions: int) -> None:
        admin = await self._start_admin()
        # NB: without an (empty) assignment aiokafka refuses the replication that means "your
        # default".
        wanted = NewTopic(topic, partitions, REPLICATION, {}, TOPIC_CONFIGS)
        response = await admin.create_topics([wanted])
        for _, code, *words in response.topic_errors:
            if code not in (0, TopicAlreadyExistsError.errno):
                raise for_code(code)(*words)

    # Appending

    def _place(self, entry: Entry, partitions: int) -> int:
        if entry.partition is not None:
            return entry.partition
        if entry.key is not None:
            return partition_of(entry.key, partitions)
        self._keyless += 1
        return self._keyless % partitions

    async def _place_records(
        self, topic: str, records: Sequence[Entry]
    ) -> dict[Place, list[Entry]]:
        """The records by where they go, once they are known to be allowed."""
        count = await self._count(topic)
        check_entries(topic, records, count)
        runs: dict[Place, list[Entry]] = {}
        for entry in records:
            runs.setdefault((topic, self._place(entry, count)), []).append(entry)
        return runs

    async def _write_runs(self, runs: Mapping[Place, list[Entry]]) -> Mapping[Place, Outcome]:
        try:
            async with asyncio.timeout(self._deadline_s):
                producer = await self._start_producer()
                await know_partitions(producer, runs, self._clock)
        except FOREIGN as error:
            raise translate("connecting a producer", error) from error
        now_ms = self._clock.now_ms()
        outcomes = await asyncio.gather(
            *(self._write_run(producer, place, run, now_ms) for place, run in runs.items())
        )
        if any(isinstance(outcome, TidemillError) for outcome in outcomes):
            # A batch that failed or is late may leave a gap in the sequence: never reuse it.
            await self._discard_producer()
        return dict(zip(runs, outcomes, strict=True))

    async def _write_run(
        self, producer: AIOKafkaProducer, place: Place, run: list[Entry], now_ms: int
    ) -> Outcome:
        topic, partition = place
        try:
            async with asyncio.timeout(self._deadline_s):
                return await send_run(producer, topic, partition, run, now_ms)
        except FOREIGN as error:
            return translate(f"append to {topic}/{partition}", error, writing=True)

    async def _discard_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await discard_producer(producer)

    # Clients

    def _check_open(self) -> None:
        if self._closed:
            raise Fenced(f"log is closed ({self._bootstrap})")

    def _consumer(self, group: str | None) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            client_id=self._client_id,
            group_id=group,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed",
            max_partition_fetch_bytes=FETCH_BYTES_PER_PARTITION,
            request_timeout_ms=int(self._deadline_s * 1000),
            **self._options,
        )

    async def _start(self, client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
        try:
            with self._access.explained(), closing_given_up():
                async with asyncio.timeout(self._deadline_s):
                    await client.start()
                    # A client that is stopped before its own tasks have begun cancels whoever stops
                    # it.
                    await asyncio.sleep(0)
        except BaseException:
            await client.stop()
            raise

    async def _start_admin(self) -> AIOKafkaAdminClient:
        async with self._starting:
            self._check_open()
            if self._admin is None:
                admin = AIOKafkaAdminClient(
                    bootstrap_servers=self._bootstrap,
                    client_id=self._client_id,
                    request_timeout_ms=int(self._deadline_s * 1000),
                    **self._options,
                )
                try:
                    with self._access.explained(), closing_given_up():
                        await admin.start()
                except BaseException:
                    await admin.close()
                    raise
                self._admin = admin
            return self._admin

    async def _start_prober(self) -> AIOKafkaConsumer:
        async with self._starting:
            self._check_open()
            if self._prober is None:
                prober = self._consumer(None)
                await self._start(prober)
                self._prober = prober
            return self._prober

    async def _start_producer(self) -> AIOKafkaProducer:
        async with self._starting:
            self._check_open()
            if self._producer is None:
                producer = new_producer(
                    self._bootstrap, self._client_id, self._deadline_s, self._options
                )
                await self._start(producer)
                self._producer = producer
            return self._producer

    async def _committer(self, group: str) -> AIOKafkaConsumer:
        async with self._starting:
            self._check_open()
            if group not in self._committers:
                committer = self._consumer(group)
                await self._start(committer)
                forget_commits_given_up(committer)
                self._committers[group] = committer
            return self._committers[group]


class KafkaReader:
    """Reads partitions of one topic by manual assignment."""

    def __init__(
        self, log: KafkaLog, consumer: AIOKafkaConsumer, topic: str, starts: Mapping[int, int]
    ) -> None:
        self._log = log
        self._consumer = consumer
        self._topic = topic
        self._positions = dict(starts)
        self._turn = 0
        self._cut: dict[int, Batch] = {}
        """Records that have been taken from the client, and are returned by the next polls."""
        self._closed = False
        read_by_batches(consumer)
        self._reassign()

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """Up to `max_records` next records; waits up to `timeout_s` for the first."""
        self._check_open()
        if not self._positions:
            await self._log._clock.sleep(timeout_s)
            return []
        with translated(f"reading {self._topic}"):
            taken = await self._take_arrived(max_records)
            if not taken and timeout_s > 0:
                found = await self._consumer.getmany(
                    timeout_ms=max(1, int(timeout_s * 1000)), max_records=1
                )
                self._cut |= {place.partition: batch for place, (batch,) in found.items()}
                taken = await self._take_arrived(max_records) if found else []
            if not self._closed:
                for partition in self._positions:
                    place = TopicPartition(self._topic, partition)
                    cut = self._cut.get(partition)
                    reached = cut.first if cut else await self._consumer.position(place)
                    self._positions[partition] = reached
        return BatchedRecords(taken) if taken else []

    async def assign(self, partition: int, offset: int) -> None:
        """Read a partition from an offset on, from now on."""
        self._check_open()
        await self._log._check_positions(self._topic, {partition: offset})
        known = partition in self._positions
        self._positions[partition] = offset
        self._cut.pop(partition, None)
        if known:
            self._consumer.seek(TopicPartition(self._topic, partition), offset)
        else:
            self._reassign()

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record to read."""
        return dict(self._positions)

    async def close(self) -> None:
        """End the consumer."""
        if self._closed:
            return
        self._closed = True
        self._log._readers.discard(self)
        await self._consumer.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise Fenced(f"reader of topic {self._topic} is closed")

    def _reassign(self) -> None:
        """Tell the client all partitions; that forgets positions, so tell it those as well."""
        self._cut = {}
        places = {TopicPartition(self._topic, p): offset for p, offset in self._positions.items()}
        if places:
            self._consumer.assign(list(places))
            for place, offset in places.items():
                self._consumer.seek(place, offset)

    async def _take_arrived(self, max_records: int) -> list[Batch]:
        """Batches that have arrived, an equal share of every partition that has enough."""
        taken: list[Batch] = []
        order = sorted(self._positions)
        self._turn += 1
        first = self._turn % len(order)
        ready = order[first:] + order[:first]
        left, room = max_records, POLL_BYTES_MAX
        while ready and left and room > 0:
            share = max(1, left // len(ready))
            more: list[int] = []
            for partition in ready:
                wanted = min(share, left)
                while wanted and room > 0:
                    if (batch := await self._next_batch(partition)) is None:
                        break
                    room -= batch.values.data.nbytes
                    batch, rest = batch.cut(wanted)
                    if rest is not None:
                        self._cut[partition] = rest
                    taken.append(batch)
                    wanted -= len(batch)
                    left -= len(batch)
                if not wanted:
                    more.append(partition)
            ready = more
        return taken

    async def _next_batch(self, partition: int) -> Batch | None:
        """The next batch of a partition that has arrived; None if there is none yet."""
        if partition in self._cut:
            return self._cut.pop(partition)
        place = TopicPartition(self._topic, partition)
        found = await self._consumer.getmany(place, timeout_ms=0, max_records=1)
        batches: list[Batch] = found.get(place, [])
        return batches[0] if batches else None
