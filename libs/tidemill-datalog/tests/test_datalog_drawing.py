"""Drawings of a program: its predicates by strata, and their dependencies."""

from __future__ import annotations

from xml.etree import ElementTree

from tidemill.datalog.check import check
from tidemill.datalog.drawing import arrows_of, layers_of, svg_of
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.parser import parse

TEXT = """
reach(x, y) := edge(x, y);
reach(x, z) := reach(x, y) ^ edge(y, z);
lonely(x) := node(x) ^ not reach(x, _);
many(x) @count(y) := reach(x, y);
many(x) @next := many(x) ^ not stop();
soon(x) @time(t) := node(x) ^ clock(0, 5) @time(t) ~expires;
"""
PROGRAM = check(parse(TEXT), InputSchemas(closed=False))


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
    svg = ElementTree.fromstring(svg_of(PROGRAM))
    space = "{http://www.w3.org/2000/svg}"
    texts = {element.text for element in svg.iter(f"{space}text")}
    assert {"reach", "lonely", "many", "stratum 1"} <= texts
    paths = [path for path in svg.iter(f"{space}path") if path.get("marker-end")]
    assert len(paths) == len(hows)
