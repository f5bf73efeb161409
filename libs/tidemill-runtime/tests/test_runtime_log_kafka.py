"""The Kafka log keeps every law of the log port, and says what went wrong when the broker dies."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.consumer import fetcher
from aiokafka.errors import GroupLoadInProgressError

from tidemill.errors import Fenced, Indeterminate, Unavailable, UsageError
from tidemill.runtime.log import Entry, Log, LogReader, LogRecord, columns_of
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.testkit.kits.log import LAWS, Law
from tidemill.testkit.servers import kafka_server

pytestmark = pytest.mark.server
NUMBERS = count()


@asynccontextmanager
async def closing(log: KafkaLog) -> AsyncIterator[KafkaLog]:
    try:
        yield log
    finally:
        await log.close()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
async def test_the_kafka_log_conforms(law: Law, kafka_bootstrap: str) -> None:
    async def open_log() -> Log:
        return KafkaLog(kafka_bootstrap)

    await law(open_log, f"law-{next(NUMBERS)}")


async def test_a_reader_that_is_closed_before_it_has_read_leaves_its_user_alone(
    kafka_bootstrap: str,
) -> None:
    topic = f"empty-{next(NUMBERS)}"
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        reader = await log.reader(topic, {0: 0})
        await reader.close()
        assert await log.bounds(topic) == {0: (0, 0)}


@pytest.mark.parametrize("point", ["begin_transaction", "send_batch", "commit_transaction"])
async def test_whoever_is_paused_within_an_append_and_replaced_has_appended_nothing(
    point: str, kafka_bootstrap: str
) -> None:
    topic = f"paused-{next(NUMBERS)}"
    async with (
        closing(KafkaLog(kafka_bootstrap)) as log,
        closing(KafkaLog(kafka_bootstrap)) as more,
    ):
        await log.create_topic(topic, 1)
        paused = await log.open_fenced_writer(topic)
        reached, go_on = asyncio.Event(), asyncio.Event()
        producer = paused._producer
        assert producer is not None
        step = getattr(producer, point)

        async def later(*told: Any, **named: Any) -> Any:
            reached.set()
            await go_on.wait()
            return await step(*told, **named)

        setattr(producer, point, later)
        late = asyncio.create_task(paused.append(topic, [Entry(b"k", b"late")]))
        await reached.wait()
        newer = await more.open_fenced_writer(topic)
        await newer.append(topic, [Entry(b"k", b"once")])
        go_on.set()
        with pytest.raises(Fenced):
            await late
        bounds = await log.bounds(topic)
        reader = await log.reader(topic, {0: 0})
        values = []
        while reader.positions()[0] < bounds[0][1]:
            values += [record.value for record in await reader.poll(100, 5.0)]
        assert values == [b"once"]
        await reader.close()


async def test_a_writer_that_was_refused_leaves_nothing_that_the_event_loop_complains_of(
    kafka_bootstrap: str,
) -> None:
    topic, complaints = f"refused-{next(NUMBERS)}", list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        refused = await log.open_fenced_writer(topic)
        await (await log.open_fenced_writer(topic)).append(topic, [Entry(b"k", b"v")])
        with suppress(Fenced):
            await refused.append(topic, [Entry(b"k", b"v")])
    del refused, log
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_commit_that_was_given_up_leaves_nothing_that_the_event_loop_complains_of(
    kafka_bootstrap: str,
) -> None:
    """Its caller's deadline passes while the coordinator of the group is loaded."""
    topic, complaints = f"given-up-{next(NUMBERS)}", list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        await log.append(topic, [Entry(None, b"%d" % number, 0) for number in range(4)])
        await log.commit(topic, topic, {0: 2})
        sent, loaded = asyncio.Event(), asyncio.Event()
        coordinator = log._committers[topic]._coordinator
        send = coordinator._send_req

        async def refuse(request: object) -> None:
            sent.set()
            await loaded.wait()
            raise GroupLoadInProgressError

        coordinator._send_req = refuse
        given_up = asyncio.create_task(log.commit(topic, topic, {0: 3}))
        await sent.wait()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        loaded.set()
        await asyncio.sleep(0)
        coordinator._send_req = send
        del coordinator, given_up, refuse, send
        gc.collect()
        await asyncio.sleep(0)
        assert complaints == []
        assert await log.read_committed(topic, topic) == {0: 2}
        await log.commit(topic, topic, {0: 4})
        assert await log.read_committed(topic, topic) == {0: 4}


async def test_records_of_aborted_transactions_are_passed_over(kafka_bootstrap: str) -> None:
    topic = f"transactions-{next(NUMBERS)}"
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        writer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=topic)
        await writer.start()
        async with writer.transaction():
            await writer.send_and_wait(topic, b"kept", partition=0)
        await writer.begin_transaction()
        await writer.send_and_wait(topic, b"aborted", partition=0)
        assert await log.bounds(topic) == {0: (0, 2)}, "an open transaction is not definite"
        await writer.abort_transaction()
        await writer.stop()

        two_records_and_two_markers = {0: (0, 4)}
        while await log.bounds(topic) != two_records_and_two_markers:
            pass
        reader = await log.reader(topic, {0: 0})
        found = []
        while reader.positions() != {0: 4}:
            found += [record.value for record in await reader.poll(10, 0.2)]
        assert found == [b"kept"]


