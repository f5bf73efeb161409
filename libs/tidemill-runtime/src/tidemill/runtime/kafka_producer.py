"""The producer of the Kafka log: its settings, and how to drop one whose broker is gone.

aiokafka never gives up on an idempotent batch, and `stop` waits for every batch. So a producer that
failed once is dropped with all it still holds. This module reaches into its parts for that, and is
therefore tied to one minor version of aiokafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError

from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Entry

BATCH_BYTES = 512 << 10
STOP_S_MAX = 1.0
KNOW_PAUSE_S = 0.02
"""Between two looks for a partition that was just added."""


def new_producer(
    bootstrap: str,
    client_id: str,
    deadline_s: float,
    options: Mapping[str, Any],
    transactional_id: str | None = None,
) -> AIOKafkaProducer:
    """An idempotent producer that waits for all replicas; not started.

    `options` say how the cluster is reached. With a `transactional_id` starting it ends others that
    have it.
    """
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=client_id,
        acks="all",
        enable_idempotence=True,
        compression_type="lz4",
        max_batch_size=BATCH_BYTES,
        request_timeout_ms=int(deadline_s * 1000),
        transactional_id=transactional_id,
        transaction_timeout_ms=int(2 * deadline_s * 1000),
        **options,
    )


async def know_partitions(
    producer: AIOKafkaProducer, places: Iterable[tuple[str, int]], clock: Clock
) -> None:
    """Return once the producer knows these partitions, which the cluster has; nothing is sent.

    It looks for new ones in its own time, some minutes, and cannot be given a batch for one before.
    """
    for topic, partition in places:
        while partition not in await producer.partitions_for(topic):
            await producer.client.force_metadata_update()
            await clock.sleep(KNOW_PAUSE_S)


async def send_run(
    producer: AIOKafkaProducer, topic: str, partition: int, run: list[Entry], now_ms: int
) -> list[int]:
    """Send `run` in as few batches as possible; the offsets, in order.

    Raises: what aiokafka raises; cancelled, it leaves batches behind in the producer.
    """
    sent: list[tuple[asyncio.Future[Any], int]] = []  # aiokafka ships no types
    offsets: list[int] = []
    start = 0
    try:
        while start < len(run):
            batch = producer.create_batch()
            stop = start
            while stop < len(run) and _add(batch, run[stop], now_ms):
                stop += 1
            batch.close()
            future = await producer.send_batch(batch, topic, partition=partition)
            sent.append((future, stop - start))
            start = stop
        for future, count in sent:
            base = (await future).offset
            if base < 0:
                raise KafkaTimeoutError("the records are durable, but where is not known any more")
            offsets.extend(range(base, base + count))
    finally:
        for future, _ in sent:
            future.cancel()
    return offsets


async def discard_producer(producer: AIOKafkaProducer) -> None:
    """Stop `producer` within a few seconds and forget what it could not send."""
    sending = producer._sender.sender_task
    for _ in range(2):  # the second one interrupts its wait for requests that are under way
        if sending is not None and not sending.done():
            sending.cancel()
            await asyncio.wait([sending], timeout=STOP_S_MAX)
    for told in _tellings(producer):
        told.add_done_callback(lambda told: told.cancelled() or told.exception())
    # NB: not `stop`, which waits for batches that nobody sends any more.
    producer._closed = True
    await producer.client.close()


def _tellings(producer: AIOKafkaProducer) -> Iterator[asyncio.Future[Any]]:
    """Futures by which parts of a producer tell each other of a failure, and that nobody awaits any
    more.

    The event loop would report them as errors, at a later time and in another task.
    """
    ended = getattr(producer._txn_manager, "_transaction_waiter", None)
    if ended is not None:
        yield ended
    held = producer._message_accumulator
    for batch in (*chain.from_iterable(held._batches.values()), *held._pending_batches):
        yield batch._drain_waiter


def _add(batch: Any, entry: Entry, now_ms: int) -> bool:  # aiokafka ships no types
    """Whether `entry` still fitted into `batch`."""
    timestamp = now_ms if entry.timestamp_ms is None else entry.timestamp_ms
    return batch.append(timestamp=timestamp, key=entry.key, value=entry.value) is not None
