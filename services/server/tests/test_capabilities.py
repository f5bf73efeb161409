"""Capabilities over everything that is there, and what users create read as everything else is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidemill.client.capabilities import hold
from tidemill.client.command import app
from tidemill.errors import AlreadyUsed, NotYet, UnknownCollection, UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import (
    Appended,
    CapabilityPair,
    Changes,
    CollectionShape,
    HeldCapability,
    ResourceDocument,
    Right,
)
from tidemill.shard.capability_commands import LOOKS
from tidemill.shard.log import KnownVersion
from tidemill.testkit.up import up_process
from tidemill.testkit.whole import Whole, running
from tidemill.time import frontier, sole_time

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: hosts}
spec: {columns: [{name: name, type: text}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: heavy}
spec: {retain: all, program: "heavy(h) := weights(h, w) if w > 10;"}
"""
OVER_TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: copies}
spec: {retain: all, program: "copied(h) := hosts(h);"}
"""
HOLD = """
apiVersion: tidemill.dev/v1alpha1
kind: Hold
metadata: {name: kept}
spec: {collection: weights}
"""
ARRANGEMENT = """
apiVersion: tidemill.dev/v1alpha1
kind: Arrangement
metadata: {name: byweight}
spec: {collection: weights, key: [w]}
"""
SHAPE = CollectionShape(
    pa.schema([("h", pa.string()), ("w", pa.int64())]), timeline="scale", user_writable=True
)


async def create(process: Whole) -> CapabilityPair:
    return await process.storage.create("weights", SHAPE, frontier(0), "me", None)


def writer(pair: CapabilityPair) -> HeldCapability:
    assert pair.write is not None
    return pair.write


def weights(at: int, *rows: tuple[str, int]) -> pa.Table:
    return pa.table(
        {
            "h": [h for h, _ in rows],
            "w": pa.array([w for _, w in rows], pa.int64()),
            "_time": pa.array([at] * len(rows), pa.uint64()),
            "_diff": pa.array([1] * len(rows), pa.int64()),
        }
    )


@pytest.mark.rule("S1", "C1", "K13")
async def test_v12_what_users_create_is_read_as_everything_else(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        pair = await create(process)
        await process.apply(VIEW, HOLD, ARRANGEMENT)
        update = process.storage.update_and_downgrade
        rows = weights(3, ("a", 5), ("b", 50))
        assert await update(writer(pair), rows, frontier(10), None) == Appended(frontier(10))
        assert await process.answer("weights(h, w)", 9) == [("a", 5), ("b", 50)]
        assert await process.answer("weights(h, 50)", 9) == [("b",)]
        assert await process.answer("heavy/heavy(h)", 9) == [("b",)]
        # It is on the timeline that was said at its creation, and so is what is derived from it.
        assert process.context.catalog.named("heavy/heavy").timeline == "scale"
        tables = await process.query.tables(["weights", "heavy/heavy"], 9, 1.0)
        assert [tables[name].table.num_rows for name in ("weights", "heavy/heavy")] == [2, 1]
        events = [e async for e in process.query.subscribe("weights(h, w)", 0, True, 10)]
        assert sum(e.table.num_rows for e in events if isinstance(e, Changes)) == 2
        holders = (await process.context.collections.status("weights")).holders
        assert {"hold:kept", "view:heavy"} <= {holder.owner for holder in holders}
        assert await process.answer("byweight(h, w)", 9) == [("a", 5), ("b", 50)]
    # A process that begins anew finds it, and everything that reads it, again.
    async with running(tmp_path) as process:
        held = replace(writer(pair), frontier=frontier(10))
        rows = weights(12, ("c", 99))
        await process.storage.update_and_downgrade(held, rows, frontier(20), None)
        assert await process.answer("heavy/heavy(h)", 19) == [("b",), ("c",)]


async def test_v12_a_created_collection_goes_once_nothing_reads_it(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        pair = await create(process)
        await process.apply(VIEW)
        with pytest.raises(UsageError, match="View/heavy"):
            await process.controller.delete("Collection", "weights")
        await process.controller.delete("View", "heavy")
        await process.controller.delete("collection", "weights")
        with pytest.raises(UnknownCollection):
            await process.query.ask("weights(h, w)", None, None)
        await process.storage.drop(pair.read)
        assert (await process.context.collections.status("weights")).closed
        await process.apply(TABLE)
        with pytest.raises(UsageError, match="belongs to Table hosts"):
            await process.controller.delete("collection", "hosts")


async def test_v12_a_name_means_one_thing(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE)
        for name in ("hosts", "hosts/late"):
            with pytest.raises(AlreadyUsed, match="belongs to Table hosts"):
                await process.storage.create(name, SHAPE, frontier(0), "me", None)
        await create(process)
        await process.apply(HOLD)
        with pytest.raises(UsageError, match="Hold/kept reads the collection weights"):
            await process.apply(TABLE.replace("hosts", "weights"))


@pytest.mark.rule("K2", "K13", "AC3", "UP1")
async def test_v12_a_table_is_written_by_capability_beside_insert(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE, OVER_TABLE)
        await process.controller.insert("hosts", pa.table({"name": ["a"]}))
        held = await process.storage.acquire_right("hosts", Right.WRITE, "me", 60_000)
        at = sole_time(held.frontier)
        row = pa.table(
            {
                "name": ["b"],
                "_time": pa.array([at], pa.uint64()), "_diff": pa.array([1], pa.int64()),
            }
        )  # fmt: skip
        # While it is held, upper is where it stands: what others insert waits for it.
        inserted = (await process.controller.insert("hosts", pa.table({"name": ["c"]}))).time
        assert inserted >= at
        with pytest.raises(NotYet):
            await process.query.ask("hosts(n)", at, 0.1)
        ahead = frontier(inserted + 60_000)
        outcome = await process.storage.update_and_downgrade(held, row, ahead, None)
        assert outcome == Appended(ahead)
        # Ahead of the clock it holds nothing back, and the table goes on by its own.
        assert await process.answer("hosts(n)", inserted) == [("a",), ("b",), ("c",)]
        assert await process.answer("copied(n)", inserted) == [("a",), ("b",), ("c",)]
        await process.storage.drop(replace(held, frontier=ahead))
        last = (await process.controller.insert("hosts", pa.table({"name": ["d"]}))).time
        assert len(await process.answer("hosts(n)", last)) == 4


async def test_up3_an_absent_row_that_is_taken_away_by_capability_stalls_no_view(
    tmp_path: Path,
) -> None:
    """UP3: refused as an insert is, in a table and in what `Create` makes."""
    async with running(tmp_path) as process:
        await process.apply(TABLE, OVER_TABLE)
        last = (await process.controller.insert("hosts", pa.table({"name": ["a"]}))).time
        held = await process.storage.acquire_right("hosts", Right.WRITE, "me", 60_000)
        at = sole_time(held.frontier)
        for diff, name in ((-1, "b"), (-2, "a")):
            gone = pa.table(
                {
                    "name": [name],
                    "_time": pa.array([at], pa.uint64()), "_diff": pa.array([diff], pa.int64()),
                }
            )  # fmt: skip
            with pytest.raises(UsageError, match="taken away more often") as caught:
                await process.storage.update_and_downgrade(held, gone, frontier(at + 1), None)
            assert caught.value.details["reason"] == "NotThere"
        gone = gone.set_column(2, "_diff", pa.array([-1], pa.int64()))
        after = frontier(at + 60_000)
        assert await process.storage.update_and_downgrade(held, gone, after, None) == Appended(
            after
        )
        await process.storage.drop(replace(held, frontier=after))
        assert await process.answer("copied(n)", last) == [("a",)]
        last = (await process.controller.insert("hosts", pa.table({"name": ["c"]}))).time
        assert await process.answer("copied(n)", last) == [("c",)]


@pytest.mark.rule("AC3", "K13", "SU1")
async def test_v12_views_are_held_and_read_by_capability_and_not_written(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE, OVER_TABLE)
        at = (await process.controller.insert("hosts", pa.table({"name": ["a"]}))).time
        pair = await process.storage.acquire("copied", "me", None)
        assert (pair.read.collection, pair.write) == ("copies/copied", None)
        with pytest.raises(UsageError, match="users cannot write"):
            await process.storage.acquire_right("copies/copied", Right.WRITE, "me", None)
        events = [e async for e in process.storage.subscribe_at(pair.read, at, True, at + 1)]
        tables = [event.table for event in events if isinstance(event, Changes)]
        assert pa.concat_tables(tables).column(0).to_pylist() == ["a"]


@pytest.mark.rule("UP6", "D1")
async def test_v9_an_insert_with_a_token_is_there_once(tmp_path: Path) -> None:
    rows = pa.table({"name": ["a"]})
    async with running(tmp_path) as process:
        await process.apply(TABLE)
        first = await process.controller.insert("hosts", rows, "t1")
        await asyncio.gather(*(process.controller.insert("hosts", rows, f"u{n}") for n in range(5)))
    # The answer was lost with the process; the next one gives the same.
    async with running(tmp_path) as process:
        assert await process.controller.insert("hosts", rows, "t1") == first
        again = [await process.controller.insert("hosts", rows, f"u{n}") for n in range(5)]
        last = max(inserted.time for inserted in again)
        table = (await process.query.ask("hosts(n)", last, 30.0)).table
        assert table["_diff"].to_pylist() == [6]


async def test_v14_1_a_hold_on_what_is_forgotten_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        pair = await create(process)
        await process.storage.update_and_downgrade(writer(pair), None, frontier(50), None)
        await process.context.collections.retain("weights", 10)
        await process.storage.drop(pair.read)
        late = HOLD.replace("weights}", "weights, frontier: 5}")
        with pytest.raises(UsageError, match="5 is forgotten: weights is known from"):
            await process.apply(late)
        await process.apply(late.replace("5}", "45}"))
        held = (await process.context.collections.status("weights")).holders
        assert [(each.owner, each.frontier) for each in held] == [("hold:kept", frontier(45))]


@pytest.mark.rule("F11", "F13", "K2", "D3")
def test_v9_the_command_says_who_holds_upper_and_an_administrator_ends_it(tmp_path: Path) -> None:
    with up_process(tmp_path) as server:
        with server.client() as client:
            client.apply(ResourceDocument(TABLE, "t"), ResourceDocument(OVER_TABLE, "v"))
            at = client.insert("hosts", [{"name": "a"}], token="once").time
            assert client.insert("hosts", [{"name": "a"}], token="once").time == at
            assert client.query("copied(n)", at, timeout_s=60).table.num_rows == 1
        address = server.address("grpc")

        async def forget() -> None:
            async with AsyncClient(address) as held:
                await held.storage.acquire_right("hosts", Right.WRITE, owner="me", lease_ms=None)

        asyncio.run(forget())
        call = ["--address", address]
        said = CliRunner().invoke(app, [*call, "timestamp", "copies"])
        assert said.exit_code == 0, said.output
        with server.client() as client:
            found = client.explain_timestamp("copies")
            (stuck,) = (w for _, i in found.inputs for w in i.writers if w.owner == "me")
            assert found.chosen == sole_time(stuck.frontier) - 1
            assert stuck.key in said.output
            ended = CliRunner().invoke(app, [*call, "expire", "hosts", stuck.key])
            assert ended.exit_code == 0, ended.output
            now = client.insert("hosts", [{"name": "b"}]).time
            assert client.query("hosts(n)", now, timeout_s=60).table.num_rows == 2


@pytest.mark.rule("K11", "K9", "SU1")
async def test_v9_the_program_of_the_page_runs_and_holds_nothing_afterwards(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "capabilities.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    with up_process(tmp_path) as server:
        with server.client() as client:
            client.apply(ResourceDocument(TABLE, "t"))
        names: dict[str, object] = {"pa": pa, "address": server.address("grpc")}
        body = "".join(f"    {line}\n" for line in program.splitlines())
        exec(f"async def run():\n{body}    return there, few\n", names)
        for found in await names["run"]():  # type: ignore[operator]  # defined by the program
            assert found.column(0).to_pylist() == ["a"]
        with server.client() as client:
            assert client.get("View") == []
        # Leases are renewed while they are held, and nothing is held afterwards.
        async with AsyncClient(server.address("grpc")) as client:
            async with await hold(client, "hosts", lease_ms=3_000) as read:
                await asyncio.to_thread(lambda: threading.Event().wait(5.0))
                await read.downgrade(read.frontier)
            with server.client() as asking:
                (info,) = (c for c in asking.collections() if c.id == "hosts")
            assert ([h.owner for h in info.holders], len(info.writers)) == ([], 1)


@pytest.mark.rule("CR1", "K9", "MV1")
def test_v9_the_program_that_is_not_asynchronous_runs_too(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "capabilities.md").read_text()
    program = page.split("```python\n")[2].partition("```")[0]
    with up_process(tmp_path) as server:
        address = server.address("grpc")
        names: dict[str, object] = {"pa": pa, "address": address}
        exec(program, names)
        assert names["hot"].column(0).to_pylist() == ["Ulm"]  # type: ignore[attr-defined]
        with server.client() as client:
            assert client.get("View") == []
            (info,) = (c for c in client.collections() if c.id == "weather")
            # A kept capability goes on being written by whoever has it; the rest is given up.
            assert ([h.owner for h in info.holders], len(info.writers)) == ([], 1)
        kept = names["kept"]
        assert isinstance(kept, HeldCapability)

        async def write_further() -> object:
            async with AsyncClient(address) as client:
                return await client.storage.update_and_downgrade(kept, None, frontier(30))

        assert asyncio.run(write_further()) == Appended(frontier(30))


@pytest.mark.rule("K12", "K11")
def test_v9_a_handle_that_is_not_asynchronous_renews_while_it_is_open(tmp_path: Path) -> None:
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(TABLE, "t"))
        with client.hold("hosts", lease_ms=2_000) as read, client.writing("hosts") as write:
            at = write.frontier
            threading.Event().wait(5.0)
            read.downgrade(read.frontier)
            write.append(pa.table({"name": ["a"]}), at + 1)
            events = list(read.subscribe(at, up_to=at + 1))
            assert sum(e.table.num_rows for e in events if isinstance(e, Changes)) == 1
        (info,) = (c for c in client.collections() if c.id == "hosts")
        assert ([h.owner for h in info.holders], len(info.writers)) == ([], 1)


async def test_v9_describe_says_who_holds_what_since_when_and_until_when(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE, OVER_TABLE)
        now_ms = process.context.clock.now_ms()
        read = await process.storage.acquire_right("hosts", Right.READ, "me", 60_000)
        write = await process.storage.acquire_right("hosts", Right.WRITE, "you", 60_000)
        lines = (await process.controller.describe("table", "hosts")).details["holders"]
        assert isinstance(lines, list)
        told = {line.split(": ")[1].split(" since")[0]: line for line in map(str, lines)}
        assert {"me", "you", "table:hosts", "view:copies"} <= set(told)
        assert told["me"].startswith(f"since of hosts at {read.frontier}: me since 20")
        assert told["you"].startswith(f"upper of hosts at {write.frontier}: you since 20")
        assert "no lease" in told["view:copies"]
        infos = {info.id: info for info in await process.query.collections()}
        held = {h.owner: h for h in (*infos["hosts"].holders, *infos["hosts"].writers)}
        assert held["me"].frontier == read.frontier
        assert held["me"].since_ms >= now_ms
        assert (held["me"].lease_end_ms or 0) >= held["me"].since_ms + 60_000
        assert all(each.key in told[owner] for owner, each in held.items())


MANY_OUTPUTS = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: many}
spec:
  program: |
    PROGRAM
"""


