"""The very lines that explain prints: reads, plan, arrangements, and what following and windows took."""

from __future__ import annotations

import itertools

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.evaluation.profile import profile_lines
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.incremental.explaining import explain_analysis, explain_plan
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine

TEXT = """
reach(x, y) := edge(x, y);
reach(x, z) := reach(x, y) ^ edge(y, z);
far(x, w) := reach(x, y) ^ sale(y, w, _) if w > 3 ^ x < y ^ w < 90;
lonely(x) := node(x) ^ not reach(x, _);
many(x) @count(y) := reach(x, y);
soon(x) @time(t) := node(x) ^ clock(0, 5) @time(t) ~expires;
"""
COLUMNS = {"edge": ("a", "b"), "node": ("a",), "sale": ("node", "price", "note")}
PROGRAM = check(
    parse(TEXT),
    InputSchemas(
        {n: InputSchema(n, "relation", tuple((c, "int") for c in cs)) for n, cs in COLUMNS.items()}
    ),
)
INPUTS = {
    "edge": [Presence(Record("edge", (i, i + 1))) for i in range(4)],
    "node": [Presence(Record("node", (4,)))],
    "sale": [Presence(Record("sale", (i, i * 3, 0))) for i in range(5)],
}
PLAN = """\
strata
  inputs: edge, node, sale
  0: soon, reach, far
  1: many, lonely

reads
  edge: all columns
  node: all columns
  sale: (node, price) where price > 3 && price < 90

plan
  stratum 0: soon, evaluated anew when something it reads changes
    rule 6: soon(x) @time(t) := node(x) ^ clock(0, 5) @time(t) ~expires;
      node all -> clock
  stratum 0: reach, followed; recursive: by differences of its rounds
    rule 1: reach(x, y) := edge(x, y);
      joined edge
    rule 2: reach(x, z) := reach(x, y) ^ edge(y, z);
      joined reach -> edge by (a)
  stratum 0: far, followed
    rule 3: far(x, w) := reach(x, y) ^ sale(y, w, _) if w > 3 ^ x < y ^ w < 90;
      on reach if x < y -> sale by (node) if w > 3 ^ w < 90
      on sale if w > 3 ^ w < 90 -> reach by (c1) if x < y
  stratum 1: many, followed
    rule 5: many(x) @count(y) := reach(x, y);
      on reach
  stratum 1: lonely, followed
    rule 4: lonely(x) := node(x) ^ not reach(x, _);
      on node
      unless reach by (c0)

arrangements
  reach by (c0): 10 rows under 4 keys
  reach by (c1): 10 rows under 4 keys
  sale by (node): 5 rows under 5 keys"""


def followed() -> IncrementalEngine:
    seconds = itertools.count()
    engine = IncrementalEngine(PROGRAM, timer=lambda: next(seconds) / 1000)
    for name, presences in INPUTS.items():
        engine.feed(name, presences)
    engine.advance(1)
    return engine


def cells(lines: list[str]) -> dict[str, list[str]]:
    """The cells of a table by the first one, those of the column of bytes shown as `b`."""
    at = lines[0].index("bytes") + len("bytes")
    found = {}
    for line in lines[1:]:
        start = len(line[:at].rstrip()) if line[:at].rstrip()[-1:].isdigit() else at
        size = line[:at].rsplit(" ", 1)[-1]
        rest = line[: start - len(size)] + ("b" if size.isdigit() else "") + line[at:]
        title, *others = [cell for cell in rest.strip().split("  ") if cell.strip()]
        found[title] = [cell.strip() for cell in others]
    return found


def test_the_plan_is_printed_line_by_line() -> None:
    assert "\n".join(explain_plan(followed())) == PLAN


def test_what_following_took_is_a_line_for_every_predicate_and_rule() -> None:
    lines = explain_analysis(followed())
    assert lines[0].split() == ["rows", "bytes", "runs", "matches", "found", "ms"]
    assert cells(lines) == {
        "input edge": ["4", "b"], "input node": ["1", "b"], "input sale": ["5", "b"],
        "stratum 0: soon": ["1", "b", "2", "18.00"], "rule 6": ["4", "3", "4.00"],
        "stratum 0: reach": ["10", "b", "1", "1.00"], "rounds of rule 1, 2": ["b"],
        "stratum 0: far": ["9", "b", "1", "3.00"], "rule 3": ["9", "9", "1.00"],
        "stratum 1: many": ["4", "b", "1", "3.00"], "rule 5": ["0", "10", "1.00"],
        "stratum 1: lonely": ["1", "b", "1", "3.00"], "rule 4": ["1", "1", "1.00"],
    }  # fmt: skip


@pytest.mark.parametrize("columns_from", [None, 1])
def test_what_a_window_took_says_which_rules_ran_on_columns(columns_from: int | None) -> None:
    seconds = itertools.count()
    engine = Engine(PROGRAM, timer=lambda: next(seconds) / 1000, columns_from=columns_from)
    found = engine.evaluate(INPUTS, upper=11)
    assert found.profile is not None
    lines = profile_lines(engine.plan, found.tables, found.profile)
    on = "rows" if columns_from is None else "columns"
    assert lines[0].split() == ["rows", "bytes", "runs", "found", "ms", "on"]
    assert cells(lines) == {
        "input edge": ["4", "b"], "input node": ["1", "b"], "input sale": ["5", "b"],
        "stratum 0: soon": ["3", "b", "3.00"], "rule 6": ["1", "3", "1.00", "rows"],
        "stratum 0: reach": ["10", "b", "11.00"], "rule 1": ["1", "4", "1.00", on],
        "rule 2": ["4", "6", "4.00", on],
        "stratum 0: far": ["9", "b", "3.00"], "rule 3": ["1", "9", "1.00", on],
        "stratum 1: many": ["4", "b", "3.00"], "rule 5": ["1", "4", "1.00", on],
        "stratum 1: lonely": ["1", "b", "3.00"], "rule 4": ["1", "1", "1.00", on],
    }  # fmt: skip
    assert Engine(PROGRAM).evaluate(INPUTS, upper=11).profile is None
