"""Counts that events of an input carry, and that change while an event is present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES, inject_given, tally
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.held import Held, lives
from tidemill.testkit.tidelog import (
    FORMS,
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)
from tidemill.testkit.twins.pointwise import answers

LAW = drawn(60)
LIVES_ON = replace(
    FORMS,
    head_marks=(
        "", "@expires(u + 4)", "@expires(w + 3)", "@time(u + 1) @expires(u + 5)", "~expires",
        "@max(x) @expires(u + 6)", "@count(y) @expires(u + 3)",
    ),
    atom_marks=("", "", "@time(u)", "@time(w)", "~expires", "~time", "~count", "@time(u) ~expires"),
    guards=("x < y", "x != y", "u <= w"),
    definitions=(),
    predicates=("a", "b", "r", "s", "p", "q", "t"),
    whole_every=20,
)  # fmt: skip
"""Rules of which many have solutions that live on, and pass counts of events on."""
LOAD = InputSchemas(
    {
        "load": InputSchema("load", "events", (("", "int"),), lattices=(("count", ("int",)),)),
        "ping": InputSchema("ping", "events", (("", "int"),)),
    }
)
BOTH = "both(h) @expires(t + 6) := load(h) ^ ping(h) @time(t);"


def load(counts: Sequence[int]) -> list[Presence]:
    """One event with another count from each instant on."""
    starts = range(1, len(counts) + 1)
    records = [Record("load", (7,), 1, None, (("count", count),)) for count in counts]
    return [Presence(record, at, at + 1) for record, at in zip(records, starts, strict=True)]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((1, 2), (1, 2, 2)),
        ((2, 1), (2, 2, 2)),
        ((1, 3, 2), (1, 3, 3)),
        ((0, 1), (0, 1, 1)),
    ],
)
def test_a_solution_that_lives_on_passes_the_most_that_one_event_has_counted(
    counts: Sequence[int], told: Sequence[int]
) -> None:
    """One event is counted once, however often what is counted of it is told anew."""
    checked = check(parse(BOTH), LOAD)
    given_ = {"load": load(counts), "ping": [Presence(Record("ping", (7,), 1), 1)]}
    held, twin = Held(checked), answers(checked, given_, 0, 4)
    held.feed(given_)
    for at, count in enumerate(told, 1):
        held.step(at + 1)
        assert held.texts("both") == {f"both(7) @time(1) @expires(7) @count({count})"}
        assert held.texts("both") == twin[at + 1].records["both"]


@pytest.mark.parametrize("count", [0, 1])
def test_a_state_has_a_solution_once_whoever_says_its_count(count: int) -> None:
    """The state says it to the engine that begins again, and so does the input."""
    checked = check(parse(BOTH), LOAD)
    both = {"load": load([count]), "ping": [Presence(Record("ping", (7,), 1), 1)]}
    held, again = (Held(checked, keeps_state=True) for _ in range(2))
    held.feed(both)
    held.step(2)
    again.state = held.state
    again.engine.restore(sorted(held.state), 2)
    again.feed(both)
    for upper in (3, 7, 8):
        again.step(upper)  # `Held` refuses a row that is there, and one that is not
        assert len(again.state) == (upper < 8)


def test_counts_of_nothing_are_one_value_whatever_facts_they_are_of() -> None:
    """The state spells them alike, so a row of it is there once and goes once."""
    records = [Record("e", (x,), parafacts=(("count", 0),)) for x in range(9)]
    given_ = [dict(inject_given(each, LATTICES) or ())["count"] for each in records]
    assert {*given_} == {tally("count", {})}


@LAW
@given(programs(forms=LIVES_ON), inputs(rows_min=1, nulls=False, revised=True), STRATEGIES)
def test_counts_that_change_are_passed_on_at_every_instant_as_the_program_says(
    example: Example, given_: Presences, strategy: Strategy
) -> None:
    held = Held(example.checked, strategy=strategy)
    held.feed(given_)
    for at, expected in enumerate(answers_from_scratch(example, given_), -1):
        held.step(at + 1)
        assert held.now() == expected, (at, example.text)


@LAW
@given(
    programs(forms=LIVES_ON), inputs(rows_min=1, nulls=False, revised=True), STRATEGIES,
    st.lists(st.integers(1, UPPER - 1), min_size=1, unique=True).map(sorted),
)  # fmt: skip
def test_an_engine_that_begins_again_goes_on_with_counts_that_change(
    example: Example, given_: Presences, strategy: Strategy, deaths: list[int]
) -> None:
    """No row of its state is there twice, and none goes that is not there (see `Held`)."""
    expected = answers_from_scratch(example, given_)
    for stop, held in lives(example.checked, given_, deaths, strategy=strategy):
        assert held.now() == expected[stop], (stop, deaths, example.text)
