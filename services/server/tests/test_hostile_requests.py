"""Each request of users with each field left out, empty, or at its extremes.

It is answered, or refused with details of ours, and the server goes on.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.host.settings import LimitSettings
from tidemill.rpc.admission import Admissions
from tidemill.rpc.server import serve
from tidemill.rpc.status import DETAILS_KEY, DOMAIN
from tidemill.testkit.whole import Whole, opened
from tidemill_protos.catalog.v1 import catalog_pb2 as catalog
from tidemill_protos.compute.v1 import compute_pb2 as compute
from tidemill_protos.query.v1 import query_pb2 as query
from tidemill_protos.storage.v1 import storage_pb2 as storage
from tidemill_query.authorizing import (
    AuthorizedCatalog,
    AuthorizedCompute,
    AuthorizedQueries,
    AuthorizedStorage,
)
from tidemill_server.settings import ServerSettings

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: tab}
spec: {columns: [{name: a, type: int}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: vw}
spec: {retain: all, program: "out(a) := tab(a);"}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: src}
spec: {http: {}, columns: [{name: a, type: int}]}
"""
SCHEMA = pa.schema([("a", pa.int64())])
ROWS = pack_table(pa.table({"a": [1, 2]}))
UPDATES = pack_table(
    pa.table(
        {
            "a": [1],
            "_time": pa.array([0], pa.uint64()),
            "_diff": pa.array([1], pa.int64()),
        }
    )
)
DIFF_OF_TEXT = pack_table(
    pa.table({"a": [1], "_time": pa.array([0], pa.uint64()), "_diff": ["-1"]})
)
TEXTS = [
    "", " ", "\0", "a" * 501, "é" * 70_000, "../x", "\u202ea", "~1", "tab", "vw/out", "src", '{"a":',
    "9" * 5_000, "tab(a)", "tab(" + "(" * 3_000, "catalog", "src/remap", "\x1b[2J",
]  # fmt: skip
BYTES = [b"", b"\xff" * 10, ROWS, ROWS[:-8], UPDATES, DIFF_OF_TEXT, b"\xff\xff\xff\xff\0\0\0\x80"]
EXTREMES: dict[int, list[Any]] = {
    9: TEXTS,
    12: BYTES,
    4: [0, 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
    3: [-(1 << 63), -1, 0, 1, (1 << 63) - 1],
    13: [0, (1 << 32) - 1],
    1: [math.nan, math.inf, -math.inf, -1.0, -0.0, 5e-324],
    8: [True, False],
    14: [0, 1, 2, 3, 99, -1],
}
"""Values of each type of a field, by its number in descriptors."""

WAITS = {"Subscribe", "SubscribeAt"}
"""Streams without an end."""

MOVES = {"Downgrade", "UpdateAndDowngrade"}
"""Calls after which a capability is another one."""

Change = Callable[[Any], object]


def variants(message: Any, path: str = "") -> Iterator[tuple[str, Change]]:
    """Each way to spoil one field of a request, also of the messages in it."""
    for each in message.DESCRIPTOR.fields:
        name, here = each.name, f"{path}.{each.name}"
        yield f"{here} absent", partial(_clear, name)
        inner = each.message_type
        if inner is not None and inner.GetOptions().map_entry:
            yield f"{here} empty", partial(_key, name, "")
            yield f"{here} long", partial(_key, name, "x" * 600)
        elif inner is not None:
            yield f"{here} empty", partial(_add if each.is_repeated else _empty, name, 2_000)
            for label, change in variants(inner._concrete_class(), here):
                yield label, partial(_within, name, each.is_repeated, change)
        elif each.is_repeated:
            values = EXTREMES[each.type]
            yield f"{here} all", partial(_extend, name, values)
            for value in values:
                yield f"{here} {value!r:.20}", partial(_extend, name, [value])
                yield f"{here} only {value!r:.20}", partial(_replace, name, [value, value])
        else:
            for value in EXTREMES[each.type]:
                yield f"{here} {value!r:.20}", partial(_set, name, value)


def _clear(name: str, message: Any) -> None:
    message.ClearField(name)


def _set(name: str, value: Any, message: Any) -> None:
    setattr(message, name, value)


def _key(name: str, key: str, message: Any) -> None:
    getattr(message, name)[key].SetInParent()


def _add(name: str, times: int, message: Any) -> None:
    for _ in range(times):
        getattr(message, name).add()


def _empty(name: str, _: int, message: Any) -> None:
    message.ClearField(name)
    getattr(message, name).SetInParent()


def _extend(name: str, values: list[Any], message: Any) -> None:
    getattr(message, name).extend(values)


def _replace(name: str, values: list[Any], message: Any) -> None:
    message.ClearField(name)
    getattr(message, name).extend(values)


def _within(name: str, repeated: bool, change: Change, message: Any) -> None:
    inner = getattr(message, name)
    if repeated:
        inner = inner[0] if inner else inner.add()
    change(inner)


@dataclass
class Walk:
    """Calls of one server, and those that were told as bugs of it."""

    channel: grpc.aio.Channel
    bugs: list[str] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=dict)
    made: int = 0
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))

    async def call(self, method: Any, request: Any, **options: Any) -> list[Any]:
        path = f"/{method.containing_service.full_name}/{method.name}"
        read = message_factory.GetMessageClass(method.output_type).FromString
        if not method.server_streaming:
            unary = self.channel.unary_unary(path, bytes, read)
            return [await unary(bytes_of(request), timeout=120, **options)]
        stream = self.channel.unary_stream(path, bytes, read)
        running = stream(bytes_of(request), timeout=120, **options)
        found = []
        async for message in running:
            found.append(message)
            if method.name in WAITS:
                running.cancel()
                break
        return found

    async def send_spoiled(self, method: Any, label: str, request: Any) -> None:
        async with self.gate:
            try:
                # A wait for an instant that never comes is left after a while.
                async with asyncio.timeout(1 if method.name in WAITS else 60):
                    await self.call(method, request)
                said = "OK"
            except TimeoutError:
                said = "waits"
            except grpc.aio.AioRpcError as error:
                said = reason_of(error)
                if said in ("", "INTERNAL", "INDETERMINATE", "CORRUPT", "UNAVAILABLE"):
                    self.bugs.append(f"{method.name}{label}: {error.code()} {error.details()}")
        self.told[said] = self.told.get(said, 0) + 1


