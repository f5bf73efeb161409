"""Sources over files: a folder that gets files, reference data, rows that come later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_remap.part import BindPart
from tidemill_server.settings import ServerSettings


def source(name: str, path: Path, form: str, more: str = "") -> str:
    return f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {name}}}
spec:
  file: {{path: {path}, format: {form}}}
  columns: [{{name: n, type: int}}, {{name: t, type: text}}]
  timestampInterval: 50ms
  retain: all
  {more}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def until(
    process: Whole, collection: str, expected: list[int], at: int | None = None
) -> None:
    """Wait until the column `n` of a collection holds exactly these numbers at the latest."""
    found: list[int] = []
    try:
        async with asyncio.timeout(240):
            while found != expected:
                await asyncio.sleep(0.02)
                upper = sole_time((await process.context.collections.status(collection)).upper)
                if upper:
                    asked = upper - 1 if at is None else at
                    answer = await process.query.snapshot(collection, asked, 0.0)
                    found = sorted(answer.table["n"].to_pylist())
    except TimeoutError:
        raise AssertionError(f"{collection} holds {found}, not {expected}") from None


async def wait_for_instants(process: Whole, count: int) -> None:
    """Wait until so many rows of `limits` have their instant of the timeline."""
    collections = process.context.collections
    async with asyncio.timeout(240):
        while (await collections.read_updates("limits/raw")).num_rows < count:
            await asyncio.sleep(0.02)
        raw = sole_time((await collections.status("limits/raw")).upper)
        await collections.wait_for_upper("limits/eventmap", raw - 1, 240.0)


async def test_a_folder_of_csv_files_grows_over_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.csv").write_text("n,t\n1,x\n2,y\n")
    async with running(tmp_path) as process:
        await apply(process, source("rows", folder, "csv"))
        await until(process, "rows", [1, 2])
        (folder / "a.csv").write_text('t,n\n"p\nq",3\n')
        with (folder / "b.csv").open("a") as file:
            file.write("4,z\n")
        await until(process, "rows", [1, 2, 3, 4])
    async with running(tmp_path) as process:
        (folder / "c.csv").write_text("n,t\n5,v\n")
        await until(process, "rows", [1, 2, 3, 4, 5])
        rows = (await process.query.snapshot("rows", None, 120.0)).table.to_pylist()
        assert {row["n"]: row["t"] for row in rows}[3] == "p\nq"
        parts = [
            part for _, _, part in process.process.running.each() if isinstance(part, BindPart)
        ]
        bound = parts[0].driver.counts.bound
        assert bound == {0: 3, 1: 1, 2: 1}


async def test_a_file_with_other_columns_stalls_the_source_and_tells_which(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("n,t\n1,a\n")
    async with running(tmp_path) as process:
        await apply(process, source("s", folder, "csv"))
        await until(process, "s", [1])
        (folder / "b.csv").write_text("n,other\n2,b\n")
        async with asyncio.timeout(240):
            while (status := await process.controller.describe("Source", "s")).reason != "Stalled":
                await asyncio.sleep(0.02)
        assert "b.csv has the columns n, other, the source has n, t" in status.message
        await until(process, "s", [1])
    (folder / "b.csv").write_text("n,t\n2,b\n")
    async with running(tmp_path) as process:
        await until(process, "s", [1, 2])


async def test_files_of_each_format_hold_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,x\n2,\n")
    (tmp_path / "a.jsonl").write_text('{"n": 1, "t": "x"}\n{"n": 2, "t": ""}\n')
    pq.write_table(pa.table({"n": [1, 2], "t": ["x", ""]}), tmp_path / "a.parquet")
    async with running(tmp_path) as process:
        for form in ("csv", "jsonl", "parquet"):
            text = source(form, tmp_path / f"a.{form}", form)
            await apply(process, text.replace("type: text", "type: text, nullable: true"))
        for form in ("csv", "jsonl", "parquet"):
            await until(process, form, [1, 2])


async def test_reference_data_is_there_from_the_beginning_and_later_rows_from_where_time_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "limits.jsonl"
    file.write_text('{"n": 1, "t": "a"}\n{"n": 2, "t": "b"}\n')
    events = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: readings}
spec:
  http: {}
  format: {json: {}}
  columns: [{name: n, type: int}, {name: at, type: int}]
  timestampInterval: 50ms
  retain: all
  eventTime: {column: at, timeline: plant, skew: 0s, idleTimeout: 100ms, maxAhead: 100000d}
"""
    async with running(tmp_path) as process:
        await apply(process, events, source("limits", file, "jsonl", "timeline: plant"))
        await until(process, "limits", [1, 2], at=0)
        await process.controller.push("readings", [b'{"n": 7, "at": 1000}'])
        await process.context.collections.wait_for_upper("limits", 999, 240.0)
        with file.open("a") as more:
            more.write('{"n": 3, "t": "c"}\n')
        await wait_for_instants(process, 3)
    async with running(tmp_path) as process:
        await process.controller.push("readings", [b'{"n": 8, "at": 2000}'])
        await process.context.collections.wait_for_upper("limits", 1999, 240.0)
        await until(process, "limits", [1, 2], at=0)
        await until(process, "limits", [1, 2], at=999)
        await until(process, "limits", [1, 2, 3], at=1999)
