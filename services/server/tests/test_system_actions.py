"""Actions end to end: an effect, its correction, and what compensates it, over a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from tidemill.catalog.apply.check import check_files
from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: from-there}
spec: {view: delays, goal: "late(p, d)", fireFrom: 2400, sink: {file: {path: FOLDER/there.jsonl}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: take-back}
spec: {view: regrets, goal: "undo(p, n)", fireFrom: beginning, sink: {file: {path: FOLDER/undo.jsonl}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: regrets}
spec:
  inputs: {corrected: tell/corrections}
  program: "undo(p, n) := corrected(arg_c0: p, sequence: n, new: w) if is_null(w);"
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: "late(p, d)", fireFrom: beginning, sink: {sqlite: {path: FOLDER/late.db, table: told}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  inputs: {flight: flights}
  program: late(p, d) := flight(p, d, _) ^ not flight(p, 0, _) if d > 30;
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  timestampInterval: 50ms
  retain: all
  eventTime: {column: at, timeline: air, expiresAfter: 1h, skew: 1s, late: correct}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def push(process: Whole, *rows: tuple[str, int, int]) -> None:
    lines = [json.dumps({"plane": p, "delay": d, "at": at}).encode() for p, d, at in rows]
    await process.controller.push("flights", lines)


def told(folder: Path) -> list[tuple[object, ...]]:
    """The effects in the database: (instant, plane)."""
    with closing(sqlite3.connect(folder / "late.db")) as db:
        rows = db.execute("SELECT instant, arguments FROM told ORDER BY instant").fetchall()
    return [(instant, json.loads(arguments)[0]) for instant, arguments in rows]


def undone(folder: Path, name: str = "undo.jsonl") -> list[object]:
    lines = (folder / name).read_text().splitlines()
    return [json.loads(line)["arguments"] for line in lines]


async def wait_for_effects(process: Whole, upper: int) -> None:
    """Wait until the actions have come to an instant."""
    async with asyncio.timeout(240):
        for name in ("from-there", "take-back"):
            while (await process.context.collections.status(f"{name}/done")).upper.less_equal(
                upper - 1
            ):
                await asyncio.sleep(0.02)


async def test_a_late_row_that_is_refused_fires_nothing_and_two_rules_for_one_event_fire_once(
    tmp_path: Path,
) -> None:
    rules = "late(p, d) := flight(p, d, _) ^ not flight(p, 0, _) if d > 30;"
    text = RESOURCES.replace("FOLDER", str(tmp_path)).replace("late: correct", "late: reject")
    assert rules in text
    text = text.replace(
        f"program: {rules}", f'program: "{rules} late(p, d) := flight(p, d, _) if d > 40;"'
    )
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(text, "all.yaml")])
        await push(process, ("N1", 45, 2000), ("N2", 50, 2500), ("N3", 5, 9000))
        await wait_for_effects(process, 8000)
        assert told(tmp_path) == [(2000, "N1"), (2500, "N2")]
        # One that would take N1 back, one that would be new: both are behind what was promised.
        await push(
            process, ("N1", 0, 1500), ("N5", 70, 1600), ("N4", 60, 10_000), ("N3", 5, 19_000)
        )
        await wait_for_effects(process, 18_000)
        letters = (await process.query.snapshot("flights/deadletters", None, 120.0)).table
        corrections = (await process.query.snapshot("tell/corrections", None, 120.0)).table
        assert (letters.num_rows, corrections.num_rows) == (2, 0)
    assert told(tmp_path) == [(2000, "N1"), (2500, "N2"), (10_000, "N4")]


async def test_a_late_row_takes_back_what_was_told_and_a_restart_repeats_nothing(
    tmp_path: Path,
) -> None:
    text = RESOURCES.replace("FOLDER", str(tmp_path))
    assert check_files({"all.yaml": text}) == []
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(text, "all.yaml")])
        # The same rows twice, as from a topic that is read again: equal events are one.
        await push(process, ("N1", 45, 2000), ("N2", 50, 2500), ("N1", 45, 2000), ("N3", 5, 9000))
        await wait_for_effects(process, 8000)
        assert told(tmp_path) == [(2000, "N1"), (2500, "N2")]
        # Facts that became definite before the instant that it asks for are history.
        assert undone(tmp_path, "there.jsonl") == [["N2", 50]]
        await push(process, ("N1", 0, 1500))
    async with running(tmp_path) as process:
        await push(process, ("N3", 5, 19000))
        await wait_for_effects(process, 18000)
        (row,) = (await process.query.snapshot("tell/corrections", None, 120.0)).table.to_pylist()
        assert (row["arg_c0"], row["sequence"], row["instant"], row["new"]) == ("N1", 1, 8000, None)
        assert row["old"].startswith('late("N1", 45) @time(2000)')
    assert told(tmp_path) == [(2000, "N1"), (2500, "N2")]
    assert undone(tmp_path) == [["N1", 1]]


RELATIONS = """
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: above, goal: "named(p)", sink: {file: {path: FOLDER/named.jsonl}}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: above}
spec: {retain: RETAINED, inputs: {late: below/late}, program: "named(p) := late(p);"}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: below}
spec: {retain: RETAINED, inputs: {flight: flights}, program: "late(p) := flight(p, d) if d > 30;"}
"""
FLIGHTS = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: flights}
spec: {columns: [{name: plane, type: text}, {name: delay, type: int}], retain: RETAINED}
"""


