"""Knowledge of a name from before: none if it was given again, else as far back as its rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.errors import BeforeSince, TidemillError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_reclock.settings import ReclockSettings
from tidemill_server.settings import ServerSettings

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
TABLE = f"{HEAD}kind: Table\nmetadata: {{name: s}}\nspec: {{columns: [{{name: n, type: int}}], retain: all}}\n"
SOURCE = f"""{HEAD}kind: Source
metadata: {{name: s}}
spec: {{http: {{}}, format: {{json: {{}}}}, columns: [{{name: n, type: int}}], retain: all, SPECIAL}}
"""
PLAIN = SOURCE.replace(", SPECIAL", "")
EVENTS = SOURCE.replace(
    "SPECIAL", "eventTime: {column: n, skew: 0ms, expiresAfter: 1s, timeline: there}"
)
VIEW = f"""{HEAD}kind: View
metadata: {{name: v}}
spec: {{retain: all, program: "copied(n) := s(n);"}}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    quick = ReclockSettings(hold_interval_s=0.0)
    async with opened(ServerSettings(directory=str(folder / "state"), reclock=quick)) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def give(process: Whole, kind: str, *numbers: int) -> None:
    if kind == "Table":
        await process.controller.insert("s", pa.table({"n": numbers}))
    else:
        await process.controller.push("s", [b'{"n": %d}' % number for number in numbers])


async def wait_for_rows(process: Whole, name: str, count: int) -> int:
    """Wait until a collection holds so many rows; an instant at which it does."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await process.query.ask(name, None, 10.0)
            except TidemillError:  # it has not begun
                await asyncio.sleep(0.05)
                continue
            if answer.table.num_rows == count:
                return answer.as_of
            await asyncio.sleep(0.05)


@pytest.mark.rule("F12", "L1", "L4")
@pytest.mark.parametrize(("kind", "document"), [("Table", TABLE), ("Source", PLAIN)])
async def test_v14_5_a_name_used_again_says_nothing_of_instants_before(
    tmp_path: Path, kind: str, document: str
) -> None:
    async with running(tmp_path) as process:
        await apply(process, document, VIEW)
        await give(process, kind, 1, 2)
        before = max(
            await wait_for_rows(process, "s(n)", 2), await wait_for_rows(process, "copied(n)", 2)
        )
        await process.controller.delete("View", "v")
        await process.controller.delete(kind, "s")
        await apply(process, document, VIEW)
        await give(process, kind, 3)
        await wait_for_rows(process, "copied(n)", 1)
        made = ["s(n)", "copied(n)"] + (["s/remap", "s/deadletters"] if kind == "Source" else [])
        for name in made:
            with pytest.raises(BeforeSince):
                await process.query.ask(name, before, None)
        status = await process.context.collections.status("s~2")
        assert sole_time(status.since) > before
    async with running(tmp_path) as process:  # it is found again, and goes on
        await give(process, kind, 4)
        await wait_for_rows(process, "copied(n)", 2)
        with pytest.raises(BeforeSince):
            await process.query.ask("s(n)", before, None)


async def test_v14_5_an_event_stream_used_again_goes_on_over_a_restart(tmp_path: Path) -> None:
    """A collection on its own timeline begins where that does; its bindings begin with the name."""
    async with running(tmp_path) as process:
        await apply(process, EVENTS)
        await give(process, "Source", 1_000, 9_000)
        await wait_for_rows(process, "s", 0)
        before = (await process.query.ask("s/remap", None, 10.0)).as_of
        await process.controller.delete("Source", "s")
        await apply(process, EVENTS)
        await give(process, "Source", 5_000, 7_000)
        assert (await process.query.ask("s", 5_500, 30.0)).table.num_rows == 1
        for aside in ("remap", "eventmap", "deadletters"):
            with pytest.raises(BeforeSince):
                await process.query.ask(f"s/{aside}", before, None)
    async with running(tmp_path) as process:
        await give(process, "Source", 8_000, 9_900)
        assert (await process.query.ask("s", 8_100, 30.0)).table.num_rows == 1
        assert (await process.query.ask("s", 5_500, 30.0)).table.num_rows == 1


@pytest.mark.parametrize(("retain", "kept"), [("all", True), ("1s", False)])
async def test_v14_6_bindings_are_known_as_far_back_as_the_rows(
    tmp_path: Path, retain: str, kept: bool
) -> None:
    async with running(tmp_path) as process:
        await apply(process, PLAIN.replace("retain: all", f"retain: {retain}"))
        await give(process, "Source", 1)
        then = await wait_for_rows(process, "s(n)", 1)
        told = (await process.query.ask("s/remap", then, 10.0)).table
        async with asyncio.timeout(60):  # rows go on, and holds with them
            while (await process.query.ask("s(n)", None, 10.0)).as_of < then + 3_000:
                await give(process, "Source", 2)
                await asyncio.sleep(0.2)
        if kept:
            assert (await process.query.ask("s(n)", then, None)).table.num_rows == 1
            assert (await process.query.ask("s/remap", then, None)).table.equals(told)
            return
        for name in ("s(n)", "s/remap"):
            with pytest.raises(BeforeSince):
                await process.query.ask(name, then, None)
        rows = await process.context.collections.status("s")
        remap = await process.context.collections.status("s/remap")
        assert remap.since.precedes(rows.since)


async def test_v14_6_what_an_event_stream_was_made_of_is_kept_with_it(tmp_path: Path) -> None:
    asides = ("s/remap", "s/eventmap")
    async with running(tmp_path) as process:
        await apply(process, EVENTS)
        await give(process, "Source", 1_000, 9_000)
        await process.query.ask("s", 5_000, 30.0)
        then = [(await process.query.ask(name, None, 30.0)).as_of for name in asides]
        await give(process, "Source", 20_000)
        await process.query.ask("s", 15_000, 30.0)
        for name, at in zip(asides, then, strict=True):
            assert (await process.query.ask(name, at, None)).as_of == at
        await apply(process, EVENTS.replace("retain: all", "retain: 1s"))
        kept = [(await process.context.collections.description(name)).retain_ms for name in asides]
        assert kept == [1_000, 1_000]
