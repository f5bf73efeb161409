"""Times, decimals, bytes, UUIDs and JSON in tables, sources and views, through every door."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.web import Web, web

ONE = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: orders}
spec:
  retain: all
  columns:
    - {name: id, type: uuid}
    - {name: at, type: timestamp}
    - {name: day, type: date, nullable: true}
    - {name: wait, type: duration, nullable: true}
    - {name: price, type: "decimal(10, 2)"}
    - {name: data, type: bytes, nullable: true}
    - {name: doc, type: json, nullable: true}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: dear}
spec:
  retain: all
  program: |
    dear(id: i, due: t + 1h30m, price: p * decimal("1.1"), city: json_text(j, "city"), doc: j,
         data: b, wait: w, day: d)
      := orders(id: i, at: t, price: p, doc: j, data: b, wait: w, day: d) if p > decimal("10");
    total(day: d) @sum(p) @max(t) := orders(day: d, price: p, at: t);
    broken(id: i) := orders(id: i, doc: j) if json_int(j, "city") > 1;
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: over}
spec:
  retain: all
  inputs: {dear: dear/dear}
  program: |
    again(i, n, p) := dear(id: i, due: n, price: p) if p < decimal("100");
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: readings}
spec:
  http: {}
  format: {json: {}}
  retain: all
  columns: [{name: k, type: text}, {name: at, type: timestamp}, {name: took, type: duration}, {name: doc, type: json}]
"""
ROWS = [
    {
        "id": ONE, "at": "2026-01-01T12:00:00+01:00", "day": "2026-01-01", "wait": "90s", "price": 12.50,
        "data": "AAE=", "doc": {"city": "Oslo", "n": [1.0]},
    },
    {"id": "00000000000000000000000000000001", "at": "2026-01-02T00:00:00Z", "price": 9.99, "doc": "[1]"},
]  # fmt: skip


async def start(asked: Web) -> int:
    """When the rows were there."""
    await asked.whole.controller.apply([ResourceDocument(RESOURCES, "typed.yaml")])
    said = await asked.ask("/v1/tables/orders/rows", "POST", json=ROWS)
    assert said.status == 200, said.body
    return int(said.json["time"])