async def past(process: Whole, collection: str, end: Literal["since", "upper"], at: int) -> None:
    """Return once a frontier of a collection is past an instant."""
    async with asyncio.timeout(240):
        while getattr(await process.context.collections.status(collection), end).less_equal(at):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("retained", ["all", "0s"])
async def test_an_action_made_together_with_its_views_fires_nothing_of_their_history(
    retained: str, tmp_path: Path
) -> None:
    async def insert(process: Whole, plane: str) -> int:
        rows = pa.table({"plane": [plane], "delay": [45]})
        return (await process.controller.insert("flights", rows)).time

    async def apply(process: Whole, text: str) -> None:
        text = text.replace("FOLDER", str(tmp_path)).replace("RETAINED", retained)
        await process.controller.apply([ResourceDocument(text, "all.yaml")])

    async with running(tmp_path) as process:
        await apply(process, FLIGHTS)
        await insert(process, "N1")
        await apply(process, RELATIONS)
        at = await insert(process, "N2")
        await past(process, "tell/done", "upper", at)
    assert undone(tmp_path, "named.jsonl") == [["N2"]]


async def test_an_action_is_refused_that_would_fire_from_before_what_is_known_and_told_what_works(
    tmp_path: Path,
) -> None:
    def tell(fire_from: object) -> list[ResourceDocument]:
        text = RELATIONS.split("---")[0].replace("sink:", f"fireFrom: {fire_from}, sink:")
        return [ResourceDocument(text.replace("FOLDER", str(tmp_path)), "tell.yaml")]

    async with running(tmp_path) as process:
        views = (FLIGHTS + "---".join(["", *RELATIONS.split("---")[1:]])).replace("RETAINED", "0s")
        await process.controller.apply([ResourceDocument(views, "views.yaml")])
        rows = pa.table({"plane": ["N1"], "delay": [45]})
        at = (await process.controller.insert("flights", rows)).time
        await past(process, "above/named", "since", at)
        with pytest.raises(UsageError) as refused:
            await process.controller.apply(tell(at))
        assert refused.value.details["reason"] == "FireFrom"
        assert str(refused.value).startswith("tell.yaml:5:49: Action/tell: spec.fireFrom: ")
        first = refused.value.details["since"]
        assert f"{at} is forgotten: above/named is known from {first} on" in str(refused.value)
        assert f"fireFrom: beginning for all that is known, or {first} or later" in str(
            refused.value
        )
        assert await process.controller.get("Action", None) == []
        applied = await process.controller.apply(tell("beginning"))
        assert [each.name for each in applied] == ["tell"]
        await past(process, "tell/done", "upper", first)
    assert undone(tmp_path, "named.jsonl") == [["N1"]]


async def test_an_action_made_with_a_view_that_never_knew_what_it_asks_for_stalls_and_says_what_works(
    tmp_path: Path,
) -> None:
    flights, text = (
        each.replace("RETAINED", "0s").replace("FOLDER", str(tmp_path))
        for each in (FLIGHTS, RELATIONS)
    )
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(flights, "flights.yaml")])
        rows = pa.table({"plane": ["N1"], "delay": [45]})
        at = (await process.controller.insert("flights", rows)).time
        await past(process, "flights", "since", at)
        asked = text.replace("sink:", f"fireFrom: {at}, sink:")
        await process.controller.apply([ResourceDocument(asked, "asked.yaml")])
        async with asyncio.timeout(60):
            while (await process.controller.describe("Action", "tell")).reason != "Stalled":
                await asyncio.sleep(0.02)
        told = (await process.controller.describe("Action", "tell")).message
        assert told.startswith(f"{at} is forgotten: above/named is known from ")
        assert "on; delete the action, and apply it with fireFrom: beginning for all" in told
