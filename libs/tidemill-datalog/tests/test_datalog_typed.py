"""Times, decimal numbers, bytes, UUIDs and JSON: laws of their values in the engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog import values
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.check import check
from tidemill.datalog.columns.calculator import Calculator
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.elements import element
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.goals import encode_value
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import Call, Constant, Type, Variable
from tidemill.datalog.parser import parse
from tidemill.datalog.placement.column_hashes import ranges_of_columns
from tidemill.datalog.placement.hashing import range_of
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record, parse_record
from tidemill.datalog.state import decode_fields, encode_fields
from tidemill.datalog.values import Failed
from tidemill.errors import Corrupt
from tidemill.testkit.held import Held
from tidemill.testkit.twins.pointwise import answers
from tidemill.time.typed import SPAN_MAX, Json, fitting, json_of

LAW = settings(max_examples=100, deadline=None)
INSTANTS = st.datetimes(timezones=st.just(UTC))
SPANS = st.timedeltas(timedelta(microseconds=-SPAN_MAX), timedelta(microseconds=SPAN_MAX))
DECIMALS = (
    st.decimals(-(10**19), 10**19, allow_nan=False, places=4)
    .map(fitting)
    .filter(lambda x: x is not None)
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text("ab\"\\é", max_size=3) | st.floats(-9, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy", max_size=2), inner, max_size=3),
    max_leaves=6,
).map(json_of).filter(lambda x: x is not None)  # fmt: skip
OF: Mapping[Type, st.SearchStrategy[Any]] = {
    Type.TIMESTAMP: INSTANTS, Type.DATE: st.dates(), Type.DURATION: SPANS, Type.DECIMAL: DECIMALS,
    Type.BYTES: st.binary(max_size=6), Type.UUID: st.uuids(), Type.JSON: JSONS,
}  # fmt: skip
TYPED = st.one_of(*OF.values())
KINDS = st.sampled_from(sorted(OF, key=lambda kind: kind.value))


@LAW
@given(st.lists(TYPED | st.integers(-3, 3) | st.text(max_size=2), max_size=5))
def test_a_record_and_a_state_read_back_what_they_wrote(arguments: list[Any]) -> None:
    record = Record("p", tuple(arguments), 5)
    assert parse_record(format_record(record)) == record
    assert decode_fields(encode_fields(tuple(arguments))) == tuple(arguments)
    program = parse(format_record(record) + ";")
    written = tuple(argument.value for argument in program.rules[0].head.application.arguments)
    assert tuple(each.value for each in written) == tuple(arguments)  # type: ignore[union-attr]


@LAW
@given(TYPED, TYPED)
def test_values_of_two_types_are_never_equal_and_have_no_order(a: Any, b: Any) -> None:
    assert values.equal(a, b) == (type(a) is type(b) and a == b)
    assert (encode_value(a) == encode_value(b)) == values.equal(a, b)
    assert (element(a) == element(b)) == values.equal(a, b)
    if type(a) is not type(b) or isinstance(a, Json):
        with pytest.raises(Failed):
            values.compare(a, b)
    else:
        assert values.compare(a, b) == (a > b) - (a < b)


def test_a_decimal_number_equals_no_whole_number_and_no_float() -> None:
    for other in (1, 1.0, True):
        assert not values.equal(Decimal(1), other)
        assert not values.equal(other, Decimal(1))
        assert len({element(Decimal(1)), element(other)}) == 2


@LAW
@given(st.data())
def test_columns_hold_values_as_they_are_and_arrow_has_them_too(data: st.DataObject) -> None:
    kind, texts = data.draw(KINDS), Texts()
    drawn = data.draw(st.lists(st.none() | OF[kind], min_size=1, max_size=8))
    column = Column.of_values(kind, drawn, texts)
    assert column.python(texts) == drawn
    again = Column.of_arrow(kind, column.to_arrow(texts), texts)
    assert again.python(texts) == drawn
    words = [tuple(word[row] for word in column.words()) for row in range(len(drawn))]
    for left, a in zip(words, drawn, strict=True):
        assert [left == right for right in words] == [values.equal(a, b) for b in drawn]


@LAW
@given(st.data())
def test_a_column_is_dealt_out_as_its_values_are(data: st.DataObject) -> None:
    kind, texts = data.draw(KINDS), Texts()
    drawn = data.draw(st.lists(st.none() | OF[kind], min_size=1, max_size=8))
    array = Column.of_values(kind, drawn, texts).to_arrow(texts)
    assert ranges_of_columns([array], 64).tolist() == [range_of([value], 64) for value in drawn]


_SIGNS = {
    "+": values.add, "-": values.subtract, "*": values.multiply, "/": values.divide, "%": values.remainder,
    "<": values.less, ">=": values.greater_equal, "==": values.equal,
}  # fmt: skip


def outcome(evaluate: Any, *arguments: Any) -> Any:
    """The value of a call, or why there is none."""
    try:
        return evaluate(*arguments)
    except Failed as failed:
        return "failed", failed.reason


@LAW
@given(st.data(), st.sampled_from(sorted(_SIGNS)), KINDS, KINDS | st.just(Type.INT))
def test_operators_over_columns_give_what_they_give_value_by_value(
    data: st.DataObject, sign: str, left: Type, right: Type
) -> None:
    texts, of = Texts(), {**OF, Type.INT: st.integers(-(10**7), 10**7)}
    a = data.draw(st.lists(st.none() | of[left], min_size=1, max_size=6))
    b = data.draw(st.lists(st.none() | of[right], min_size=len(a), max_size=len(a)))
    columns = {"a": Column.of_values(left, a, texts), "b": Column.of_values(right, b, texts)}
    scope = TypeEnvironment({"a": left, "b": right}, {}, FUNCTIONS, LATTICES)
    calculator = Calculator(scope, columns, len(a), texts, Allowance(None))
    try:
        column, failed = calculator.evaluated(Call(sign, (Variable("a"), Variable("b"))), None)
    except Unsuited:
        return
    flags = np.zeros(len(a), np.bool_) if failed is None else failed
    for x, y, found, bad in zip(a, b, column.python(texts), flags.tolist(), strict=True):
        expected = outcome(_SIGNS[sign], x, y)
        assert bad == (isinstance(expected, tuple) and expected[0] == "failed")
        assert bad or found == expected


PROGRAM = """
later(k, t + d) := at(k, t) ^ wait(k, d) if d > 0s;
met(k, l) := at(k, t) ^ at(l, t) if k < l;
alone(k) := at(k, t) ^ not later(_, t);
worth(k) @sum(p) @max(p) := cost(k, p);
paid(k, p * decimal("2.5")) := cost(k, p) ^ not free(k, p);
free(k, p - decimal("0.5")) := cost(k, p) ^ at(k, _) if p >= decimal("0.5");
path(k, d) := wait(k, d);
path(l, d) := path(k, d) ^ at(k, t) ^ at(l, t);
total(k) @sum(d) @set(d) @count_distinct(d) := path(k, d);
said(k, j) := doc(k, j) ^ not doc(_, json_get(j, "a"));
told(k, json_int(j, "a")) := doc(k, j);
hours(k) @min(t) @latest(t) := hour(k, t);
hour(k, bucket(t, 2s)) := at(k, t);
"""
SCHEMAS = {
    "at": ("text", "timestamp"), "wait": ("text", "duration"), "cost": ("text", "decimal(9,2)"),
    "doc": ("text", "json"),
}  # fmt: skip
NEAR = {
    "at": st.integers(0, 4).map(lambda s: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s)),
    "wait": st.integers(-1, 3).map(lambda s: timedelta(seconds=s)),
    "cost": st.integers(0, 4).map(lambda n: Decimal(n) / 2).map(fitting),
    "doc": st.sampled_from([json_of(x) for x in (1, {"a": 1}, {"a": {"a": 1}}, {"a": "b"}, [1])]),
}
UPPER = 6


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(["strata", "retraction"]))
def test_the_dataflow_says_of_typed_rows_what_the_twin_says_at_every_instant(
    data: st.DataObject, strategy: Any
) -> None:
    inputs = {
        name: InputSchema(name, "relation", (("k", kinds[0]), ("v", kinds[1])))
        for name, kinds in SCHEMAS.items()
    }
    checked = check(parse(PROGRAM), InputSchemas(inputs))
    facts: dict[str, list[Presence]] = {}
    for name, drawn in NEAR.items():
        rows = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from("xyz"), st.none() | drawn, st.integers(0, 4), st.integers(1, 4)
                ),
                max_size=4,
                unique_by=lambda row: row[:2],
            )
        )
        facts[name] = [Presence(Record(name, (k, v)), s, s + n) for k, v, s, n in rows]
    held = Held(checked, strategy=strategy)
    held.feed(facts)
    for at, expected in enumerate(answers(checked, facts, 0, UPPER), -1):
        held.step(at + 1)
        for name in checked.derived:
            assert held.texts(name) == set(expected.records.get(name, ())), (name, at)
        assert held.errors() == set(expected.errors)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("timestamp", ("2026-02-30T00:00Z",), "not of the type"),
        ("timestamp", (10**18,), "overflow"),
        ("timestamp", (date(2026, 1, 1), "Nowhere"), "not a zone"),
        ("timestamp", (date(2026, 1, 1), "../../etc/passwd"), "not a zone"),
        ("date", ("20260101",), "not of the type"),
        ("duration", ("5",), "not of the type"),
        ("duration", (10**17,), "overflow"),
        ("part", (date(2026, 1, 1), "hour"), "not a unit"),
        ("format_time", (date(2026, 1, 1), "%Q"), "not a form"),
        ("parse_time", ("1", "%d%d"), "not a form"),
        ("parse_time", ("31.2.2026", "%d.%m.%Y"), "not of the type"),
        ("bucket", (timedelta(1), timedelta(0)), "size not positive"),
        ("decimal", ("1e30",), "not a number"),
        ("decimal", (1.5, 19), "overflow"),
        ("quotient", (Decimal(1), Decimal(0), 2), "division by zero"),
        ("bytes", ("0",), "not of the type"),
        ("unbase64", ("a",), "not of the type"),
        ("uuid", ("x" * 36,), "not of the type"),
        ("json", ("[" * 200 + "]" * 200,), "not of the type"),
        ("json_int", (Json("1.5"),), "wrong type"),
        ("json_int", (Json("1" + "0" * 30),), "overflow"),
    ],
)  # fmt: skip
def test_functions_of_types_fail_with_their_reasons(
    name: str, arguments: tuple[Any, ...], reason: str
) -> None:
    assert outcome(FUNCTIONS[name].evaluate, *arguments) == ("failed", reason)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_takes_as_many_arguments_as_each_of_its_signatures(name: str) -> None:
    function = FUNCTIONS[name]
    for takes, _ in function.signatures:
        assert function.arity_max is None or len(takes) <= function.arity_max
        assert function.arity_min <= len(takes)


@pytest.mark.parametrize("offset", ["+05:30", "+0530", "-1400", "-03:00", "Z", "z", "+0000"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_a_text_with_an_offset_is_of_no_zone(offset: str, zone: str) -> None:
    timestamp = FUNCTIONS["timestamp"].evaluate
    told = f"2024-01-01T00:00:00{offset}"
    assert timestamp(told, zone) == datetime.fromisoformat(told.upper())
    assert (timestamp(told[:19], zone) == timestamp(told[:19])) == (zone == "UTC")


def test_a_program_asks_for_the_date_of_a_timestamp_in_a_zone() -> None:
    schema = InputSchema("at", "relation", (("k", "text"), ("v", "timestamp")))
    program = 'day(k, date(t), date(t, "Europe/Berlin")) := at(k, t);'
    held = Held(check(parse(program), InputSchemas({"at": schema})))
    late = datetime(2026, 1, 1, 23, 30, tzinfo=UTC)
    held.feed({"at": [Presence(Record("at", ("x", late)), 0, 2)]})
    held.step(1)
    assert held.texts("day") == {'day("x", date("2026-01-01"), date("2026-01-02"))'}


@LAW
@given(INSTANTS, st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]))
def test_truncation_goes_back_to_the_first_instant_that_shows_the_same_parts(
    moment: datetime, zone: str
) -> None:
    if not 2 < moment.year < 9998:
        return
    for unit in ("year", "month", "day", "hour", "minute", "second"):
        cut = FUNCTIONS["truncate"].evaluate(moment, unit, zone)
        assert cut <= moment
        assert FUNCTIONS["truncate"].evaluate(cut, unit, zone) == cut
        shown = [FUNCTIONS["part"].evaluate(each, unit, zone) for each in (cut, moment)]
        assert shown[0] == shown[1]


UNITS = (
    "year", "quarter", "month", "week", "day", "weekday", "yearday", "hour", "minute", "second",
    "millisecond", "microsecond", "fortnight",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([Type.TIMESTAMP, Type.DATE]), st.sampled_from(["date", "truncate", "part"]),
    st.sampled_from(UNITS), st.sampled_from([None, "UTC", "Europe/Berlin", "Asia/Kolkata", "x"]),
    st.data(),
)  # fmt: skip
def test_the_calendar_of_columns_says_what_it_says_value_by_value(
    kind: Type, name: str, unit: str, zone: str | None, data: st.DataObject
) -> None:
    texts = Texts()
    ends = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
    near = st.sampled_from(ends if kind is Type.TIMESTAMP else [each.date() for each in ends])
    drawn = data.draw(st.lists(st.none() | near | OF[kind], min_size=1, max_size=8))
    told = [*([] if name == "date" else [unit]), *([] if zone is None else [zone])]
    scope = TypeEnvironment({"x": kind}, {}, FUNCTIONS, LATTICES)
    columns = {"x": Column.of_values(kind, drawn, texts)}
    call = Call(name, (Variable("x"), *(Constant(each) for each in told)))
    calculator = Calculator(scope, columns, len(drawn), texts, Allowance(None))
    try:
        column, failed = calculator.evaluated(call, None)
    except Unsuited:  # a date has no date, and no zone
        assert kind is Type.DATE
        assert name == "date" or zone is not None
        return
    flags = [False] * len(drawn) if failed is None else failed.tolist()
    for x, found, bad in zip(drawn, column.python(texts), flags, strict=True):
        expected = outcome(FUNCTIONS[name].evaluate, x, *told)
        assert bad == (isinstance(expected, tuple) and expected[0] == "failed")
        assert bad or found == expected
    assert column.nulls is None or not column.values[column.nulls].any()


@LAW
@given(DECIMALS, DECIMALS.filter(bool))
def test_a_quotient_is_the_nearest_number_with_its_digits(a: Decimal, b: Decimal) -> None:
    found = outcome(FUNCTIONS["quotient"].evaluate, a, b, 3)
    if isinstance(found, tuple):
        assert found == ("failed", "overflow")
    else:
        assert 2 * abs(found * b - a) <= abs(b) * Decimal("0.001")


@pytest.mark.parametrize(
    "text", ["", "5", "[", '[{"type":"no","text":""}]', '[{"members":3}]', '[{"wide":"x"}]', "[" * 9_000],
    ids=["nothing", "no-list", "cut", "no-type", "no-members", "no-number", "deep"],
)  # fmt: skip
def test_f2_a_row_of_state_that_nobody_wrote_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="a row of state"):
        decode_fields(text)
