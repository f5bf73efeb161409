"""Sources on a real broker: what happens to a topic has one outcome each, also over restarts."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.errors import KafkaError

from tidemill.catalog.lifetime import ensure_collection
from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument, ResourceStatus
from tidemill.runtime.log import Entry
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.runtime.places import Egress, PlaceSettings
from tidemill.runtime.places.egress import host_rule
from tidemill.runtime.places.settings import SecretSettings
from tidemill.spark.launcher import Job, JobDone, JobFailed
from tidemill.spark.local import LocalLauncher
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.schema_registry import schema_registry
from tidemill.testkit.servers import Server, kafka_server
from tidemill.testkit.whole import Whole, opened
from tidemill.time import heartbeat, sole_time
from tidemill_reclock.keyed_job import KeyedSpec
from tidemill_server.settings import ServerSettings

pytestmark = pytest.mark.server
NUMBERS = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A broker that also listens with TLS and a login, and the certificate of its authority."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Certificates.of(folder)
    issued = authority.issued("broker")
    assert issued.certificate is not None
    assert issued.key is not None
    plain = subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", str(issued.key)],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    pem = folder / "broker.pem"
    pem.write_bytes(plain + Path(issued.certificate).read_bytes())
    with kafka_server("kafka-sources", secure=pem) as server:
        yield server, authority.authority


def source(topic: str, bootstrap: str, *, kafka: str = "", more: str = "") -> str:
    return f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: a}}
spec:
  kafka: {{topic: {topic}, bootstrap: "{bootstrap}"{kafka}}}
  {more or "columns: [{name: n, type: int}]"}
  timestampInterval: 50ms
  retain: all
"""


@asynccontextmanager
async def running(folder: Path, **secrets: SecretSettings) -> AsyncIterator[Whole]:
    settings = ServerSettings(
        directory=str(folder / "state"), retry_s_min=0.1, retry_s_max=0.2,
        kafka_deadline_s=3.0, places=PlaceSettings(secrets=secrets),
    )  # fmt: skip
    async with opened(settings) as process:
        await process.start()
        yield process


@asynccontextmanager
async def topic_of(server: Server, partitions: int = 1) -> AsyncIterator[tuple[KafkaLog, str]]:
    log, topic = KafkaLog(server.address), f"source-{next(NUMBERS)}"
    try:
        await log.create_topic(topic, partitions)
        yield log, topic
    finally:
        await log.close()


@asynccontextmanager
async def admin_of(server: Server) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=server.address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml")])


async def append(log: KafkaLog, topic: str, numbers: Sequence[int], partition: int = 0) -> None:
    entries = [Entry(None, json.dumps({"n": n}).encode(), partition) for n in numbers]
    await log.append(topic, entries)


async def until_holds(process: Whole, numbers: Sequence[int], within_s: float = 240.0) -> None:
    """Wait until the source holds exactly these."""
    found: list[object] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while found != sorted(numbers):
                with suppress(TidemillError):
                    table = (await process.query.snapshot("a", None, 120.0)).table
                    found = sorted(table["n"].to_pylist())
                await asyncio.sleep(0.02)
    status = await process.controller.describe("Source", "a")
    assert found == sorted(numbers), status


async def until_says(process: Whole, words: str) -> ResourceStatus:
    async with asyncio.timeout(240):
        while True:
            status = await process.controller.describe("Source", "a")
            if words in f"{status.reason} {status.message}":
                return status
            await asyncio.sleep(0.02)


async def recreate(server: Server, log: KafkaLog, topic: str) -> None:
    async with admin_of(server) as admin:
        await admin.delete_topics([topic])
    async with asyncio.timeout(240):
        while True:
            with suppress(TidemillError):  # the broker deletes in its own time
                if topic not in await log.topics():
                    await log.create_topic(topic, 1)
                    return
            await asyncio.sleep(0.05)


