"""A process alone takes the path of one among others: it owns every part at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tidemill.catalog.made.sources import SourceCollections
from tidemill.catalog.store import Stored
from tidemill.errors import UsageError
from tidemill.host.claimed_work import ClaimedWork
from tidemill.rpc.messages import ResourceDocument
from tidemill.shard.ports import ManyHeads
from tidemill.shard.stores import claims_file
from tidemill.testkit.whole import Whole, opened
from tidemill_compute.holds import Holds
from tidemill_query.controller import Controller
from tidemill_server.settings import ServerSettings

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: t}
spec: {columns: [{name: n, type: int}], retain: all}
"""
SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: s}
spec:
  kafka: {topic: s}
  format: {json: {}}
  columns: [{name: n, type: int}]
  timestampInterval: 50ms
  retain: all
"""


def settings(folder: Path) -> ServerSettings:
    return msgspec.convert({"directory": str(folder)}, ServerSettings)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(settings(folder)) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


def parts(process: Whole) -> set[str]:
    return {held.supervised.runner.name for held in process.work.held()}


async def until_running(process: Whole, name: str) -> None:
    async with asyncio.timeout(120):
        while not (await process.controller.describe("Source", name)).ready:
            await asyncio.sleep(0.01)


async def test_what_is_applied_alone_runs_when_apply_returns_and_has_ended_when_delete_does(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE)
        assert (await process.controller.describe("Table", "t")).reason == "Running"
        await process.context.log.create_topic("s", 1)
        await apply(process, SOURCE)
        assert parts(process) == {"Table/t", *(f"Source/s ({r})" for r in PARTS)}
        await process.controller.delete("Source", "s")
        assert parts(process) == {"Table/t"}
    async with running(tmp_path) as process:
        assert parts(process) == {"Table/t"}
        assert (await process.controller.describe("Table", "t")).reason == "Running"


PARTS = ("ingest", "remap", "reclock")


async def test_a_process_alone_keeps_no_claims_in_its_store(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.context.log.create_topic("s", 1)
        await apply(process, TABLE, SOURCE)
        await until_running(process, "s")
        assert all(len(c.held()) > 0 for c in process.work.claimants().values())
    claims = claims_file(settings(tmp_path).consensus_address)
    assert claims is not None
    assert not claims.exists()


async def test_what_is_stopped_for_a_while_begins_again_as_it_is_declared(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE)
        stored = process.context.store.get("Table", "t")
        assert stored is not None
        async with process.work.stopped(stored):
            assert parts(process) == set()
            status = await process.controller.describe("Table", "t")
            assert (status.ready, status.reason) == (False, "Starting")
        async with asyncio.timeout(120):
            while not (await process.controller.describe("Table", "t")).ready:
                await asyncio.sleep(0.01)
        assert parts(process) == {"Table/t"}


TIMED = SOURCE.replace("type: int}]", "type: int}, {name: at, type: int}]") + (
    "  eventTime: {column: at, timeline: events}\n"
)
FOLLOWING = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: f}
spec:
  file: {path: PATH, format: csv}
  columns: [{name: n, type: int}]
  timestampInterval: 50ms
  retain: all
  timeline: events
"""


async def test_what_a_stage_reads_is_held_before_another_part_can_write(tmp_path: Path) -> None:
    """Any part makes all collections of a source, also where the stage is another process's."""
    async with running(tmp_path / "state") as process:
        await process.context.log.create_topic("s", 1)
        (tmp_path / "f.csv").write_text("n\n1\n")
        await apply(process, TIMED, FOLLOWING.replace("PATH", str(tmp_path / "f.csv")))
        for name, kind in (("s", "events"), ("f", "reference")):
            stored = process.context.store.get("Source", name)
            assert stored is not None
            made = SourceCollections(stored, process.context.collections, process.context.store)
            async with process.work.stopped(stored):
                stage = Holds(process.context.collections, f"{kind}:{name}")
                (held,) = [each for owner, each in made.held().items() if owner.startswith(kind)]
                holders = {c: await owners(process, c) for c in made.made()}
                assert {c for c, found in holders.items() if f"{kind}:{name}" in found} == set(held)
                for collection in held:
                    await stage.take(collection)
                assert {c: await owners(process, c) for c in made.made()} == holders


async def owners(process: Whole, collection: str) -> set[str]:
    return {each.owner for each in (await process.context.collections.status(collection)).holders}


async def test_parts_of_an_apply_begin_once_all_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal in the middle began what had no collections yet: it failed, again and again."""
    first, goes_on = asyncio.Event(), asyncio.Event()
    prepare = Controller._prepare

    async def slow(controller: Controller, stored: Stored) -> Exception | None:
        failed = await prepare(controller, stored)
        first.set()
        await goes_on.wait()
        return failed

    monkeypatch.setattr(Controller, "_prepare", slow)
    async with running(tmp_path) as process:
        applying = asyncio.create_task(apply(process, TABLE, TABLE.replace("name: t", "name: u")))
        await first.wait()
        await process.work.take_up()  # as the next renewal does
        assert all(_claimed(process, f"Table/{name}") for name in "tu")
        assert parts(process) == set()
        goes_on.set()
        await applying
        assert parts(process) == {"Table/t", "Table/u"}


async def test_an_apply_that_is_taken_back_waits_for_nothing_that_it_has_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []
    prepare = Controller._prepare

    async def refuse_second(controller: Controller, stored: Stored) -> Exception | None:
        prepared.append(stored.resource.name)
        if len(prepared) == 2:
            raise UsageError("refused by the test")
        return await prepare(controller, stored)

    monkeypatch.setattr(Controller, "_prepare", refuse_second)
    async with running(tmp_path) as process:
        with pytest.raises(UsageError, match="refused by the test"):
            await apply(process, TABLE, TABLE.replace("name: t", "name: u"))
        assert len(prepared) == 2
        assert parts(process) == set()
        assert process.context.store.live() == []
        monkeypatch.setattr(Controller, "_prepare", prepare)
        await apply(process, TABLE)
        assert parts(process) == {"Table/t"}


def _claimed(process: Whole, item: str) -> bool:
    held = [claimant.held() for claimant in process.work.claimants().values()]
    return any(each.startswith(item) for items in held for each in items)


async def test_a_process_alone_lists_what_it_knows_without_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look waits for a turn of all other tasks; a list of a thousand took half a minute."""
    async with running(tmp_path) as process:
        await apply(process, *(TABLE.replace("name: t", f"name: t{n}") for n in range(20)))
        collections, looks = process.context.collections, []
        old_at_once = replace(collections._core, poll_interval_s=0.0)
        monkeypatch.setattr(collections, "_core", old_at_once)
        store = collections._consensus
        assert isinstance(store, ManyHeads)
        scan, heads = store.scan, store.heads

        async def count(key: str, start: int) -> object:
            looks.append(key)
            return await scan(key, start)

        async def count_all(keys: Sequence[str]) -> object:
            looks.extend(keys)
            return await heads(keys)

        monkeypatch.setattr(store, "scan", count)
        monkeypatch.setattr(store, "heads", count_all)
        assert len(await process.controller.get("Table", None)) == 20
        assert len(await process.query.collections()) > 20
        assert not looks
        monkeypatch.setattr(ClaimedWork, "sole", False)  # the companion: one among others looks
        assert len(await process.controller.get("Table", None)) == 20
        assert looks
        looks.clear()
        monkeypatch.setattr(process.query, "_listed_age_s", None)
        assert len(await process.query.collections()) > 20
        assert looks