async def test_records_are_read_by_batches_and_none_is_an_object_of_the_client(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails with another aiokafka, whose parts have other names: reading would be slow again."""
    topic, theirs = f"batches-{next(NUMBERS)}", []
    made = fetcher.ConsumerRecord
    monkeypatch.setattr(
        fetcher, "ConsumerRecord", lambda *cells: theirs.append(cells) or made(*cells)
    )
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        written = [Entry(b"k%d" % n, None if n % 7 == 0 else b"v%d" % n, 0, n) for n in range(900)]
        await log.append(topic, written)
        reader = await log.reader(topic, {0: 0})
        found: list[LogRecord] = []
        while len(found) < 900:
            records = await reader.poll(100, 1.0)
            assert len(records) <= 100
            for columns in (columns_of(records), columns_of(list(records))):
                assert columns.partitions.tolist() == [record.partition for record in records]
                assert columns.offsets.tolist() == [record.offset for record in records]
                assert list(columns.values) == [record.value for record in records]
            found += records
            assert reader.positions() == {0: len(found)}
        await reader.close()
    assert found == [LogRecord(0, n, e.key, e.value, n) for n, e in enumerate(written)]
    assert theirs == []


async def test_a_reader_may_begin_and_go_on_within_a_batch(kafka_bootstrap: str) -> None:
    topic = f"within-{next(NUMBERS)}"
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 2)
        await log.append(topic, [Entry(None, b"%d" % n, 0) for n in range(50)])
        reader = await log.reader(topic, {0: 20})
        found = await take(reader, 7)
        await reader.assign(1, 0)  # the client reads all partitions anew, from their positions
        found += await take(reader, 7)
        await reader.assign(0, 3)
        found += await take(reader, 7)
    assert found == [*range(20, 34), *range(3, 10)]


async def take(reader: LogReader, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = await reader.poll(min(3, count - len(found)), 1.0)
        found += [record.offset for record in records]
    return found


async def test_a_recreated_topic_is_an_error_not_a_jump(kafka_bootstrap: str) -> None:
    topic = f"recreated-{next(NUMBERS)}"
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        await log.append(topic, [Entry(None, b"%d" % number, 0) for number in range(10)])
        reader = await log.reader(topic, {0: 10})
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()
        while topic in await log.topics():
            pass
        await log.create_topic(topic, 1)
        await log.append(topic, [Entry(None, b"other", 0)])
        with pytest.raises(UsageError) as error:
            await reader.poll(10, 20)
        assert error.value.details["reason"] == "offset-out-of-range"
        assert reader.positions() == {0: 10}


async def test_a_producer_that_was_used_appends_to_partitions_that_were_just_added(
    kafka_bootstrap: str,
) -> None:
    topic = f"grown-{next(NUMBERS)}"
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        writer = await log.open_fenced_writer(f"grown-{next(NUMBERS)}")
        await log.append(topic, [Entry(None, b"before")])
        await writer.append(topic, [Entry(None, b"before", 0)])
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.create_partitions({topic: NewPartitions(3)})
        await admin.close()
        async with asyncio.timeout(240):
            while (await log.topics()).get(topic) != 3:
                await asyncio.sleep(0.02)
        places = await log.append(topic, [Entry(None, b"2", 2), Entry(None, b"1", 1)])
        assert places == [(2, 0), (1, 0)]
        await writer.append(topic, [Entry(None, b"2", 2)])
        await writer.close()


async def test_deleted_records_leave_the_bounds(kafka_bootstrap: str) -> None:
    topic = f"deleted-{next(NUMBERS)}"
    async with closing(KafkaLog(kafka_bootstrap)) as log:
        await log.create_topic(topic, 1)
        await log.append(topic, [Entry(None, b"%d" % number, 0) for number in range(10)])
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=8)})
        await admin.close()
        assert await log.bounds(topic) == {0: (8, 10)}
        with pytest.raises(UsageError) as error:
            await log.reader(topic, {0: 2})
        assert error.value.details["reason"] == "offset-out-of-range"


async def test_a_broker_that_is_not_there_is_unavailable() -> None:
    async with closing(KafkaLog("127.0.0.1:9", deadline_s=2)) as log:
        with pytest.raises(Unavailable, match="listing topics failed"):
            await log.topics()


async def test_what_was_acknowledged_survives_a_killed_broker() -> None:
    acknowledged: list[bytes] = []
    with kafka_server("killed") as server:
        async with closing(KafkaLog(server.address)) as patient:
            await patient.create_topic("t", 1)
        async with closing(KafkaLog(server.address, deadline_s=3)) as log:
            for number in range(20):
                await log.append("t", [Entry(None, b"%d" % number, 0)])
                acknowledged.append(b"%d" % number)
            server.control("kill", "1")
            with pytest.raises((Unavailable, Indeterminate)):
                await log.append("t", [Entry(None, b"lost or not", 0)])
            server.control("start", "1")
            while True:
                try:
                    await log.append("t", [Entry(None, b"after", 0)])
                    break
                except (Unavailable, Indeterminate):
                    continue
            low, high = (await log.bounds("t"))[0]
            reader = await log.reader("t", {0: low})
            found: list[bytes | None] = []
            while reader.positions()[0] < high:
                found += [record.value for record in await reader.poll(100, 1)]
            assert found[: len(acknowledged)] == acknowledged
            assert found[-1] == b"after"
