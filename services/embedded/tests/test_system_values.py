"""What comes in through tables and goes on through views is what the language says of it, at every border."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.rpc.messages import ResourceDocument
from tidemill.time import UsageError
from tidemill_embedded.process import Process, opened
from tidemill_embedded.settings import EmbeddedSettings

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
EVENTS = f"""{HEAD}kind: Source
metadata: {{name: e}}
spec:
  http: {{}}
  columns: [{{name: k, type: text}}, {{name: at, type: int}}]
  eventTime: {{column: at, timeline: et}}
  timestampInterval: 50ms
"""


def table(name: str, *columns: str) -> str:
    """A table; each column is its name and type, with `?` behind it if a row may leave it out."""
    told = ([*each.rstrip("?").split(), str(each.endswith("?")).lower()] for each in columns)
    listed = ", ".join(f"{{name: {n}, type: {t}, nullable: {null}}}" for n, t, null in told)
    return f"{HEAD}kind: Table\nmetadata: {{name: {name}}}\nspec: {{columns: [{listed}], retain: all}}\n"


def view(name: str, program: str, more: str = "") -> str:
    return f"{HEAD}kind: View\nmetadata: {{name: {name}}}\nspec:\n{more}  retain: all\n  program: |\n    {program}\n"


@asynccontextmanager
async def running(folder: Path, *texts: str) -> AsyncIterator[Process]:
    """A process with what the texts say."""
    async with opened(EmbeddedSettings(directory=str(folder / "state"))) as process:
        await process.system.start()
        if texts:
            await apply(process, *texts)
        yield process


async def apply(process: Process, *texts: str) -> None:
    await process.system.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def insert(process: Process, name: str, *rows: dict[str, object]) -> int:
    return (await process.system.insert(name, pa.Table.from_pylist(list(rows)))).time


async def answer(process: Process, goal: str, at: int) -> list[tuple[object, ...]]:
    """The rows that match a goal at an instant, once it is definite."""
    found = (await process.query.ask(goal, at, 60.0)).table.drop_columns(["_diff"])
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return sorted(rows, key=repr)


@pytest.mark.parametrize(
    ("program", "name"),
    [("late(plane: x, time: t) := e(k: x) @time(t);", "time"), ("errors(x) := e(k: x);", "errors")],
)
async def test_w1_w10_a_view_whose_names_are_taken_is_refused_and_not_there(
    tmp_path: Path, program: str, name: str
) -> None:
    async with running(tmp_path, EVENTS) as process:
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"S126 .*`{name}`(?s:.*)another name"):
                await apply(process, view("v", program))
        assert await process.system.get("View", None) == []
    async with running(tmp_path) as process:
        assert [status.name for status in await process.system.get(None, None)] == ["e"]