async def test_describe_looks_at_each_output_once_and_at_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a view with 800 outputs each was looked at twice, one after the other: ten seconds."""
    program = " ".join(f"o{at}(h) := hosts(h);" for at in range(40))
    looked: Counter[str] = Counter()
    most = now = 0
    asked = ContextVar("asked", default=False)
    async with running(tmp_path) as process:
        await process.apply(TABLE, MANY_OUTPUTS.replace("PROGRAM", program))
        versions = process.context.collections._core.versions
        plain = versions.catch_up

        async def look(collection: str, age_s_max: float = 0.0) -> KnownVersion:
            nonlocal most, now
            if not asked.get():  # by the process itself
                return await plain(collection, age_s_max)
            looked[collection] += 1
            now += 1
            most = max(most, now)
            try:
                await asyncio.sleep(0)
                return await plain(collection, age_s_max)
            finally:
                now -= 1

        monkeypatch.setattr(versions, "catch_up", look)
        asked.set(True)
        told = await process.controller.describe("View", "many")
    made = {name: count for name, count in looked.items() if "/o" in name}
    assert told.upper is not None
    assert len(made) == 40
    assert set(made.values()) == {1}
    assert 1 < most <= LOOKS


async def test_describe_of_what_is_gone_says_so_without_a_group_of_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE)

        async def refuse(collection: str, age_s_max: float = 0.0) -> KnownVersion:
            raise UnknownCollection(f"{collection} is gone")

        monkeypatch.setattr(process.context.collections._core.versions, "catch_up", refuse)
        told = await process.controller.describe("Table", "hosts")
        assert (told.ready, told.reason) == (False, "Stalled")


def test_v9_the_list_of_collections_says_who_holds_what_as_json(tmp_path: Path) -> None:
    with up_process(tmp_path) as server:
        address = server.address("grpc")
        with server.client() as client:
            client.apply(ResourceDocument(TABLE, "t"))
            with client.hold("hosts", owner="me") as read, client.writing("hosts", owner="you"):
                call = ["--address", address, "get", "collections", "-o", "json"]
                said = CliRunner().invoke(app, call)
                assert said.exit_code == 0, said.output
                (hosts,) = (c for c in json.loads(said.output) if c["id"] == "hosts")
                (me,) = hosts["holders"]
                you = next(w for w in hosts["writers"] if w["owner"] == "you")
                assert (me["owner"], me["frontier"]) == ("me", [read.frontier])
                for each in (me, you):
                    assert each["since_ms"] <= each["moved_ms"] < each["lease_end_ms"]
                    assert each["key"]
                told = CliRunner().invoke(app, ["--address", address, "describe", "table", "hosts"])
                assert me["key"] in told.output
                assert you["key"] in told.output


async def test_v12_what_another_process_has_deleted_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        pair = await create(process)
        assert process.context.catalog.knows("weights")
        await process.storage.downgrade(pair.read, frontier(0))
        await process.context.collections.retire("weights")  # as another process on the same stores
        assert process.context.catalog.knows("weights")
        looking = asyncio.create_task(process.compaction.look_forever())
        async with asyncio.timeout(60):
            while process.context.catalog.knows("weights"):
                await asyncio.sleep(0.1)
        looking.cancel()
        with pytest.raises(UnknownCollection):
            await process.query.ask("weights(h, w)", None, None)
        with pytest.raises(UsageError, match="is neither derived nor an input"):
            await process.apply(VIEW)
