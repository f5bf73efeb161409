"""Rules of which no matches are kept: at every instant what an evaluation from scratch finds, errors among it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental import IncrementalEngine, Strategy
from tidemill.datalog.incremental.extremes import Extreme
from tidemill.datalog.incremental.unit import Unit
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.scratch import Engine
from tidemill.datalog.sums import ExactSum

PROGRAMS = {
    "sums with guards": "total(g) @sum(v) @max(v) := seen(g, v) if v != 7;",
    "what fails fails for its fact": "total(g) @average(6 / v) @count(1) := seen(g, v) if 12 / (v - 3) != 5;",
    "sums of all": "total(0) @sum(v) := seen(_, v); most(g) @max(h) := total(g) @sum(h);",
    "two rules into one record": "total(g) @sum(v) := seen(g, v); total(v) @sum(g) := seen(g, v);",
    "times, ends and what rides along": """
        total(g) @sum(v) @earliest(t) := seen(g, v) @time(t);
        last(g) @latest(t) @set(v) @count_distinct(v) := seen(g, v) @time(t);
        again(g) @sum(n) := total(g) @sum(n) if n > 2;
    """,
    "floats and nulls": "total(g) @sum(float(v)) @min(v) := seen(g, v); none(g) @sum(v) := seen(g, v) if v == null;",
}  # fmt: skip


def program(text: str) -> CheckedProgram:
    columns = (("g", "int"), ("v", "int"))
    return check(parse(text), InputSchemas({"seen": InputSchema("seen", "events", columns)}))


def presences(random: Random) -> list[Presence]:
    found = []
    for _ in range(random.randrange(1, 25)):
        start, value = random.randrange(12), random.choice((0, 1, 3, 7, -2, None))
        end = random.choice((END, start + random.randrange(1, 6)))
        expires = None if end == END else int(end)
        record = Record("seen", (random.randrange(3), value), random.randrange(3), expires)
        found.append(Presence(record, start, end))
    return found


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_folded_rules_hold_what_scratch_finds(
    text: str, strategy: Strategy, random: Random
) -> None:
    checked, seen = program(text), presences(random)
    engine = IncrementalEngine(checked, strategy=strategy)
    assert any(unit.folded for unit in engine.units if isinstance(unit, Unit))
    engine.feed("seen", seen)
    evaluation = Engine(checked).evaluate({"seen": seen}, upper=20)
    for at in range(20):
        engine.advance(at + 1)
        for name in checked.derived:
            assert {format_record(record) for record in engine.records(name)} == {
                format_record(p.record) for p in evaluation.presences[name] if p.start <= at < p.end
            }, (at, name)
        assert {failed for failed, _ in engine.errors()} == {
            error.text for error in evaluation.errors if error.start <= at < error.end
        }


def test_a_fact_that_comes_and_goes_leaves_nothing_behind() -> None:
    engine = IncrementalEngine(program(PROGRAMS["what fails fails for its fact"]))
    for at in range(6):
        for value in (0, 3, 5):
            engine.update("seen", Record("seen", (1, value), 0), at, -1 if at % 2 else 1)
        engine.advance(at + 1)
        assert len(engine.errors()) == (0 if at % 2 else 2)
        assert len(engine.records("total")) == (0 if at % 2 else 1)


@given(
    st.lists(st.one_of(st.integers(-9, 9), st.none(), st.floats(-9, 9))), st.sampled_from((1, -1))
)
def test_many_numbers_add_up_as_they_do_one_by_one(
    values: list[int | float | None], sign: int
) -> None:
    together, apart = ExactSum(), ExactSum()
    together.add_all(values, sign)
    for value in values:
        apart.add(value, sign)
    assert (together.count, together.sum()) == (apart.count, apart.sum())


@pytest.mark.parametrize("descending", [False, True])
@settings(max_examples=40, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_an_extreme_is_that_of_the_values_that_are_there_however_many(
    descending: bool, random: Random
) -> None:
    extreme, there = Extreme(descending), list[int | None]()
    most = random.choice((3, 40, 3_000))
    for _ in range(12):
        coming = [random.choice((None, *range(-4, 5))) for _ in range(random.randrange(most))]
        if random.random() < 0.5:
            extreme.enter_all(coming)
        else:
            for value in coming:
                extreme.enter(value)
        there += coming
        random.shuffle(there)
        keep = random.choice((0, len(there) // 2, len(there)))
        for value in there[keep:]:
            extreme.leave(value)
        del there[keep:]
        known = [value for value in there if value is not None]
        assert extreme.inner() == (max if descending else min)(known, default=None)


def test_large_groups_follow_their_extremes_through_retractions() -> None:
    """Of so many members that their values are kept in pieces; the companion of the law above."""
    engine = IncrementalEngine(program("most(g) @max(v) @min(v) := seen(g, v);"))
    values = list(range(5_000))
    Random(3).shuffle(values)
    for value in values:
        engine.update("seen", Record("seen", (1, value), 0), 0, 1)
    engine.advance(1)
    for at, value in enumerate([*range(4_999, 4_900, -1), *range(99)], 1):
        engine.update("seen", Record("seen", (1, value), 0), at, -1)
        engine.advance(at + 1)
    found = {format_record(record) for record in engine.records("most")}
    assert found == {"most(1) @time(0) @max(4900) @min(99)"}, found
