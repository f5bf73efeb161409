"""A fault of one resource breaks it alone: while it is applied, while it runs, and at every later
start.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.catalog.made.tables import TableCollection
from tidemill.catalog.made.views import ViewCollections
from tidemill.catalog.store import Stored
from tidemill.errors import TidemillError, UnknownCollection
from tidemill.rpc.messages import Outcome, ResourceDocument, ResourceStatus
from tidemill.runtime.resources import load_resources
from tidemill.shard.log import KnownVersion
from tidemill.testkit.whole import Whole, opened
from tidemill_compute.views.part import ViewPart
from tidemill_server.settings import ServerSettings

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: NAME}
spec: {columns: [{name: n, type: int}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: NAME}
spec: {retain: all, program: "PREDICATE(x) := base(x);"}
"""
BASE, BAD_TABLE = TABLE.replace("NAME", "base"), TABLE.replace("NAME", "bad")
GOOD = VIEW.replace("NAME", "good").replace("PREDICATE", "fine")
BAD = VIEW.replace("NAME", "bad").replace("PREDICATE", "poor")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    settings = ServerSettings(
        directory=str(folder / "state"), retry_s_min=0.05, retry_s_max=0.2, broken_s_max=0.2
    )
    async with opened(settings) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> list[Outcome]:
    documents = [ResourceDocument(text, "test.yaml") for text in texts]
    return [applied.outcome for applied in await process.controller.apply(documents)]


async def statuses(process: Whole) -> dict[str, ResourceStatus]:
    return {f"{s.kind}/{s.name}": s for s in await process.controller.get(None, None)}


async def until(process: Whole, name: str, reason: str) -> ResourceStatus:
    async with asyncio.timeout(240):
        while True:
            status = (await statuses(process))[name]
            if status.reason == reason:
                return status
            await asyncio.sleep(0.02)


async def insert_and_ask(process: Whole, goal: str, row: int) -> None:
    """Insert a row, and wait until it is in the answer of a goal."""
    at = (await process.controller.insert("base", pa.table({"n": [row]}))).time
    table = (await process.query.ask(goal, at, 240.0)).table
    assert row in table.column(0).to_pylist()


def breaks_view(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """End the work of one view with an error that is none of ours."""
    run = ViewPart.run

    async def breaks(self: ViewPart, ready: Callable[[], None]) -> None:
        if self.name == f"View/{name}":
            ready()
            raise IndexError("string index out of range")
        await run(self, ready)

    monkeypatch.setattr(ViewPart, "run", breaks)


async def test_w3_a_view_that_breaks_is_broken_alone_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks_view(monkeypatch, "bad")
    async with running(tmp_path) as process:
        await apply(process, BASE, GOOD, BAD)
        status = await until(process, "View/bad", "Broken")
        assert status.message.startswith("IndexError in ")
        assert "test_system_contained:" in status.message
        await insert_and_ask(process, "good/fine(x)", 1)
    async with running(tmp_path) as process:
        await until(process, "View/bad", "Broken")
        await insert_and_ask(process, "good/fine(x)", 2)
        text = process.exposed()
        counted = [line for line in text.splitlines() if line.startswith("tidemill_broken_total")]
        values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in counted}
        assert values['tidemill_broken_total{kind="View",name="bad"}'] >= 1
        assert values['tidemill_broken_total{kind="View",name="good"}'] == 0
        monkeypatch.undo()
        await until(process, "View/bad", "Running")  # what passes goes on by itself
        await insert_and_ask(process, "bad/poor(x)", 3)


async def test_w1_an_output_column_called_time_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    events = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: infs}
spec:
  http: {}
  columns: [{name: k, type: text}, {name: at, type: int}]
  eventTime: {column: at, timeline: inft}
