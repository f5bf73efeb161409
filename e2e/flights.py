"""The demo's flights for a system in pods: records into Kafka, answers out of it, both judged by
DuckDB.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tidemill.client import Client
from tidemill.runtime.clock import SystemClock
from tidemill_flights.oracle import QUERIES, Oracle, Rows
from tidemill_flights.prepare import (
    Arrivals,
    arrivals,
    flight_rows,
    weather_rows,
    write_reference,
)
from tidemill_flights.raw import unpack
from tidemill_flights.runner import FLIGHT_PARTITIONS, SEED, STREAMS, VIEWS
from tidemill_flights.scenario import QUICK, YEAR, Scenario, iso
from tidemill_flights.verify import answer_rows, compare, describe_difference
from tidemill_flights.waiting import Waiter
from tidemill_flights.watch import Watch

KAFKA = "kafka.servers.svc.cluster.local:9092"
TIDEMILL = "tidemill.tidemill.svc.cluster.local:7474"
ALARMS = "alarms"
SCENARIOS = {"month": QUICK, "year": YEAR}

T = TypeVar("T")


@dataclass(slots=True)
class Flights:
    """The records of one scenario, how far they have been sent, and the oracle over the same
    files.
    """

    scenario: Scenario
    feeds: Sequence[Arrivals]
    folder: Path
    oracle: Oracle
    watch: Watch
    client: Client
    sent_until: int = 0
    sent: int = 0
    clock: SystemClock = field(default_factory=SystemClock)

    @classmethod
    def prepared(cls, folder: Path, name: str) -> Flights:
        """The same records for the same name, and reference files in `folder`/data."""
        scenario, rng, clock = SCENARIOS[name], Random(SEED), SystemClock()
        raw = unpack(folder / "raw")
        write_reference(raw, folder / "data")
        feeds = [
            arrivals(
                "flights", FLIGHT_PARTITIONS, flight_rows(raw, scenario.months), time="scheduled",
                key="tailnum", broken=scenario.broken_flights, rng=rng,
            ),
            arrivals(
                "weather", 1, weather_rows(raw, scenario.months), time="hour", key="origin",
                broken=scenario.broken_weather, rng=rng,
            ),
        ]  # fmt: skip
        watch = Watch(clock, scenario.begins, clock.monotonic_s(), (*STREAMS, *VIEWS))
        oracle = Oracle.over(folder / "raw", scenario.months)
        return cls(scenario, feeds, folder, oracle, watch, Client(TIDEMILL, timeout_s=30.0))

    def create_topics(self) -> None:
        """Make the topics of the streams and of the alarms."""

        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=KAFKA)
            await admin.start()
            topics = [NewTopic(each.topic, each.partitions, 1) for each in self.feeds]
            await admin.create_topics([*topics, NewTopic(ALARMS, 1, 1)])
            await admin.close()

        asyncio.run(create())

    def send(self, until_ms: int) -> int:
        """Produce what arrives until an instant, each record once; how many."""

        async def produce() -> int:
            producer = AIOKafkaProducer(
                bootstrap_servers=KAFKA, enable_idempotence=True, linger_ms=20
            )
            await producer.start()
            count = 0
            try:
                for feed in self.feeds:
                    for at in range(feed.before(self.sent_until), feed.before(until_ms)):
                        await producer.send(feed.topic, feed.values[at], feed.keys[at])
                        count += 1
                await producer.flush()
            finally:
                await producer.stop()
            return count

        count = asyncio.run(produce())
        self.sent_until = self.watch.newest = until_ms
        self.sent += count
        return count

    def send_the_rest(self) -> int:
        """Produce everything that is left."""
        return self.send(max(feed.at_ms[-1] for feed in self.feeds) + 1)

    def waited(
        self, wait: Callable[[Waiter], Awaitable[T]], views: Sequence[str] = tuple(VIEWS)
    ) -> T:
        """The result of `wait`; the frontiers are followed meanwhile."""

        async def run() -> T:
            following = asyncio.create_task(self.watch.follow(self.client))
            reads = {view: VIEWS[view] for view in views}
            try:
                return await wait(Waiter(self.client, self.watch, self.clock, reads, lambda: None))
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

        return asyncio.run(run())

    def complete(self, views: Sequence[str] = tuple(VIEWS)) -> dict[str, int]:
        """Return once the views have taken in all that was sent; the upper of each."""
        return self.waited(lambda waiter: waiter.views_complete(), views)

    def differences(self, at: int, views: Sequence[str] = tuple(VIEWS)) -> list[str]:
        """Differences between the system and the oracle, in every collection of the views at
        `at`.
        """
        found, expected = [], 0
        for collection in QUERIES:
            if collection.split("/")[0] not in views:
                continue
            table = self.client.query(collection, at, timeout_s=20.0).table
            comparison = compare(
                f"{collection} as of {iso(at)}",
                self.oracle.rows(collection, at),
                answer_rows(table),
            )
            expected += comparison.expected
            if not comparison.equal:
                found.append(f"{comparison.what}\n{describe_difference(comparison)}")
        assert expected, f"the oracle has no rows at {iso(at)}"
        return found

    def alarms_differ(self, upper: int, lines: Sequence[bytes]) -> str:
        """Differences between told alarms, one JSON object each, and those that began below
        `upper`.
        """
        told = [json.loads(line) for line in lines]
        fired: Rows = [(*each["arguments"], each["time"]) for each in told]
        comparison = compare(f"alarms below {iso(upper)}", self.oracle.alarms(upper), fired)
        assert comparison.expected, "the oracle knows no alarm"
        return "" if comparison.equal else describe_difference(comparison)

    def alarms_in_topic(self) -> list[bytes]:
        """Every record of the topic of alarms so far."""

        async def read() -> list[bytes]:
            consumer = AIOKafkaConsumer(bootstrap_servers=KAFKA, auto_offset_reset="earliest")
            await consumer.start()
            try:
                partition = TopicPartition(ALARMS, 0)
                consumer.assign([partition])
                end = (await consumer.end_offsets([partition]))[partition]
                found: list[bytes] = []
                while await consumer.position(partition) < end:
                    for batch in (await consumer.getmany(timeout_ms=1000)).values():
                        found += [record.value for record in batch]
                return found
            finally:
                await consumer.stop()

        return asyncio.run(read())

    def dead_letters_differ(self) -> list[str]:
        """Sources whose dead letters are not the broken records that were sent."""
        found = []
        for feed in self.feeds:
            letters = self.client.query(f"{feed.topic}/deadletters").table["raw"].to_pylist()
            planted = [(record.decode(),) for record in feed.broken]
            comparison = compare(feed.topic, planted, [(letter,) for letter in letters])
            if not comparison.equal:
                found.append(f"{feed.topic}: {describe_difference(comparison)}")
        return found