def bytes_of(request: Any) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason in our own details; empty without any."""
    info = error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
    return str(info.reason) if info.domain == DOMAIN else ""


def methods() -> list[Any]:
    return [
        method
        for file in (catalog, query, storage, compute)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


async def create_held(walk: Walk, create: Any) -> storage.CreateResponse:
    """Capabilities of a new collection."""
    walk.made += 1
    shape = storage.CollectionShape(
        arrow_schema=SCHEMA.serialize().to_pybytes(), timeline="tl", user_writable=True
    )
    name = f"held-{walk.made}"
    request = storage.CreateRequest(collection=name, owner="me", lease_ms=600_000, shape=shape)
    held: storage.CreateResponse = (await walk.call(create, request))[0]
    return held


class Requests:
    """A request of each method that is right."""

    def __init__(self, held: storage.CreateResponse) -> None:
        self._read, self._write = held.read, held.write
        self._made = 0

    def of(self, name: str) -> Any:
        self._made += 1
        fresh, read = f"c{self._made}", self._read
        shape = storage.CollectionShape(
            arrow_schema=SCHEMA.serialize().to_pybytes(), key=["a"], retain_ms=1_000,
            user_writable=True, timeline="tl", kind="table",
        )  # fmt: skip
        origin, later = storage.Frontier(times=[0]), storage.Frontier(times=[1])
        condition = storage.Condition(
            column="a", comparison=storage.COMPARISON_EQUAL, value_json="1"
        )
        document = catalog.ResourceDocument(text="kind: Nothing", file="f.yaml")
        offsets = query.SourceFrontier(ranges=[query.PartitionRange(lo=0, hi=0, offset=0)])
        given: dict[str, Any] = {
            "Snapshot": query.SnapshotRequest(collection="tab"),
            "Ask": query.AskRequest(goal="tab(a)"),
            "Subscribe": query.SubscribeRequest(goal="tab", snapshot=True),
            "Why": query.WhyRequest(record="vw/out(1)"),
            "WhyNot": query.WhyNotRequest(record="vw/out(7)"),
            "Explain": query.ExplainRequest(view="vw", form="plan"),
            "Tables": query.TablesRequest(names=["tab", "vw/out"]),
            "ExplainTimestamp": query.ExplainTimestampRequest(names=["tab"]),
            "Translate": query.TranslateRequest(source="src", offsets=offsets),
            "Collections": query.CollectionsRequest(),
            "Apply": catalog.ApplyRequest(documents=[document]),
            "Get": catalog.GetRequest(kind="Table", name="tab"),
            "Describe": catalog.DescribeRequest(kind="Table", name="tab"),
            "Delete": catalog.DeleteRequest(kind="Table", name="nobodys"),
            "Insert": catalog.InsertRequest(table="tab", arrow_ipc=ROWS),
            "Push": catalog.PushRequest(source="src", rows=[b'{"a":1}']),
            "Decide": catalog.DecideRequest(view="vw", decision=catalog.DECISION_APPROVE),
            "Create": storage.CreateRequest(
                collection=fresh, shape=shape, owner="me", lease_ms=60_000, start=origin
            ),
            "AcquireCapabilities": storage.AcquireCapabilitiesRequest(
                collection="tab", owner="me", lease_ms=60_000, rights=storage.RIGHTS_READ
            ),
            "HoldVersion": storage.HoldVersionRequest(collection="tab", owner="me", lease_ms=9_000),
            "Expire": storage.ExpireRequest(collection="tab", key="k"),
            "CloneCapability": storage.CloneCapabilityRequest(capability=read),
            "TransferCapability": storage.TransferCapabilityRequest(
                capability=storage.Capability(
                    id="i", collection="held", right=storage.RIGHT_READ
                ), owner="you"
            ),
            "Downgrade": storage.DowngradeRequest(capability=read, to=origin),
            "Drop": storage.DropRequest(capability=storage.Capability(id="i", collection="held")),
            "Renew": storage.RenewRequest(capability=read),
            "UpdateAndDowngrade": storage.UpdateAndDowngradeRequest(
                capability=self._write, arrow_ipc=UPDATES, new=later, token="t"
            ),
            "SubscribeAt": storage.SubscribeAtRequest(
                capability=read, at=0, snapshot=True, columns=["a"], where=[condition]
            ),
            "LocateObjects": storage.LocateObjectsRequest(capability=read, keys=["k"]),
            "MaintainView": compute.MaintainViewRequest(
                name=fresh, program="o(x) := nobodys(x);", inputs={"i": read}, at=origin,
                outputs=["o"], retain_ms=1_000, owner="me", lease_ms=60_000,
            ),
            "DropView": compute.DropViewRequest(capability=read),
        }  # fmt: skip
        return given[name]


async def serve_all(process: Whole, limits: LimitSettings) -> Any:
    await process.start()
    await process.apply(RESOURCES)
    await process.insert("tab", {"a": 1})
    world = process.context
    return await serve(
        "127.0.0.1:0",
        AuthorizedQueries(process.query, world.catalog),
        AuthorizedCatalog(process.controller, world.catalog),
        AuthorizedStorage(process.storage, world.catalog),
        AuthorizedCompute(process.maintaining, world.catalog),
        admissions=Admissions(limits.of_calls(True), world.clock.monotonic_s, world.clock.sleep),
    )


@pytest.mark.parametrize("service", ["Catalog", "Query", "Storage", "Compute"])
async def test_a_request_with_any_field_spoiled_is_no_bug_of_the_server(
    service: str, tmp_path: Path
) -> None:
    """Unknown columns of a subscription, and updates without diffs, were told as bugs."""
    limits = LimitSettings()
    async with opened(ServerSettings(directory=str(tmp_path), limits=limits)) as process:
        server = await serve_all(process, limits)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            walk = Walk(channel)
            by_name = {method.name: method for method in methods()}
            for method in methods():
                if method.containing_service.name != f"{service}Service":
                    continue
                requests = Requests(await create_held(walk, by_name["Create"]))
                spoiled = []
                for label, change in variants(requests.of(method.name)):
                    if method.name in MOVES:
                        requests = Requests(await create_held(walk, by_name["Create"]))
                    one = requests.of(method.name)
                    change(one)
                    spoiled.append((label, one))
                spoiled += [(f" {junk!r}", junk) for junk in (b"\xff", b"\x0b" * 3_000)]
                await asyncio.gather(*(walk.send_spoiled(method, *each) for each in spoiled))
            answered = await walk.call(by_name["Ask"], query.AskRequest(goal="tab(a)"))
        await server.stop(0)
    assert not walk.bugs
    assert answered
    assert walk.told["USAGE_ERROR"] > 10


async def test_compressed_requests_are_read_and_bombs_are_refused(tmp_path: Path) -> None:
    """A message of eighty kilobytes may not become one of more than may be sent."""
    assert len(zlib.compress(bytes(80 << 20))) < 100_000  # the bomb is one
    limits = LimitSettings()
    async with opened(ServerSettings(directory=str(tmp_path), limits=limits)) as process:
        server = await serve_all(process, limits)
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{server.port}", options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            walk = Walk(channel)
            by_name = {method.name: method for method in methods()}
            packed = {"compression": grpc.Compression.Gzip}
            ask = query.AskRequest(goal="tab(a)")
            assert await walk.call(by_name["Ask"], ask, **packed)
            bomb = catalog.InsertRequest(table="tab", arrow_ipc=bytes(80 << 20))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await walk.call(by_name["Insert"], bomb, **packed)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await walk.call(by_name["Ask"], ask)
        await server.stop(0)
