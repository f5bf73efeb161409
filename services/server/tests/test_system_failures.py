"""A source in trouble says so and stands still; the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument, ResourceStatus
from tidemill.runtime.log import Entry
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_server.settings import ServerSettings


def source(name: str, place: str) -> str:
    return f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {name}}}
spec:
  {place}
  columns: [{{name: n, type: int}}]
  timestampInterval: 50ms
  retain: all
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    settings = ServerSettings(
        directory=str(folder / "state"),
        retry_s_min=0.1,
        retry_s_max=0.2,
        kafka_deadline_s=3.0,
    )
    async with opened(settings) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def until(process: Whole, name: str, reason: str) -> ResourceStatus:
    async with asyncio.timeout(240):
        while True:
            status = await process.controller.describe("Source", name)
            if status.reason == reason:
                return status
            await asyncio.sleep(0.02)


async def test_a_file_that_was_replaced_by_a_shorter_one_stalls_its_source_alone(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n{"n": 2}\n')
    async with running(tmp_path) as process:
        await apply(
            process, source("a", f"file: {{path: {file}, format: jsonl}}"), source("b", "http: {}")
        )
        async with asyncio.timeout(240):
            while (await process.query.snapshot("a", None, 120.0)).table.num_rows < 2:
                await asyncio.sleep(0.02)
        file.write_text('{"n": 3}\n')
        status = await until(process, "a", "Stalled")
        assert not status.ready
        assert "a.jsonl" in status.message
        upper = (await process.context.collections.status("a")).upper
        later = sole_time((await process.context.collections.status("b")).upper)
        await process.context.collections.wait_for_upper("b", later + 100, 240.0)
        assert (await process.controller.describe("Source", "b")).ready
        assert (await process.context.collections.status("a")).upper == upper
        assert (await process.query.snapshot("a", None, 0.0)).table.num_rows == 2
    async with running(tmp_path) as process:
        await until(process, "a", "Stalled")
        assert (await process.query.snapshot("a", None, 0.0)).table.num_rows == 2


@pytest.mark.server
async def test_a_source_begins_when_its_topic_comes_and_stalls_when_it_is_another(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    place = f'kafka: {{topic: late-topic, bootstrap: "{kafka_bootstrap}"}}'
    log = KafkaLog(kafka_bootstrap)
    async with running(tmp_path) as process:
        await apply(process, source("a", place))
        status = await until(process, "a", "Stalled")
        assert "late-topic" in status.message
        await log.create_topic("late-topic", 1)
        await log.append("late-topic", [Entry(None, b'{"n": 1}'), Entry(None, b'{"n": 2}')])
        await until(process, "a", "Running")
        async with asyncio.timeout(240):
            while (await process.query.snapshot("a", None, 120.0)).table.num_rows < 2:
                await asyncio.sleep(0.02)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.delete_topics(["late-topic"])
        await admin.close()
        await until(process, "a", "Stalled")
        async with asyncio.timeout(240):
            while True:
                with suppress(TidemillError):  # the broker deletes in its own time
                    await log.create_topic("late-topic", 1)
                    break
                await asyncio.sleep(0.2)
        await log.append("late-topic", [Entry(None, b'{"n": 3}')])
        async with asyncio.timeout(240):
            while "recreated" not in (await process.controller.describe("Source", "a")).message:
                await asyncio.sleep(0.05)
        rows = (await process.query.snapshot("a", None, 0.0)).table
        assert sorted(rows["n"].to_pylist()) == [1, 2]
    await log.close()


async def test_every_metric_has_a_reading_while_a_source_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, source("b", "http: {}"))
        await process.controller.push("b", [b'{"n": 1}', b'{"n": "x"}'])
        async with asyncio.timeout(240):
            while (await process.query.snapshot("b", None, 120.0)).table.num_rows < 1:
                await asyncio.sleep(0.02)
        text = process.exposed()
        for line in (
            'tidemill_source_offset_known{partition="0",source="b"}',
            'tidemill_source_offset_bound{partition="0",source="b"}',
            'tidemill_source_offset_committed{partition="0",source="b"}',
            'tidemill_source_unbound_updates{source="b"} 0.0',
            'tidemill_decode_errors_total{source="b"} 1.0',
        ):
            assert line in text, text
