"""Laws of the engine `incremental`: at every instant it answers as `scratch`, however its input was delivered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.evaluation import Engine, LimitPassed
from tidemill.datalog.incremental import IncrementalEngine, Strategy
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import format_record
from tidemill.testkit.tidelog import UPPER, Example, inputs, programs

EXAMPLES = int(os.environ.get("TIDELOG_EXAMPLES", "100"))
LAW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Inputs = Mapping[str, Sequence[Presence]]
Answers = list[dict[str, set[str]]]
STRATEGIES: st.SearchStrategy[Strategy] = st.sampled_from(["strata", "retraction"])
DERIVED = ("p", "q", "t")


def from_scratch(example: Example, given_: Inputs) -> Answers:
    """The records and errors at each instant from -1 to UPPER - 1, by the other engine."""
    try:
        evaluation = Engine(example.checked).evaluate(given_, upper=UPPER)
    except LimitPassed:
        assume(False)
        raise
    return [
        {
            **{
                name: {
                    format_record(p.record)
                    for p in evaluation.presences[name]
                    if p.start <= at < p.end
                }
                for name in DERIVED
            },
            "errors": {e.text for e in evaluation.errors if e.start <= at < e.end},
        }
        for at in range(-1, UPPER)
    ]


def held(engine: IncrementalEngine) -> dict[str, set[str]]:
    """What the engine has maintained."""
    found = {name: set(map(format_record, engine.records(name))) for name in DERIVED}
    return {**found, "errors": {text for text, _ in engine.errors()}}


@LAW
@given(programs(), inputs(), STRATEGIES)
def test_it_holds_at_every_instant_what_scratch_finds(
    example: Example, given_: Inputs, strategy: Strategy
) -> None:
    engine = IncrementalEngine(example.checked, strategy=strategy)
    for name, presences in given_.items():
        engine.feed(name, presences)
    for at, expected in enumerate(from_scratch(example, given_), -1):
        engine.advance(at + 1)
        assert held(engine) == expected, (at, example.text)
