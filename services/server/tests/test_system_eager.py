"""C2: actions that fire before their events are definite, through a whole process and over
restarts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidemill.catalog.apply.check import check_files
from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_server.settings import ServerSettings

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: moves}
spec:
  http: {}
  columns: [{name: card, type: text}, {name: city, type: text}, {name: at, type: int}]
  timestampInterval: 50ms
  retain: all
  eventTime: {column: at, timeline: bank, expiresAfter: 5m, skew: 1h}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: fraud}
spec:
  retain: all
  inputs: {move: moves}
  program: |
    both(c, x, y) := move(c, x, _) ^ move(c, y, _) if x < y;
    alone(c) := move(c, x, _) ^ not both(c, x, _);
"""
ACTION = """
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: NAME}
spec:
  view: fraud
  goal: both(c, x, y)
  fireFrom: beginning
  eager: EAGER
  sink: {file: {path: FOLDER/NAME.jsonl}}
"""
T = 10_000_000
HOUR = 3_600_000


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


def action(folder: Path, name: str, eager: bool) -> str:
    text = ACTION.replace("NAME", name).replace("FOLDER", str(folder))
    return text.replace("EAGER", str(eager).lower())


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "all.yaml")])


async def push(process: Whole, *rows: tuple[str, str, int]) -> None:
    lines = [json.dumps({"card": c, "city": x, "at": at}).encode() for c, x, at in rows]
    await process.controller.push("moves", lines)


def told(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(json.loads(line)["arguments"][0] for line in lines)


async def tells(folder: Path, name: str, cards: list[str]) -> None:
    async with asyncio.timeout(120):
        while told(folder, name) != cards:
            await asyncio.sleep(0.02)


async def upper_of(process: Whole, collection: str) -> int:
    return sole_time((await process.context.collections.status(collection)).upper)


async def test_c2_an_eager_goal_fires_while_upper_has_not_passed_and_never_again(
    tmp_path: Path,
) -> None:
    """C2: the plain action beside it waits an hour of event time for the same set; so does another
    process.
    """
    text = SOURCE + action(tmp_path, "now", True) + action(tmp_path, "later", False)
    assert check_files({"all.yaml": text}) == []
    async with running(tmp_path) as process:
        await apply(process, text)
        await push(process, ("a", "Bern", T), ("a", "Rome", T + 2), ("b", "Bern", T + 3))
        await tells(tmp_path, "now", ["a"])
        assert await upper_of(process, "fraud/both") <= T - HOUR + 3
        assert told(tmp_path, "later") == []
        described = (await process.controller.describe("Action", "now")).details
        assert (described["firing"], described["firedEarly"]) == ("eager", 1)
        plain = (await process.controller.describe("Action", "later")).details
        assert plain["firing"] == "definite"
    async with running(tmp_path) as process:
        # An event from before the restart that is not definite yet is joined with later ones.
        await push(process, ("b", "Oslo", T + 9), ("c", "Bern", T + 10), ("a", "Rome", T + 2))
        await tells(tmp_path, "now", ["a", "b"])
        assert told(tmp_path, "later") == []
        await push(process, ("z", "Bern", T + 2 * HOUR))
        await tells(tmp_path, "later", ["a", "b"])
        await push(process, ("c", "Oslo", T + 11), ("z", "Oslo", T + 2 * HOUR + 1))
        await tells(tmp_path, "now", ["a", "b", "z"])
        corrections = (await process.query.snapshot("now/corrections", None, 60.0)).table
        assert corrections.num_rows == 0
        outbox = (await process.context.collections.read_updates("now/outbox")).to_pylist()
        keys = [row["key"] for row in outbox if row["key"]]
        assert len(keys) == len(set(keys)) == 3
        read = ("moves", "moves/raw", "moves/eventmap", "fraud/state", "fraud/both")
        assert [each for each in read if not await holds_history(process, each)] == []
        await process.controller.delete("Action", "now")
        assert [each for each in read if await holds_history(process, each)] == []


async def holds_history(process: Whole, collection: str) -> bool:
    """Whether the eager action holds the history of a collection."""
    holders = (await process.context.collections.status(collection)).holders
    return "action:now" in {holder.owner for holder in holders}


async def test_c2_what_keeps_a_goal_from_being_eager_is_told_with_its_rule(tmp_path: Path) -> None:
    """C2: at `check` and at `apply`, and nothing is recorded."""
    refused = action(tmp_path, "now", True).replace("both(c, x, y)", "alone(c)")
    (found,) = check_files({"all.yaml": SOURCE + refused})
    assert found.code == "S129"
    async with running(tmp_path) as process:
        with pytest.raises(UsageError, match=r"S129 this goal cannot be eager.*not both"):
            await apply(process, SOURCE + refused)
        assert await process.controller.get("Action", None) == []
        keyed = SOURCE.replace("  eventTime:", "  envelope: {key: [card]}\n  eventTime:")
        with pytest.raises(UsageError):
            await apply(process, keyed + action(tmp_path, "now", True))


async def test_c2_a_view_under_an_eager_action_keeps_its_rules(tmp_path: Path) -> None:
    """C2: what has fired early follows from them; the action goes first. Nor does an action become
    eager.
    """
    async with running(tmp_path) as process:
        await apply(process, SOURCE + action(tmp_path, "now", True))
        changed = SOURCE.replace("if x < y", "if x > y")
        with pytest.raises(UsageError, match="cannot change while Action/now watches it"):
            await apply(process, changed)
        with pytest.raises(UsageError, match=r"spec\.eager cannot change while it exists"):
            await apply(process, action(tmp_path, "now", False))
        await process.controller.delete("Action", "now")
        await apply(process, changed)
