"""Functions of texts and numbers: edges, failures and laws that cases do not reach."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog import text_functions
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.values import TEXT_MAX, Failed

LAW = settings(max_examples=100, deadline=None)
FLOATS = st.floats(-1e6, 1e6)


def value(name: str, *arguments: Any) -> Any:
    return FUNCTIONS[name].evaluate(*arguments)


def reason(name: str, *arguments: Any) -> str:
    with pytest.raises(Failed) as caught:
        value(name, *arguments)
    return caught.value.reason


@pytest.mark.parametrize(
    ("name", "ulps"),
    [("root", 0), ("exp", 1), ("ln", 1), ("sin", 1), ("cos", 1), ("tan", 1), ("atan", 1)],
)
def test_a_function_of_numbers_is_the_one_of_the_c_library_but_for_its_last_digit(
    name: str, ulps: int
) -> None:
    known = getattr(math, {"ln": "log", "root": "sqrt"}.get(name, name))

    @LAW
    @given(FLOATS)
    def agree(x: float) -> None:
        x = abs(x) + 0.5 if name in ("root", "ln") else x / 1e4 if name == "exp" else x
        expected = known(x)
        assert abs(value(name, x) - expected) <= ulps * math.ulp(expected)

    agree()


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("pow", (10, 308), 1e308),
        ("pow", (-2, 3), -8.0),
        ("pow", (0, 0), 1.0),
        ("pow", (2.0, 0.5), math.sqrt(2)),
        ("log", (8, 2), 3.0),
        ("log", (1000,), 3.0),
        ("asin", (1,), math.pi / 2),
        ("acos", (-1,), math.pi),
        ("acos", (1.0,), 0.0),
        ("atan2", (1, -1), 3 * math.pi / 4),
        ("atan2", (-1, 0), -math.pi / 2),
        ("radians", (180,), math.pi),
        ("sin", (1e15,), math.sin(1e15)),
        ("exp", (-5000.0,), 0.0),
        ("round_to", (2.5, 0), 3.0),
        ("round_to", (-1250, -2), -1300.0),
        ("shift", (1, 62), 1 << 62),
        ("shift", (-1, -99), -1),
        ("split", ("a,b", ",", 2), None),
        ("split", ("a,b", "", 0), "a,b"),
        ("replace", ("aaa", "", "b"), "aaa"),
        ("pad_start", ("abc", 2), "abc"),
        ("position", ("a\u0301b", "b"), 2),
        ("regex_extract", ("k=[v]", r"\[([a-z]+)\]"), "v"),
        ("regex_extract", ("a(b", "[(](b)"), "b"),
        ("regex_extract", ("a(b", r"\Q(\E(b)"), "b"),
        ("regex_extract", ("ab", "(?:a)(?P<last>b)"), "b"),
        ("regex_extract", ("b", "(a)|b"), ""),
        ("regex_extract", ("ab", "a", 0), "a"),
        ("format", ("{.0}", 2.5), "2"),
        ("format", ("{.1}", -0.04), "0.0"),
        ("format", ("{.2}", 10**18), "1000000000000000000.00"),
        ("format", ("", ), ""),
    ],
)  # fmt: skip
def test_functions_at_their_edges(name: str, arguments: tuple[Any, ...], expected: Any) -> None:
    found = value(name, *arguments)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("root", (-1,), "not defined"),
        ("ln", (0,), "not defined"),
        ("log", (2, 1), "not defined"),
        ("asin", (1.5,), "not defined"),
        ("pow", (-2.0, 0.5), "not defined"),
        ("pow", (0, -1), "not defined"),
        ("pow", (10, 309), "overflow"),
        ("exp", (710,), "overflow"),
        ("sin", (1e300,), "overflow"),
        ("root", (math.inf,), "overflow"),
        ("root", ("4",), "wrong type"),
        ("shift", (1, 63), "overflow"),
        ("round_to", (1.0, 31), "overflow"),
        ("bit_and", (1, True), "wrong type"),
        ("pad_end", ("a", -1), "negative index"),
        ("pad_end", ("a", TEXT_MAX + 1), "overflow"),
        ("pad_end", ("a", 3, "xy"), "wrong type"),
        ("replace", ("a" * TEXT_MAX, "a", "bb"), "overflow"),
        ("regex_match", ("a", "("), "not a pattern"),
        ("regex_match", ("a", "a" * 1_001), "not a pattern"),
        ("regex_match", ("a", r"(a)\1"), "not a pattern"),
        ("regex_extract", ("a", "(a)", 2), "not a pattern"),
        ("regex_extract", ("a", "(a)", -2), "negative index"),
        ("regex_replace", ("a", "(a)", r"\2"), "not a pattern"),
        ("format", ("{} {}", 1), "not a form"),
        ("format", ("{}", 1, 2), "not a form"),
        ("format", ("{x}", 1), "not a form"),
        ("format", ("{.31}", 1.0), "not a form"),
        ("format", ("{.2}", "a"), "wrong type"),
        ("format", ("{}" * 2_000, *["a" * TEXT_MAX] * 2_000), "overflow"),  # 2 GB
        ("regex_extract", ("a", "a" * 1_001), "not a pattern"),
        ("upper", ("ß" * TEXT_MAX,), "overflow"),
        ("duration", ("1s" * (TEXT_MAX // 2),), "not of the type"),
        ("bytes", ("0 ",), "not of the type"),
        ("parse_time", ("1", "%Y" + "a" * 1_000), "not a form"),
    ],
)
def test_functions_fail_with_their_reasons(
    name: str, arguments: tuple[Any, ...], expected: str
) -> None:
    assert reason(name, *arguments) == expected


def test_every_function_of_null_is_null() -> None:
    for name, known in FUNCTIONS.items():
        if known.takes is not None:
            assert value(name, *[None] * known.arity_min) is None, name


def test_a_pattern_takes_time_linear_in_the_text() -> None:
    def seconds(size: int) -> float:
        start = time.perf_counter()
        assert value("regex_match", "a" * size, "(a*)*b") is False
        return time.perf_counter() - start

    short = min(seconds(20_000) for _ in range(5))
    # A backtracking engine takes 2^20000 steps for the first.
    assert min(seconds(80_000) for _ in range(5)) < 40 * short + 0.1


@pytest.mark.parametrize("part", ["[", "[:", "[^", "(", r"\Q", "[[:a"])
def test_the_groups_of_a_pattern_are_named_in_linear_time(part: str) -> None:
    """16,000 brackets that none closes took seven seconds, in which no other thread ran."""

    def seconds(count: int) -> float:
        start = time.perf_counter()
        text_functions._named(part * count)
        text_functions._named.cache_clear()
        return time.perf_counter() - start

    short = min(seconds(4_000) for _ in range(5))
    assert min(seconds(16_000) for _ in range(5)) < 8 * short + 0.05


@pytest.mark.parametrize("n", [0, 1, 9_999, 10_000, 10_001, 25_000, 25_001, -1, -25_001, -25_002])
def test_a_part_of_many_is_the_one_of_the_library(n: int) -> None:
    text = "".join(f"{at}, " for at in range(25_000))
    parts = text.split(", ")
    expected = parts[n] if -len(parts) <= n < len(parts) else None
    assert value("split", text, ", ", n) == expected
    assert value("split_count", text, ", ") == len(parts)


@LAW
@given(st.text("a,b", max_size=12), st.sampled_from([",", "a", "ab"]))
def test_the_parts_of_a_text_make_it_up(text: str, separator: str) -> None:
    parts = [
        value("split", text, separator, n) for n in range(value("split_count", text, separator))
    ]
    assert separator.join(parts) == text
    assert value("split", text, separator, -1) == parts[-1]
    assert value("replace", text, separator, "#") == "#".join(parts)
