"""Rows of cases with times, decimal numbers, bytes, UUIDs and documents: given and recorded."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest

from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import up_process
from tidemill_server.trials.answers import rules_of
from tidemill_server.trials.cases import load_cases
from tidemill_server.trials.recording import record
from tidemill_server.trials.row_texts import number_of, row_text
from tidemill_server.trials.running import differences

LONG = "12345678901234567890.123456789012345678"
RESOURCES = """apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: orders}
spec:
  retain: all
  columns:
    - {name: id, type: uuid}
    - {name: at, type: timestamp}
    - {name: day, type: date}
    - {name: wait, type: duration}
    - {name: price, type: "decimal(38, 18)"}
    - {name: data, type: bytes}
    - {name: doc, type: json}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: same}
spec:
  retain: all
  program: "same(i, a, d, w, p, b, j) := orders(i, a, d, w, p, b, j);"
"""
ROW = f"""{{"id": "6f9619ff-8b86-d011-b42d-00c04fc964ff", "at": "1969-12-31T23:59:59.5Z",
  "day": "0001-01-01", "wait": "-1h30m", "price": {LONG}, "data": "AP8=",
  "doc": {{"n": [1.5, 1.0000000000000000001, {LONG}, null], "t": "\\"q\\""}}}}"""
RECORD = (
    'same(uuid("6f9619ff-8b86-d011-b42d-00c04fc964ff"), timestamp("1969-12-31T23:59:59.500Z"), '
    f'date("0001-01-01"), -1h30m, decimal("{LONG}"), bytes("00ff"), '
    f'json("{{\\"n\\":[1.5,1.0000000000000000001,{LONG},null],\\"t\\":\\"\\\\\\"q\\\\\\"\\"}}"))'
)


@pytest.mark.parametrize(
    "text", ["1.5", "1e-9", "1.0000000000000000001", LONG, "1e400", ".5", "-2."]
)
def test_a_number_of_a_case_is_written_with_its_digits(text: str) -> None:
    written = row_text({"n": [number_of(text)]})
    digits = json.loads(written, parse_float=str)["n"][0]
    assert number_of(digits) == number_of(text)
    assert row_text(number_of(digits)) == row_text(number_of(text))
    for none in ("inf", "-nan"):
        assert number_of(none) != number_of("0.0")


def test_a_case_gives_rows_with_all_their_digits(tmp_path: Path) -> None:
    """A decimal number of a case was read as a float: …567.89 of a row was …568 in its test."""
    (tmp_path / "same.yaml").write_text(RESOURCES)
    case = tmp_path / "same.test.yaml"
    expected = json.dumps(RECORD)
    case.write_text(
        f"cases:\n- name: one\n  given:\n    orders:\n    - {ROW}\n"
        f"  expect:\n    asOf: {{5: {{same/same: [{expected}]}}}}\n    refused: {{orders: []}}\n"
    )
    loaded = load_cases(case)
    ((_, only),) = loaded.cases
    assert differences(rules_of(loaded.resources), only, Random(1)) == []


def test_a_recorded_case_has_rows_of_every_type(tmp_path: Path) -> None:
    """Times and documents were recorded as Python shows them, and refused when they were read."""
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(RESOURCES, "a.yaml"))
        row = json.loads(ROW, parse_float=Decimal)
        at = client.insert("orders", [row]).time
        client.query("same/same", at, timeout_s=60)
        _, case = record(client, "same", None, at, 100).write("same", tmp_path / "made")
    loaded = load_cases(case)
    ((_, only),) = loaded.cases
    (told,) = only.expect.as_of[str(at)]["same/same"]
    assert told == RECORD
    assert differences(rules_of(loaded.resources), only, Random(1)) == []
