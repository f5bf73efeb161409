"""Records that come steadily while a system runs, made before it begins."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer

from bench.pipeline.records import MAKERS, TOPICS, create_topics
from bench.pipeline.system import stop

if TYPE_CHECKING:
    from bench.pipeline.sides import Options

EACH_S = 0.02
"""Records of so long are sent together."""
READY, BEGIN, SENT = "ready\n", "begin\n", "sent"


async def send_steadily(
    bootstrap: str, records: str, n: int, partitions: int, prefix: str, per_s: int
) -> float:
    """Send `n` records of each topic, `per_s` of each a second, once standard input says so.

    Returns the seconds that it took. A late record is sent at once.
    """
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 20)
    await producer.start()
    slots = _slots(producer, records, n, partitions, per_s)
    print(READY, end="", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.perf_counter()
    for number, slot in enumerate(slots):
        await asyncio.sleep(max(0.0, began + number * EACH_S - time.perf_counter()))
        for (topic, partition), batch in slot.items():
            await producer.send_batch(batch, prefix + topic, partition=partition)
    await producer.flush()
    took_s = time.perf_counter() - began
    await producer.stop()
    return took_s


def _slots(
    producer: AIOKafkaProducer, records: str, n: int, partitions: int, per_s: int
) -> list[dict[tuple[str, int], Any]]:
    """The batches of each moment, by topic and partition."""
    each = max(1, int(per_s * EACH_S))
    slots: list[dict[tuple[str, int], Any]] = [{} for _ in range(-(-n // each))]
    count = dict.fromkeys(TOPICS[records], 0)
    for topic, key, value in MAKERS[records](n):
        slot = slots[count[topic] // each]
        place = topic, (count[topic] if key is None else int(key[1:])) % partitions
        count[topic] += 1
        batch = slot.get(place) or slot.setdefault(place, producer.create_batch())
        assert batch.append(key=key, value=value or None, timestamp=None) is not None
    return slots


@dataclass
class Sending:
    """The process that sends, if there is one."""

    process: subprocess.Popen[str] | None
    count: int

    def per_s(self) -> float:
        """Records that it has sent of each topic a second, once it has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        said, _, seconds = self.process.stdout.readline().partition(" ")
        if said != SENT:
            raise SystemExit("the records did not all come")
        return self.count / float(seconds)


@contextmanager
def steady(records: str, options: Options, partitions: int = 4) -> Iterator[Sending]:
    """Records come while the body runs, if `options.per_s` says so; their topics are made here."""
    if not options.per_s:
        yield Sending(None, 0)
        return
    topics = tuple(options.prefix + topic for topic in TOPICS[records])
    asyncio.run(create_topics(options.bootstrap, topics, partitions))
    words = [options.bootstrap, records, options.count, partitions, options.prefix, options.per_s]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.pipeline.steady", *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != READY:
            raise SystemExit("the records could not be made")
        process.stdin.write(BEGIN)
        process.stdin.flush()
        yield Sending(process, options.count)
    finally:
        stop(process)


def main(bootstrap: str, records: str, n: str, partitions: str, prefix: str, per_s: str) -> None:
    """Send, and tell how long it took."""
    sending = send_steadily(bootstrap, records, int(n), int(partitions), prefix, int(per_s))
    print(SENT, asyncio.run(sending), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
