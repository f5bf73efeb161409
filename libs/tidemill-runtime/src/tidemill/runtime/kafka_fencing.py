"""Fenced writers on Kafka: a later writer of a name ends the earlier ones, by transactions.

Each append is a transaction. The broker counts the writers of a transactional id, and opening one
ends the transaction of the one before. A process that was paused between sending and committing
finds its commit refused when it goes on, and readers never see its records. Earlier commits are
complete before the new writer is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from tidemill.errors import Fenced, TidemillError
from tidemill.runtime.clock import Clock
from tidemill.runtime.kafka_errors import FOREIGN, translate
from tidemill.runtime.kafka_producer import discard_producer, know_partitions, send_run
from tidemill.runtime.log import Entry
from tidemill.runtime.log_groups import Place

_REPLACED = (ProducerFenced, InvalidProducerEpoch)

Placed = Callable[[str, Sequence[Entry]], Awaitable[Mapping[Place, list[Entry]]]]
"""Checks records and says to which partition of a topic each goes."""


class KafkaFencedWriter:
    """Appends in transactions under the transactional id of a started producer."""

    def __init__(
        self,
        name: str,
        producer: AIOKafkaProducer,
        place: Placed,
        clock: Clock,
        deadline_s: float,
        closed: Callable[[KafkaFencedWriter], None],
    ) -> None:
        self._name = name
        self._producer: AIOKafkaProducer | None = producer
        self._place = place
        self._clock = clock
        self._deadline_s = deadline_s
        self._turn = asyncio.Lock()
        self._closed = closed

    async def append(self, topic: str, records: Sequence[Entry]) -> None:
        """All of `records` in one transaction; see the port."""
        runs = await self._place(topic, records)
        async with self._turn:
            producer = self._producer
            if producer is None:
                raise Fenced(f"the writer {self._name} is closed")
            try:
                async with asyncio.timeout(self._deadline_s):
                    await know_partitions(producer, runs, self._clock)
                    await self._commit(producer, runs)
            except BaseException as error:
                # aiokafka cannot go on after a transaction that failed; the next writer ends it.
                await self.close()
                if isinstance(error, FOREIGN):
                    raise self._said(topic, error) from error
                raise

    async def close(self) -> None:
        """Drop the producer; a transaction that it has open is ended by the next writer or the
        broker.
        """
        producer, self._producer = self._producer, None
        self._closed(self)
        if producer is not None:
            await discard_producer(producer)

    async def _commit(self, producer: AIOKafkaProducer, runs: Mapping[Place, list[Entry]]) -> None:
        await producer.begin_transaction()
        now_ms = self._clock.now_ms()
        sending = [
            asyncio.ensure_future(send_run(producer, topic, partition, run, now_ms))
            for (topic, partition), run in runs.items()
        ]
        try:
            await asyncio.gather(*sending)
        finally:
            for each in sending:
                each.cancel()
        await producer.commit_transaction()

    def _said(self, topic: str, error: BaseException) -> TidemillError:
        if isinstance(error, _REPLACED):
            return Fenced(f"append to {topic} refused: a later writer {self._name} is open")
        return translate(f"append to {topic} as {self._name}", error, writing=True)
