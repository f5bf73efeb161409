"""The plan of a view says where its facts are when ranges are evaluated apart."""

from __future__ import annotations

import json

from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill_query.explaining import plan_json, plan_text

_PING = InputSchema("ping", "events", (("host", "text"), ("n", "int")))
_PROGRAM = check(
    parse("loud(h) := ping(h, n) ^ not ping(h, 0) if n > 1;"), InputSchemas({"ping": _PING})
)


def test_the_plan_names_the_key_of_each_rule_and_where_facts_are() -> None:
    lines = plan_text(_PROGRAM, {"ping": 1_000})
    placed = lines[lines.index("placement on Spark") :]
    assert any(line.startswith("    rule 1 by (h): loud(h) := ") for line in placed)
    assert "    reads ping by (host), about 40,000 bytes" in placed


def test_the_plan_as_json_has_the_placement() -> None:
    found = json.loads(plan_json(_PROGRAM, {}))["placement"]
    assert found["divided"]
    assert found["fragments"][0]["rules"][0]["by"] == ["h"]
