"""The page on sources: its resources are ones, and its keyed sources do what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tidemill.catalog.apply.check import check_files
from tidemill.errors import TidemillError, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log import Entry
from tidemill.runtime.resources import load_resources
from tidemill.testkit.pages import DOCS, blocks_of
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[3]
PAGE = (DOCS / "reference/sources.md").read_text()
BLOCKS = {
    load_resources(block.text)[0].name: block.text
    for block in blocks_of(PAGE)
    if block.kind == "yaml"
}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def until_holds(
    process: Whole, source: str, names: Sequence[str], rows: list[tuple[object, ...]]
) -> None:
    found: object = None
    with suppress(TimeoutError):
        async with asyncio.timeout(240):
            while found != rows:
                with suppress(TidemillError):
                    table = (await process.query.snapshot(source, None, 120.0)).table
                    found = sorted(zip(*(table[name].to_pylist() for name in names), strict=True))
                await asyncio.sleep(0.02)
    assert found == rows


def test_its_resources_have_no_mistakes_and_are_the_examples() -> None:
    for name, block in BLOCKS.items():
        assert check_files({f"{name}.yaml": block}) == []
    file = ROOT / "examples/formats/sources.yaml"
    examples = {each.name: each for each in load_resources(file.read_text())}
    assert {"payments", "stock", "customers", "secured"} <= BLOCKS.keys() & examples.keys()
    for name in BLOCKS.keys() & examples.keys():
        assert load_resources(BLOCKS[name])[0] == examples[name]


async def test_the_last_value_of_a_key_is_its_row_also_after_a_restart(tmp_path: Path) -> None:
    names = ("article", "pieces")

    async def write(process: Whole, *pairs: tuple[str, bytes | None]) -> None:
        entries = [Entry(key.encode(), value) for key, value in pairs]
        await process.context.log.append("stock", entries)

    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(BLOCKS["stock"], "page.yaml")])
        await write(process, ("nail", b'{"pieces": 7}'), ("bolt", b'{"pieces": 1}'), ("nail", b"{"))
        await until_holds(process, "stock", names, [("bolt", 1), ("nail", 7)])
    async with running(tmp_path) as process:
        await write(process, ("nail", b'{"pieces": 9}'), ("bolt", None), ("screw", None))
        await until_holds(process, "stock", names, [("nail", 9)])
        letters = (await process.query.snapshot("stock/deadletters", None, 120.0)).table
        assert letters["offset"].to_pylist() == [2]
        status = await process.controller.describe("Source", "stock")
        assert status.ready


async def test_changes_of_a_database_are_checked_against_what_is_held(tmp_path: Path) -> None:
    changes = [
        b'{"op": "r", "before": null, "after": {"id": 1, "name": "Ann"}}',
        b'{"schema": {}, "payload": {"op": "c", "after": {"id": 2, "name": "Bo"}}}',
        b'{"op": "u", "before": {"id": 1, "name": "Ann"}, "after": {"id": 1, "name": "Anna"}}',
        b'{"op": "u", "before": {"id": 2, "name": "X"}, "after": {"id": 2, "name": "Y"}}',
        b'{"op": "d", "before": {"id": 1, "name": "Anna"}, "after": null}',
        None,
        b'{"op": "c", "after": {"id": 2, "name": "Bo"}}',
        b'{"op": "x"}',
        b'{"op": "u", "before": {"id": 2, "name": "Bo"}, "after": {"id": 3, "name": "Bo"}}',
    ]
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(BLOCKS["customers"], "page.yaml")])
        await process.context.log.append("customers", [Entry(b"k", change) for change in changes])
        await until_holds(process, "customers", ("id", "name"), [(2, "Bo")])
        letters = (await process.query.snapshot("customers/deadletters", None, 120.0)).table
        said = sorted(
            zip(letters["offset"].to_pylist(), letters["reason"].to_pylist(), strict=True)
        )
        assert said == [
            (3, "it changes a row that was not like this before"),
            (7, "op x is no change"),
            (8, "the key changes within one record"),
        ]
        await process.context.log.append("customers", [Entry(b"k", b'{"op": "t"}')])
        async with asyncio.timeout(240):
            while (await process.controller.describe("Source", "customers")).reason != "Stalled":
                await asyncio.sleep(0.02)
        assert "truncated" in (await process.controller.describe("Source", "customers")).message
        await until_holds(process, "customers", ("id", "name"), [(2, "Bo")])


async def test_a_column_that_no_message_fills_is_refused_with_its_place(tmp_path: Path) -> None:
    described = descriptor_pb2.FileDescriptorSet()
    message = described.file.add(name="a.proto", syntax="proto3").message_type.add(name="M")
    message.field.add(
        name="id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64, label=1
    )
    path = tmp_path / "a.pb"
    path.write_bytes(described.SerializeToString())
    text = f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: a}}
spec:
  kafka: {{topic: a}}
  format: {{protobuf: {{descriptorSet: {path}, message: M}}}}
  columns: [{{name: id, type: COLUMN}}]
  timestampInterval: 50ms
"""
    async with running(tmp_path) as process:
        wrong = text.replace("COLUMN", "text")
        with pytest.raises(UsageError, match=r"page.yaml:8:.*id is text"):
            await process.controller.apply([ResourceDocument(wrong, "page.yaml")])
        await process.controller.apply(
            [ResourceDocument(text.replace("COLUMN", "int"), "page.yaml")]
        )
        await asyncio.to_thread(path.unlink)  # it has been read
        await process.context.log.append("a", [Entry(None, b"\x08\x07"), Entry(None, b"\xff")])
        await until_holds(process, "a", ("id",), [(7,)])


async def test_dead_letters_go_to_a_topic_each_once_where_that_is_declared(tmp_path: Path) -> None:
    blocks = blocks_of((DOCS / "reference/actions.md").read_text())
    (declared,) = [block.text for block in blocks if "deadletters" in block.text]
    async with running(tmp_path) as process:
        for text in (BLOCKS["stock"], declared):
            await process.controller.apply([ResourceDocument(text, "page.yaml")])
        log = process.context.log
        rows = [(b"nail", b'{"pieces": 7}'), (b"bolt", b"{"), (b"nut", b"[]")]
        await log.append("stock", [Entry(key, value) for key, value in rows])
        found: list[object] = []
        async with asyncio.timeout(240):
            while len(found) < 2:
                with suppress(UsageError):
                    high = (await log.bounds("deadletters"))[0][1]
                    reader = await log.reader("deadletters", {0: 0})
                    values = [r.value or b"" for r in await reader.poll(10, 0.0)] if high else []
                    found = sorted(json.loads(value)["arguments"][3] for value in values)
                    await reader.close()
                await asyncio.sleep(0.02)
    assert found == ["[]", "{"]
