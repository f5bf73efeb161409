"""The plan of a view says where its facts are when ranges are evaluated apart."""

from __future__ import annotations

import json

from tidemill.catalog.directory import Readable
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import HeavyKey
from tidemill.shard.parts import Part
from tidemill_query.explaining import NOTHING, Known, known_of, plan_json, plan_text

_PING = InputSchema("ping", "events", (("host", "text"), ("n", "int")))
_PROGRAM = check(
    parse("loud(h) := ping(h, n) ^ not ping(h, 0) if n > 1;"), InputSchemas({"ping": _PING})
)


def test_the_plan_names_the_key_of_each_rule_and_where_facts_are() -> None:
    lines = plan_text(_PROGRAM, Known({"ping": 1_000}))
    placed = lines[lines.index("placement on Spark") :]
    assert any(line.startswith("    rule 1 by (h): loud(h) := ") for line in placed)
    assert "    reads ping by (host), about 40,000 bytes" in placed


def test_the_plan_as_json_has_the_placement() -> None:
    found = json.loads(plan_json(_PROGRAM, NOTHING))["placement"]
    assert found["divided"]
    assert found["fragments"][0]["rules"][0]["by"] == ["h"]


def test_the_plan_says_which_keys_a_history_would_divide() -> None:
    readable = Readable("ping", "ping", (("host", "text"), ("n", "int")), 2, lambda rows: [])
    part = Part(1_000_000, 1, 0, 9, 2, heavy={"host": (("a", 600_000), ("b", 90_000))})
    known = known_of({"ping": (readable, [part])})
    assert known.heavy == [HeavyKey("ping", 1, "a", 600_000)]
    told = '    about 600,000 rows of ping with "a" as host: in '
    lines = plan_text(_PROGRAM, known)
    assert f"{told}one range, since loud: one range has to have all its matches" in lines
    some = check(parse("some(h) := ping(h, _);"), InputSchemas({"ping": _PING}))
    assert f"{told}all ranges" in plan_text(some, known)
    found = json.loads(plan_json(some, known))["placement"]["fragments"][0]
    assert found["heavy"][0]["divided"]
    assert found["reads"][0]["heavy_at"] == ["host", "n"]
