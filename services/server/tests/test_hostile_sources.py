"""Sources with files that are not what they are named as: each says so, and the server goes on."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.errors import Unavailable, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.places import PlaceSettings
from tidemill.runtime.places.settings import SecretSettings
from tidemill.testkit.schema_registry import schema_registry
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_server.settings import ServerSettings


def source(name: str, origin: str, more: str = "", column: str = "v") -> str:
    return f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {name}}}
spec:
  {origin}
  columns: [{{name: {column}, type: text}}]
  timestampInterval: 50ms
  retain: all
  {more}
"""


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml")])


async def wait_for_stall(process: Whole, name: str) -> str:
    """Why a source does not go on, once it says so."""
    async with asyncio.timeout(60):
        while True:
            (status,) = await process.controller.get("Source", name)
            if status.reason == "Stalled":
                return f"{status.reason}: {status.message}"
            await asyncio.sleep(0.02)


async def contents(process: Whole, collection: str, count: int) -> list[dict[str, object]]:
    async with asyncio.timeout(60):
        while True:
            upper = sole_time((await process.context.collections.status(collection)).upper)
            if upper:
                answer = await process.query.snapshot(collection, upper - 1, 0.0)
                if answer.table.num_rows >= count:
                    rows: list[dict[str, object]] = answer.table.to_pylist()
                    return rows
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("origin", "content", "said"),
    [
        ("kafka: {{topic: t}}\n  format: {{avro: {{registry: {{url: 'http://127.0.0.1:9', authority: named}}}}}}",
         b"no certificate", "TLS with the registry"),
        ("kafka: {{topic: t}}\n  format: {{avro: {{registry: {{url: 'http://127.0.0.1:9', username: u, "
         "secret: named}}}}}}", b"\xff\xfe", "no UTF-8"),
        ("kafka: {{bootstrap: '127.0.0.1:9', topic: t, tls: {{authority: named}}}}",
         "Zertifikat für alle".encode(), "TLS with Kafka"),
    ],
    ids=["avro.registry.authority", "secret", "kafka.tls.authority"],
)  # fmt: skip
async def test_s3_a_file_that_is_not_what_it_is_named_as_stalls_its_source_alone(
    tmp_path: Path, origin: str, content: bytes, said: str
) -> None:
    file = tmp_path / "named"
    file.write_bytes(content)
    places = PlaceSettings(secrets={"named": SecretSettings(str(file), ("127.0.0.1",))})
    settings = ServerSettings(directory=str(tmp_path / "state"), places=places)
    async with opened(settings) as process:
        await process.start()
        try:
            await apply(process, source("wrong", origin.format()))
        except UsageError as refused:
            assert said in str(refused)  # noqa: PT017 - refused at once is as good
        else:
            assert said in await wait_for_stall(process, "wrong")
        await apply(process, source("right", "http: {}"))
        await process.controller.push("right", [b'{"v":"a"}'])
        assert await contents(process, "right", 1) == [{"v": "a", "_diff": 1}]


async def test_s3_a_nul_in_a_resource_is_refused_at_apply(tmp_path: Path) -> None:
    async with opened(ServerSettings(directory=str(tmp_path / "state"))) as process:
        await process.start()
        with pytest.raises(UsageError, match="has a NUL character"):
            await apply(
                process,
                "apiVersion: tidemill.dev/v1alpha1\nkind: Action\nmetadata: {name: tell}\n"
                'spec: {view: v, goal: "late(p)", sink: {file: {path: "/tmp/a\\0b"}}}\n',
            )


