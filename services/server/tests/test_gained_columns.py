"""Sources of Avro and Protobuf gain columns: rows from before are null in them, also after a
restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from tidemill.errors import TidemillError, UsageError
from tidemill.rpc.messages import Outcome, ResourceDocument
from tidemill.runtime.log import Entry
from tidemill.testkit.schema_registry import schema_registry
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: orders}
spec:
  kafka: {topic: orders}
  format: FORMAT
  columns: [{name: id, type: int}MORE]
  timestampInterval: 50ms
  retain: all
"""
PIECES = ", {name: pieces, type: int, nullable: true}"
CITY = ", {name: city, type: text, nullable: true}"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


def documents(form: str, more: str) -> list[ResourceDocument]:
    return [ResourceDocument(SOURCE.replace("FORMAT", form).replace("MORE", more), "o.yaml")]


async def gain(process: Whole, form: str, more: str) -> None:
    (applied,) = await process.controller.apply(documents(form, more))
    assert applied.outcome == Outcome.CONFIGURED


async def until_holds(process: Whole, *rows: tuple[object, ...]) -> None:
    found: list[tuple[object, ...]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(240):
            while found != sorted(rows):
                with suppress(TidemillError):
                    table = (await process.query.snapshot("orders", None, 120.0)).table
                    kept = table.drop_columns(["_diff"])
                    found = sorted(zip(*(c.to_pylist() for c in kept.columns), strict=True))
                await asyncio.sleep(0.02)
    assert found == sorted(rows)


async def test_a_source_of_avro_gains_what_its_schemas_have_and_come_to_have(
    tmp_path: Path,
) -> None:
    first = {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "pieces", "type": "long"},
    ]}  # fmt: skip
    city = {"name": "city", "type": "string"}
    async with schema_registry() as registry:
        old = registry.register("orders-value", first)
        new = registry.register("orders-value", {**first, "fields": [*first["fields"], city]})
        form = f'{{avro: {{registry: {{url: "{registry.url}"}}}}}}'

        async def write(process: Whole, number: int, **order: object) -> None:
            await process.context.log.append(
                "orders", [Entry(None, registry.record(number, order))]
            )

        async with running(tmp_path) as process:
            await process.controller.apply(documents(form, ""))
            await write(process, old, id=1, pieces=10)
            await until_holds(process, (1,))
            await gain(process, form, PIECES)
            await write(process, old, id=2, pieces=20)
            await until_holds(process, (1, None), (2, 20))
            await gain(process, form, PIECES + CITY)
            await write(process, new, id=3, pieces=30, city="Oslo")
            await write(process, old, id=4, pieces=40)
            rows = [(1, None, None), (2, 20, None), (3, 30, "Oslo"), (4, 40, None)]
            await until_holds(process, *rows)
        async with running(tmp_path) as process:
            await until_holds(process, *rows)
            await write(process, new, id=5, pieces=50, city="Rome")
            await until_holds(process, *rows, (5, 50, "Rome"))


def described(path: Path, *fields: tuple[str, int]) -> None:
    """Write the descriptors of a message Order with these fields, numbered from one."""
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="o.proto", syntax="proto3").message_type.add(name="Order")
    for number, (name, kind) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    path.write_bytes(files.SerializeToString())


async def test_a_source_of_protobuf_gains_what_the_new_descriptors_say(tmp_path: Path) -> None:
    path = tmp_path / "orders.pb"
    number, text = (
        descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
        descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    )
    described(path, ("id", number))
    form = f"{{protobuf: {{descriptorSet: {path}, message: Order}}}}"
    async with running(tmp_path) as process:

        async def write(record: bytes) -> None:
            await process.context.log.append("orders", [Entry(None, record)])

        await process.controller.apply(documents(form, ""))
        await write(b"\x08\x01\x10\x0a")  # a field that the message does not have yet
        await until_holds(process, (1,))
        with pytest.raises(UsageError, match=r"o\.yaml:.*pieces"):
            await process.controller.apply(documents(form, PIECES))
        described(path, ("id", number), ("pieces", number), ("city", text))
        await gain(process, form, PIECES)
        await write(b"\x08\x02\x10\x14")
        await until_holds(process, (1, None), (2, 20))
        await gain(process, form, PIECES + CITY)
        await write(b"\x08\x03\x10\x1e\x1a\x04Oslo")
        rows = [(1, None, None), (2, 20, None), (3, 30, "Oslo")]
        await until_holds(process, *rows)
    async with running(tmp_path) as process:
        path.unlink()  # what it said is kept
        await until_holds(process, *rows)
        await process.context.log.append("orders", [Entry(None, b"\x08\x04\x1a\x04Rome")])
        await until_holds(process, *rows, (4, 0, "Rome"))
