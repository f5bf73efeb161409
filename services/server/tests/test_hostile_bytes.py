"""A running server and clients that send bytes no client of ours would: it refuses, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pyarrow as pa
import pytest

from tidemill.client import Client
from tidemill.errors import UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import Appended, Changes, CollectionShape
from tidemill.testkit.up import UpProcess, up_process
from tidemill.time import frontier
from tidemill_protos.catalog.v1 import catalog_pb2, catalog_pb2_grpc

TABLES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: names}
spec: {columns: [{name: name, type: text}], retain: 10m}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: numbers}
spec: {columns: [{name: n, type: int}], retain: 2s}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: long}
spec: {columns: [{name: id, type: int}, {name: text, type: text}], retain: 10m}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: known}
spec:
  inputs: {name: names}
  program: "known(n) := name(n);"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "all.yaml").write_text(TABLES)
    with up_process(folder, "-f", "all.yaml") as process:
        process.until(lambda client: client.insert("names", [{"name": "first"}]))
        process.until(lambda client: client.insert("numbers", [{"n": 0}]))
        yield process


def lying_texts(offsets: list[int], data: bytes) -> pa.Table:
    where = pa.array(offsets, pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, where, pa.py_buffer(data)])
    return pa.table({"name": texts})


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def refused(server: UpProcess, table: str, sent: bytes) -> str:
    """The refusal of an insert that no client of ours would send."""
    with grpc.insecure_channel(server.address("grpc")) as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Insert(catalog_pb2.InsertRequest(table=table, arrow_ipc=sent), timeout=60)
    error = caught.value
    assert isinstance(error, grpc.Call)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    return str(error.details())


def still_answers(server: UpProcess, question: str = "known(n)") -> bool:
    def asked(client: Client) -> bool | None:
        return True if client.query(question).table.num_rows else None

    return bool(server.until(asked)) and server.running


@pytest.mark.parametrize(
    ("offsets", "data"),
    [([0, 10, 5, 13], b"abcdefghijklmn"), ([0, 2], b"\xff\xfe")],
    ids=["offsets that lie", "no UTF-8"],
)
def test_s4_a_and_b_an_insert_that_lies_is_refused_and_the_server_lives(
    server: UpProcess, offsets: list[int], data: bytes
) -> None:
    said = refused(server, "names", stream(lying_texts(offsets, data)))
    assert "not an Arrow stream that can be taken" in said
    assert still_answers(server)


def test_s4_c_a_bomb_of_an_insert_is_refused_before_it_is_opened(server: UpProcess) -> None:
    bomb = stream(pa.table({"name": ["\0" * (64 << 20)]}), "zstd")
    assert len(bomb) < 64 * 1024
    assert "compressed" in refused(server, "names", bomb)
    assert still_answers(server)


def test_rows_that_take_no_bytes_are_refused_before_they_are_made(server: UpProcess) -> None:
    """Nulls, and columns that are left out, took a hundred times the memory of their message."""
    bomb = stream(pa.table({"flag": pa.repeat(True, 20_000_000)}))
    assert len(bomb) < 3_000_000
    said = refused(server, "numbers", bomb)
    assert "20000000 rows for numbers are too many with 1 columns" in said
    assert still_answers(server)


async def test_s4_d_and_v2_columns_that_do_not_come_back_are_refused_at_create(
    server: UpProcess,
) -> None:
    words = pa.dictionary(pa.int32(), pa.string())
    async with AsyncClient(server.address("grpc")) as client:
        for number, kind in enumerate([words, pa.float16(), pa.string_view(), pa.list_(words)]):
            shape = CollectionShape(pa.schema([("v", kind)]), user_writable=True, kind="table")
            with pytest.raises(UsageError, match="no collection holds"):
                await client.storage.create(f"wrong-{number}", shape)
    assert still_answers(server)


@pytest.mark.parametrize(
    "name",
    ["a\0b", "a\nb", "a\x1b[2J", "a\u202eb", "e\u0301", "../x", "a/./b", "a/", "a//b", " ", "a~2"],
)
async def test_a_collection_whose_name_is_not_what_it_looks_like_is_refused(
    server: UpProcess, name: str
) -> None:
    """It would move the terminals of those who list it, or pass for another one."""
    shape = CollectionShape(pa.schema([("v", pa.int64())]), user_writable=True, kind="table")
    async with AsyncClient(server.address("grpc")) as client:
        with pytest.raises(UsageError, match="is refused: write one of characters"):
            await client.storage.create(name, shape)
        listed = [each.id for each in await client.collections()]
    assert name not in listed


@pytest.mark.parametrize("diff", [2**31 + 1, 2**62, 2**63 - 1])
def test_v1_and_s4_e_copies_that_nobody_can_add_up_are_refused_at_insert(
    server: UpProcess, diff: int
) -> None:
    with server.client() as client:
        for _ in range(3):
            with pytest.raises(UsageError, match="a _diff is beyond ±2147483648"):
                client.insert("numbers", [{"n": 1, "_diff": diff}])
        client.insert("numbers", [{"n": diff, "_diff": 2**31}])
        found = client.query("numbers").table.to_pylist()
    assert {"n": diff, "_diff": 2**31} in found  # not two thousand million plain rows


async def test_v1_a_writer_of_the_formalism_is_refused_the_same(server: UpProcess) -> None:
    shape = CollectionShape(pa.schema([("n", pa.int64())]), user_writable=True, kind="table")
    async with AsyncClient(server.address("grpc")) as client:
        pair = await client.storage.create("sums", shape)
        assert pair.write is not None

        def times(diff: int) -> pa.Table:
            return pa.table(
                {"n": [7], "_time": pa.array([0], pa.uint64()), "_diff": pa.array([diff])}
            )

        with pytest.raises(UsageError, match="by more than"):
            await client.storage.update_and_downgrade(pair.write, times(2**62), frontier(1))
        outcome = await client.storage.update_and_downgrade(pair.write, times(2**31), frontier(1))
        assert outcome == Appended(frontier(1))
        events = [
            event
            async for event in client.storage.subscribe_at(pair.read, 0, snapshot=True, up_to=1)
        ]
    assert [e.table["_diff"].to_pylist() for e in events if isinstance(e, Changes)] == [[2**31]]


def test_v3_long_rows_among_short_ones_are_read_back_and_longer_ones_are_refused(
    server: UpProcess,
) -> None:
    long = (1 << 20) - 1_000
    with server.client() as client:
        short = pa.table({"id": range(100_000), "text": ["x" * 8] * 100_000})
        client.insert("long", short)
        for number in range(8):
            ids = range(-10 * number - 10, -10 * number)
            client.insert("long", pa.table({"id": ids, "text": ["y" * long] * 10}))
        found = client.query("long").table
        assert found.num_rows == 100_080
        with pytest.raises(UsageError, match=r"limits\.row_bytes"):
            client.insert("long", pa.table({"id": [1], "text": ["z" * (1 << 20)]}))
        assert client.query("long(-8, t)").table.num_rows == 1