async def test_a_source_whose_topic_is_empty_names_the_topic_and_the_broker(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, _ = broker
    async with topic_of(server) as (log, topic), running(tmp_path) as process:
        await apply(process, source(topic, server.address))
        says = f"NoRecords no records in topic {topic} at {server.address} yet"
        assert (await until_says(process, says)).ready
        await append(log, topic, [1])
        assert (await until_says(process, "Running")).message == ""


async def test_partitions_that_are_added_are_read_from_their_beginning(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, _ = broker
    async with topic_of(server) as (log, topic), running(tmp_path) as process:
        await append(log, topic, [1, 2])
        await apply(process, source(topic, server.address))
        await until_holds(process, [1, 2])
        async with admin_of(server) as admin:
            await admin.create_partitions({topic: NewPartitions(3)})
        async with asyncio.timeout(240):
            while (await log.topics()).get(topic) != 3:
                await asyncio.sleep(0.05)
        await append(log, topic, [3, 4], partition=2)
        await append(log, topic, [5])
        await until_holds(process, [1, 2, 3, 4, 5])


EVENTS = """columns: [{name: n, type: int}, {name: at, type: int}]
  eventTime: {column: at, timeline: desk, expiresAfter: 1h}"""


async def until_definite(process: Whole, upper: int) -> None:
    """Wait until the source is definite below an instant of its timeline, and no further."""
    found = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(240):
            while found < upper:
                found = sole_time((await process.context.collections.status("a")).upper)
                await asyncio.sleep(0.02)
    assert found == upper, await process.controller.describe("Source", "a")


async def test_c2_a_heartbeat_in_a_topic_moves_a_silent_partition_and_is_no_row(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, _ = broker
    async with topic_of(server, 2) as (log, topic):

        async def write(partition: int, value: str) -> None:
            await log.append(topic, [Entry(None, value.encode(), partition)])

        async def write_event(number: int, at: int, partition: int) -> None:
            await write(partition, json.dumps({"n": number, "at": at}))

        async with running(tmp_path) as process:
            began = process.context.clock.now_ms() - 100_000
            await apply(process, source(topic, server.address, more=EVENTS))
            await write_event(1, began, 0)
            await write_event(2, began - 1_000, 1)
            await write_event(3, began + 500, 0)
            await until_definite(process, began - 1_000)  # which the silent partition holds back
            await write(1, heartbeat(began + 200))
            await until_definite(process, began + 200)
            await write(1, heartbeat(began + 9_000))
            await until_definite(process, began + 500)  # which the other partition has come to
            told = (await process.controller.describe("Source", "a")).details
            assert told["movedBy"] == "heartbeat"
        async with running(tmp_path) as process:
            await write(0, heartbeat(began + 600))
            await until_definite(process, began + 600)
            await write_event(4, began + 550, 1)  # a promise is kept to, by whoever made it
            async with asyncio.timeout(240):
                while not (
                    letters := await process.context.collections.read_updates("a/deadletters")
                ):
                    await asyncio.sleep(0.02)
            assert [reason[:5] for reason in letters["reason"].to_pylist()] == ["late:"]
            rows = (await process.query.snapshot("a", began + 599, 120.0)).table
            assert sorted(rows["n"].to_pylist()) == [1, 2, 3]
            assert set((await process.context.collections.read_updates("a"))["n"].to_pylist()) == {
                1,
                2,
                3,
            }


async def test_a_topic_that_was_recreated_and_has_grown_is_known_after_a_restart(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, _ = broker
    async with topic_of(server) as (log, topic):
        async with running(tmp_path) as process:
            await append(log, topic, [1, 2])
            await apply(process, source(topic, server.address))
            await until_holds(process, [1, 2])
        await recreate(server, log, topic)
        await append(log, topic, [7, 8, 9, 10, 11])  # further than the old one ever was
        for _ in range(2):
            async with running(tmp_path) as process:
                status = await until_says(process, "recreated")
                assert not status.ready
                await until_holds(process, [1, 2])


async def test_records_that_were_taken_before_they_were_read_stall_the_source(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, _ = broker
    async with topic_of(server) as (log, topic):
        await append(log, topic, range(5))
        async with admin_of(server) as admin:
            # Records that are gone before the source is made were never promised.
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(2)})
            async with running(tmp_path) as process:
                await apply(process, source(topic, server.address))
                await until_holds(process, [2, 3, 4])
            await append(log, topic, range(5, 9))
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(7)})
            for _ in range(2):
                async with running(tmp_path) as process:
                    status = await until_says(process, "records 5 to 6 of partition 0 are gone")
                    assert status.reason == "Stalled"
                    await until_holds(process, [2, 3, 4])


async def test_records_that_are_taken_from_under_a_starved_reader_stall_the_source(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    from tidemill.catalog.records.decisions import DECISIONS_SCHEMA, Decisions
    from tidemill_ingest.driver import SourceBroken, SourceReader
    from tidemill_ingest.settings import IngestSettings

    server, _ = broker
    async with topic_of(server) as (log, topic), running(tmp_path) as process:
        collections = process.context.collections
        from tidemill.shard import Description

        await ensure_collection(
            process.context.collections, "decided", Description(DECISIONS_SCHEMA, retain_ms=1)
        )
        await append(log, topic, [1])
        taken = asyncio.Event()

        async def decode(records: Sequence[object]) -> tuple[object, object]:
            return None, None

        async def slow(delivery: object) -> None:
            """The second delivery is taken only after the records behind it are gone."""
            if not taken.is_set() and delivery.positions == {0: 1}:  # type: ignore[attr-defined]  # a Delivered
                async with admin_of(server) as admin:
                    for _ in range(8):
                        # More than a client fetches ahead.
                        big = [Entry(None, bytes(900_000), 0) for _ in range(4)]
                        await log.append(topic, big)
                    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(30)})
                taken.set()

        reader = SourceReader(
            "a", log, topic, decode, process.context.clock,  # type: ignore[arg-type]  # decodes nothing
            IngestSettings(records_per_poll=1), Decisions(collections, "decided"),
        )  # fmt: skip
        with pytest.raises(SourceBroken, match="are gone and were not read"):
            async with asyncio.timeout(240):
                await reader.deliver_from({}, slow)
        assert taken.is_set()


