"""Proofs that go on behind a view, as far as the asker may see and the limits allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.errors import UsageError
from tidemill.rpc.identity import Grant, Principal, Role, caller
from tidemill.rpc.messages import Json, ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_query.settings import QuerySettings
from tidemill_server.settings import ServerSettings

RESOURCES = """
kind: Table
metadata: {name: t}
spec: {retain: all, columns: [{name: k, type: text}, {name: v, type: int}]}
---
kind: View
metadata: {name: c1}
spec:
  retain: all
  inputs: {t: t}
  program: |
    total(k) @sum(v) := t(k, v);
---
kind: View
metadata: {name: c2}
spec:
  retain: all
  inputs: {sums: c1/total}
  program: |
    big(k, s) ~sum := sums(k) @sum(s) if s > 100;
---
kind: View
metadata: {name: c3}
spec:
  retain: all
  inputs: {b: c2/big}
  program: |
    told(k) := b(k, _);
    pair(x, y) := b(x, _) ^ b(y, _) if x < y;
"""


@asynccontextmanager
async def running(folder: Path, query: QuerySettings | None = None) -> AsyncIterator[Whole]:
    """Three views, one over the other, over a table with two rows of x and one of y."""
    settings = ServerSettings(directory=str(folder / "state"), query=query or QuerySettings())
    async with opened(settings) as process:
        await process.start()
        text = RESOURCES.replace("kind:", "apiVersion: tidemill.dev/v1alpha1\nkind:")
        await process.controller.apply([ResourceDocument(text, "test.yaml")])
        rows = pa.table({"k": ["x", "x", "y"], "v": [150, 50, 101]})
        at = (await process.controller.insert("t", rows)).time
        for _ in range(1_500):
            if sole_time((await process.context.collections.status("c3/told")).upper) > at:
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail("c3 stands still")
        yield process


async def why(process: Whole, record: str) -> tuple[str, Json]:
    found = await process.query.why(record, None)
    return found.text, found.tree


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ('c1/total("x", 1)', r"total has 1 columns, not 2; write total\(c0\)"),
        ("t()", r"t has 2 columns, not 0; write t\(k, v\)"),
        ("c3/pair(1)", r"pair has 2 columns, not 1; write pair\(c0, c1\)"),
        ("c3/told(1)", "told: c0: a column of text never equals a whole number"),
    ],
)
async def test_a_record_that_never_fits_is_refused_with_its_columns(
    record: str, says: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as process:
        for ask in (process.query.why, process.query.why_not):
            with pytest.raises(UsageError, match=says):
                await ask(record, None)


async def test_c3_why_goes_on_through_the_views_below_down_to_the_rows(tmp_path: Path) -> None:
    """C3: a proof does not end at the output of another view."""
    async with running(tmp_path) as process:
        text, tree = await why(process, 'c3/told("x")')
        lines = [line.strip(" │├└─") for line in text.splitlines()]
        assert [line.split("  [")[0] for line in lines] == [
            'told("x")', 'b("x", 200)', 'big("x", 200)', 'sums("x") @sum(200)',
            'total("x") @sum(200)', "solution 1 of 2", 't("x", 50)', "solution 2 of 2", 't("x", 150)',
        ]  # fmt: skip
        assert "[of the view c2]" in lines[1]
        assert "[of the view c1]" in lines[3]
        assert isinstance(tree, dict)
        (border,) = tree["children"]  # type: ignore[misc]  # JSON
        assert isinstance(border, dict)
        assert (border["kind"], border["view"]) == ("view", "c2")
        # A fact that two inputs have in common below is shown once.
        text, _ = await why(process, 'c3/pair("x", "y")')
        assert text.count('t("y", 101)') == 1


async def test_c3_a_proof_ends_at_its_limits_and_names_the_next_question(tmp_path: Path) -> None:
    """C3: limits of depth and of size bound what one question reads."""
    async with running(tmp_path, QuerySettings(proof_views_max=1)) as process:
        text, _ = await why(process, 'c3/told("x")')
        assert "[of the view c2]" in text
        assert "[input, of the view c1: ask why 'c1/total(\"x\") @sum(200)']" in text
        assert "t(" not in text
    async with running(tmp_path / "b", QuerySettings(proof_facts_max=1)) as process:
        text, _ = await why(process, 'c3/pair("x", "y")')
        assert text.count("[of the view c2]") == 1
        assert text.count("[input, of the view") == 2


async def test_c3_a_proof_shows_nothing_that_the_asker_may_not_read(tmp_path: Path) -> None:
    """C3: who may read a view and its inputs is not told what those are derived from."""
    async with running(tmp_path) as process:
        token = caller.set(Principal("ann", (Grant(Role.reader, ("c3", "c2")),)))
        try:
            text, _ = await why(process, 'c3/told("x")')
        finally:
            caller.reset(token)
        assert "[input, of the view c2" in text
        assert "sums" not in text