"""
    late = BAD.replace("poor(x) := base(x);", "late(plane: x, time: t) := infs(k: x) @time(t);")
    async with running(tmp_path) as process:
        await apply(process, BASE, events)
        for _ in range(2):
            with pytest.raises(TidemillError):
                await apply(process, GOOD, late)
            assert set(await statuses(process)) == {"Table/base", "Source/infs"}
            with pytest.raises(UnknownCollection):
                await process.query.ask("good/fine(x)", None, 1.0)
    async with running(tmp_path) as process:
        assert set(await statuses(process)) == {"Table/base", "Source/infs"}
        assert await apply(process, GOOD) == [Outcome.CREATED]
        await insert_and_ask(process, "good/fine(x)", 1)


@pytest.mark.parametrize("stage", ["plan", "make", "prepare"])
async def test_w1_an_apply_refused_at_any_stage_records_nothing(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as process:
        await apply(process, BASE)
        before = (await process.context.collections.status("base")).holders
        with monkeypatch.context() as patched:
            refuse_at(stage, process, patched)
            with pytest.raises(KeyError, match=stage):
                await apply(process, TABLE.replace("NAME", "other"), GOOD, BAD)
        assert set(await statuses(process)) == {"Table/base"}
        assert (await process.context.collections.status("base")).holders == before
        with pytest.raises(UnknownCollection):
            process.context.catalog.named("other")
    async with running(tmp_path) as process:
        assert set(await statuses(process)) == {"Table/base"}
        applied = await apply(process, TABLE.replace("NAME", "other"), GOOD, BAD)
        assert applied == [Outcome.CREATED] * 3
        await insert_and_ask(process, "bad/poor(x)", 1)
        await insert_and_ask(process, "good/fine(x)", 2)


def refuse_at(stage: str, process: Whole, patched: pytest.MonkeyPatch) -> None:
    """Make the view `bad` fail at one stage of an apply, in a way that nobody foresaw."""
    catalog, planned = process.context.catalog, process.context.catalog.plan_view
    prepare, made = ViewCollections.prepare, ViewCollections.__init__

    def plan_view(stored: Stored) -> object:
        if stored.resource.name == "bad":
            raise KeyError(stage)
        return planned(stored)

    async def prepare_all_but_bad(self: ViewCollections) -> None:
        await prepare(self)
        if self.name == "View/bad":
            raise KeyError(stage)

    def make(self: ViewCollections, stored: Stored, *others: object) -> None:
        if stored.resource.name == "bad":
            raise KeyError(stage)
        made(self, stored, *others)  # type: ignore[arg-type]

    if stage == "plan":
        patched.setattr(catalog, "plan_view", plan_view)
    elif stage == "make":
        patched.setattr(ViewCollections, "__init__", make)
    else:
        patched.setattr(ViewCollections, "prepare", prepare_all_but_bad)


async def test_w1_a_change_refused_while_it_is_carried_out_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = BASE.replace("{name: n, type: int}", "{name: n, type: int}, {name: m, type: int}")
    wider = wider.replace("name: m, type: int", "name: m, type: int, nullable: true")
    prepare = TableCollection.prepare

    async def prepare_all_but_other(self: TableCollection) -> None:
        if self.collection == "other":
            raise KeyError("other")
        await prepare(self)

    async with running(tmp_path) as process:
        await apply(process, BASE)
        with monkeypatch.context() as patched:
            patched.setattr(TableCollection, "prepare", prepare_all_but_other)
            with pytest.raises(KeyError):
                await apply(process, wider, TABLE.replace("NAME", "other"))
        (status,) = await process.controller.get("Table", "base")
        assert "name: m" not in status.document_yaml
        assert set(await statuses(process)) == {"Table/base"}
        assert await apply(process, wider) == [Outcome.CONFIGURED]


async def record(process: Whole, text: str) -> None:
    """Write a resource that no apply has looked at into the catalog, like an older version."""
    (resource,) = load_resources(text, "test.yaml")
    await process.context.store.put([Stored(resource, process.context.clock.now_ms())])


@pytest.mark.parametrize(
    "program", ["poor(x) := nowhere(x);", "poor(x, time: y) := base(x) ^ base(y);", "poor("]
)
async def test_w1_a_resource_that_can_never_begin_stops_no_start_and_can_be_deleted(
    program: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as process:
        await apply(process, BASE, GOOD)
        # `time` collides with the lane of events alone; a name of ours is refused in any view.
        await record(process, BAD.replace("poor(x) := base(x);", program.replace("time", "_time")))
    async with running(tmp_path) as process:
        await insert_and_ask(process, "good/fine(x)", 1)
        found = await statuses(process)
        assert set(found) == {"Table/base", "View/good", "View/bad"}
        await until(process, "View/bad", "Stalled")
        assert (await process.controller.describe("View", "bad")).message
        await process.controller.delete("View", "bad")
        assert set(await statuses(process)) == {"Table/base", "View/good"}
    async with running(tmp_path) as process:
        assert set(await statuses(process)) == {"Table/base", "View/good"}
        await insert_and_ask(process, "good/fine(x)", 2)


async def test_a_resource_whose_collection_is_damaged_does_not_keep_get_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as process:
        await apply(process, BASE, BAD_TABLE)
        versions = process.context.collections._core.versions
        plain = versions.catch_up

        async def fail_for_bad(collection: str, age_s_max: float = 0.0) -> KnownVersion:
            if collection == "bad":
                raise KeyError(collection)
            return await plain(collection, age_s_max)

        monkeypatch.setattr(versions, "catch_up", fail_for_bad)
        found = await statuses(process)
        assert found["Table/bad"].reason == "Broken"
        assert "KeyError in " in found["Table/bad"].message
        assert found["Table/base"].upper is not None


def damage(folder: Path, collection: str) -> None:
    """Turn one bit of the newest version of a collection, as it lies in the state folder."""
    with closing(sqlite3.connect(folder / "state" / "consensus.sqlite")) as stored, stored:
        newest = "from versions where key = ? order by number desc limit 1"
        (number, found) = stored.execute(f"select number, data {newest}", [collection]).fetchone()
        data = bytearray(found)
        data[len(data) // 2] ^= 4
        stored.execute(
            "update versions set data = ? where key = ? and number = ?", [data, collection, number]
        )


@pytest.mark.parametrize("collection", ["bad/poor", "bad/errors", "poor"])
async def test_a_server_begins_although_a_collection_is_damaged(
    tmp_path: Path, collection: str
) -> None:
    """One bit of one collection kept everybody's server from starting, at each start."""
    table = TABLE.replace("NAME", "poor")
    async with running(tmp_path) as process:
        await apply(process, BASE, GOOD, BAD, table)
        for name in ("good/fine(x)", "bad/poor(x)"):
            await insert_and_ask(process, name, 1)
    damage(tmp_path, collection)
    async with running(tmp_path) as process:
        await insert_and_ask(process, "good/fine(x)", 2)
        if collection.startswith("bad/"):
            await until(process, "View/bad", "Stalled")
        assert "does not have the bytes that were written" in "".join(
            status.message for status in (await statuses(process)).values()
        )


async def test_w3_all_ranges_hold_the_outputs_before_one_of_them_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that begins takes what it holds by itself, but then others may have written."""
    prepare, held = ViewCollections.prepare, dict[str, set[str]]()

    async def prepare_and_look(self: ViewCollections) -> None:
        await prepare(self)
        for name in (*self.outputs, f"{self.stored.prefix}/errors"):
            state = await self._collections.state(name)
            held.setdefault(name, {hold.owner for hold in state.writes.values()})

    monkeypatch.setattr(ViewCollections, "prepare", prepare_and_look)
    ranged = GOOD.replace("retain: all,", "retain: all, ranges: 3,")
    async with running(tmp_path) as process:
        await apply(process, BASE, ranged)
    assert len(held) == 2
    assert {len(owners) for owners in held.values()} == {3}
