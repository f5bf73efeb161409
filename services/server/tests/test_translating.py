"""Records in an answer, and the first instant with a record: asked of a running system."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tidemill.client.command import app
from tidemill.errors import BeforeSince, NotYet, UnknownCollection, UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import ResourceDocument, Translation
from tidemill.testkit.up import up_process
from tidemill.testkit.whole import Whole, opened
from tidemill.time import SourceFrontier, partition_frontier, partition_offsets, sole_time
from tidemill_reclock.settings import ReclockSettings
from tidemill_server.settings import ServerSettings

SOURCE = """apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}], retain: all,
  timestampInterval: 50msMORE}
"""
PLAIN = SOURCE.replace("NAME", "s").replace("MORE", "")
EVENTS = SOURCE.replace("NAME", "e").replace(
    "MORE", ", eventTime: {column: n, skew: 0ms, expiresAfter: 1s, timeline: there}"
)
REFERENCE = (
    SOURCE.replace("NAME", "r")
    .replace("MORE", ", timeline: there")
    .replace("http: {}, format: {json: {}}", "file: {path: 'PATH', format: jsonl}")
)
TABLE = """apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: t}
spec: {columns: [{name: n, type: int}]}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    quick = ReclockSettings(hold_interval_s=0.0)
    async with opened(ServerSettings(directory=str(folder / "state"), reclock=quick)) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


def at(**offsets: int) -> SourceFrontier:
    return partition_frontier({int(name[1:]): offset for name, offset in offsets.items()})


def shown(found: Translation) -> tuple[int, dict[int, int]]:
    return found.as_of, partition_offsets(found.offsets)


async def push_each(
    process: Whole, source: str, *numbers: int, file: Path | None = None
) -> Translation:
    """Give one row after the other, each bound by itself; how far the last is bound."""
    for number in numbers:
        before = partition_offsets((await read_bound(process, source)).offsets).get(0, 0)
        if file is None:
            await process.controller.push(source, [b'{"n": %d}' % number])
        else:
            with file.open("ab") as lines:
                lines.write(b'{"n": %d}\n' % number)
        async with asyncio.timeout(60):
            while (
                partition_offsets((await read_bound(process, source)).offsets).get(0, 0) == before
            ):
                await asyncio.sleep(0.02)
    return await read_bound(process, source)


async def read_bound(process: Whole, source: str) -> Translation:
    """The bindings, however far event time has come."""
    remap = f"{source}/remap"
    answer = await process.query.snapshot(remap, None, 30.0)
    rows = answer.table.to_pylist()
    offsets = partition_frontier({r["lo"]: r["offset"] for r in rows if r["lo"] == r["hi"]})
    return Translation(answer.as_of, "system", answer.as_of, offsets, answer.since, answer.upper)


@pytest.mark.rule("G11", "G12")
async def test_d3_every_answer_is_made_of_the_records_before_its_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, PLAIN)
        last = await push_each(process, "s", *range(5))
        query = process.query
        instants = [(await query.translate("s", at(p0=n), 60.0)).as_of for n in range(1, 6)]
        assert instants == sorted(set(instants))
        told = {}
        for n, instant in enumerate(instants, 1):
            # The least instant: the record is there, and was not a moment before.
            for time, rows in ((instant, n), (instant - 1, n - 1)):
                found = await query.translate("s", time, None)
                assert (await query.snapshot("s", time, None)).table.num_rows == rows
                assert (found.as_of, found.bound_at) == (time, time)
                assert partition_offsets(found.offsets).get(0, 0) == rows
                told[time] = shown(found)
        assert shown(await query.translate("s", last.offsets, None)) == (instants[-1], {0: 5})
    async with running(tmp_path) as process:  # what was said is said again, by another process
        for time, before in told.items():
            assert shown(await process.query.translate("s", time, 30.0)) == before
        assert (await process.query.translate("s", at(p0=2), 30.0)).as_of == instants[1]


async def test_d3_offsets_that_are_in_no_answer_are_not_yet_until_they_are(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, PLAIN)
        bound = await push_each(process, "s", 1)
        await process.query.translate("s", bound.offsets, 60.0)  # bound is not yet written
        with pytest.raises(NotYet, match=r"p0=3 of s is not in any answer yet: .* come to p0=1"):
            await process.query.translate("s", at(p0=3), None)
        with pytest.raises(NotYet, match="p7=1 of s"):
            await process.query.translate("s", at(p0=1, p7=1), 0.2)
        waiting = asyncio.create_task(process.query.translate("s", at(p0=3), 60.0))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await process.controller.push("s", [b'{"n": 2}', b'{"n": 3}'])
        assert partition_offsets((await waiting).offsets) == {0: 3}
        with pytest.raises(NotYet):
            await process.query.translate("s", (await waiting).as_of + 3_600_000, None)


