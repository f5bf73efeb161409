"""A view that is changed: readers go on, at one instant the new program answers, and nothing fires
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.errors import UsageError
from tidemill.rpc.messages import Decision, Outcome, ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_server.settings import ServerSettings

TABLES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: trips}
spec: {columns: [{name: who, type: text}, {name: late, type: int}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: friends}
spec: {columns: [{name: who, type: text}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec: {retain: all, program: "PROGRAM"}
"""
ACTION = """
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: delayed(w), fireFrom: beginning, sink: {file: {path: FOLDER/told.jsonl}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: above}
spec: {retain: all, program: counted() @count(w) := delayed(w);}
"""
OLD = "delayed(w) := trips(w, d) if d > 10;"
NEW = "delayed(w) := trips(w, d) ^ not friends(w) if d > 5;\\nfriendly(w) := friends(w);"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def apply(process: Whole, text: str) -> list[Outcome]:
    documents = [ResourceDocument(text, "test.yaml")]
    return [applied.outcome for applied in await process.controller.apply(documents)]


async def insert(process: Whole, who: str, late: int) -> int:
    rows = pa.table({"who": [who], "late": [late]})
    return (await process.controller.insert("trips", rows)).time


async def answer(process: Whole, goal: str, at: int) -> list[tuple[object, ...]]:
    table = (await process.query.ask(goal, at, 120.0)).table.drop_columns(["_diff"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


async def read_now(process: Whole, version: int) -> int:
    """Wait until a version is read; an instant at which it is."""
    async with asyncio.timeout(240):
        while True:
            status = await process.controller.describe("view", "delays")
            assert status.reason != "Stalled", status.message
            if status.details.get("version", 1) == version and "changing" not in status.details:
                return sole_time((await process.context.collections.status("delays/delayed")).upper)
            await asyncio.sleep(0.05)


async def wait_for_effects(process: Whole, folder: Path, past: int) -> list[str]:
    """Effects of the action, once it has come past an instant."""
    async with asyncio.timeout(240):
        while (await process.context.collections.status("tell/done")).upper.less_equal(past):
            await asyncio.sleep(0.05)
    return [line.split('["')[1][0] for line in (folder / "told.jsonl").read_text().splitlines()]


async def wait_until_clean(process: Whole) -> None:
    """Wait until nothing is open or held that only the old version or the change needed."""
    left = {"delays/state", "delays@2/delayed", "delays@2/friendly", "delays@2/errors"}
    collections = process.context.collections
    async with asyncio.timeout(240):
        while True:
            uppers = {
                name: (await collections.status(name)).upper
                for name in await collections.ids()
                if name.startswith("delays")
            }
            owners = {holder.owner for holder in (await collections.status("trips")).holders}
            closed = {name for name, upper in uppers.items() if upper.empty}
            if closed == left and owners == {"view:delays@2"}:
                return
            await asyncio.sleep(0.05)


async def test_a_changed_program_answers_from_one_instant_on(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", OLD))
        await apply(process, ACTION.replace("FOLDER", str(tmp_path)))
        await insert(process, "a", 20)
        await process.controller.insert("friends", pa.table({"who": ["a"]}))
        before = await insert(process, "b", 7)
        assert await answer(process, "delayed(w)", before) == [("a",)]
        assert await wait_for_effects(process, tmp_path, before) == ["a"]
        assert await apply(process, VIEW.replace("PROGRAM", NEW)) == [Outcome.CONFIGURED]
        at = await read_now(process, 2)
        assert await answer(process, "delayed(w)", before) == [("a",)]
        assert await answer(process, "delayed(w)", at) == [("b",)]
        assert await answer(process, "friendly(w)", at) == [("a",)]
        assert len(await answer(process, "above/counted()", at)) == 1
        assert await wait_for_effects(process, tmp_path, at) == ["a", "b"]
        await wait_until_clean(process)
    async with running(tmp_path) as process:
        later = await insert(process, "c", 8)
        assert await answer(process, "delayed(w)", later) == [("b",), ("c",)]
        # Back to the first program: "a" has fired before, and does not again.
        await apply(process, VIEW.replace("PROGRAM", OLD + "\\nfriendly(w) := friends(w);"))
        at = await read_now(process, 3)
        assert await answer(process, "delayed(w)", at) == [("a",)]
        assert await wait_for_effects(process, tmp_path, at) == ["a", "b", "c"]
        await process.controller.delete("action", "tell")
        await process.controller.delete("view", "above")
        await process.controller.delete("view", "delays")
        assert (await process.context.collections.status("trips")).holders == ()


async def test_a_process_that_stops_in_the_middle_goes_on_with_the_change(tmp_path: Path) -> None:
    """Each process lives for a moment; a second change while the first is on its way takes its
    place.
    """
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", OLD))
        first = await insert(process, "b", 7)
        await answer(process, "delayed(w)", first)
        await apply(process, VIEW.replace("PROGRAM", NEW))
        await apply(process, VIEW.replace("PROGRAM", NEW.replace("> 5", "> 6")))
    for _ in range(6):
        async with running(tmp_path) as process:
            await asyncio.sleep(0)
    async with running(tmp_path) as process:
        at = await read_now(process, 3)
        assert await answer(process, "delayed(w)", first) == []
        assert await answer(process, "delayed(w)", at) == [("b",)]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("delayed(w, d) := trips(w, d) if d > 10;", "the output delayed has the columns c0 string"),
        ("late(w) := trips(w, d) if d > 10;", "the output delayed would be gone"),
        (
            "delayed(w) := trips(w, _) ^ above(w);",
            "above/above is derived from what delays derives",
        ),
        ("delayed(w) := trips(w, d) ^ nosuch(d);", "S124"),
    ],
)
async def test_a_change_that_readers_cannot_follow_is_refused(
    program: str, says: str, tmp_path: Path
) -> None:
    above = VIEW.replace("delays", "above").replace("PROGRAM", "above(w) := delayed(w);")
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", OLD))
        await apply(process, above)
        with pytest.raises(UsageError) as refused:
            await apply(process, VIEW.replace("PROGRAM", program))
        assert says in str(refused.value)
        assert str(refused.value).startswith("test.yaml:")
        at = await insert(process, "a", 20)
        assert await answer(process, "delays/delayed(w)", at) == [("a",)]


async def test_a_view_that_two_documents_have_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        documents = [ResourceDocument(TABLES, name) for name in ("a.yaml", "b.yaml")]
        with pytest.raises(UsageError, match=r"b\.yaml:.*Table/trips is there already, at a\.yaml"):
            await process.controller.apply(documents)
        assert await process.controller.get(None, None) == []


async def test_a_view_that_passes_a_limit_stops_whole_and_goes_on_when_it_is_raised(
    tmp_path: Path,
) -> None:
    text = VIEW.replace("PROGRAM", OLD).replace("retain: all", "retain: all, LIMITS")
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + text.replace("LIMITS", "limits: {rows: 2}"))
        await insert(process, "a", 20)
        two = await insert(process, "b", 20)
        assert await answer(process, "delayed(w)", two) == [("a",), ("b",)]
        three = await insert(process, "c", 20)
        async with asyncio.timeout(240):
            while (
                status := await process.controller.describe("view", "delays")
            ).reason != "Stalled":
                await asyncio.sleep(0.05)
        assert "delayed has more than 2 rows" in status.message
        upper = (await process.context.collections.status("delays/delayed")).upper
        assert upper.less_equal(three), "a part of an answer"
        assert await apply(process, text.replace("LIMITS", "limits: {rows: 3}")) == [
            Outcome.CONFIGURED
        ]
        assert await answer(process, "delayed(w)", three) == [("a",), ("b",), ("c",)]


