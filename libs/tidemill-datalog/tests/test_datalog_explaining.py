"""What is said and drawn of a program: strata, joins, arrangements, counts."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

from tidemill.datalog.check import check
from tidemill.datalog.drawing import arrows_of, dot_of, layers_of, svg_of
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.incremental.explaining import explain_analysis, explain_plan
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.records import Record

TEXT = """
reach(x, y) := edge(x, y);
reach(x, z) := reach(x, y) ^ edge(y, z);
lonely(x) := node(x) ^ not reach(x, _);
many(x) @count(y) := reach(x, y);
many(x) @next := many(x) ^ not stop();
soon(x) @time(t) := node(x) ^ clock(0, 5) @time(t) ~expires;
"""
PROGRAM = check(parse(TEXT), InputSchemas(closed=False))


def test_the_plan_names_every_join_that_a_change_runs_and_what_it_looks_into() -> None:
    text = "\n".join(explain_plan(IncrementalEngine(PROGRAM)))
    assert "  0: soon, reach" in text
    assert "recursive: what may stand on itself is deleted and derived again" in text
    assert "on reach -> edge by (c0)" in text
    assert "on edge -> reach by (c1)" in text
    assert "unless reach by (c0)" in text
    assert "soon, evaluated anew" in text
    assert "many @next, followed" in text


def test_the_analysis_counts_what_the_engine_holds() -> None:
    seconds = itertools.count()
    engine = IncrementalEngine(PROGRAM, timer=lambda: float(next(seconds)))
    for i in range(4):
        engine.update("edge", Record("edge", (i, i + 1)), 0, 1)
    engine.advance(1)
    lines = {line.split("  ")[1]: line.split() for line in explain_analysis(engine)[1:]}
    assert lines["input edge"][2] == "4"
    reach = lines["stratum 0: reach"]
    assert reach[3] == str(len(engine.records("reach"))) == "10"
    assert int(reach[4]) > 0
    assert float(reach[-1]) > 0
    assert sum(len(line) > 2 for line in lines.values()) == len(lines)


def test_the_drawing_has_every_predicate_in_its_stratum_and_every_dependency() -> None:
    assert dict(layers_of(PROGRAM)) == {
        "inputs": ["clock", "edge", "node", "stop"],
        "stratum 0": ["reach", "soon"],
        "stratum 1": ["lonely", "many"],
    }
    hows = {(arrow.source, arrow.target, arrow.how) for arrow in arrows_of(PROGRAM)}
    assert {
        ("reach", "reach", ""), ("reach", "lonely", "not"), ("reach", "many", "aggregate"),
        ("many", "many", "@next"),
    } <= hows  # fmt: skip
    dot = dot_of(PROGRAM)
    assert dot.count("subgraph") == 3
    assert '"reach" -> "lonely" [style=dashed, label="not"];' in dot
    svg = ElementTree.fromstring(svg_of(PROGRAM))
    space = "{http://www.w3.org/2000/svg}"
    texts = {element.text for element in svg.iter(f"{space}text")}
    assert {"reach", "lonely", "many", "stratum 1"} <= texts
    paths = [path for path in svg.iter(f"{space}path") if path.get("marker-end")]
    assert len(paths) == len(hows)
