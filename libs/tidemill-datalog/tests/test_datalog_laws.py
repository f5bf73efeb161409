"""Laws of the evaluator over random programs: it equals its twin, and nothing but the facts counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.evaluation import Engine, EngineState, Evaluation, LimitPassed
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import format_record
from tidemill.testkit.tidelog import CATALOG, UPPER, Example, inputs, programs
from tidemill.testkit.twins.pointwise import answers

LAW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)  # fmt: skip
Inputs = Mapping[str, Sequence[Presence]]


def evaluated(engine: Engine, given_: Inputs) -> Evaluation:
    """The whole history; programs that never settle are no examples."""
    try:
        return engine.evaluate(given_, upper=UPPER)
    except LimitPassed:
        assume(False)
        raise


def at_instant(evaluation: Evaluation, at: int) -> dict[str, set[str]]:
    """The texts of records at an instant, by predicate, and of errors."""
    found = {
        name: {format_record(p.record) for p in evaluation.presences[name] if p.start <= at < p.end}
        for name in ("p", "q", "t")
    }
    found["errors"] = {e.text for e in evaluation.errors if e.start <= at < e.end}
    return found


@LAW
@given(programs(), inputs())
def test_the_engine_answers_as_its_twin_at_every_instant(example: Example, given_: Inputs) -> None:
    evaluation = evaluated(Engine(example.checked), given_)
    for at, expected in enumerate(answers(example.checked, given_, 0, UPPER), -1):
        wanted = {name: set(expected.records[name]) for name in ("p", "q", "t")}
        assert at_instant(evaluation, at) == {**wanted, "errors": set(expected.errors)}, at


@LAW
@given(
    programs(),
    inputs(),
    st.lists(st.integers(1, UPPER - 1), max_size=4, unique=True),
    st.booleans(),
)
def test_a_chain_of_windows_answers_as_the_whole_history(
    example: Example, given_: Inputs, cuts: list[int], overlap: bool
) -> None:
    engine = Engine(example.checked)
    whole = evaluated(engine, given_)
    borders = [0, *sorted(cuts), UPPER]
    state = None
    for lower, upper in pairwise(borders):
        start = lower - 1 if overlap and lower else lower
        living = {
            name: [p for p in presences if p.start < upper and p.end > start]
            for name, presences in given_.items()
        }
        window = engine.evaluate(living, lower=start if lower else None, upper=upper, state=state)
        for at in range(start, upper):
            assert at_instant(window, at) == at_instant(whole, at), (at, start, upper)
        state = EngineState.from_rows(window.state.to_rows())
        assert state.to_rows() == window.state.to_rows()


@LAW
@given(programs(), inputs(), st.integers(0, 1000))
def test_the_order_of_rules_and_inputs_has_no_meaning(
    example: Example, given_: Inputs, seed: int
) -> None:
    rng = Random(seed)
    rules = example.text.splitlines()
    rng.shuffle(rules)
    shuffled = {name: rng.sample(list(found), len(found)) for name, found in given_.items()}
    evaluation = evaluated(Engine(example.checked), given_)
    other = Engine(check(parse("\n".join(rules)), CATALOG)).evaluate(shuffled, upper=UPPER)
    for at in range(-1, UPPER):
        assert at_instant(evaluation, at) == at_instant(other, at), at
