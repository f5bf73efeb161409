"""Scans: rows that cannot match and unused columns may be left out, and no answer changes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.logical.plan_text import scan_lines
from tidemill.datalog.logical.scans import AllOf, AnyOf, Comparison, Scan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.testkit import tidelog
from tidemill.testkit.drawing import Presences
from tidemill.testkit.held import Held
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import Example, answers_from_scratch, inputs, programs

EXAMPLES = int(os.environ.get("PROGRAMS", "2000")) // 10
SEED = int(os.environ.get("LAW_SEED", "1"))
CATALOG = InputSchemas(
    {
        "sale": InputSchema(
            "sale", "events", (("shop", "text"), ("item", "text"), ("price", "float"), ("n", "int"))
        ),
        "shop": InputSchema("shop", "relation", (("name", "text"), ("city", "text"))),
    }
)


def scans(text: str) -> list[str]:
    return [line.strip() for line in scan_lines(logical_plan(check(parse(text), CATALOG)))]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('f(s) := sale(s, "tea", _, n) if n > 3 ^ n <= 9;',
         ['sale: (shop, item, n) where item == "tea" && n > 3 && n <= 9']),
        ("f(s) := sale(s, _, p, _) @time(t) if 2 <= p ^ t > 100 ^ t * t > 5;",
         ["sale: all columns where price >= 2.0 && time > 100"]),
        ("f(s) := sale(s, i, _, _);", ["sale: (shop)"]),
        ("f(s) @count(i) := sale(s, i, _, 1);", ["sale: all columns where n == 1"]),
        ("f(s) @max(n) := sale(s, _, _, n);", ["sale: all columns"]),
        ("f(c) @min(s) := shop(s, c) ^ shop(s, _);", ["shop: all columns"]),
        ("f(1) @min(s) := shop(s, _);", ["shop: (name)"]),
        ("f(s) := sale(s, _, _, _) @expires(e) if e < 9;", ["sale: all columns"]),
        ("f(s) := shop(s, _) ^ not sale(s, _, _, _) @expires(9);",
         ["sale: all columns", "shop: all columns"]),
        ("f(s) := sale(s, _, _, n) if 10 / n > 2 ^ n > 3;", ["sale: all columns"]),
        ("f(s) := sale(s, _, _, n) if n > 3 ^ 10 / n > 2;", ["sale: all columns where n > 3"]),
        ("f(s) := sale(s, _, _, n) if n > 3 || n == 0; f(s) := sale(s, i, _, _) if i == null;",
         ["sale: (shop, item, n) where n > 3 || n == 0 || item == null"]),
        ('f(c) := shop(_, c) ^ not sale(_, "tea", _, _);',
         ['sale: (item) where item == "tea"', "shop: (city)"]),
        ('f(s) := shop(s, c) ^ sale(s, _, _, _) if c == "Oslo" ^ s < "m";',
         ['sale: (shop) where shop < "m"', 'shop: all columns where city == "Oslo" && name < "m"']),
        ("f(s) := sale(s, _, _, n) ^ clock(0, n) if n > 3;", ["sale: all columns"]),
        ("f(s) := sale(s, _, _, n) if n > 2.5 ^ n != 7;", ["sale: (shop, n)"]),
        ("f(s) @next := sale(s, _, _, 3);", ["sale: all columns"]),
        ("f(s) := shop(s, _) ^ shop(_, s);", ["shop: all columns"]),
    ],
)  # fmt: skip
def test_scans_take_the_guards_that_decide_over_one_row_and_the_columns_in_use(
    text: str, read: list[str]
) -> None:
    assert scans(text) == read


def narrowed(scan: Scan, presences: Sequence[Presence]) -> list[Presence]:
    """The rows that pass, with null in the columns that nobody looks at."""
    kept = []
    for presence in presences:
        record = presence.record
        if scan.wanted is None or scan.wanted.holds((record.time, *record.arguments)):
            arguments = tuple(
                value if at in scan.columns else None
                for at, value in enumerate(record.arguments, 1)
            )
            kept.append(replace(presence, record=replace(record, arguments=arguments)))
    return kept


RULES = (
    "p(x) := s(x, _) if x {s} {n};",
    "p(x) := s(_, x) ^ r(x) if x > 0 ^ {n} {s} x;",
    "q(x) := r(x) ^ not s(x, {n}) if x {s} {n};",
    "q({n}) := s(_, _) ^ b(x, _) @time(u) if u {s} {m};",
    "t(x, y) := a(x) @time(u) ^ b(y, {n}) @time(w) if u {s} 2 || w {s} {m};",
    "t(x, y) := b(x, y) ^ s(y, _) ~expires if y {s} {n};",
    "t(x, z) := t(x, y) ^ s(y, z) if z {s} {n};",
    "q(x) @count(y) := s(x, y) if x {s} {n};",
    "q(x) @min(y) := s(x, y) ^ b(_, x) if y {s} {n};",
    "q(x) @expires(u + 5) := b(x, _) @time(u) if x {s} {n};",
    "p(1) := s(x, y) if x {s} {n} ^ 4 / y > 1;",
    "p(1) := s(x, y) if 4 / y > 1 ^ x {s} {n};",
    "p(x) := s(x, _) ^ clock(0, x) if x {s} {n};",
)
_DRAWN = st.builds(
    lambda rule, sign, n, m: rule.replace("{s}", sign).replace("{n}", n).replace("{m}", m),
    st.sampled_from(RULES), st.sampled_from(("<", "<=", "==", ">", ">=", "!=")),
    st.sampled_from(("0", "1", "2")), st.sampled_from(("1", "4", "7")),
)  # fmt: skip


def read(text: str) -> Example:
    return Example(text, check(parse(text), tidelog.CATALOG))


GUARDED = st.one_of(st.lists(_DRAWN, min_size=1, max_size=2).map("\n".join).map(read), programs(4))


def test_no_answer_and_no_error_changes_without_what_scans_leave_out() -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES, backend=seeded_backend(SEED), deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(GUARDED, inputs(rows_min=1), st.booleans())
    def agree(example: Example, given_: Presences, backwards: bool) -> None:
        checked = example.checked
        found = logical_plan(checked).scans
        less = {name: narrowed(scan, given_.get(name, ())) for name, scan in found.items()}
        strategy = "retraction" if backwards else "strata"
        held = Held(checked, strategy=strategy, limits=Limits(rounds=500))
        held.feed(less)
        for at, expected in enumerate(answers_from_scratch(example, given_), -1):
            held.step(at + 1)
            assert held.now() == expected, (at, example.text)
        for name, scan in found.items():
            seen["rows"] += len(less[name]) < len(given_.get(name, ()))
            seen["columns"] += len(scan.columns) < len(checked.columns[name])

    agree()
    assert seen["rows"] > EXAMPLES / 20  # of two in three
    assert seen["columns"] > EXAMPLES / 20  # of one in four


@pytest.mark.parametrize(
    "text",
    [
        "q(x) @min(u) := b(_, x) @time(u);", "p(x) := b(_, x) @expires(w) if w < 9;",
        "q(x) := a(x) ^ not b(_, x) @expires(6);",
    ],
)  # fmt: skip
def test_each_end_counts_of_rows_that_differ_in_a_column_that_nobody_names(text: str) -> None:
    ends = (None, 6)
    rows = [
        Presence(Record("b", (n, 2), 1, end), 1, 20 if end is None else end)
        for n, end in enumerate(ends)
    ]
    example, given_ = read(text), {"b": rows, "a": [Presence(Record("a", (2,), 1), 1, 20)]}
    less = {
        name: narrowed(scan, given_[name])
        for name, scan in logical_plan(example.checked).scans.items()
    }
    held = Held(example.checked)
    held.feed(less)
    for at, expected in enumerate(answers_from_scratch(example, given_), -1):
        held.step(at + 1)
        assert held.now() == expected, at


def test_tests_read_a_row_with_its_time_first() -> None:
    test = AllOf((Comparison(0, ">", 4), AnyOf((Comparison(1, "==", None), Comparison(1, "<", 2)))))
    assert test.holds((5, None))
    assert test.holds((5, 1))
    assert not test.holds((5, 2))
    assert not test.holds((4, 1))
    assert not test.holds((None, 1))
