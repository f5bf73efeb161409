"""Facts that are all different, and that nobody looks up, are told and not kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.dataflow import sharing
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, drawn
from tidemill.testkit.held import Held
from tidemill.testkit.tidelog import UPPER, Example, inputs, programs

LAW = drawn(60)
JOINED = "t(x, y, z) := r(x, y) ^ s(y, z);"


def held(text: str, limits: Limits | None = None) -> Held:
    schemas = {
        name: InputSchema(name, "relation", (("c0", "int"), ("c1", "int"))) for name in ("r", "s")
    }
    return Held(check(parse(text), InputSchemas(schemas)), limits=limits)


def put(view: Held, at: int, diff: int = 1) -> None:
    for number in range(6):
        view.update("r", Record("r", (number, number % 2)), at, diff)
        view.update("s", Record("s", (number % 2, number)), at, diff)
    view.step(at + 1)


def kept(view: Held, name: str) -> int:
    rows, _ = view.engine.kept(name)
    return rows


@pytest.mark.parametrize(
    ("rules", "is_kept"),
    [
        ("", False),
        ("u(x) := t(x, _, _);", False),
        ("u(x) := t(x, y, _) ^ r(x, y);", True),
        ("u(x) := r(x, _) ^ not t(x, _, _);", False),
        ("t(x, x, x) := r(x, _);", True),
        ("u(x, y) := t(x, y, _); u(y, z) := u(x, y) ^ u(x, z);", True),
    ],
)
def test_facts_are_kept_where_others_look_them_up_or_derive_them(rules: str, is_kept: bool) -> None:
    view = held(JOINED + rules)
    put(view, 1)
    assert view.engine.rows("t") == len(view.texts("t")) >= 18
    assert (kept(view, "t") > 0) == is_kept
    put(view, 2, -1)
    assert not view.texts("t")
    assert is_kept or view.engine.rows("t") == 0


@pytest.mark.parametrize(
    "text",
    [
        "t(x, z) := r(x, y) ^ s(y, z);",
        "t(x) := r(x, _);",
        "t(x, y + 0.5) := r(x, y);",
        "t(x, y) @count(z) := r(x, y) ^ s(y, z);",
    ],
)
def test_facts_that_two_matches_may_derive_are_kept(text: str) -> None:
    view = held(text)
    put(view, 1)
    assert kept(view, "t") == len(view.texts("t")) > 0


def test_the_limit_of_rows_counts_facts_that_are_not_kept() -> None:
    put(held(JOINED, Limits(rows=18)), 1)
    with pytest.raises(LimitPassed, match="t has more than 17 rows"):
        put(held(JOINED, Limits(rows=17)), 1)


@LAW
@given(programs(), inputs(), STRATEGIES, st.lists(st.integers(1, UPPER - 1)))
def test_what_is_not_kept_is_told_as_if_it_were(
    example: Example, given_: Mapping[str, Sequence[Presence]], strategy: Strategy, at: list[int]
) -> None:
    """A twin keeps the facts of all predicates."""
    passing = Held(example.checked, strategy=strategy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_passed", lambda plan: set())
        keeping = Held(example.checked, strategy=strategy)
    for each in (passing, keeping):
        each.feed(given_)
    for upper in sorted({*at, UPPER}):
        passing.step(upper)
        keeping.step(upper)
        assert passing.now() == keeping.now()
