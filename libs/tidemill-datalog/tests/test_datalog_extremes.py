"""Values at the borders of 64 bits, exact floats and types: the dataflow equals its twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.elements import element
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, Value, format_record, format_value, parse_record
from tidemill.datalog.state import decode_fields, encode_fields
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.why_not import why_not
from tidemill.testkit.drawing import STRATEGIES, drawn
from tidemill.testkit.held import Held
from tidemill.testkit.tidelog import EXTREME, Example, answers_from_scratch, inputs, programs
from tidemill.testkit.twins.pointwise import answers

LAW = drawn(60)
Facts = Mapping[str, Sequence[Presence]]
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def program(text: str, **columns: str) -> CheckedProgram:
    """A program over relations, each with the types of its columns."""
    schemas = {
        name: InputSchema(
            name, "relation", tuple((f"c{i}", k) for i, k in enumerate(kinds.split()))
        )  # type: ignore[misc]
        for name, kinds in columns.items()
    }
    return check(parse(text), InputSchemas(schemas))


def facts(**rows: Sequence[tuple[Value, ...]]) -> Facts:
    return {name: [Presence(Record(name, row)) for row in found] for name, found in rows.items()}


def every_answer(checked: CheckedProgram, given_: Facts) -> list[tuple[set[str], set[str]]]:
    """(records, errors) at an instant by the twin, then by each strategy."""
    derived = checked.derived
    twin = answers(checked, given_, 0, 1)[-1]
    found = [({text for name in derived for text in twin.records[name]}, set(twin.errors))]
    strategies: tuple[Strategy, ...] = ("strata", "retraction")
    for strategy in strategies:
        held = Held(checked, strategy=strategy)
        held.feed(given_)
        held.step(1)
        found.append(({text for name in derived for text in held.texts(name)}, held.errors()))
    return found


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("q(x + x / 4611686018427387904) := e(x);", None),
        ("q(x) := e(x) if x + x / 4611686018427387904 > 2;", None),
        ("q(x) := e(x) if x + x / 4611686018427387904 < 2;", None),
        ("q(x) := e(x) if x + x / 4611686018427387904 + 2 < 2;", None),
        ("q(x - x / x) := e(x);", None),
        ("q(x + x / x) := e(x);", "q(-9223372036854775807)"),
    ],
)
def test_w4_an_overflow_at_the_border_is_one_for_every_engine(
    text: str, record: str | None
) -> None:
    checked = program(text, e="int")
    error = f"overflow: e({INT_MIN})"
    expected = (set() if record is None else {record}, {error} if record is None else set())
    for found in every_answer(checked, facts(e=[(INT_MIN,)])):
        assert found == expected


MARKS = "\u0301" * 20


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("q(concat(x, y)) := a(x) ^ b(y);", "a" + MARKS),
        ('q(x) := a(x) ^ b(y) if concat(x, y) != "z";', "a" + MARKS),
        ('q(x) := a(x) ^ b(y) if starts_with(x, "a") ^ length(concat(x, y)) > 2;', "a" + MARKS),
        ("q(x) := a(x) ^ b(y) ^ not a(concat(x, y));", "a" + MARKS),
        ("q(x) := a(x) ^ b(y) ^ a(concat(x, y));", "a" + MARKS),
        ("q() @min(concat(x, y)) := a(x) ^ b(y);", "a" + MARKS),
        ('q(x) := a(x) ^ b(_) if lower(x) != "z";', "\u0130" + "\u0301" * 30),
        ('q(x) := a(x) ^ b(_) if upper(x) != "z";', "\u0390" + "\u0301" * 29),
    ],
)
def test_w4_a_text_that_cannot_be_made_fails_for_every_engine(text: str, value: str) -> None:
    """W4: a text with too many marks was taken for one that every expression can make."""
    held = facts(a=[(value,)], b=[(MARKS,)])
    twin, *found = every_answer(program(text, a="text", b="text"), held)
    assert not twin[0]
    assert {error.partition(":")[0] for error in twin[1]} == {"too many marks"}
    for each in found:
        assert each == twin


@pytest.mark.parametrize(
    ("text", "rows", "record"),
    [
        (
            "p(k) @average(x) @sum(x) := c(k, x);",
            {"c": [("B", 4611686018427387905), ("B", -4611686018427387904)]},
            'p("B") @average(0.5) @sum(1)',
        ),
        (
            "p() @sum(x) := a(x); p() @sum(h) := f(h);",
            {"a": [(2**53 + 1,), (-(2**53),)], "f": [(0.5,)]},
            "p() @sum(1.5)",
        ),
        ("p() @sum(x) := a(x); p() @sum(h) := f(h);", {"a": [(2,)]}, "p() @sum(2.0)"),
        (
            "p() @sum(x) := a(x); p() @sum(h) := f(h);",
            {"a": [(INT_MAX,), (INT_MAX - 1,)]},
            "p() @sum(1.8446744073709552e+19)",
        ),
        ("p() @average(x) := a(x);", {"a": [(2**53 + 1,), (None,)]}, "p() @average(9007199254740992.0)"),
    ],
)  # fmt: skip
def test_w7_what_is_added_up_is_not_rounded_on_the_way(
    text: str, rows: Mapping[str, Sequence[tuple[Value, ...]]], record: str
) -> None:
    checked = program(
        text, **{n: k for n, k in (("c", "text int"), ("a", "int"), ("f", "float")) if n in text}
    )
    for records, errors in every_answer(checked, facts(**rows)):
        assert (records, errors) == ({record}, set())


def test_w7_contributions_that_are_no_floats_survive_a_restart() -> None:
    checked = program("p(1) @sum(x) @expires(9) := a(x); p(1) @sum(h) := f(h);", a="int", f="float")
    given_ = facts(a=[(2**53 + 1,), (-(2**53),)], f=[])
    before = Held(checked, keeps_state=True)
    before.feed(given_)
    before.step(3)
    after = Held(checked, keeps_state=True)
    after.engine.restore(sorted(before.state), 3)
    after.step(5)
    texts = after.texts("p")
    assert texts == {"p(1) @expires(9) @sum(1.0)"}


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ("p() @set(x) @set(y) := a(x, y);", "p() @set({true,1})"),
        ("p() @provenance(x) @provenance(y) := a(x, y);", "p() @provenance({true,1})"),
        ("p() @count_distinct(x) @count_distinct(y) := a(x, y);", "p() @count_distinct(2)"),
        ("p() @set(x) := a(x, _); p() @set(y) := a(_, y); p() @set(h) := f(h);", "p() @set({true,1,1.0})"),
        ("p() @extent(x, x, x) := a(x, _); p() @extent(0, 0, y) := a(_, y);", "p() @extent(0, 1, {true,1})"),
    ],
)  # fmt: skip
def test_w8_sets_keep_types_apart(text: str, record: str) -> None:
    checked = program(text, a="int bool", f="float")
    for records, errors in every_answer(checked, facts(a=[(1, True)], f=[(1.0,)])):
        assert (records, errors) == ({record}, set())
    assert format_record(parse_record(record)) == record
    ((_, value),) = parse_record(record).parafacts
    fields = value if isinstance(value, tuple) else (value,)
    again = Record("p", decode_fields(encode_fields(fields)))
    assert format_record(again) == format_record(Record("p", fields))


def test_w8_a_set_contains_what_equals_an_element() -> None:
    text = """s() @set(x) := a(x, _); has(1) ~set := s() @set(v) ^ f(h) if contains(v, h);
        has(2) ~set := s() @set(v) ^ a(_, y) if contains(v, y); has(3) ~set := s() @set(v) if contains(v, 1.0);
        has(4) ~set := s() @set(v) if contains(v, 9007199254740992.0);"""
    checked = program(text, a="int bool", f="float")
    given_ = facts(a=[(1, True), (2**53 + 1, False)], f=[(1.0,), (1.5,)])
    for records, errors in every_answer(checked, given_):
        assert {r for r in records if r.startswith("has")} == {"has(1)", "has(3)", "has(4)"}
        assert errors == set()


@LAW
@given(programs(forms=EXTREME), inputs(extreme=True, rows_max=4), STRATEGIES)
def test_w4_extreme_values_are_answered_as_by_the_twin(
    example: Example, given_: Facts, strategy: Strategy
) -> None:
    held = Held(example.checked, strategy=strategy)
    held.feed(given_)
    for at, expected in enumerate(answers_from_scratch(example, given_), -1):
        held.step(at + 1)
        assert held.now() == expected, (at, example.text)


@pytest.mark.parametrize(
    ("text", "records", "errors"),
    [
        ("l(x, least(w, 50)) := e(x) @expires(w);", {"l(1, 50)"}, set()),
        ("l(x, greatest(w, 50)) := e(x) @expires(w);", {"l(1, inf)"}, set()),
        ("l(x, coalesce(w, 50)) := e(x) @expires(w);", {"l(1, inf)"}, set()),
        ("end(x) @time(w) @expires(w + 1) := e(x) @expires(w);", set(), {"overflow: e(1)"}),
        ("end(x) @time(w) := e(x) @expires(w);", set(), {"overflow: e(1)"}),
        ("long(x) := e(x) @expires(w) if w - 1 > 100;", set(), {"overflow: e(1)"}),
        ("long(x) := e(x) @expires(w) if w > 100 + 1;", {"long(1)"}, set()),
        ("p(x) @sum(w) := e(x) @expires(w);", set(), {"overflow: p(1)"}),
        ("p() @average(w) := e(_) @expires(w);", set(), {"overflow: p()"}),
        ("p() @max(w) := e(_) @expires(w);", {"p() @max(inf)"}, set()),
    ],
)
def test_w11_infinity_is_a_whole_number_that_only_compares(
    text: str, records: set[str], errors: set[str]
) -> None:
    for found in every_answer(program(text, e="int"), facts(e=[(1,)])):
        assert found == (records, errors)


FAR = 1 << 53
near_far = st.integers(FAR - 2, FAR + 6) | st.integers(-FAR - 4, -FAR + 2) | st.integers(-2, 2)


@LAW
@given(st.sets(near_far, max_size=5), st.sets(near_far, max_size=5))
def test_w12_a_fact_and_its_absence_never_both_hold_whatever_is_float_and_whole(
    whole: set[int], others: set[int]
) -> None:
    """W12: beyond 2^53 several whole numbers are one float, for a join and for `not` alike."""
    checked = program(
        "both(x) := f(x) ^ a(x); none(x) := f(x) ^ not a(x);"
        "also(x) := a(x) ^ f(x); less(x) := a(x) ^ not f(x);"
        "kept(k, x) := g(k, x) ^ not b(k, x);",
        f="float", a="int", g="text float", b="text int",
    )  # fmt: skip
    floats = sorted({float(each) for each in others})
    held = facts(
        a=[(each,) for each in sorted(whole)], f=[(each,) for each in floats],
        b=[("k", each) for each in sorted(whole)],
        g=[(key, each) for key in ("k", "l") for each in floats],
    )  # fmt: skip
    twin, *found = every_answer(checked, held)
    for each in found:
        assert each == twin
    widened = {float(each) for each in whole}
    wanted = {format_record(Record("none", (each,))) for each in floats if each not in widened}
    assert {text for text in twin[0] if text.startswith("none")} == wanted


def test_w12_why_not_names_the_whole_number_that_is_the_float() -> None:
    """W12: a reason follows the same comparison as the engines."""
    checked = program("none(x) := f(x) ^ not a(x);", f="float", a="int")
    held = facts(f=[(float(FAR),)], a=[(FAR + 1,)])
    (reason,) = why_not(checked, held, parse_record(f"none({FAR}.0)"), 0, upper=1)
    assert reason.render() == f"rule 1: blocked by a({FAR + 1})"


def test_a_number_and_its_float_stand_in_one_order_however_their_set_was_made() -> None:
    numbers = [*map(element, (1, 1.0, 2.0, 2, -3))]
    for made in permutations(numbers):
        assert format_value(frozenset(made)) == "{-3,1,1.0,2,2.0}"
