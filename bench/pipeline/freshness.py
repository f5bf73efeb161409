"""Delay from a record in Kafka to a definite and durable answer, while records come steadily."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Thread

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.pipeline.peers import PEER, PYTHON, connector
from bench.pipeline.records import create_topics
from bench.pipeline.sides import CALL_S, Options
from bench.pipeline.system import running, stop
from bench.pipeline.usage import Usage
from bench.pipeline.workloads import RESOURCES, SKEW_MS
from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.rpc.messages import Progress, ResourceDocument

EACH_MS = 10
TOPIC, ANSWERS = "live", "answers"
START_S_MAX = 240.0
"""Longest wait for the first answer, while records come already."""
FOREVER_S = 86_400.0
PARTITIONS = 4


def now_ms() -> int:
    """The time that records carry."""
    return time.time_ns() // 1_000_000


async def produce(bootstrap: str, per_s: int, seconds: float) -> None:
    """Send so many records a second, each with the instant at which it is sent."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 20)
    await producer.start()
    draw = Random(7).randrange
    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        due, at = int(passed * per_s) - sent, now_ms()
        parts = [producer.create_batch() for _ in range(PARTITIONS)]
        for i in range(due):
            value = b'{"tank":"T%03d","level":%d,"flow":%d,"at":%d}'
            row = value % (draw(1000), draw(10_000), draw(1000), at)
            parts[i % PARTITIONS].append(key=None, value=row, timestamp=None)
        for partition, batch in enumerate(parts):
            if batch.record_count():
                await producer.send_batch(batch, TOPIC, partition=partition)
        sent += due
        await asyncio.sleep(EACH_MS / 1000)
    await producer.stop()


@contextmanager
def producing(bootstrap: str, per_s: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that produces until the body ends."""
    words = [bootstrap, str(per_s), str(FOREVER_S)]
    process = subprocess.Popen([sys.executable, "-m", "bench.pipeline.freshness", *words])
    try:
        yield process
    finally:
        stop(process)


def figures_of(delays_ms: list[float], usage: Usage, seconds: float) -> dict[str, float]:
    """Percentiles, and processors that were used."""
    if not delays_ms:
        raise SystemExit("no answer came while records did")
    p50, p99 = np.percentile(delays_ms, [50, 99])
    return {
        "p50_s": float(p50) / 1000, "p99_s": float(p99) / 1000, "samples": len(delays_ms),
        "processors": usage.processor_s / seconds, "peak_mb": usage.peak_mb,
    }  # fmt: skip


def ours(options: Options, per_s: int, seconds: float) -> dict[str, float]:
    """Delay of each millisecond of events until answers up to it are definite, without the skew."""
    moves: list[tuple[int, int]] = []

    def follow(address: str) -> None:
        with suppress(TidemillError), Client(address) as client:  # the server ends first
            moves.extend(
                (now_ms(), min(event.upper.elements))
                for event in client.subscribe("hot/hot", snapshot=False)
                if isinstance(event, Progress) and event.upper.elements
            )

    with tempfile.TemporaryDirectory() as told, running(Path(told), options.bootstrap) as system:
        with Client(system.grpc(), timeout_s=CALL_S) as client:
            text = (RESOURCES / "live.yaml").read_text()
            client.apply(ResourceDocument(text, "bench.yaml"))
        with producing(options.bootstrap, per_s):
            Thread(target=follow, args=(system.grpc(),), daemon=True).start()
            end_s = time.monotonic() + START_S_MAX
            while not (moves and moves[-1][1]) and time.monotonic() < end_s:
                time.sleep(1.0)
            first = now_ms() + 2 * SKEW_MS
            with Usage(lambda: system.pids) as usage:
                time.sleep(seconds + 2)
        return figures_of(delays(moves, first), usage, seconds + 2)


def delays(moves: list[tuple[int, int]], first: int) -> list[float]:
    """Delay beyond the skew of each millisecond from `first` on that became definite."""
    found: list[float] = []
    before = 0
    for at, upper in moves:
        known = max(before, first)
        if before and upper > known:
            found.extend(at - (t + SKEW_MS) for t in range(known, upper))
        before = max(before, upper)
    return found


async def consume(bootstrap: str, seconds: float, pid: int) -> tuple[list[float], Usage]:
    """Delays of the answers that Flink commits, after the first ones, and its usage meanwhile."""
    consumer = AIOKafkaConsumer(
        ANSWERS, bootstrap_servers=bootstrap, isolation_level="read_committed",
        auto_offset_reset="latest",
    )  # fmt: skip
    await consumer.start()
    found: list[float] = []

    async def take() -> None:
        batches = await consumer.getmany(timeout_ms=20)
        at = now_ms()
        for batch in batches.values():
            found.extend(at - json.loads(record.value)["at"] for record in batch)

    end_s = time.monotonic() + START_S_MAX
    while not found and time.monotonic() < end_s:
        await take()
    found.clear()  # the first answers waited for the start of the job
    with Usage(lambda: [pid]) as usage:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            await take()
    await consumer.stop()
    return found, usage


def flink(options: Options, per_s: int, seconds: float) -> dict[str, float]:
    """Delay of each answer until a consumer of committed records has it."""
    asyncio.run(create_topics(options.bootstrap, (ANSWERS,), 1))
    with tempfile.TemporaryDirectory() as told:
        command = [
            PYTHON,
            PEER / "live.py",
            options.bootstrap,
            connector(),
            f"{told}/out",
            f"{options.checkpoint_s:g}",
        ]
        environment = os.environ | {"PYTHONPATH": ""}
        process = subprocess.Popen(list(map(str, command)), env=environment)
        try:
            with producing(options.bootstrap, per_s):
                found, usage = asyncio.run(consume(options.bootstrap, seconds, process.pid))
            return figures_of(found, usage, seconds)
        finally:
            stop(process)


if __name__ == "__main__":
    asyncio.run(produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
