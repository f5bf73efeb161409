"""Values, functions, exact sums: the edges that cases do not reach."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.goals import goal_over
from tidemill.datalog.parser import parse
from tidemill.datalog.records import format_text, parse_record
from tidemill.datalog.sums import ExactSum, exact_average, exact_sum
from tidemill.datalog.values import (
    INT_MAX,
    INT_MIN,
    TEXT_MAX,
    Failed,
    Value,
    add,
    compare,
    divide,
    equal,
    less,
    multiply,
    negate,
    remainder,
)
from tidemill.errors import UsageError

LAW = settings(max_examples=100, deadline=None)
WHOLE = st.integers(INT_MIN, INT_MAX)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


def reason_of(operator: object, *arguments: Value) -> str:
    with pytest.raises(Failed) as caught:
        operator(*arguments)  # type: ignore[operator]
    return caught.value.reason


@LAW
@given(WHOLE, WHOLE.filter(bool))
def test_quotient_and_remainder_of_whole_numbers_truncate_and_match(a: int, b: int) -> None:
    if (a, b) == (INT_MIN, -1):
        assert reason_of(divide, a, b) == "overflow"
        return
    quotient, rest = divide(a, b), remainder(a, b)
    assert quotient == math.trunc(Fraction(a, b))
    assert isinstance(quotient, int)
    assert isinstance(rest, int)
    assert quotient * b + rest == a


def test_whole_numbers_that_leave_64_bit_fail_and_those_at_the_edge_do_not() -> None:
    assert add(INT_MAX, 0) == INT_MAX
    assert reason_of(add, INT_MAX, 1) == "overflow"
    assert reason_of(multiply, INT_MIN, -1) == "overflow"
    assert reason_of(negate, INT_MIN) == "overflow"
    assert reason_of(multiply, 1e300, 1e300) == "overflow"
    assert reason_of(divide, 1, 0) == "division by zero"
    assert reason_of(divide, 1.0, 0) == "division by zero"
    assert reason_of(remainder, 1.5, 0.0) == "division by zero"
    assert reason_of(add, "a", 1) == "wrong type"
    assert reason_of(add, math.inf, 1) == "overflow"


def test_null_is_equal_to_itself_only_and_below_nothing() -> None:
    assert equal(None, None)
    assert not equal(None, 0)
    assert not less(None, 1)
    assert not less(1, None)
    assert add(None, 1) is None


def test_whole_numbers_compare_with_floats_as_floats() -> None:
    assert equal(25, 25.0)
    assert equal(2**53 + 1, float(2**53))
    assert compare(1, 1.5) == -1
    assert reason_of(compare, "a", 1) == "wrong type"


@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("round", (0.49999999999999994,), 0),
        ("round", (-2.5,), -3),
        ("round", (4503599627370497.5,), 4503599627370498),
        ("bucket", (-1, 10), -10),
        ("bucket", (0.35, 0.1), 0.30000000000000004),
        ("substring", ("abc", 1, 9), "bc"),
        ("substring", ("abc", 7, 1), ""),
        ("least", (3, 2.5), 2.5),
        ("least", (2, 2.5), 2.0),
        ("concat", ("e", "\u0301"), "\u00e9"),
        ("text", (True,), "true"),
        ("text", (1e16,), "1e+16"),
        ("int", ("-0042",), -42),
        ("float", ("1e3",), 1000.0),
        ("contains", (frozenset({1, 2}), 2), True),
        ("length", (frozenset({1, 2}),), 2),
        ("coalesce", (None, 1, 2.0), 1.0),
        ("upper", (None,), None),
        ("is_null", (None,), True),
    ],
)
def test_functions_at_their_edges(name: str, arguments: tuple[Value, ...], value: Value) -> None:
    found = FUNCTIONS[name].evaluate(*arguments)
    assert found == value
    assert type(found) is type(value)


def test_functions_fail_with_their_reasons() -> None:
    assert reason_of(FUNCTIONS["bucket"].evaluate, 1, 0) == "size not positive"
    assert reason_of(FUNCTIONS["substring"].evaluate, "a", -1, 1) == "negative index"
    assert reason_of(FUNCTIONS["int"].evaluate, "1_0") == "not a number"
    assert reason_of(FUNCTIONS["int"].evaluate, "9" * 5000) == "overflow"
    assert reason_of(FUNCTIONS["float"].evaluate, "inf") == "not a number"
    assert reason_of(FUNCTIONS["floor"].evaluate, 1e300) == "overflow"
    assert reason_of(FUNCTIONS["abs"].evaluate, INT_MIN) == "overflow"


@LAW
@given(st.lists(FLOATS, min_size=1, max_size=20), st.lists(FLOATS, max_size=20))
def test_an_exact_sum_is_rounded_once_and_forgets_what_is_taken_away(
    kept: list[float], gone: list[float]
) -> None:
    total = ExactSum()
    for value in kept + gone:
        total.add(value)
    for value in gone:
        total.add(value, -1)
    exact = sum(map(Fraction, kept), Fraction(0))
    assert total.sum() == float(exact)
    assert total.average() == float(exact / len(kept))


def test_sums_skip_null_and_keep_the_kind_of_numbers() -> None:
    assert exact_sum([None, 1, 2]) == 3
    assert exact_sum([None]) is None
    assert exact_average([1, None, 2]) == 1.5
    assert exact_average([]) is None
    assert reason_of(exact_sum, [INT_MAX, 1]) == "overflow"  # type: ignore[list-item]
    assert exact_average([INT_MAX, INT_MAX]) == float(INT_MAX)


MARKS = "a" + "\u0301\u0316" * 30_000


def test_s1_no_expression_makes_a_text_of_marks_or_one_beyond_a_mebibyte() -> None:
    assert reason_of(FUNCTIONS["concat"].evaluate, MARKS, "b") == "too many marks"
    assert reason_of(FUNCTIONS["lower"].evaluate, MARKS) == "too many marks"
    half = "x" * (TEXT_MAX // 2)
    assert FUNCTIONS["concat"].evaluate(half, half) == half * 2
    assert reason_of(FUNCTIONS["concat"].evaluate, half, half, "x") == "overflow"


@pytest.mark.parametrize(
    "read",
    [
        lambda: parse(f'p("{MARKS}");'),
        lambda: parse(f'p("\\u00e9{MARKS}");'),
        lambda: goal_over(f'p("{MARKS}")', {"p": [("x", "text")]}),
        lambda: parse_record(f'p("{MARKS}")'),
        lambda: format_text(MARKS),
    ],
    ids=["program", "escaped", "goal", "record", "answer"],
)
def test_s1_a_program_a_goal_and_a_record_of_marks_are_refused(read: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match="combining marks in a row"):
        read()


@pytest.mark.parametrize(
    "text",
    [
        'p("\\x")', 'p("\\ud800")', f"p({'{' * 30_000}{'}' * 30_000})", f"p({'1' * 5_000})",
        'p(1) @time("x")', "p(1) @time(1, 2)", "p(1) @time(inf)", "p(1) @expires({})",
        "p(1) @time(true)", f"p({'{' * 60_000}", 'p("a\tb")', "p(1", "",
    ],
)  # fmt: skip
def test_f1_a_record_that_is_none_is_refused_at_once(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(UsageError, match="not a record") as caught:
        parse_record(text)
    assert caught.value.details["reason"] == "InvalidRecord"
    assert len(str(caught.value)) < 400
    assert time.process_time() - begun < 1


def test_a_text_of_escapes_that_does_not_end_is_refused_in_linear_time() -> None:
    """8,000 escaped quotes held the interpreter for two seconds: each began a text of its own."""

    def seconds(count: int) -> float:
        start = time.perf_counter()
        with pytest.raises(UsageError):
            parse_record('p("' + '\\"' * count)
        return time.perf_counter() - start

    short = min(seconds(4_000) for _ in range(5))
    assert min(seconds(16_000) for _ in range(3)) < 8 * short + 0.1
