"""A deleted resource gives its storage back, and its name never means it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.client import Client
from tidemill.errors import UnknownCollection, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.shard import Collections
from tidemill.testkit.faults.fuse import Fuse, Killed
from tidemill.testkit.up import up_process
from tidemill.testkit.whole import Whole, opened
from tidemill.time import frontier
from tidemill_server.commands.offline import delete_offline
from tidemill_server.settings import ServerSettings

CONFIG = """
compaction:
  interval_s: 0.2
  garbage_grace_s: 1
"""
DOCUMENTS = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: big}
spec: {columns: [{name: n, type: int}, {name: text, type: text}], retain: 2s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: over}
spec: {retain: all, program: "copied(n, t) := big(n, t);"}
"""
ROWS = 40_000


def stored_bytes(folder: Path) -> int:
    """The contents of the store's objects."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and "part" in f.name)


def tombstones(client: Client) -> list[str]:
    return [c.id for c in client.collections() if c.since.empty and c.upper.empty]


@pytest.mark.rule("L3", "K15")
def test_v4_a_deleted_resource_gives_its_storage_back_within_the_grace(tmp_path: Path) -> None:
    (tmp_path / "up.yaml").write_text(CONFIG)
    rows = pa.table({"n": range(ROWS), "text": [f"{n * 7919:032x}" for n in range(ROWS)]})
    with up_process(tmp_path, "--config", "up.yaml") as server:
        with server.client() as client:
            client.apply(ResourceDocument(DOCUMENTS, "test.yaml"))
            time = client.insert("big", rows).time
            assert client.query("over/copied", time, timeout_s=60).table.num_rows == ROWS
            assert stored_bytes(tmp_path / "state") > 100_000
            client.delete("View", "over")
            client.delete("Table", "big")
            assert {"big", "over/copied", "over/state"} <= set(tombstones(client))
        server.until(lambda _: True if stored_bytes(tmp_path / "state") == 0 else None, 30)
        # The name is free, and the collection that it makes is another one.
        with server.client() as client:
            client.apply(ResourceDocument(DOCUMENTS, "test.yaml"))
            client.insert("big", rows.slice(0, 1))
            assert client.query("big").table.num_rows == 1
            assert "big" in tombstones(client)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def list_left(process: Whole) -> list[str]:
    """Remains of a deleted view: its collections that are kept, its holds on others."""
    found = []
    for collection in ("over/copied", "over/errors", "over/state"):
        status = await process.context.collections.status(collection)
        found += [collection] if status.retained != frontier() or status.holders else []
    holders = (await process.context.collections.status("big")).holders
    return found + [holder.owner for holder in holders]


async def dies_while_deleting(folder: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Delete a view in a process that dies at one of the writes that follow the mark."""
    fuse = Fuse(writes)
    retire, drop = Collections.retire, Collections.drop

    async def retire_at_fuse(self: Collections, collection: str) -> None:
        await fuse.write(lambda: retire(self, collection))

    async def drop_at_fuse(self: Collections, *held: Any, **how: Any) -> None:
        await fuse.write(lambda: drop(self, *held, **how))

    async with running(folder) as process:
        await process.controller.apply([ResourceDocument(DOCUMENTS, "test.yaml")])
        await process.controller.insert("big", pa.table({"n": [1], "text": ["a"]}))
        with monkeypatch.context() as patched:
            patched.setattr(Collections, "retire", retire_at_fuse)
            patched.setattr(Collections, "drop", drop_at_fuse)
            with pytest.raises(Killed):
                await process.controller.delete("View", "over")


@pytest.mark.parametrize("writes", [1, 2, 4])
async def test_v4_a_process_that_dies_in_the_middle_of_deleting_leaves_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    await dies_while_deleting(tmp_path, monkeypatch, writes)
    async with opened(ServerSettings(directory=str(tmp_path / "state"))) as process:
        await process.context.store.open()
        assert process.context.store.get("View", "over") is None, "the mark was not written"
        assert [each.resource.name for each in process.context.store.ending()] == ["over"]
        assert "view:over" in await list_left(process)


@pytest.mark.rule("L3")
@pytest.mark.parametrize("writes", [1, 2, 4])
async def test_v4_what_was_deleted_halfway_is_gone_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    await dies_while_deleting(tmp_path, monkeypatch, writes)
    async with running(tmp_path) as process:
        assert await list_left(process) == []
        assert process.context.store.ending() == []
        await process.controller.delete("Table", "big")
        await process.controller.apply([ResourceDocument(DOCUMENTS, "test.yaml")])


async def test_v4_a_delete_that_failed_is_finished_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: Collections, collection: str) -> None:
        raise UsageError(f"nothing can be written to {collection}")

    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(DOCUMENTS, "test.yaml")])
        with monkeypatch.context() as patched:
            patched.setattr(Collections, "retire", away)
            with pytest.raises(UsageError):
                await process.controller.delete("View", "over")
        assert "view:over" in await list_left(process)
        with pytest.raises(UnknownCollection):
            await process.controller.delete("View", "over")
        assert await list_left(process) == []


def test_offline_nothing_is_made_where_no_state_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .* with state"):
        delete_offline("View", "v", str(tmp_path / "none"), None)
    assert list(tmp_path.iterdir()) == []
