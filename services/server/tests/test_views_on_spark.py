"""A view on Spark as users have it: declared, asked, described, and taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

TEXT = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: dest, type: text}, {name: delay, type: int}]
  timestampInterval: 50ms
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  program: "late(p, d) := flights(p, _, d) if d > 30; often(p) @count(d) := late(p, d);"
  engine: ENGINE
"""
OFTEN = "often(p) @count(n)"


async def apply(process: Whole, engine: str) -> None:
    document = TEXT.replace("ENGINE", engine)
    await process.controller.apply([ResourceDocument(document, "test.yaml")])


async def push(process: Whole, *rows: tuple[str, str, int]) -> None:
    lines = [json.dumps({"plane": p, "dest": t, "delay": d}).encode() for p, t, d in rows]
    await process.controller.push("flights", lines)


async def until(process: Whole, expected: Mapping[str, int]) -> None:
    async with asyncio.timeout(480):
        while True:
            found = (await process.query.ask(OFTEN, None, 480.0)).table.to_pylist()
            if {row["p"]: row["n"] for row in found} == expected:
                return
            await asyncio.sleep(0.05)


async def describe(
    process: Whole, until_: Callable[[Mapping[str, Any]], bool]
) -> Mapping[str, Any]:
    async with asyncio.timeout(480):
        while True:
            status = await process.controller.describe("View", "delays")
            if until_({**status.details, "reason": status.reason}):
                return {**status.details, "reason": status.reason, "message": status.message}
            await asyncio.sleep(0.05)


@pytest.mark.server
async def test_a_view_goes_to_spark_and_back_and_its_answers_go_on(tmp_path: Path) -> None:
    async with opened(ServerSettings(directory=str(tmp_path / "state"))) as process:
        await process.start()
        await apply(process, "spark")
        await push(process, ("a", "IAH", 40), ("b", "MIA", 50), ("c", "IAH", 10))
        await until(process, {"a": 1, "b": 1})
        await push(process, ("a", "IAH", 41), ("c", "IAH", 99))
        await until(process, {"a": 2, "b": 1, "c": 1})
        details = await describe(process, lambda each: bool(each.get("windows")))
        assert (details["engine"], details["engineCause"]) == ("spark", "Asked")
        await apply(process, "local")
        await push(process, ("b", "IAH", 77))
        await until(process, {"a": 2, "b": 2, "c": 1})
        await describe(process, lambda each: "engine" not in each)


async def test_a_view_on_spark_is_stalled_where_there_is_none_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tidemill.host.launching.find_spec", lambda name: None
    )  # as where the extra is not installed
    async with opened(ServerSettings(directory=str(tmp_path / "state"))) as process:
        await process.start()
        await apply(process, "spark")
        await push(process, ("a", "IAH", 40), ("a", "IAH", 41))
        status = await describe(process, lambda each: each["reason"] == "Stalled")
        assert "pip install 'tidemill[spark]'" in status["message"]
        await apply(process, "auto")
        await until(process, {"a": 2})