async def test_failed_solutions_are_counted_where_the_view_is_described(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        program = "delayed(w) := trips(w, d) if 100 / d > 5;"
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", program))
        await insert(process, "a", 10)
        at = await insert(process, "b", 0)
        assert await answer(process, "delayed(w)", at) == [("a",)]
        assert (await process.controller.describe("view", "delays")).details["errors"] == 1


async def test_a_strategy_changes_without_a_new_version(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", OLD))
        answers = []
        for number, strategy in enumerate(("strata", "retraction", "strata")):
            text = VIEW.replace("retain: all", f"retain: all, strategy: {strategy}")
            outcome = Outcome.CONFIGURED if number else Outcome.UNCHANGED
            assert await apply(process, text.replace("PROGRAM", OLD)) == [outcome]
            at = await insert(process, f"p{number}", 20)
            answers.append(await answer(process, "delayed(w)", at))
            status = await process.controller.describe("view", "delays")
            assert status.details["strategy"] == strategy
            assert "version" not in status.details
        assert answers == [[(f"p{n}",) for n in range(upto)] for upto in (1, 2, 3)]


async def waits(process: Whole, version: int) -> str:
    """The message of a view once a version waits that was compared."""
    async with asyncio.timeout(240):
        while True:
            status = await process.controller.describe("view", "delays")
            changing = status.details.get("changing")
            if isinstance(changing, dict) and changing.get("to") == version and "asOf" in changing:
                assert (status.ready, status.reason) == (True, "TakeoverWaits")
                return status.message
            await asyncio.sleep(0.05)


async def test_a_new_version_waits_until_it_is_approved(tmp_path: Path) -> None:
    manual = VIEW.replace("retain: all", "retain: all, takeover: manual")
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", OLD))
        first = await insert(process, "b", 7)
        with pytest.raises(UsageError, match="nothing is approved: View/delays has no version"):
            await process.controller.decide("delays", Decision.APPROVE, None)
        await apply(process, manual.replace("PROGRAM", NEW))
        assert "new version 2 waits: 1 rows differ as of " in await waits(process, 2)
        later = await insert(process, "c", 20)
        assert await answer(process, "delayed(w)", later) == [("c",)]
    async with running(tmp_path) as process:
        assert "1 rows differ" in await waits(process, 2)
        with pytest.raises(UsageError, match="version 2 of View/delays waits, not 3"):
            await process.controller.decide("delays", Decision.APPROVE, 3)
        assert await process.controller.decide("delays", Decision.APPROVE, 2) == 2
        at = await read_now(process, 2)
        assert await answer(process, "delayed(w)", at) == [("b",), ("c",)]
        assert await answer(process, "delayed(w)", first) == []
        await wait_until_clean(process)


async def test_an_aborted_version_is_given_up_and_its_number_is_never_used_again(
    tmp_path: Path,
) -> None:
    manual = VIEW.replace("retain: all", "retain: all, takeover: manual")
    async with running(tmp_path) as process:
        await apply(process, TABLES + "---" + VIEW.replace("PROGRAM", OLD))
        await insert(process, "b", 7)
        await apply(process, manual.replace("PROGRAM", NEW))
        await waits(process, 2)
        assert await process.controller.decide("delays", Decision.ABORT, None) == 2
    async with running(tmp_path) as process:
        async with asyncio.timeout(240):
            while not (status := await process.controller.describe("view", "delays")).ready:
                await asyncio.sleep(0.05)
        assert status.details["aborted"] == 2
        assert "version 2 was aborted, and version 1 goes on" in status.message
        at = await insert(process, "c", 20)
        assert await answer(process, "delayed(w)", at) == [("c",)]
        # The program of the version that is read: nothing is evaluated anew.
        assert await apply(process, manual.replace("PROGRAM", OLD)) == [Outcome.CONFIGURED]
        later = await insert(process, "d", 30)
        assert await answer(process, "delayed(w)", later) == [("c",), ("d",)]
        status = await process.controller.describe("view", "delays")
        assert "aborted" not in status.details
        assert "changing" not in status.details
        await apply(process, VIEW.replace("PROGRAM", NEW))
        at = await read_now(process, 3)
        assert await answer(process, "delayed(w)", at) == [("b",), ("c",), ("d",)]
