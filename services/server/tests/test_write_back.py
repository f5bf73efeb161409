"""Views that are given write capabilities: what users created holds what an output does, and nobody
else writes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.client.capabilities import (
    AsyncReader,
    AsyncWriter,
    acquire_writer,
    create_with_rights,
    hold,
    maintain,
)
from tidemill.errors import TidemillError, UnknownCapability, UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import CollectionShape, MaintainedView, ResourceDocument
from tidemill.rpc.server import serve
from tidemill.testkit.whole import Whole, opened
from tidemill.time import frontier
from tidemill_query.authorizing import (
    AuthorizedCatalog,
    AuthorizedCompute,
    AuthorizedQueries,
    AuthorizedStorage,
)
from tidemill_server.settings import ServerSettings

SHAPE = CollectionShape(
    pa.schema([("h", pa.string()), ("w", pa.int64())]), timeline="scale", user_writable=True
)
NAMES = CollectionShape(pa.schema([("name", pa.string())]), timeline="scale", user_writable=True)
PROGRAM = "heavy(h) := weights(h, w) if w > 10;"
TOKEN = "a-token-nobody-guesses"
TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: hosts}
spec: {columns: [{name: name, type: text}], retain: all}
"""
OTHERWISE = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: few}
spec: {retain: all, program: "heavy(h) := weights(h, w) if w > 20;"}
"""


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Whole, AsyncClient]]:
    """A server with its state in a folder, and who calls it over gRPC."""
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        catalog = process.context.catalog
        server = await serve(
            "127.0.0.1:0", AuthorizedQueries(process.query, catalog),
            AuthorizedCatalog(process.controller, catalog),
            AuthorizedStorage(process.storage, catalog), AuthorizedCompute(process.maintaining, catalog),
        )  # fmt: skip
        async with AsyncClient(f"127.0.0.1:{server.port}", timeout_s=240) as client:
            yield process, client
        await server.stop(0)


def weights(*rows: tuple[str, int]) -> pa.Table:
    return pa.table({"h": [h for h, _ in rows], "w": [w for _, w in rows]}, SHAPE.schema)


async def names(read: AsyncReader, at: int) -> list[str]:
    """The rows of a collection with one column at an instant; each row is there once."""
    async with asyncio.timeout(120):
        table = await read.snapshot(at)
    if not table.num_columns:
        return []
    assert set(table["_diff"].to_pylist()) == {1}
    return sorted(table.column(0).to_pylist())


async def until_upper(process: Whole, collection: str, upper: int) -> None:
    async with asyncio.timeout(120):
        while not frontier(upper).precedes((await process.context.collections.status(collection)).upper):  # fmt: skip
            await asyncio.sleep(0.05)


@pytest.mark.rule("MV1", "MV2", "MV3", "MV5", "MV6", "K7", "D2")
async def test_v13_a_view_writes_by_what_it_is_given_also_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as (process, client):
        _, write = await create_with_rights(client, "weights", SHAPE)
        _, into = await create_with_rights(client, "kept", NAMES, start=4)
        await write.append(weights(("a", 5), ("b", 50)), 10)
        held, given = await hold(client, "weights"), into.capability
        view = await maintain(client, "few", PROGRAM, {"weights": held}, {"heavy": into})
        # All begin where inputs and outputs are held.
        assert view.outputs["heavy"].frontier == 4
        read = await hold(client, "kept")
        assert await names(read, 9) == ["b"]
        # The giver of the capability has none any more.
        with pytest.raises(UnknownCapability):
            await client.storage.update_and_downgrade(given, None, frontier(20))
        await write.append(weights(("c", 99)), 20)
        assert await names(read, 15) == ["b", "c"]
        # A collection that gets no rows is as far as the output all the same, and others read it by
        # its name.
        await write.append(None, 30)
        await until_upper(process, "kept", 30)
        over = await maintain(client, "over", "again(h) := kept(h);", {"kept": read})
        assert await names(over.outputs["again"], 25) == ["b", "c"]
        with pytest.raises(UsageError, match="View/few"):
            await client.delete("Collection", "kept")
        await over.drop()
        with pytest.raises(UsageError, match="was given"):
            await client.apply([ResourceDocument(OTHERWISE, "few.yaml")])
    async with served(tmp_path) as (process, client):
        again = AsyncWriter(client, write.capability, 60_000)
        await again.append(weights(("d", 70)), 40)
        read = AsyncReader(client, read.capability, 60_000)
        assert await names(read, 35) == ["b", "c", "d"]
        assert await names(read, 15) == ["b", "c"]
        writers = (await process.context.collections.status("kept")).writing
        assert [each.named for each in writers] == [True]
        await client.compute.drop_view(view.outputs["heavy"].capability)
        # With its last writer it ends; what it holds stays for who holds it.
        assert (await process.context.collections.status("kept")).upper == frontier()
        assert await names(read, 1_000) == ["b", "c", "d"]


@pytest.mark.rule("MV1", "K4", "L4")
async def test_v13_what_cannot_be_written_into_begins_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.apply([ResourceDocument(TABLE, "test.yaml")])
        read, write = await create_with_rights(client, "weights", SHAPE)
        _, into = await create_with_rights(client, "kept", NAMES)
        _, wide = await create_with_rights(client, "wide", SHAPE)
        _, later = await create_with_rights(client, "later", replace(NAMES, timeline="system"))
        _, shared = await create_with_rights(client, "shared", NAMES)
        other = await acquire_writer(client, "shared")
        table = await acquire_writer(client, "hosts")
        view = MaintainedView("few", PROGRAM, {"weights": read.capability}, into={})
        stated = replace(into.capability, frontier=frontier(7))
        refused = [
            ("does not write", {"heavy": read.capability}),
            ("it states", {"heavy": stated}),
            ("no output", {"none": into.capability}),
            ("types string", {"heavy": wide.capability}),
            ("on the timeline", {"heavy": later.capability}),
            ("2 writers", {"heavy": shared.capability}),
            ("what Create made", {"heavy": table.capability}),
            ("its own", {"heavy": into.capability, "none": into.capability}),
        ]
        for said, given in refused:
            with pytest.raises(UsageError, match=said):
                await client.compute.maintain_view(replace(view, into=given))
        await into.append(None, 3)
        early = replace(view, at=frontier(2), into={"heavy": into.capability})
        with pytest.raises(UsageError, match="is written from"):
            await client.compute.maintain_view(early)
        circle = replace(view, program="twice(h, w) := weights(h, w);", into={"twice": write.capability})  # fmt: skip
        with pytest.raises(UsageError, match="wait for itself"):
            await client.compute.maintain_view(circle)
        assert not [each for each in await client.get() if each.kind == "View"]
        await other.append(pa.table({"name": ["x"]}), 5)
        # Nothing of it was taken: each still writes.
        for each, rows in ((into, None), (shared, None), (wide, None), (write, weights(("b", 50)))):
            await each.append(rows, 5)


@pytest.mark.rule("MV1", "D2")
async def test_v13_a_view_whose_answer_was_lost_has_taken_over_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (process, client):
        read, write = await create_with_rights(client, "weights", SHAPE)
        _, into = await create_with_rights(client, "kept", NAMES)
        view = MaintainedView(
            "few", PROGRAM, {"weights": read.capability}, into={"heavy": into.capability}
        )
        maintain_view = client.compute.maintain_view
        answers = [await maintain_view(view, token=TOKEN) for _ in range(2)]
        assert answers[0] == answers[1]
        await write.append(weights(("b", 50)), 10)
        kept = await hold(client, "kept")
        assert await names(kept, 9) == ["b"]
        # Through the views over what is written on, too, nothing waits for itself.
        _, back = await create_with_rights(client, "back", SHAPE)
        over = replace(
            view, name="over", program="pair(h, 1) := kept(h);", inputs={"kept": kept.capability}
        )
        with pytest.raises(TidemillError, match="wait for itself"):
            await maintain_view(replace(over, into={"pair": write.capability}))
        await maintain_view(replace(over, into={"pair": back.capability}))
        await client.delete("View", "over")
        assert not (await process.context.collections.status("back")).writing
