"""Collections that are too wide for rows to be sent are refused before anything of them is made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidemill.errors import UsageError
from tidemill.rpc.messages import Outcome, ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: wide}
spec:
  columns: [COLUMNS]
"""
SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: wide}
spec: {file: {path: FILE, format: csv}, infer: {}}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


def table(columns: int) -> ResourceDocument:
    """A table with names so long that a thousand of them are too many."""
    named = ["{name: a, type: int}"]
    named += [f"{{name: c{'_' * 240}{at}, type: int, nullable: true}}" for at in range(1, columns)]
    return ResourceDocument(TABLE.replace("COLUMNS", ", ".join(named)), "w.yaml")


async def test_a_table_too_wide_is_refused_and_nothing_of_it_is_made(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        before = await process.context.collections.ids()
        with pytest.raises(UsageError, match=r"w\.yaml:.*Table/wide would have 1,000 columns, and"):
            await process.controller.apply([table(1_000)])
        assert process.context.store.get("Table", "wide") is None
        assert not process.context.catalog.knows("wide")
        assert await process.context.collections.ids() == before


async def test_a_file_with_a_header_too_wide_makes_no_source(tmp_path: Path) -> None:
    """Its columns are stated by nobody, so that no document bounds them."""
    file = tmp_path / "wide.csv"
    columns = 6_000
    file.write_text(
        ",".join(f"c{at}" for at in range(columns)) + "\n" + "1," * (columns - 1) + "1\n"
    )
    async with running(tmp_path) as process:
        with pytest.raises(UsageError, match="would have 6,000 columns, and its schema has"):
            await process.controller.apply(
                [ResourceDocument(SOURCE.replace("FILE", str(file)), "s.yaml")]
            )
        assert process.context.store.get("Source", "wide") is None
        assert not process.context.catalog.knows("wide")


async def test_a_table_does_not_gain_columns_until_it_is_too_wide(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.controller.apply([table(1)])
        with pytest.raises(UsageError, match="would have 1,000 columns"):
            await process.controller.apply([table(1_000)])
        (applied,) = await process.controller.apply([table(2)])
        assert applied.outcome == Outcome.CONFIGURED
