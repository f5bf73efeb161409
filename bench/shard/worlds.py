"""Stores with their floors, and the rows that are written to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import redis
from obstore.store import S3Store

from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, DirectoryBlob, SqliteConsensus
from tidemill.shard.blob_objects import Bucket, bucket_blob
from tidemill.shard.consensus_redis import RedisConsensus
from tidemill.testkit.servers import object_server, redis_server

SCHEMA = pa.schema([("key", pa.int64()), ("val", pa.int64()), ("name", pa.string())])
TABLE = Description(SCHEMA, key=("key",))

Floor = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class World:
    """Stores under one name, and the barest durable write that each of them offers."""

    name: str
    open: Callable[[], Collections]
    log_floor: Floor
    object_floor: Floor
    log_floor_name: str
    object_floor_name: str


def rows(count: int, time: int, random: np.random.Generator, first: int = 0) -> pa.Table:
    """Updates with `count` keys in random order from `first` on; the other columns follow from the
    key.
    """
    keys = random.permutation(count) + first
    return pa.table(
        {
            "key": pa.array(keys),
            "val": pa.array(value_of(keys)),
            "name": pa.array(np.char.add("name-", (mixed(keys) // 1009 % 100_003).astype(str))),
            "_time": pa.array(np.full(count, time, np.uint64)),
            "_diff": pa.array(np.ones(count, np.int64)),
        }
    )


def value_of(keys: np.ndarray) -> np.ndarray:
    """The value that goes with a key; those of adjacent keys have nothing in common."""
    return (mixed(keys) % 1009).astype(np.int64)


def mixed(keys: np.ndarray) -> np.ndarray:
    """Keys as if drawn by lot, always the same for each."""
    with np.errstate(over="ignore"):
        words = np.asarray(keys, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        return words ^ (words >> np.uint64(29))


def plain_bytes(table: pa.Table) -> bytes:
    """The rows as an Arrow record batch: what has to become durable, without any index or order."""
    return bytes(table.combine_chunks().to_batches()[0].serialize().to_pybytes())


@asynccontextmanager
async def worlds() -> AsyncIterator[list[World]]:
    """Local files; Redis and a bucket. Everything is gone at the end."""
    folder = Path(mkdtemp(prefix="bench-", dir=_state()))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        yield [_files(folder, stack), _servers(stack)]


def _state() -> Path:
    folder = Path(".state")
    folder.mkdir(exist_ok=True)
    return folder


def _files(folder: Path, stack: AsyncExitStack) -> World:
    descriptor = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stack.callback(os.close, descriptor)

    async def append(data: bytes) -> None:
        os.write(descriptor, data)
        os.fsync(descriptor)

    def opened() -> Collections:
        return files_at(folder)

    return World("files", opened, append, append, "fsync'd append", "fsync'd append")


def files_at(folder: Path) -> Collections:
    """Collections in a folder, as a process that knows nothing yet opens them."""
    consensus = SqliteConsensus(folder / "consensus.sqlite")
    blob = DirectoryBlob(folder / "blob", lambda: token_hex(8))
    return Collections(consensus, blob, SystemClock(), lambda: token_hex(16))


def _servers(stack: AsyncExitStack) -> World:
    url = stack.enter_context(redis_server("bench")).address
    endpoint = stack.enter_context(object_server("bench")).address
    keys = {"access_key_id": "test", "secret_access_key": "test-secret"}
    store = S3Store(
        "tidemill",
        endpoint=endpoint,
        region="us-east-1",
        client_options={"allow_http": True},
        **keys,
    )
    client = redis.asyncio.Redis.from_url(url)
    stack.push_async_callback(client.aclose)

    async def set_key(data: bytes) -> None:
        await client.set(f"floor-{token_hex(8)}", data)

    async def put(data: bytes) -> None:
        await store.put_async(f"floor/{token_hex(8)}", data)

    def opened() -> Collections:
        bucket = Bucket("tidemill", endpoint, "us-east-1", "test", "test-secret", "bench")
        return Collections(
            RedisConsensus(url), bucket_blob(bucket), SystemClock(), lambda: token_hex(16)
        )

    return World("redis + bucket", opened, set_key, put, "Redis SET", "put")
