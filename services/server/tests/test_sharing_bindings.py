"""Sources over one topic that share their bindings: a record is in all at the same instant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.store import Stored
from tidemill.client.command import app
from tidemill.errors import BeforeSince, UnknownCollection, UsageError
from tidemill.reclock import bindings_of_rows, rows_of_bindings
from tidemill.rpc.identity import Denied, Grant, Principal, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log import Entry
from tidemill.testkit.whole import Whole, opened
from tidemill.time import Partitions, frontier, sole_time
from tidemill_reclock.settings import ReclockSettings
from tidemill_remap.driver import RemapDriver
from tidemill_remap.part import BindPart
from tidemill_server.settings import ServerSettings

SOURCE = """apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec: {kafka: {topic: t}, FORMAT, timestampInterval: 50ms, remap: shared, retain: all}
"""
FORMATS = {
    "a": "columns: [{name: n, type: int}]",
    "b": "format: {text: {}}, columns: [{name: line, type: text}]",
    "c": "columns: [{name: n, type: int}, {name: m, type: int, nullable: true}]",
}
A, B, C = (SOURCE.replace("NAME", each).replace("FORMAT", FORMATS[each]) for each in FORMATS)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    settings = ServerSettings(
        directory=str(folder / "state"), retry_s_min=0.1, retry_s_max=0.2, topic_partitions=3,
        reclock=ReclockSettings(hold_interval_s=0.0),
    )  # fmt: skip
    async with opened(settings) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def write(process: Whole, first: int, last: int) -> None:
    """Numbers as records of the topic, over its partitions, some at a time."""
    for n in range(first, last):
        record = Entry(None, json.dumps({"n": n}).encode(), n % 3)
        await process.context.log.append("t", [record])
        if n % 7 == 0:
            await asyncio.sleep(0.03)


def number(row: Mapping[str, object]) -> int:
    return int(json.loads(str(row["line"]))["n"] if "line" in row else str(row["n"]))


async def instants(process: Whole, source: str, count: int) -> dict[int, int]:
    """The instant of each of the numbers, once they are all there; each is there once."""
    async with asyncio.timeout(60):
        while True:
            rows = (await process.context.collections.read_updates(source)).to_pylist()
            if len(rows) >= count:
                break
            await asyncio.sleep(0.05)
    assert {row[DIFF] for row in rows} == {1}
    found = {number(row): int(row[TIME]) for row in rows}
    assert sorted(found) == list(range(count)) == sorted(map(number, rows))
    return found


def stored(process: Whole, source: str) -> Stored:
    found = process.context.store.get("Source", source)
    assert found is not None
    return found


def binder(process: Whole, source: str) -> RemapDriver:
    found = ((name, part) for (_, name), _, part in process.process.running.each())
    return next(p.driver for name, p in found if name == source and isinstance(p, BindPart))


@pytest.mark.rule("G13")
async def test_d3_a_record_is_at_the_same_instant_in_all_sources_that_share_bindings(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, A, B)
        await write(process, 0, 150)
        found = await instants(process, "a", 150)
        assert await instants(process, "b", 150) == found
        assert len(set(found.values())) > 3, "all came at one instant: nothing was compared"
        assert not {"b/remap", "shared/remap"} & {*await process.context.collections.ids()}
        # Under each name stands the same, and offsets are translated by it.
        last = max(found.values())
        told = [
            (await process.query.snapshot(f"{name}/remap", last, 30.0)).table
            for name in ("shared", "a", "b")
        ]
        assert told[0].num_rows
        assert told[0].equals(told[1])
        assert told[0].equals(told[2])
        offsets = [await process.query.translate(name, last, 30.0) for name in ("a", "b")]
        assert offsets[0].offsets == offsets[1].offsets
        since = await process.query.translate("b", offsets[0].offsets, 30.0)
        assert since.as_of == last
        # One of them binds, the other stands by and sees as much.
        each = [binder(process, name) for name in ("a", "b")]
        assert sorted(driver.stands_by for driver in each) == [False, True]
        async with asyncio.timeout(30):
            while any(sum(driver.counts.bound.values()) < 150 for driver in each):
                await asyncio.sleep(0.05)
        details = (await process.controller.describe("Source", "a")).details
        assert details["remap"] == "shared/remap"
        assert "remap: shared" in (await process.controller.get("Source", "b"))[0].document_yaml
    async with running(tmp_path) as process:  # other processes go on as these did
        await write(process, 150, 200)
        again = await instants(process, "a", 200)
        assert await instants(process, "b", 200) == again
        assert {n: at for n, at in again.items() if n < 150} == found


async def test_d3_a_source_that_comes_later_has_the_history_of_those_it_joins(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, A)
        await write(process, 0, 60)
        await instants(process, "a", 60)
        await apply(process, B)
        await write(process, 60, 90)
        found = await instants(process, "a", 90)
        assert await instants(process, "b", 90) == found
        assert stored(process, "b").begins == stored(process, "a").begins


@pytest.mark.rule("G13")
async def test_d3_a_source_that_comes_late_begins_where_the_bindings_are_known(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, A.replace("retain: all", "retain: 0ms"))
        await write(process, 0, 90)
        found = await instants(process, "a", 90)
        bindings = stored(process, "a").remap
        async with asyncio.timeout(60):
            while True:
                status = await process.context.collections.status(bindings)
                if sole_time(status.since) > max(found.values()):
                    break
                await asyncio.sleep(0.05)
        await apply(process, C)
        begins = stored(process, "c").begins
        assert begins > max(found.values())
        await write(process, 90, 120)
        late = await instants(process, "c", 120)
        full = await instants(process, "a", 120)
        assert late == {n: max(at, begins) for n, at in full.items()}
        with pytest.raises(BeforeSince):
            await process.query.snapshot("c", begins - 1, 30.0)


async def test_d3_who_stands_by_binds_once_nobody_else_does(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, A, B)
        await write(process, 0, 30)
        await instants(process, "a", 30)
        drivers = {name: binder(process, name) for name in ("a", "b")}
        async with asyncio.timeout(30):
            while not any(driver.stands_by for driver in drivers.values()):
                await asyncio.sleep(0.02)
        minter, other = sorted(drivers, key=lambda name: drivers[name].stands_by)
        async with process.work.stopped(stored(process, minter)):
            before = drivers[other].counts.minted
            await write(process, 30, 60)
            await instants(process, other, 60)
            assert drivers[other].counts.minted > before
            assert not drivers[other].stands_by
        # A source that comes back finds the bindings that were made without it.
        assert await instants(process, minter, 60) == await instants(process, other, 60)


async def test_d3_bindings_end_with_the_last_source_that_shares_them(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        collections = process.context.collections
        await apply(process, A, B)
        await write(process, 0, 30)
        found = await instants(process, "b", 30)
        bindings = stored(process, "a").remap
        assert bindings == "a/remap"
        await process.controller.delete("Source", "a")
        with pytest.raises(UnknownCollection):
            process.context.catalog.find("a/remap")
        await write(process, 30, 60)
        again = await instants(process, "b", 60)
        assert {n: at for n, at in again.items() if n < 30} == found
        owners = {each.owner for each in (await collections.status(bindings)).holders}
        assert "reclock:a" not in owners
        # The name of the first one is free again, for what begins now, and it joins what it has
        # made itself.
        await apply(process, A)
        begins = stored(process, "a").begins
        assert stored(process, "a").remap == bindings
        assert begins > max(again.values())
        await write(process, 60, 90)
        full = await instants(process, "b", 90)
        assert await instants(process, "a~2", 90) == {n: max(at, begins) for n, at in full.items()}
        await process.controller.delete("Source", "b")
        await process.controller.delete("Source", "a")
        assert (await collections.status(bindings)).upper.empty
        with pytest.raises(UnknownCollection):
            process.context.catalog.find("shared/remap")
        # The name means other bindings from here on.
        await apply(process, B)
        assert stored(process, "b").remap == "b~2/remap"
        await process.controller.delete("Source", "b")
        await apply(process, A.replace("name: a", "name: shared").replace("remap: shared, ", ""))
        assert stored(process, "shared").begins > begins


async def test_d3_a_deletion_that_was_broken_off_leaves_shared_bindings_to_others(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, A, B)
        await write(process, 0, 30)
        await instants(process, "b", 30)
        source = stored(process, "a")
        await process.controller.forget(source)
    async with running(tmp_path) as process:
        assert not process.context.store.ending()
        await write(process, 30, 60)
        await instants(process, "b", 60)
        status = await process.context.collections.status(source.remap)
        assert not status.upper.empty
        assert (await process.context.collections.status("a")).upper.empty


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (B.replace("topic: t", "topic: u"), "kafka.topic is u, that of Source/a t"),
        (B.replace("50ms", "100ms"), "timestampInterval is 100ms, that of Source/a 50ms"),
        (B.replace("topic: t", 'topic: t, bootstrap: "127.0.0.1:1"'), "kafka.bootstrap is 127"),
        (B.replace("kafka: {topic: t}", "http: {}"), "only sources on a topic share bindings"),
        (B.replace("remap: shared", "remap: a"), "named as Source/a is"),
        (B.replace("remap: shared", "remap: b"), "named as Source/b is"),
        (A.replace("remap: shared, ", ""), "spec.remap cannot change while it exists"),
        (B.replace("name: b", "name: shared"), "sources share their bindings as shared"),
        (
            C.replace("retain:", "eventTime: {column: n, timeline: there}, retain:"),
            "a source with eventTime has bindings of its own",
        ),
    ],
)
async def test_d3_who_cannot_share_bindings_is_refused(
    tmp_path: Path, text: str, says: str
) -> None:
    async with running(tmp_path) as process:
        await apply(process, A)
        with pytest.raises(UsageError, match=says):
            await apply(process, text)
        assert [each.resource.name for each in process.context.store.live()] == ["a"]
        await write(process, 0, 9)
        await instants(process, "a", 9)


async def test_d3_who_binds_for_others_administers_the_name(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        by = Principal("b", (Grant(Role.admin, ("b", "t")),))
        with pytest.raises(Denied, match="shared"):
            await process.controller.apply([ResourceDocument(B, "test.yaml")], by)
        assert not process.context.store.live()


async def test_d3_what_is_read_of_shared_bindings_keeps_the_last_source(tmp_path: Path) -> None:
    hold = """apiVersion: tidemill.dev/v1alpha1
