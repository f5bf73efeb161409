"""Arrangements end to end: questions that name their key are answered from them, and answered
alike.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemill.catalog.apply.check import check_files
from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.shard import Collections
from tidemill.testkit.jobs import run_in_session
from tidemill.testkit.whole import Whole, opened
from tidemill_compute.settings import ComputeSettings
from tidemill_server.settings import ServerSettings

BASE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: dest, type: text}, {name: delay, type: int}]
  timestampInterval: 50ms
  retain: all
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec: {program: "late(p, d) := flights(p, _, d) if d > 30;", retain: all}
"""
ARRANGEMENT = """
apiVersion: tidemill.dev/v1alpha1
kind: Arrangement
metadata: {name: NAME}
spec: {collection: OF, key: [KEY]}
"""


def arrangement(name: str, of: str, key: str) -> str:
    return ARRANGEMENT.replace("NAME", name).replace("OF", of).replace("KEY", key)


@asynccontextmanager
async def running(folder: Path, spark_rows: int = 5_000_000) -> AsyncIterator[Whole]:
    compute = ComputeSettings(arrange_spark_rows=spark_rows)
    async with opened(ServerSettings(directory=str(folder / "state"), compute=compute)) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def push(process: Whole, *rows: tuple[str, str, int]) -> None:
    lines = [json.dumps({"plane": p, "dest": t, "delay": d}).encode() for p, t, d in rows]
    await process.controller.push("flights", lines)


async def until(process: Whole, goal: str, expected: list[dict[str, object]]) -> None:
    async with asyncio.timeout(240):
        while (await process.query.ask(goal, None, 240.0)).table.drop_columns(
            "_diff"
        ).to_pylist() != expected:
            await asyncio.sleep(0.05)


async def list_read(process: Whole, monkeypatch: pytest.MonkeyPatch, goal: str) -> list[str]:
    """The collections whose rows a question reads."""
    read: list[str] = []
    read_without_hold = Collections.read_without_hold

    async def note_and_read(
        self: Collections, collection: str, *args: object, **named: object
    ) -> object:
        read.append(collection)
        return await read_without_hold(self, collection, *args, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Collections, "read_without_hold", note_and_read)
        answer = await process.query.ask(goal, None, 240.0)
    assert answer.collection not in read or read == [answer.collection]
    return read


async def test_a_question_that_names_the_key_reads_the_arrangement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as process:
        await apply(process, BASE)
        await push(process, ("a", "IAH", 40), ("b", "MIA", 50), ("c", "IAH", 10))
        await until(process, "late(p, d)", [{"p": "a", "d": 40}, {"p": "b", "d": 50}])
        await apply(
            process, arrangement("by-dest", "flights", "dest"), arrangement("by-d", "late", "c1")
        )
        both = [{"p": "a", "d": 40}, {"p": "c", "d": 10}]
        await until(process, 'flights(p, "IAH", d)', both)
        async with asyncio.timeout(240):
            while await list_read(process, monkeypatch, 'flights(p, "IAH", d)') != ["by-dest"]:
                await asyncio.sleep(0.05)
            while await list_read(process, monkeypatch, "late(p, 50)") != ["by-d"]:
                await asyncio.sleep(0.05)
        assert await list_read(process, monkeypatch, "flights(p, t, 40)") == ["flights"]
        await push(process, ("d", "IAH", 90))
        await until(process, 'flights(p, "IAH", d)', [*both, {"p": "d", "d": 90}])
        past = (await process.query.ask('flights(p, "IAH", d)', None, 240.0)).as_of
        whole = await process.query.tables(["flights", "by-dest"], past, 240.0)
        assert whole["by-dest"].table.num_rows == whole["flights"].table.num_rows == 4
    async with running(tmp_path) as process:
        await until(process, 'flights(p, "IAH", d)', [*both, {"p": "d", "d": 90}])
        status = await process.controller.describe("Arrangement", "by-dest")
        assert (status.ready, status.reason) == (True, "Running")
        with pytest.raises(UsageError, match="is used by View/delays, Arrangement/by-dest"):
            await process.controller.delete("Source", "flights")
        with pytest.raises(UsageError, match="is used by Arrangement/by-d"):
            await process.controller.delete("View", "delays")
        for name in ("by-d", "by-dest"):
            await process.controller.delete("Arrangement", name)
        assert await list_read(process, monkeypatch, "late(p, 50)") == ["delays/late"]
        await process.controller.delete("View", "delays")
        held = (await process.context.collections.status("flights")).holders
        assert not [each.owner for each in held if each.owner.startswith("arrangement:")]


async def test_what_cannot_be_arranged_is_refused_with_its_place(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, BASE)
        with pytest.raises(UsageError, match=r"test\.yaml:5:.*flights has no column dset; it has"):
            await apply(process, arrangement("x", "flights", "dset"))
        with pytest.raises(UsageError, match=r"test\.yaml:5:.*there is no fligths; did you mean"):
            await apply(process, arrangement("x", "fligths", "dest"))
        await apply(process, arrangement("by-dest", "flights", "dest"))
        with pytest.raises(UsageError, match="by-dest is an arrangement itself"):
            await apply(process, arrangement("x", "by-dest", "dest"))
        with pytest.raises(UsageError, match=r"spec\.key cannot change while it exists"):
            await apply(process, arrangement("by-dest", "flights", "plane"))
    text = f"{BASE}---{arrangement('by-dest', 'flights', 'dset')}"
    (finding,) = check_files({"a.yaml": text})
    assert "flights has no column dset" in finding.message


@pytest.mark.server
async def test_a_long_history_is_arranged_by_a_spark_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    launched = run_in_session(monkeypatch, spark)
    async with running(tmp_path, spark_rows=50) as process:
        await apply(process, BASE)
        await push(process, *((f"p{n}", f"d{n % 7}", n) for n in range(200)))
        expected: list[dict[str, object]] = [{"p": f"p{n}", "d": n} for n in range(3, 200, 7)]
        expected.sort(key=lambda row: str(row["p"]))
        await until(process, 'flights(p, "d3", d)', expected)
        await apply(process, arrangement("by-dest", "flights", "dest"))
        async with asyncio.timeout(240):
            while await list_read(process, monkeypatch, 'flights(p, "d3", d)') != ["by-dest"]:
                await asyncio.sleep(0.2)
        await until(process, 'flights(p, "d3", d)', expected)
        details = (await process.controller.describe("Arrangement", "by-dest")).details
        assert details["builtByJobs"] == 200
        assert len(launched) == 1
