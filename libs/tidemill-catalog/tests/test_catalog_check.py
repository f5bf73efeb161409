"""The check of files without a server: every mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.catalog.apply.check import check_files, format_file
from tidemill.testkit.documents import HEAD
from tidemill.testkit.documents import program_view as view

EXAMPLES = Path(__file__).parents[3] / "examples"
SOURCE = f"""{HEAD}kind: Source
metadata: {{name: flights}}
spec:
  http: {{}}
  columns: [{{name: plane, type: text}}, {{name: delay, type: int}}]
"""
UNKNOWN = f"{HEAD}kind: Source\nmetadata: {{name: u}}\nspec: {{kafka: {{topic: t}}, infer: {{}}}}\n"


def action(view_name: str, goal: str) -> str:
    spec = f'{{view: {view_name}, goal: "{goal}", sink: {{file: {{path: x}}}}}}'
    return f"{HEAD}kind: Action\nmetadata: {{name: a}}\nspec: {spec}\n"


def told(**texts: str) -> list[tuple[str, int, int, str]]:
    files = {f"{name}.yaml": text for name, text in texts.items()}
    found = check_files(files)
    return [(f.position.file, f.position.line, f.position.column, f.code) for f in found]


def test_the_examples_are_right() -> None:
    files = {str(file): file.read_text() for file in EXAMPLES.rglob("*.yaml")}
    assert len(files) >= 3
    assert [finding.shown for finding in check_files(files) if not finding.warning] == []
    for file, text in files.items():
        assert format_file(text, file) == text


def test_a_resource_that_two_files_have_is_told_at_the_second() -> None:
    assert told(a=SOURCE, b=SOURCE) == [("b.yaml", 3, 18, "resource")]
    (finding,) = check_files({"a.yaml": SOURCE, "b.yaml": SOURCE})
    assert "Source/flights is there already, at a.yaml:" in finding.shown


def test_a_name_is_given_once_among_the_kinds_that_make_collections() -> None:
    table = (
        "apiVersion: tidemill.dev/v1alpha1\nkind: Table\nmetadata: {name: flights}\n"
        "spec: {columns: [{name: n, type: int}]}\n"
    )
    for files in ({"a.yaml": SOURCE, "b.yaml": table}, {"b.yaml": f"{SOURCE}---\n{table}"}):
        findings = check_files(files)
        assert [(f.position.file, f.code) for f in findings] == [("b.yaml", "resource")]
        says = "Table/flights: its collections would be named as those of Source/flights, at "
        assert says in findings[0].message
    hold = table.replace("Table", "Hold").replace(
        "columns: [{name: n, type: int}]", "collection: flights"
    )
    assert check_files({"a.yaml": SOURCE, "b.yaml": hold}) == []


def test_resources_see_each_other_across_files_in_any_order() -> None:
    late = view("delays", "late(p) := flights(p, d) if d > 30;")
    worse = view("worse", "bad(p) := late(p) ^ not flights(p, 0);")
    assert told(c=action("worse", "bad(p)"), b=worse, a=late, s=SOURCE) == []
    assert told(b=worse, s=SOURCE) == [("b.yaml", 6, 15, "S124")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (view("v", "p(x) :=\n  flights(x);"), (7, 7, "S109")),
        (view("v", "p(x) := flights(x, _) ^ ~q(x);"), (6, 29, "E003")),
        (view("v", "p(x) := r(x);", "  inputs: {r: nosuch}\n"), (5, 15, "resource")),
        (view("v", "p(x) := flights(x, _);", "  outputs: [p, q]\n"), (5, 16, "resource")),
        (view("v", "p(x) := flights(x, _);") + "---\n" + action("v", "q(x)"), (11, 23, "resource")),
        (view("v", "p(x) := flights(x, _);") + "---\n" + action("v", "p(x"), (1, 4, "E002")),
        (
            view("v", "p(x) := flights(x, _);")
            + "---\n"
            + action("v", "p(x)").replace("sink:", "remember: 1h, sink:"),
            (11, 41, "resource"),
        ),
        (
            view("v", "p(x) := flights(x, _);").replace("spec:", "spec:\n  inptus: {}"),
            (5, 3, "resource"),
        ),
        (HEAD + "kind: [", (2, 8, "resource")),
    ],
)
def test_a_mistake_has_its_place(text: str, place: tuple[int, int, str]) -> None:
    assert [found[1:] for found in told(s=SOURCE, v=text)] == [place]


TABLE = (
    HEAD
    + """kind: Table