kind: Hold
metadata: {name: h}
spec: {collection: shared/remap}
"""
    async with running(tmp_path) as process:
        await apply(process, A, B)
        await apply(process, hold)
        await process.controller.delete("Source", "b")
        with pytest.raises(UsageError, match="Hold/h"):
            await process.controller.delete("Source", "a")
        rows = (await process.query.snapshot("shared/remap", None, 30.0)).table
        assert bindings_of_rows(rows.append_column(TIME, rows.column("offset")))


async def test_d3_the_check_of_a_store_reads_bindings_and_finds_what_is_none(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, A, B)
        await write(process, 0, 60)
        await instants(process, "a", 60)
    state = str(tmp_path / "state")
    good = await asyncio.to_thread(CliRunner().invoke, app, ["fsck", state])
    assert good.exit_code == 0, good.output
    async with opened(ServerSettings(directory=state)) as process:
        upper = sole_time((await process.context.collections.status("a/remap")).upper)
        twice = rows_of_bindings([(Partitions(0, 0, 1), upper, 1)])  # partition 0 is further
        await process.context.collections.compare_and_append(
            "a/remap", frontier(upper), frontier(upper + 1), twice, writer="test"
        )
    bad = await asyncio.to_thread(CliRunner().invoke, app, ["fsck", state])
    assert bad.exit_code == 1
    assert bad.output.count("WRONG") == 1
    assert f"a/remap: the remap collection goes back at {upper}" in bad.output
