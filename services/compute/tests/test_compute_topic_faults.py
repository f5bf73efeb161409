"""A topic as a sink through every fault of its transactions on a real broker: each key once, the
same bytes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tidemill.errors import Fenced, Indeterminate, Unavailable
from tidemill.runtime.log import LogRecord
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.testkit.servers import Server, kafka_server
from tidemill_compute.actions.outbox import Firing
from tidemill_compute.actions.sink_log import LogSink

pytestmark = pytest.mark.server

OUTBOX = [Firing(f"k{n:02}", "calls", n, f"p({n})", f"[{n}]", n) for n in range(12)]
BATCH = 4
DEADLINE_S = 240.0
"""However busy the machine is."""
AWAY_S = 3.0
"""For a broker that is away."""
TRIED_AGAIN = (Unavailable, Indeterminate, Fenced)

Step = Callable[..., Awaitable[Any]]
Fault = Callable[[Step], Awaitable[Any]]
"""A replacement of one step of a transaction."""


class KilledError(Exception):
    """The process is gone: whoever called hears nothing."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Server]:
    with kafka_server("transactions") as server:
        yield server


@asynccontextmanager
async def opened(broker: Server, deadline_s: float = DEADLINE_S) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(broker.address, deadline_s=deadline_s)
    try:
        yield log
    finally:
        await log.close()


async def ask_until_back(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, asked again while the broker is away."""
    while True:
        try:
            return await ask()
        except (Unavailable, Indeterminate):
            continue


@asynccontextmanager
async def reading_all(broker: Server, topic: str) -> AsyncIterator[tuple[AIOKafkaConsumer, int]]:
    """A consumer of all records, uncommitted ones too, from the beginning, and the topic's end for
    it.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.address, isolation_level="read_uncommitted"
    )
    await consumer.start()
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning()
        yield consumer, (await consumer.end_offsets([place]))[place]
    finally:
        await consumer.stop()


async def read_committed(broker: Server, log: KafkaLog, topic: str) -> list[LogRecord]:
    """The records of a topic as readers of committed ones see them, once all transactions have
    ended.

    A commit is acknowledged when it is certain, a moment before the topic itself tells of it.
    """
    async with reading_all(broker, topic) as (_, end):
        pass
    while (bounds := await ask_until_back(lambda: log.bounds(topic)))[0][1] < end:
        await asyncio.sleep(0.05)
    reader = await ask_until_back(
        lambda: log.reader(topic, {p: low for p, (low, _) in bounds.items()})
    )
    found: list[LogRecord] = []
    while any(reader.positions()[p] < high for p, (_, high) in bounds.items()):
        found += await reader.poll(1_000, 1.0)
    await reader.close()
    return found


async def count_sent(broker: Server, topic: str) -> Counter[bytes]:
    """Number of times that each key was ever sent, whatever the end of its transaction."""
    found = Counter[bytes]()
    async with reading_all(broker, topic) as (consumer, end):
        while await consumer.position(TopicPartition(topic, 0)) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found.update(record.key for record in records)
    return found


async def live(log: KafkaLog, topic: str, *, blind: bool = False) -> None:
    """One life of an action: look what has happened, do the rest. `blind` does not look."""
    sink = LogSink(log, topic, "calls")
    try:
        happened = await sink.recover(OUTBOX)
        left = [f for f in OUTBOX if blind or f.key not in happened]
        for at in range(0, len(left), BATCH):
            await sink.fire(left[at : at + BATCH])
    finally:
        await sink.close()


async def live_to_the_end(log: KafkaLog, topic: str) -> int:
    """Lives until one has done everything; how many it took."""
    lives = 1
    while True:
        try:
            await live(log, topic)
            return lives
        except TRIED_AGAIN:
            lives += 1