async def test_typed_rows_come_back_through_every_door(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await start(asked)
        found = (
            await asked.whole.query.ask(
                "dear/dear(id: i, due: n, price: p, data: b, wait: w)", at, 60.0
            )
        ).table
        (row,) = found.to_pylist()
        row.pop("_diff")
        assert row == {
            "i": bytes.fromhex(ONE.replace("-", "")),
            "n": datetime(2026, 1, 1, 12, 30, tzinfo=UTC), "p": Decimal("13.750"),
            "b": b"\x00\x01", "w": timedelta(seconds=90),
        }  # fmt: skip
        assert found.schema.field("p").type == pa.decimal128(23, 3)
        path = f"/v1/collections/dear%2Fdear?as_of={at}&wait_s=60"
        (shown,) = (await asked.ask(path)).json["rows"]
        assert shown.pop("_diff") == 1
        assert shown == {
            "id": ONE, "due": "2026-01-01T12:30:00Z", "price": 13.75, "city": "Oslo", "day": "2026-01-01",
            "doc": {"city": "Oslo", "n": [1]}, "data": "AAE=", "wait": "1m30s",
        }  # fmt: skip
        (line,) = (
            await asked.ask(path, headers={"Accept": "application/x-ndjson"})
        ).body.splitlines()
        assert json.loads(line) == {**shown, "_diff": 1}
        arrow = (
            await asked.ask(path, headers={"Accept": "application/vnd.apache.arrow.stream"})
        ).body
        (same,) = pa.ipc.open_stream(io.BytesIO(arrow)).read_all().to_pylist()
        assert same["day"] == date(2026, 1, 1)


@pytest.mark.parametrize(
    ("goal", "rows"),
    [
        ('again(i, timestamp("2026-01-01T12:30:00Z"), p)', 1),
        ('again(i, timestamp("2026-01-01T12:30:01Z"), p)', 0),
        (f'again(uuid("{ONE}"), n, p)', 1),
        ('again(i, n, decimal("13.75"))', 1),
        ('again(i, n, decimal("13.76"))', 0),
    ],
)
async def test_goals_have_typed_literals(tmp_path: Path, goal: str, rows: int) -> None:
    async with web(tmp_path) as asked:
        at = await start(asked)
        said = await asked.ask(f"/v1/ask?goal={quote('over/' + goal)}&as_of={at}&wait_s=60")
        assert said.status == 200, said.body
        assert len(said.json["rows"]) == rows


async def test_proofs_and_errors_show_typed_values(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await start(asked)
        record = f'over/again(uuid("{ONE}"), timestamp("2026-01-01T12:30:00Z"), decimal("13.75"))'
        await asked.ask(f"/v1/collections/over%2Fagain?as_of={at}&wait_s=60")
        said = await asked.ask(f"/v1/why?record={quote(record)}&as_of={at}")
        assert said.status == 200, said.body
        assert f'uuid(\\"{ONE}\\")' in said.body.decode() or ONE in said.body.decode()
        errors = await asked.ask(f"/v1/collections/dear%2Ferrors?as_of={at}&wait_s=60")
        (error,) = errors.json["rows"]
        assert error["error"].startswith("wrong type: orders(uuid(")
        total = await asked.ask(f"/v1/collections/dear%2Ftotal?as_of={at}&wait_s=60")
        sums = {row["day"]: row["sum"] for row in total.json["rows"]}
        assert sums == {"2026-01-01": 12.5, None: 9.99}


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("at", "yesterday", "is not timestamp in row 1: yesterday"),
        ("price", "1.234", "is not decimal"),
        ("price", True, "is not decimal(10,2) in row 1"),
        ("id", "1", "is not uuid in row 1: 1"),
        ("doc", "{", "is not json in row 1: {"),
        ("data", "?", "is not bytes in row 1: ?"),
        ("wait", "5", "is not duration in row 1: 5"),
    ],
)
async def test_a_row_that_fits_no_type_is_refused_with_its_place(
    tmp_path: Path, column: str, value: Any, says: str
) -> None:
    async with web(tmp_path) as asked:
        await start(asked)
        said = await asked.ask("/v1/tables/orders/rows", "POST", json=[{**ROWS[0], column: value}])
        assert said.status == 400
        assert f"the column {column} {says}" in said.body.decode().replace('\\"', '"')


async def test_a_source_has_typed_columns_and_letters_for_what_fits_none(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        await start(asked)
        rows = [
            {"k": "a", "at": "2026-01-01T00:00:00.5Z", "took": "PT1.5S", "doc": {"a": [1.50]}},
            {"k": "b", "at": "never", "took": "1s", "doc": None},
        ]
        lines = "\n".join(map(json.dumps, rows))
        head = {"Content-Type": "application/x-ndjson"}
        said = await asked.ask("/v1/sources/readings/rows", "POST", data=lines, headers=head)
        assert said.status == 200, said.body
        found: list[Any] = []
        for _ in range(600):
            await asyncio.sleep(0.05)
            good = await asked.ask("/v1/collections/readings?wait_s=60")
            bad = await asked.ask("/v1/collections/readings%2Fdeadletters?wait_s=60")
            found = [each.json["rows"] for each in (good, bad) if each.status == 200]
            found = [rows for rows in found if rows]
            if len(found) == 2:
                break
        ((row,), (letter,)) = found
        assert row["at"] == "2026-01-01T00:00:00.500000Z"
        assert (row["took"], row["doc"]) == ("1s500ms", {"a": [1.5]})
        assert letter["reason"] == 'the column at is not timestamp: "never"'


async def test_a_type_that_is_none_is_refused_with_what_there_is(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        for wrong in ("decimal", "decimal(40, 2)", "decimal(10, 12)", "datetime"):
            text = RESOURCES.split("---")[0].replace('"decimal(10, 2)"', f'"{wrong}"')
            with pytest.raises(UsageError, match="a type is int, float, text"):
                await asked.whole.controller.apply([ResourceDocument(text, "typed.yaml")])