async def test_a_source_waits_for_a_broker_and_tells_it_how_far_it_is(tmp_path: Path) -> None:
    with kafka_server("kafka-lost") as server:
        async with topic_of(server) as (log, topic), running(tmp_path) as process:
            await append(log, topic, [1, 2])
            await apply(process, source(topic, server.address, kafka=", group: watchers"))
            await until_holds(process, [1, 2])
            server.control("kill", "1")
            status = await until_says(process, "Retrying")
            assert not status.ready
            server.control("start", "1")
            await append(log, topic, [3])
            await until_holds(process, [1, 2, 3])
            async with admin_of(server) as admin, asyncio.timeout(240):
                seen: list[int] = []
                while seen != [3]:
                    with suppress(KafkaError):  # the topic of offsets comes with the first commit
                        offsets = await admin.list_consumer_group_offsets("watchers")
                        seen = [each.offset for each in offsets.values()]
                    await asyncio.sleep(0.1)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_broker_is_reached_over_tls_with_a_password_from_a_file(
    mechanism: str, broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, authority = broker
    host, port = server.address.split(":")
    secured = f"{host}:{int(port) + 2}"
    password = tmp_path / "password"
    sasl = f"sasl: {{mechanism: {mechanism}, username: reader, secret: broker}}"
    secrets = {
        "broker": SecretSettings(str(password), (host,)), "trust": SecretSettings(str(authority)),
    }  # fmt: skip
    async with topic_of(server) as (log, topic), running(tmp_path, **secrets) as process:
        await append(log, topic, [1, 2])
        password.write_text("wrong\n")
        kafka = f", tls: {{authority: trust}}, {sasl}"
        await apply(process, source(topic, secured, kafka=kafka))
        await until_says(process, "check the password of reader and the certificates")
        password.write_text("secret\n")  # read again with each attempt
        await until_holds(process, [1, 2])


async def test_a_job_reads_a_keyed_topic_over_tls_and_nobody_is_told_the_password(
    broker: tuple[Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, authority = broker
    host, port = server.address.split(":")
    password = tmp_path / "password"
    password.write_text("secret\n")
    jobs: list[Job] = []
    launch = LocalLauncher.launch

    async def note_and_launch(self: LocalLauncher, job: Job) -> JobDone | JobFailed:
        jobs.append(job)
        return await launch(self, job)

    monkeypatch.setattr(LocalLauncher, "launch", note_and_launch)
    kafka = (
        ", tls: {authority: trust}, "
        "sasl: {mechanism: SCRAM-SHA-256, username: reader, secret: broker}"
    )
    secrets = {
        "broker": SecretSettings(str(password), (host,)), "trust": SecretSettings(str(authority)),
    }  # fmt: skip
    keyed = (
        "columns: [{name: article, type: text}, {name: n, type: int}]\n"
        "  keyFormat: {text: {}}\n  envelope: {upsert: {key: [article]}}\n  engine: spark"
    )
    async with topic_of(server) as (log, topic), running(tmp_path, **secrets) as process:
        rows: list[tuple[str, int | None]] = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", None)]
        entries = [
            Entry(key.encode(), None if n is None else json.dumps({"n": n}).encode(), 0)
            for key, n in rows
        ]
        # Records that a retention took before the source was made are not asked for either.
        await log.append(topic, [Entry(b"z", b'{"n": 9}', 0)])
        async with admin_of(server) as admin:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(1)})
        await log.append(topic, entries)
        secured = f"{host}:{int(port) + 2}"
        await apply(process, source(topic, secured, kafka=kafka, more=keyed))
        await until_holds(process, [3, 4], within_s=600.0)
        details = (await process.controller.describe("Source", "a")).details
        # Later records are for the live path, from the offsets that the job has left.
        await log.append(topic, [Entry(b"c", b'{"n": 5}', 0)])
        await until_holds(process, [3, 5])
    assert details["backfilled"] == len(rows)
    # The job checks where it connects, and where it sends the password, as the service does.
    told = msgspec.msgpack.decode(jobs[0].spec, type=KeyedSpec).backfill.origin
    assert told.egress == Egress().with_secret("broker", (host_rule(host),))
    written = b"".join(p.read_bytes() for p in (tmp_path / "state").rglob("*") if p.is_file())
    assert b"SCRAM-SHA-256" in written  # what the source says is kept, by its names
    assert b"secret\n" not in written


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}
LATER = {"type": "record", "name": "Order", "fields": [
    {"name": "note", "type": "string"}, {"name": "n", "type": "int"}]}  # fmt: skip


