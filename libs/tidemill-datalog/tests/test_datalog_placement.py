"""Places of the rules and facts of a program whose ranges of hashes are evaluated apart."""

from __future__ import annotations

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import placement_document, placement_lines, placement_of

_SCHEMAS = {
    name: InputSchema(name, "relation", tuple((column, "int") for column in columns.split()))
    for name, columns in {"order": "id customer day", "payment": "id amount", "edge": "a b"}.items()
}


def program(text: str) -> CheckedProgram:
    """A program over orders, payments and edges."""
    return check(parse(text), InputSchemas(_SCHEMAS))


def told(text: str) -> list[str]:
    """The placement of a program as lines."""
    checked = program(text)
    return placement_lines(placement_document(placement_of(checked), checked))


def test_rules_of_one_key_are_one_fragment_and_what_they_derive_changes_place_after_it() -> None:
    lines = told(
        "paid(o) @sum(b) := order(o, _, _) ^ payment(o, b);"
        "open(o, c) := order(o, c, _) ^ not paid(o);"
        "load(c) @count(o) := open(o, c);"
    )
    assert lines == [
        "  fragment 1: range by range",
        "    reads order by (id)",
        "    reads payment by (id)",
        "    rule 1 by (o): paid(o) @sum(b) := order(o, _, _) ^ payment(o, b);",
        "    rule 2 by (o): open(o, c) := order(o, c, _) ^ not paid(o);",
        "    keeps paid by (c0)",
        "    keeps open by (c0), handed on to fragment 2",
        "  fragment 2: range by range",
        "    reads open of fragment 1 by (c1)",
        "    rule 3 by (c): load(c) @count(o) := open(o, c);",
        "    keeps load by (c0)",
    ]


def test_a_recursion_that_hands_on_an_argument_is_divided_by_it() -> None:
    lines = told("reach(x, y) := edge(x, y); reach(x, z) := reach(x, y) ^ edge(y, z);")
    assert lines[0] == "  fragment 1: range by range"
    assert "    reads edge in all ranges" in lines
    assert lines[-1] == "    keeps reach by (c0)"


def test_a_recursion_that_hands_on_none_is_evaluated_by_rounds() -> None:
    lines = told(
        "sg(x, y) := edge(z, x) ^ edge(z, y); sg(x, y) := edge(a, x) ^ sg(a, b) ^ edge(b, y);"
    )
    assert lines == [
        "  fragment 1: range by range in rounds, each a job of one stage, and anew in each live "
        "window that changes what it reads",
        "    reads edge by (a)",
        "    reads edge in all ranges",
        "    rule 1 by (z): sg(x, y) := edge(z, x) ^ edge(z, y);",
        "    rule 2 by (a): sg(x, y) := edge(a, x) ^ sg(a, b) ^ edge(b, y);",
        "    each round hands on sg by (c0)",
        "    keeps sg by (c0)",
    ]


def test_facts_that_meet_themselves_are_at_two_places_in_a_round() -> None:
    lines = told("r(x, y) := edge(x, y); r(x, z) := r(x, y) ^ r(y, z); n(x) @count(y) := r(x, y);")
    assert [line for line in lines if "each round" in line] == [
        "    each round hands on r by (c1)",
        "    each round hands on r by (c0)",
    ]
    assert "    keeps r by (c1), handed on to fragment 2" in lines


def test_a_recursion_over_few_rows_is_one_task() -> None:
    text = "r(x, y) := edge(x, y); r(x, z) := r(x, y) ^ r(y, z);"
    for rows, way in ((99_999, "one task"), (100_000, "rounds")):
        (fragment,) = placement_of(program(text), rows={"edge": rows}).fragments
        assert fragment.way == way
    assert "few rows" in placement_of(program(text), rows={"edge": 1}).fragments[0].reason


def test_the_largest_key_is_taken() -> None:
    placement = placement_of(program("both(x, y) := edge(x, y) ^ payment(x, y) ^ not edge(y, x);"))
    assert placement.fragments[0].keys == (("x", "y"),)


def test_an_aggregate_of_a_join_is_matched_where_it_joins() -> None:
    placement = placement_of(program("n(c) @count(a) := order(o, c, _) ^ payment(o, a);"))
    first, second = placement.fragments
    assert first.keys == (("o",),)
    assert not first.placed
    assert {"n"} == second.placed.keys()


@pytest.mark.parametrize(
    ("text", "reason", "advice"),
    [
        ("sg(x, y) := edge(x, y); sg(x, y) @expires(9) := edge(a, x) ^ sg(a, b) ^ edge(b, y);",
         "no argument of the recursion is handed on unchanged by all of its rules, and clocks, times "
         "and ends", "pass one argument"),
        ("p(x, y) := edge(x, y); p(x, z) := p(x, y) ^ p(z, w) ^ edge(y, w);",
         "facts of the recursion would be in all ranges", "pass one argument"),
        ("all() @count(x) @time(3) := edge(x, _);", "one group", "give the head an argument"),
        ("limit(3);", "no rows to divide", ""),
        ("seen(x) @next := edge(x, _);", "ticks follow one another", "in a view of its own"),
        ("d(o) @count_distinct(b) := payment(o, b); h(c) := d(o) ^ edge(o, c);",
         "are passed on from it and have to meet", "~count_distinct"),
    ],
)  # fmt: skip
def test_what_is_one_task_says_why_and_what_to_change(text: str, reason: str, advice: str) -> None:
    placement = placement_of(program(text))
    assert not placement.divided
    assert reason in placement.fragments[-1].reason
    assert advice in placement.fragments[-1].advice


def test_a_sum_that_is_passed_on_takes_its_contributions_along() -> None:
    text = "paid(o) @sum(b) := payment(o, b); h(c) {}:= paid(o) @sum(s) ^ edge(o, c) if s > 1;"
    for dropped, whole in (("", ["h"]), ("~sum ", [])):
        placement = placement_of(program(text.format(dropped)))
        assert [fragment.way for fragment in placement.fragments] == ["ranges"] * 2
        found = placement.fragments[0].whole
        assert [name.rpartition(":")[2] for name in found] == whole


def test_the_smaller_side_is_in_all_ranges() -> None:
    checked = program("p(x, y) := payment(x, _) ^ edge(y, _);")
    for small, large in (("payment", "edge"), ("edge", "payment")):
        placement = placement_of(checked, rows={small: 10, large: 10_000_000})
        (fragment, *_) = placement.fragments
        assert [read.predicate for read in fragment.reads if read.place.everywhere] == [small]


def test_a_stated_fact_beside_rules_is_handed_to_their_ranges() -> None:
    placement = placement_of(program("p(1); p(x) := edge(x, _);"))
    assert [fragment.way for fragment in placement.fragments] == ["one task", "ranges"]
    assert placement.divided
