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
    - {name: note, type: text, nullable: true}
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
        ('dear/dear(id: i, doc: json("{\\"n\\": [1.0], \\"city\\": \\"Oslo\\"}"))', 1),
        ('orders(id: i, doc: json("[2]"))', 0),
        ('orders(id: i, price: decimal("9.990"))', 1),
        ('orders(id: i, price: decimal("9.991"))', 0),
        ('over/again(i, timestamp("2026-01-01T12:30:00Z"), p)', 1),
        ('over/again(i, timestamp("2026-01-01T12:30:01Z"), p)', 0),
        (f'over/again(uuid("{ONE}"), n, p)', 1),
        ('over/again(i, n, decimal("13.75"))', 1),
        ('over/again(i, n, decimal("13.76"))', 0),
    ],
)
async def test_goals_have_typed_literals(tmp_path: Path, goal: str, rows: int) -> None:
    async with web(tmp_path) as asked:
        at = await start(asked)
        said = await asked.ask(f"/v1/ask?goal={quote(goal)}&as_of={at}&wait_s=60")
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
        ("note", {"a": 1}, "is an object or a list in some row, not text"),
        ("note", [1], "is an object or a list in some row, not text"),
        ("doc", "{", "is not json in row 1: {"),
        ("data", "?", "is not bytes in row 1: ?"),
        ("data", "AAAA====", "is not bytes in row 1: AAAA===="),
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


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("wait==PT1M30S", 1), ("wait<1m30s", 0), ("wait>=1m", 1), ("wait==null", 1),
        ("at<2026-01-01T12:00:00Z", 1), ("at==2026-01-01T11:00:00Z", 1), ("day<2026-01-02", 1),
        (f"id=={ONE.replace('-', '').upper()}", 1), (f"id>{ONE}", 0), (f"id!={ONE}", 1),
        ("data==AAE=", 1), ("data<AAI=", 1), ("price<12.5", 1), ("price==12.500", 1),
        ('doc=={"n": [1], "city": "Oslo"}', 1), ("doc==[1.0]", 1), ("doc!=[1]", 1), ("doc==true", 0),
    ],
)  # fmt: skip
async def test_conditions_take_values_as_rows_write_them(
    tmp_path: Path, where: str, rows: int
) -> None:
    async with web(tmp_path) as asked:
        at = await start(asked)
        said = await asked.ask(f"/v1/collections/orders?as_of={at}&wait_s=60&where={quote(where)}")
        assert said.status == 200, said.body
        assert len(said.json["rows"]) == rows


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("wait<5", "'5' is no value of wait, which is duration: it is not written as one"),
        ("at<1970", "'1970' is no value of at, which is timestamp"),
        ("price==1.234", "'1.234' is no value of price, which is decimal(10,2)"),
        ("price==true", "True is no value of price, which is decimal(10,2): it is of another type"),
        ("id==1", "'1' is no value of id, which is uuid"),
        ("data==?", "'?' is no value of data, which is bytes"),
        ("doc=={", "'{' is no value of doc, which is json"),
        ("doc<1", "doc is json, which has no order: write == or !="),
    ],
)
async def test_a_condition_that_fits_no_type_is_refused_with_the_type(
    tmp_path: Path, where: str, says: str
) -> None:
    async with web(tmp_path) as asked:
        at = await start(asked)
        said = await asked.ask(f"/v1/collections/orders?as_of={at}&wait_s=60&where={quote(where)}")
        assert said.status == 400
        assert f"filter refused: {says}" in said.json["detail"]


async def test_rows_that_name_no_column_are_refused_and_not_counted_as_none(
    tmp_path: Path,
) -> None:
    async with web(tmp_path) as asked:
        await start(asked)
        head = {"Content-Type": "application/json"}
        for body in ("{}", "[{}, {}]"):
            said = await asked.ask("/v1/tables/orders/rows", "POST", data=body, headers=head)
            assert said.status == 400
            assert "they name no column" in said.json["detail"]


async def test_a_misspelt_column_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    """A row of it alone was written as nulls, unsaid."""
    notes = "apiVersion: tidemill.dev/v1alpha1\nkind: Table\nmetadata: {name: notes}\n"
    notes += "spec:\n  columns:\n  - {name: note, type: text, nullable: true}\n"
    async with web(tmp_path) as asked:
        await asked.whole.controller.apply([ResourceDocument(notes, "notes.yaml")])
        head = {"Content-Type": "application/json"}
        said = await asked.ask("/v1/tables/notes/rows", "POST", data='{"nota": "a"}', headers=head)
        assert said.status == 400
        assert "notes has no column nota; did you mean note?" in said.json["detail"]


async def test_no_digit_of_a_row_is_lost_on_the_way_into_a_table(tmp_path: Path) -> None:
    """A number of JSON went through a float: 12345678901234567.89 became …568.00 unsaid."""
    numbers = "kind: Table\nmetadata: {name: numbers}\nspec:\n  columns:\n"
    for name, kind in (("p", "decimal(38, 18)"), ("f", "float"), ("doc", "json")):
        numbers += f"  - {{name: {name}, type: '{kind}'}}\n"
    long = "12345678901234567890.123456789012345678"
    near = "0.235951006097486908"  # Arrow casts this one to another float
    row = f'{{"p": {long}, "f": {near}, "doc": {{"a": [{long}, 1e-9]}}}}'
    async with web(tmp_path) as asked:
        head = "apiVersion: tidemill.dev/v1alpha1\n"
        kind_of = {"Content-Type": "application/json"}
        await asked.whole.controller.apply([ResourceDocument(head + numbers, "numbers.yaml")])
        for body in (row, f"[{row}]"):
            said = await asked.ask("/v1/tables/numbers/rows", "POST", data=body, headers=kind_of)
            assert said.status == 200, said.body
        path = f"/v1/collections/numbers?as_of={said.json['time']}&wait_s=60"
        found = (await asked.ask(path)).body.decode()
        assert f'"p":{long},"f":{float(near)!r},"doc":{{"a":[{long},1e-9]}}' in found
        assert '"_diff":2' in found


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