async def test_a_registry_that_is_away_is_waited_for_and_a_fate_stays(
    broker: tuple[Server, Path], tmp_path: Path
) -> None:
    server, _ = broker
    async with schema_registry() as registry, topic_of(server) as (log, topic):
        one = registry.register("orders", ORDER)
        more = f"""format: {{avro: {{registry: {{url: "{registry.url}"}}}}}}
  columns: [{{name: n, type: int}}, {{name: note, type: text, nullable: true}}]"""

        async def write(*values: bytes) -> None:
            await log.append(topic, [Entry(None, value, 0) for value in values])

        async with running(tmp_path) as process:
            await apply(process, source(topic, server.address, more=more))
            await write(registry.record(one, {"n": 1}), b"junk", b"\0\0\0\0\x09junk")
            await until_holds(process, [1])
            registry.away = True
            two = registry.register("orders", LATER)
            await write(registry.record(one, {"n": 2}), registry.record(two, {"n": 3, "note": "x"}))
            status = await until_says(process, "answered 503")
            assert status.reason == "Retrying"
            letters = (await process.query.snapshot("a/deadletters", None, 0.0)).table
            assert letters["reason"].to_pylist() == [
                "does not begin with a zero byte and the number of a schema",
                "the schema registry has no schema 9",
            ]
            registry.away = False
            await until_holds(process, [1, 2, 3])
        # A restart neither needs the registry for what it knows, nor changes its mind.
        registry.away, asked = True, len(registry.asked)
        async with running(tmp_path) as process:
            await write(registry.record(two, {"n": 4, "note": "y"}))
            await until_holds(process, [1, 2, 3, 4])
            letters = (await process.query.snapshot("a/deadletters", None, 120.0)).table
            assert letters.num_rows == 2
        assert len(registry.asked) == asked
