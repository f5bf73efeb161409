"""Every store passes the kit of its interface."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from time import sleep
from typing import Any

import pytest
import redis
from obstore.store import MemoryStore

from tidemill.errors import TidemillError, Unavailable
from tidemill.shard import (
    Blob,
    Consensus,
    DirectoryBlob,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
    Version,
    consensus_sqlite,
    sqlite_file,
)
from tidemill.shard.blob_objects import Bucket, ObjectBlob, bucket_blob
from tidemill.shard.consensus_redis import RedisConsensus
from tidemill.shard.sqlite_file import told_file
from tidemill.testkit.kits import blob as blob_kit
from tidemill.testkit.kits import consensus as consensus_kit
from tidemill.testkit.servers import redis_node


class Kept:
    """A memory store that "another process" finds again; closing keeps it."""

    def __init__(self) -> None:
        self.consensus = MemoryConsensus()
        self.blob = MemoryBlob()


@pytest.fixture(params=["memory", "sqlite"])
def open_consensus(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Consensus]:
    kept = Kept()
    if request.param == "memory":
        return lambda: kept.consensus
    return lambda: SqliteConsensus(tmp_path / "consensus.sqlite")


@pytest.fixture(params=["memory", "directory", "objects"])
def open_blob(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Blob]:
    kept = Kept()
    if request.param == "memory":
        return lambda: kept.blob
    if request.param == "objects":
        store = MemoryStore()
        return lambda: ObjectBlob(store, "memory")
    return lambda: DirectoryBlob(tmp_path / "blob", lambda: token_hex(8))


@pytest.mark.parametrize("law", consensus_kit.LAWS, ids=lambda law: law.__name__)
async def test_consensus(law: consensus_kit.Law, open_consensus: Callable[[], Consensus]) -> None:
    await law(open_consensus)


async def test_the_log_of_sqlite_begins_anew_before_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consensus_sqlite, "CHECKPOINT_BYTES", 100_000)
    file = tmp_path / "log.sqlite"
    one, two = SqliteConsensus(file), SqliteConsensus(file)
    for number in range(120):
        data = bytes([number]) * 5_000
        if number % 10 == 0:  # somebody reads now and then
            assert len(await two.scan("c", 0)) == number
        newest = number - 1 if number else None
        assert await one.compare_and_set("c", newest, Version(number, data))
    assert (tmp_path / "log.sqlite-wal").stat().st_size < 600_000 < file.stat().st_size
    found = await two.scan("c", 0)
    assert [version.data[0] for version in found] == list(range(120))
    await one.close()
    await two.close()


async def test_what_one_turn_asks_of_sqlite_is_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    decide = SqliteConsensus._decide

    def decided(store: SqliteConsensus, attempts: Sequence[Any]) -> list[bool | TidemillError]:
        together.append(len(attempts))
        return decide(store, attempts)

    monkeypatch.setattr(SqliteConsensus, "_decide", decided)
    store = SqliteConsensus(tmp_path / "log.sqlite")
    first = Version(0, b"first")
    won = await asyncio.gather(*(store.compare_and_set(k, None, first) for k in "abcdefgh"))
    assert won == [True] * 8
    assert together == [8]
    # Each is decided for itself, in order.
    asked = [("a", 0, 1), ("b", None, 0), ("a", 0, 1), ("a", 1, 2)]
    tried = (store.compare_and_set(k, expected, Version(n, b"")) for k, expected, n in asked)
    assert await asyncio.gather(*tried) == [True, False, False, True]
    assert together == [8, 4]
    await store.close()


async def test_closing_decides_what_waits_and_refuses_what_comes_later(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    store = SqliteConsensus(file)
    waiting = asyncio.create_task(store.compare_and_set("a", None, Version(0, b"first")))
    await asyncio.sleep(0)  # it has asked, and its turn has not ended
    await store.close()
    assert await waiting
    with pytest.raises(Unavailable):
        await store.compare_and_set("a", 0, Version(1, b"late"))
    again = SqliteConsensus(file)
    assert await again.scan("a", 0) == [Version(0, b"first")]
    await again.close()


async def test_an_attempt_that_another_loop_takes_while_the_file_is_closed_is_answered(
    tmp_path: Path,
) -> None:
    taking, ended = threading.Event(), threading.Event()

    class Slow(deque[Any]):
        """Takes an attempt only once the store is closed, if nothing else keeps it open."""

        def append(self, attempt: Any, /) -> None:
            taking.set()
            ended.wait(0.5)
            super().append(attempt)

    async def attempt() -> bool:
        async with asyncio.timeout(10):
            return await store.compare_and_set("a", None, Version(0, b"first"))

    store = SqliteConsensus(tmp_path / "log.sqlite")
    store._waiting = Slow()
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(asyncio.run, attempt())
        taking.wait()
        await store.close()
        ended.set()
        assert await asyncio.wrap_future(asked)


async def test_an_attempt_of_a_loop_that_has_ended_is_never_written(tmp_path: Path) -> None:
    store = SqliteConsensus(tmp_path / "log.sqlite")

    def begun() -> None:
        loop = asyncio.new_event_loop()
        attempt = store.compare_and_set("a", None, Version(0, b"dead"))
        loop.call_soon(attempt.send, None)
        loop.call_soon(loop.stop)  # before the end of the turn, at which attempts are handed over
        loop.run_forever()
        attempt.close()
        loop.close()

    await asyncio.to_thread(begun)
    assert await store.compare_and_set("b", None, Version(0, b""))
    assert await store.head("a") is None
    assert not store._asking
    await store.close()


async def test_whoever_writes_to_a_file_that_cannot_be_opened_hears_of_it(tmp_path: Path) -> None:
    file = tmp_path / "log.sqlite"
    told_file(file).mkdir()  # so that it cannot be read, whoever asks
    store = SqliteConsensus(file)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match="Is a directory"):
            await store.compare_and_set("a", None, Version(0, b""))
        with pytest.raises(Unavailable, match="Is a directory"):
            await store.head("a")
        told_file(file).rmdir()
        assert await store.compare_and_set("a", None, Version(0, b""))
    await store.close()


async def test_whatever_goes_wrong_with_a_write_is_told_to_whoever_waits(tmp_path: Path) -> None:
    store = SqliteConsensus(tmp_path / "log.sqlite")
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match="OverflowError"):
            await store.compare_and_set("a", None, Version(1 << 63, b""))
        assert await store.compare_and_set("a", None, Version(0, b""))
    await store.close()


@pytest.mark.server
@pytest.mark.parametrize("law", consensus_kit.LAWS, ids=lambda law: law.__name__)
async def test_consensus_in_redis(law: consensus_kit.Law, redis_url: str) -> None:
    prefix = f"t{token_hex(8)}"
    await law(lambda: RedisConsensus(redis_url, prefix=prefix))


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[str]:
    """Two primaries that share the hash slots between them; the URL of one."""
    with redis_node("first") as one, redis_node("second") as two:
        admins = [redis.Redis.from_url(node.address) for node in (one, two)]
        for at, admin in enumerate(admins):
            admin.execute_command("CLUSTER ADDSLOTSRANGE", 8192 * at, 8192 * at + 8191)
        port = two.address.rsplit(":", 1)[1].split("/")[0]
        admins[0].execute_command("CLUSTER MEET", "127.0.0.1", port, int(port) + 1)
        for admin in admins:
            while admin.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                sleep(0.02)
            admin.close()
        yield one.address


@pytest.mark.server
@pytest.mark.parametrize("law", consensus_kit.LAWS, ids=lambda law: law.__name__)
async def test_consensus_in_a_redis_cluster(law: consensus_kit.Law, redis_cluster: str) -> None:
    prefix = f"t{token_hex(8)}"
    await law(lambda: RedisConsensus(redis_cluster, prefix=prefix))


@pytest.mark.server
async def test_the_collections_of_a_cluster_are_on_all_its_nodes(redis_cluster: str) -> None:
    prefix = f"t{token_hex(8)}"
    store = RedisConsensus(redis_cluster, prefix=prefix)
    for number in range(16):
        assert await store.compare_and_set(f"c{number}", None, Version(0, b"x"))
    await store.close()
    streams = []
    for node in (redis_cluster, await other_node(redis_cluster)):
        admin = redis.Redis.from_url(node)
        streams.append(len(admin.keys(f"{prefix}:{{*")))
        admin.close()
    assert sum(streams) == 16
    assert all(streams)


async def other_node(url: str) -> str:
    """The URL of the other node of a cluster of two."""
    admin = redis.Redis.from_url(url)
    nodes = admin.execute_command("CLUSTER NODES")
    admin.close()
    (other,) = (address for address, node in nodes.items() if "myself" not in node["flags"])
    return f"redis://{other.split('@')[0]}"


@pytest.mark.server
@pytest.mark.parametrize("law", blob_kit.LAWS, ids=lambda law: law.__name__)
async def test_blob_in_an_object_store(law: blob_kit.Law, object_store: str) -> None:
    prefix = f"t{token_hex(8)}/inner"
    bucket = Bucket("tidemill", object_store, "us-east-1", "test", "test-secret", prefix)
    await law(lambda: bucket_blob(bucket))


@pytest.mark.parametrize("law", blob_kit.LAWS, ids=lambda law: law.__name__)
async def test_blob(law: blob_kit.Law, open_blob: Callable[[], Blob]) -> None:
    await law(open_blob)


async def test_an_unfinished_write_is_never_seen_under_its_key(tmp_path: Path) -> None:
    blob = DirectoryBlob(tmp_path, lambda: "writer")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.writer.unfinished").write_bytes(b"half")
    assert await blob.get("a/x") is None
    await blob.put("a/x", b"whole")
    assert await blob.get("a/x") == b"whole"


def opened_at_once(file: Path, keep_log: Callable[[sqlite3.Connection], object]) -> list[str]:
    """Errors of five threads that open a new file together."""
    together = threading.Barrier(5)

    def opened() -> str:
        together.wait()
        with closing(sqlite3.connect(file, timeout=10.0, isolation_level=None)) as connection:
            try:
                keep_log(connection)
            except sqlite3.OperationalError as error:
                return str(error)
            return str(connection.execute("pragma journal_mode").fetchone()[0])

    with ThreadPoolExecutor(5) as threads:
        return [each.result() for each in [threads.submit(opened) for _ in range(5)]]


def test_several_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    for n in range(20):
        assert opened_at_once(tmp_path / f"{n}.sqlite", sqlite_file.keep_log) == ["wal"] * 5


def test_sqlite_alone_refuses_whoever_comes_while_another_one_writes(tmp_path: Path) -> None:
    def opened() -> sqlite3.Connection:
        return sqlite3.connect(
            tmp_path / "new.sqlite", timeout=3600.0, isolation_level=None, check_same_thread=False
        )

    with closing(opened()) as one, closing(opened()) as two, ThreadPoolExecutor(1) as thread:
        one.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            two.execute("pragma journal_mode=wal")  # at once: it might have waited for an hour
        refused = threading.Event()
        two.set_trace_callback(lambda said: refused.set() if "begin" in said else None)
        waiting = thread.submit(sqlite_file.keep_log, two)
        assert refused.wait(60)  # as SQLite alone, and now it waits
        assert not waiting.done()
        one.execute("commit")
        waiting.result()
        assert two.execute("pragma journal_mode").fetchone() == ("wal",)
