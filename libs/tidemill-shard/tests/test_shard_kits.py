"""Every store passes the kit of its interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

import pytest
from obstore.store import MemoryStore

from tidemill.shard import (
    Blob,
    Consensus,
    DirectoryBlob,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
)
from tidemill.shard.blob_objects import ObjectBlob
from tidemill.shard.consensus_redis import RedisConsensus
from tidemill.testkit.kits import blob as blob_kit
from tidemill.testkit.kits import consensus as consensus_kit


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


@pytest.mark.server
@pytest.mark.parametrize("law", consensus_kit.LAWS, ids=lambda law: law.__name__)
async def test_consensus_in_redis(law: consensus_kit.Law, redis_url: str) -> None:
    prefix = f"t{token_hex(8)}"
    await law(lambda: RedisConsensus(redis_url, prefix=prefix))


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