@pytest.mark.rule("G12")
async def test_d3_translations_are_known_exactly_as_far_back_as_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, PLAIN.replace("retain: all", "retain: 1s"))
        first = await push_each(process, "s", 1)
        async with asyncio.timeout(60):
            while (await push_each(process, "s", 2)).as_of < first.as_of + 3_000:
                await asyncio.sleep(0.2)
        with pytest.raises(BeforeSince, match="p0=1 of s came in at"):
            await process.query.translate("s", at(p0=1), None)
        # An instant that anybody still holds can be asked of both.
        held = await process.context.collections.read_hold("s", owner="test", lease_ms=None)
        since = sole_time(held.frontier)
        with pytest.raises(BeforeSince):
            await process.query.translate("s", since - 1, None)
        await push_each(process, "s", 3)
        for time in (since, since + 300):
            found = await process.query.translate("s", time, 30.0)
            there = (await process.query.snapshot("s", time, None)).table
            assert partition_offsets(found.offsets)[0] == sum(there["_diff"].to_pylist())


async def test_d3_an_instant_of_event_time_is_made_of_what_had_come_when_it_was_over(
    tmp_path: Path,
) -> None:
    """Later records are late there, so the answer is made of the bindings of that time."""
    file = tmp_path / "rows.jsonl"
    file.touch()
    async with running(tmp_path) as process:
        await apply(process, EVENTS)
        query = process.query
        await push_each(process, "e", 1_000)
        await apply(process, REFERENCE.replace("PATH", str(file)))
        await push_each(process, "r", 7, file=file)
        await query.snapshot("r", 500, 120.0)
        await push_each(process, "e", 9_000)
        await query.snapshot("r", 8_999, 120.0)
        await push_each(process, "r", 8, file=file)
        await push_each(process, "e", 20_000)
        for source, steps in (
            ("e", ((0, 1), (999, 1), (1_000, 2), (8_999, 2), (9_000, 3), (19_999, 3))),
            ("r", ((0, 1), (500, 1), (9_000, 2), (19_999, 2))),
        ):
            for time, offset in steps:
                found = await query.translate(source, time, 120.0)
                assert (found.timeline, shown(found)) == ("there", (time, {0: offset}))
                there = await query.translate(f"{source}", found.offsets, None)
                assert there.as_of <= time
                assert shown(there)[1] == {0: offset}
        for offset, least in ((1, 0), (2, 1_000), (3, 9_000)):
            assert (await query.translate("e", at(p0=offset), None)).as_of == least
        # The instant of our clock is that of the binding, at which the source itself was that far.
        found = await query.translate("e", 5_000, None)
        remap = (await query.snapshot("e/remap", found.bound_at, None)).table.to_pylist()
        assert [row["offset"] for row in remap if row["lo"] == row["hi"]] == [2]
        with pytest.raises(NotYet):
            await query.translate("e", 20_000, None)
        with pytest.raises(NotYet):
            await query.translate("e", at(p0=4), None)


async def test_d3_what_is_no_source_and_offsets_that_are_none_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, PLAIN, TABLE)
        await process.controller.insert("t", pa.table({"n": [1]}))
        for name in ("t", "s/remap"):
            with pytest.raises(UsageError, match="is no source"):
                await process.query.translate(name, None, None)
        with pytest.raises(UnknownCollection):
            await process.query.translate("nobody", None, None)
        many = partition_frontier(dict.fromkeys(range(20_001), 1))
        with pytest.raises(UsageError, match=re.escape("limits.question_offsets")):
            await process.query.translate("s", many, None)


def test_d3_the_command_and_both_clients_translate(tmp_path: Path) -> None:
    with up_process(tmp_path) as server:
        address = server.address("grpc")
        call = ["--address", address, "translate", "s"]
        with server.client() as client:
            client.apply(ResourceDocument(PLAIN, "s"))
            client.push("s", [b'{"n": 1}', b'{"n": 2}'])
            found = client.since_when("s", "p0=2", timeout_s=60)
            assert shown(client.offsets("s", found.as_of)) == shown(found)
            assert shown(client.since_when("s", {0: 1})) <= shown(found)
            with pytest.raises(NotYet):
                client.since_when("s", {0: 3})

        async def ask() -> Translation:
            async with AsyncClient(address) as held:
                return await held.translate("s", found.as_of)

        assert shown(asyncio.run(ask())) == shown(found) == (found.as_of, {0: 2})
        for options in (["--as-of", str(found.as_of)], ["--offsets", "0=2"], ["--records", "p0=1"]):
            said = CliRunner().invoke(app, [*call, *options, "--wait"])
            assert said.exit_code == 0, said.output
            assert (f"s as of {found.as_of}" in said.output, "p0=2" in said.output) == (True, True)
            told = CliRunner().invoke(app, [*call, *options, "--json"])
            assert json.loads(told.output)["offsets"] == {"0": 2}
        late = CliRunner().invoke(app, [*call, "--records", "p0=2"])
        assert late.exit_code != 0
        wrong = CliRunner().invoke(app, [*call, "--offsets", "17"])
        assert wrong.exit_code != 0
        assert (
            CliRunner().invoke(app, [*call, "--offsets", "0=1", "--records", "0=1"]).exit_code == 2
        )