class Faults:
    """Puts one fault into the second transaction: the first has gone well by then."""

    def __init__(self, patch: pytest.MonkeyPatch, point: str, fault: Fault) -> None:
        self.struck = 0
        step, calls, faults = getattr(AIOKafkaProducer, point), 0, self
        # Other producers of the log have no transactions.
        per_transaction = 1 if point != "send_batch" else 2

        async def instead(producer: AIOKafkaProducer, *told: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1

            async def as_it_was() -> Any:
                return await step(producer, *told, **named)

            if faults.struck or calls <= per_transaction:
                return await as_it_was()
            faults.struck += 1
            return await fault(as_it_was)

        patch.setattr(AIOKafkaProducer, point, instead)


async def dies_before(_: Step) -> None:
    raise KilledError


async def dies_after(step: Step) -> None:
    await step()
    raise KilledError


POINTS: dict[str, tuple[str, Fault]] = {
    "before the transaction begins": ("begin_transaction", dies_before),
    "after some were sent": ("send_batch", dies_after),
    "after all were sent, before the commit": ("commit_transaction", dies_before),
    "after the commit, before anybody knows": ("commit_transaction", dies_after),
}


def exactly_once(records: Sequence[LogRecord]) -> None:
    """Every firing is there once, byte for byte."""
    assert sorted((r.key, r.value) for r in records) == [
        (f.key.encode(), f.line.encode()) for f in OUTBOX
    ]


@pytest.mark.parametrize("point", POINTS)
async def test_a_process_that_dies_at_any_point_of_a_transaction_leaves_each_key_once(
    point: str, broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"dies-{token_hex(4)}"
    async with opened(broker) as log:
        with monkeypatch.context() as patch:
            faults = Faults(patch, *POINTS[point])
            with pytest.raises(KilledError):
                await live(log, topic)
            assert faults.struck == 1
        assert await live_to_the_end(log, topic) == 1
        exactly_once(await read_committed(broker, log, topic))


async def test_who_does_not_look_after_a_commit_that_nobody_knows_of_repeats_it(
    broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"blind-{token_hex(4)}"
    async with opened(broker) as log:
        with monkeypatch.context() as patch:
            Faults(patch, *POINTS["after the commit, before anybody knows"])
            with pytest.raises(KilledError):
                await live(log, topic)
        await live(log, topic, blind=True)
        assert (
            Counter(r.key for r in await read_committed(broker, log, topic)).most_common(1)[0][1]
            == 2
        )


async def test_a_transaction_that_times_out_at_the_broker_is_redone_with_the_same_bytes(
    broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"late-{token_hex(4)}"
    # The process is allowed to wait for longer than the broker is.
    async with opened(broker) as log, opened(broker) as patient:

        async def until_it_was_ended(step: Step) -> Any:
            begun = await log.bounds(topic)
            while await log.bounds(topic) == begun:
                await asyncio.sleep(0.1)
            return await step()

        with monkeypatch.context() as patch:
            faults = Faults(patch, "commit_transaction", until_it_was_ended)
            short_lived(patch)
            with pytest.raises(TRIED_AGAIN):
                await live(patient, topic)
            assert faults.struck == 1
        assert await live_to_the_end(log, topic) == 1
        exactly_once(await read_committed(broker, log, topic))
        # Records that were sent and aborted stand beside the repeated ones; no reader sees them.
        assert set((await count_sent(broker, topic)).values()) == {1, 2}


def short_lived(patch: pytest.MonkeyPatch) -> None:
    """Transactions last two seconds at the broker."""
    made = AIOKafkaProducer.__init__

    def shorter(self: AIOKafkaProducer, **options: Any) -> None:
        made(self, **{**options, "transaction_timeout_ms": 2_000})

    patch.setattr(AIOKafkaProducer, "__init__", shorter)


@pytest.mark.parametrize("when", ["before the commit is asked for", "while it is under way"])
async def test_a_broker_that_is_killed_at_a_commit_has_done_it_or_not_and_never_twice(
    when: str, broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"killed-{token_hex(4)}"

    async def kill_at(step: Step) -> Any:
        if when == "before the commit is asked for":
            await asyncio.to_thread(broker.control, "kill", "1")
            return await step()
        committing = asyncio.ensure_future(step())
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.control, "kill", "1")
        return await committing

    async with opened(broker, AWAY_S) as log:
        with monkeypatch.context() as patch:
            faults = Faults(patch, "commit_transaction", kill_at)
            while not faults.struck:  # a machine that stood still is no broker that was killed
                outcome = await asyncio.gather(live(log, topic), return_exceptions=True)
            assert faults.struck == 1
        assert isinstance(outcome[0], TRIED_AGAIN), outcome
        await asyncio.to_thread(broker.control, "start", "1")
        await live_to_the_end(log, topic)
        exactly_once(await read_committed(broker, log, topic))