async def test_s3_parquet_as_pandas_writes_it_is_read(tmp_path: Path) -> None:
    table = pa.table({"at": pa.array([datetime(2013, 7, 4, 12)], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "rows.parquet")
    async with opened(ServerSettings(directory=str(tmp_path / "state"))) as process:
        await process.start()
        origin = f"file: {{path: {tmp_path}/rows.parquet, format: parquet}}"
        await apply(process, source("files", origin, column="at"))
        assert await contents(process, "files", 1) == [{"at": "2013-07-04T12:00:00", "_diff": 1}]


async def test_s2_records_of_avro_that_ended_the_process_are_letters(tmp_path: Path) -> None:
    def record(*fields: object) -> dict[str, object]:
        named = [{"name": name, "type": kind} for name, kind in zip("vw", fields, strict=False)]
        return {"type": "record", "name": "R", "fields": named}

    async with (
        schema_registry() as registry,
        opened(ServerSettings(directory=str(tmp_path / "state"))) as process,
    ):
        await process.start()
        bodies = []
        for schema, body in (
            (record({"type": "int", "logicalType": "date"}), b"\xfe\xff\xff\xff\x0f"),
            (record("string", {"type": "array", "items": "null"}), b"\0" + b"\x80" * 8 + b"\x20\0"),
            (record("string", ["null", "R"]), b"\0\x02" * 200_000),
            (record("R"), b""),
            ('{"type":"array","items":' * 3_000 + '"null"' + "}" * 3_000, b""),
        ):
            number = registry.register("s", schema)
            bodies.append(b"\0" + number.to_bytes(4, "big") + body)
        good = registry.register("s", record({"type": "string", "logicalType": 5}))
        bodies.append(b"\0" + good.to_bytes(4, "big") + b"\x02a")
        form = json.dumps({"avro": {"registry": {"url": registry.url}}})
        await apply(process, source("orders", "kafka: {topic: orders}", f"format: {form}"))
        await process.controller.push("orders", bodies)
        assert await contents(process, "orders", 1) == [{"v": "a", "_diff": 1}]
        letters = await contents(process, "orders/deadletters", 5)
    reasons = " | ".join(str(letter["reason"]) for letter in letters)
    for expected in ("after the year 9999", "take no bytes", "more than 100 levels"):
        assert expected in reasons


def pushed(name: str) -> str:
    return source(name, "http: {}")


def cut(state: Path, name: str) -> Path:
    """Take the end of the log of a source away; its segment."""
    segment = next(state.glob(f"log/topics/http.{name}/0/*.log"))
    segment.write_bytes(segment.read_bytes()[:-64])
    return segment


async def push(process: Whole, name: str, *values: str) -> None:
    rows = [json.dumps({"v": value}).encode() for value in values]
    await process.controller.push(name, rows)


async def test_v5_a_source_whose_log_lost_its_end_takes_no_rows_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    settings = ServerSettings(directory=str(tmp_path))
    async with opened(settings) as process:
        await process.start()
        for name in ("lost", "whole"):
            await apply(process, pushed(name))
            await push(process, name, "1", "2")
            await push(process, name, "3")
            await contents(process, name, 3)
    cut(tmp_path, "lost")
    for _ in range(2):
        async with opened(settings) as process:
            await process.start()
            assert "offsets up to 3 were acknowledged" in await wait_for_stall(process, "lost")
            with pytest.raises(Unavailable, match="push refused, Source/lost is stalled"):
                await push(process, "lost", "77")
            await push(process, "whole", "4")
            await contents(process, "whole", 4)


async def test_v5_a_source_that_is_stalled_takes_no_rows_when_its_witness_is_gone_too(
    tmp_path: Path,
) -> None:
    settings = ServerSettings(directory=str(tmp_path))
    async with opened(settings) as process:
        await process.start()
        await apply(process, pushed("s"))
        await push(process, "s", "1", "2")
        await push(process, "s", "3")
        await contents(process, "s", 3)
    cut(tmp_path, "s").with_name("acknowledged").unlink()
    async with opened(settings) as process:
        await process.start()
        assert "ends at 2, it ended at 3" in await wait_for_stall(process, "s")
        with pytest.raises(Unavailable, match="push refused"):
            await push(process, "s", "77")