metadata: {name: known}
spec: {timeline: flown, columns: [{name: p, type: text}]}
"""
)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("late(p) := events(k: p);\n    late(p) := known(p);", 2),
        ('late(p) := events(k: p);\n    late("x");', 2),
        ("late(p) := both(p);\n    both(p) := events(k: p);\n    both(p) := known(p);", 1),
        (
            "late(p) := events(k: p);\n    late(p) := known(p) ^ old(p);\n    old(p) := known(p);",
            2,
        ),
        ("late(p) := events(k: p);\n    late(p) @time(5) := known(p);", None),
        ("late(p) := events(k: p) ^ known(p);", None),
        ("late(p) := both(p) ^ events(k: p);\n    both(p) := known(p);", None),
    ],
)
def test_an_action_that_remembers_is_refused_over_facts_that_may_have_no_time(
    program: str, line: int | None
) -> None:
    """Facts without a time are as old as the timeline: they never fired, and nobody was told."""
    reads = view("v", program, "  inputs: {events: flown, known: known}\n")
    act = action("v", "late(p)").replace("sink:", "remember: 1h, sink:")
    found = check_files({"s.yaml": EVENTS, "t.yaml": TABLE, "v.yaml": reads, "a.yaml": act})
    said = [each.message for each in found if not each.warning]
    assert len(said) == (line is not None), said
    assert line is None or f"line {line} of the program" in said[0]


def test_an_input_that_is_not_there_is_told_with_what_it_may_be_called() -> None:
    late = view("delays", "late(p) := flights(p, d) if d > 30;")
    for wrong, right in (("flight", "flights"), ("lat", "late")):
        files = {"s.yaml": SOURCE, "a.yaml": late, "v.yaml": view("v", f"x(p) := {wrong}(p);")}
        (finding,) = check_files(files)
        assert (finding.code, finding.hint) == ("S124", f"did you mean `{right}`?")


def test_a_warning_has_its_place_and_refuses_nothing() -> None:
    never = view("v", "p(x) := flights(x, _)\n  if false;")
    (finding,) = check_files({"s.yaml": SOURCE, "v.yaml": never})
    assert (finding.code, finding.warning, finding.position.line) == ("W204", True, 7)


def test_a_goal_over_a_value_that_may_still_change_is_a_warning() -> None:
    events = SOURCE + "  eventTime: {column: delay, timeline: air, expiresAfter: 1h}\n"
    counted = view(
        "v", "n(p) @count(d) @time(0) := flights(p, d);\nm(p) @count(d) := flights(p, d);"
    )
    (finding,) = check_files({"s.yaml": events, "v.yaml": counted, "a.yaml": action("v", "n(p)")})
    assert (finding.code, finding.position.file, finding.position.line) == ("W201", "a.yaml", 4)
    assert told(s=events, v=counted, a=action("v", "m(p)")) == []


def test_what_only_rows_can_tell_is_not_judged() -> None:
    over = view("v", "p(x) := u(x, 1, 2);") + "---\n" + view("w", "q(x) := p(x);")
    assert told(u=UNKNOWN, v=over, a=action("v", "p(x)")) == []


def test_a_program_alone_reads_whatever_it_names() -> None:
    assert check_files({"p.tidelog": "p(x) := q(x) ^ not r(x);"}) == []
    (finding,) = check_files({"p.tidelog": "p(x, y) := q(x);"})
    assert (finding.code, finding.position.line, finding.position.column) == ("S101", 1, 6)
    assert "\n   |      ^\n" in finding.shown
    assert check_files({"p.tidelog": "p(x) ~time := q(x);"}, "events")[0].code == "S111"
    assert check_files({"p.tidelog": "p(x) ~time := q(x);"}) == []


def test_c3_a_rule_of_a_view_that_no_output_needs_is_told_at_its_place() -> None:
    program = view("v", "p(x) := flights(x, _);\nq(x) := flights(x, _);", "  outputs: [p]\n")
    assert told(s=SOURCE, v=program) == [("v.yaml", 8, 5, "W208")]


EVENTS = f"""{HEAD}kind: Source
metadata: {{name: flown}}
spec:
  http: {{}}
  columns: [{{name: k, type: text}}, {{name: n, type: int}}, {{name: at, type: int}}]
  eventTime: {{column: at, timeline: flown}}
"""


@pytest.mark.parametrize(
    ("program", "more", "place"),
    [
        ("late(plane: x, time: t) := flown(k: x) @time(t);", "", (6, 20)),
        ("late(plane: x, expires: n) := flown(k: x, n: n);", "", (6, 20)),
        ("q(max: k) @max(d) := flights(k, d);", "", (6, 7)),
        ("q(_diff: k) := flights(k, _);", "", (6, 7)),
        ("q(_time: k) := flights(k, _);", "", (6, 7)),
        ("q(node: k) := flights(k, _);\np(k) @next := q(k);", "  tick: {'on': change}\n  nodes: 2\n", (8, 7)),
        ("errors(k) := flights(k, _);", "", (6, 5)),
        ("state(k) := flights(k, _);", "", (6, 5)),
    ],
)  # fmt: skip
def test_w1_a_head_named_as_a_column_of_the_collection_has_its_place(
    program: str, more: str, place: tuple[int, int]
) -> None:
    files = {"s.yaml": SOURCE, "e.yaml": EVENTS, "v.yaml": view("v", program, more)}
    (finding,) = check_files(files)
    assert (finding.code, finding.position.line, finding.position.column) == ("S126", *place)
    assert "another name" in finding.hint


def test_w1_a_head_may_have_a_name_that_its_collection_has_not() -> None:
    program = "q(time: k, node: d) := flights(k, d);\np(max: k) @min(d) := flights(k, d);"
    hidden = view("w", "errors(k) := flights(k, _);\nq(k) := errors(k);", "  outputs: [q]\n")
    assert told(s=SOURCE, v=view("v", program), w=hidden) == []


def test_w1_columns_that_the_view_names_are_looked_at_too() -> None:
    named = "  columns: {late: [plane, time]}\n"
    late = view("v", "late(x, t) := flown(k: x) @time(t);", named)
    (finding,) = check_files({"e.yaml": EVENTS, "v.yaml": late})
    assert (finding.position.line, finding.position.column) == (5, 19)
    assert "has a column `time` already: the @time of the event; give" in finding.message


def test_an_engine_of_an_earlier_version_is_refused_with_those_there_are() -> None:
    text = f"{SOURCE}---\n" + view("v", "p(x) := flights(x, _);", "  engine: scratch\n")
    (finding,) = check_files({"a.yaml": text})
    assert finding.message == 'spec.engine: "scratch" is not allowed'
    assert finding.hint == "allowed: auto, local, spark"
