"""Spark writes into tables once, and follows collections with each change once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from tidemill.client import Client
from tidemill.client.spark import TidemillSource, writer
from tidemill.errors import UsageError
from tidemill.rpc.messages import Changes, ResourceDocument
from tidemill.testkit.up import up_process
from tidemill.time import sole_time

TABLES = "\n---\n".join(
    f"""apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {{name: {name}}}
spec: {{columns: [{{name: name, type: text}}, {{name: load, type: int}}], retain: all}}"""
    for name in ("hosts", "copies")
)
SHAPE = StructType().add("name", StringType()).add("load", LongType())


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a server with two tables."""
    with up_process(tmp_path) as server, server.client() as made:
        made.apply(ResourceDocument(TABLES, "tables"))
        yield made


def options(client: Client, table: str, **more: str) -> dict[str, str]:
    return {"address": client.address, "collection": table, **more}


def contents(client: Client, table: str) -> list[str]:
    return sorted(str(row) for row in client.query(table, timeout_s=60).table.to_pylist())


def job(client: Client, rows: list[dict[str, Any]], key: str | None, **how: Any) -> None:
    """A job of two tasks, as the driver and its executors run it; one task runs twice."""
    chosen = options(client, "hosts", **({} if key is None else {"idempotencyKey": key}))
    made = TidemillSource(chosen).writer(SHAPE, False)
    parts = [rows[0::2], rows[1::2]]
    made.write(iter(pa.table({"name": ["lost"], "load": [0]}).to_batches()))  # an attempt that died
    messages = [made.write(iter(pa.Table.from_pylist(part).to_batches())) for part in parts]
    made.commit(how.get("messages", lambda given: given)(messages))


@pytest.mark.rule("UP6", "P5")
def test_a_job_that_runs_again_writes_once_and_at_one_instant(client: Client) -> None:
    rows = [{"name": f"h{n}", "load": n} for n in range(9)]
    job(client, rows, "the job of one day")
    once = contents(client, "hosts")
    assert len(once) == 9
    # The driver dies after its insert, and the job begins anew with other partitions.
    job(client, rows[::-1], "the job of one day")
    assert contents(client, "hosts") == once
    with pytest.raises(UsageError, match="token"):
        job(client, rows[1:], "the job of one day")
    assert contents(client, "hosts") == once
    # The companion: without a key a job that runs again writes again.
    job(client, rows, None)
    assert len(contents(client, "hosts")) == 18
    instants = {row["_time"] for row in _updates(client, "hosts")}
    assert len(instants) == 2


def test_a_job_that_fails_or_is_too_large_writes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"name": f"h{n}", "load": n} for n in range(4)]
    with pytest.raises(UsageError, match="missing"):
        job(client, rows, None, messages=lambda given: [given[0], None])
    monkeypatch.setattr(writer, "BYTES_MAX", 700)
    with pytest.raises(UsageError, match="write it in parts"):
        job(client, rows * 8, None)
    assert contents(client, "hosts") == []
    job(client, [], None)
    assert contents(client, "hosts") == []


def _updates(client: Client, table: str) -> list[dict[str, Any]]:
    with client.hold(table) as read:
        upper = sole_time(client.query(table).upper)
        events = [e for e in read.subscribe(snapshot=False, up_to=upper) if isinstance(e, Changes)]
    return [row for event in events for row in event.table.to_pylist()]


@pytest.mark.server
@pytest.mark.rule("SU1", "SU5")
def test_a_stream_copies_a_table_with_each_change_once_across_a_restart(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    spark.dataSource.register(TidemillSource)
    client.insert("hosts", [{"name": f"h{n}", "load": n} for n in range(50)])

    def copy() -> Any:
        """Copies what was added; what was taken away has the diff -1."""
        changes = spark.readStream.format("tidemill").options(
            **options(client, "hosts", changes="true")
        )
        return (
            changes.load().where("_diff > 0").drop("_time", "_diff")
            .writeStream.format("tidemill").outputMode("append")
            .options(**options(client, "copies", idempotencyKey="copies of hosts"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds").start()
        )  # fmt: skip

    def until_copied() -> None:
        for _ in range(1_200):
            if contents(client, "copies") == contents(client, "hosts"):
                return
            if query.exception() is not None:
                break
            threading.Event().wait(0.1)
        pytest.fail(f"{len(contents(client, 'copies'))} rows; {query.exception()}")

    query = copy()
    until_copied()
    client.insert("hosts", [{"name": "later", "load": n} for n in range(5)])
    until_copied()
    owners = {h.owner for c in client.collections() if c.id == "hosts" for h in c.holders}
    assert "spark stream" in owners
    query.stop()
    client.insert("hosts", [{"name": "while it stood", "load": 1}])
    query = copy()
    until_copied()
    query.stop()
    assert len(contents(client, "copies")) == 56


@pytest.mark.server
def test_the_examples_of_the_page_run(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/spark.md").read_text()
    read, write, follow, streams = (
        each.partition("```")[0] for each in page.split("```python\n")[1:]
    )
    client.insert("hosts", [{"name": f"h{n}", "load": n} for n in range(9)])
    checkpoint = str(tmp_path / "checkpoint")
    names: dict[str, Any] = {"spark": spark, "address": client.address, "checkpoint": checkpoint}
    exec(read, names)
    assert (names["busy"], names["total"]) == (3, 36)
    exec(streams, names)
    assert (names["rows"], names["most"]) == (9, 8)
    for _ in range(2):
        exec(write, names)
        assert len(contents(client, "copies")) == 3
    exec(follow, names)
    for _ in range(600):
        if len(contents(client, "copies")) == 12 or names["query"].exception() is not None:
            break
        threading.Event().wait(0.1)
    names["query"].stop()
    assert len(contents(client, "copies")) == 12
