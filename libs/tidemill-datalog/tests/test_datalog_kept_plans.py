"""Engines that share the plan of their program share nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine, DataflowPlan, NotInDataflow, kept_plans, lower
from tidemill.datalog.dataflow.kept_plans import PLANS_KEPT, RULES_KEPT, kept_plan, numbered
from tidemill.datalog.dataflow.ticked_plan import plan_of
from tidemill.datalog.dataflow.ticker import DataflowTicker, TickGiven
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.held import Held, without_lattices
from tidemill.testkit.tidelog import (
    CATALOG,
    UPPER,
    Example,
    inputs,
    programs,
    ticked_programs,
)
from tidemill.testkit.twins.sampling import present_at

LITERALS = """
    d("b", 0.5) := n("a", _);
    d(m, h) := n(m, x) ^ f(x, h) ^ not f(_, 1.5) if m != "c";
    q(x) := n("b", x);
"""


def fits(checked: CheckedProgram) -> bool:
    try:
        lower(plan_of(checked))
    except NotInDataflow:
        return False
    return True


def spelled(plan: DataflowPlan) -> str:
    """A plan to the last word of its arrays."""
    assert len(plan.values) == 1, "an engine numbers values of its own"
    return repr(plan)


@drawn(60)
@given(
    programs(fits=fits), inputs(), inputs(), STRATEGIES, st.lists(st.integers(0, UPPER)),
    st.integers(0),
)  # fmt: skip
def test_engines_of_one_plan_say_what_engines_with_plans_of_their_own_say(
    example: Example, given_: Presences, others: Presences, strategy: Strategy, stops: list[int],
    seed: int,
) -> None:  # fmt: skip
    """They have other inputs, and take their steps in any order."""
    checked, rng = example.checked, Random(seed)
    events = [name for name, each in checked.inputs.items() if each.kind == "events"]
    before = spelled(kept_plan(checked, events)[1])
    sides = []
    for mine in (given_, others):
        together = Held(checked, strategy=strategy, keeps_state=True)
        alone = Held(replace(checked), strategy=strategy, keeps_state=True)
        together.feed(mine)
        alone.feed(mine)
        sides.append((together, alone, sorted({*stops, UPPER})))
    while any(left for _, _, left in sides):
        together, alone, left = rng.choice([each for each in sides if each[2]])
        upper = left.pop(0)
        together.step(upper)
        alone.step(upper)
        assert together.now() == alone.now(), (upper, example.text)
        assert together.state == alone.state, (upper, example.text)
    assert spelled(kept_plan(checked, events)[1]) == before


@drawn(40)
@given(
    ticked_programs(fits=fits), inputs(), inputs(), STRATEGIES,
    st.lists(st.integers(0, UPPER - 1), min_size=1, unique=True).map(sorted), st.integers(0),
)  # fmt: skip
def test_tickers_of_one_plan_say_what_tickers_with_plans_of_their_own_say(
    example: Example, given_: Presences, others: Presences, strategy: Strategy,
    instants: list[int], seed: int,
) -> None:  # fmt: skip
    checked, rng = example.checked, Random(seed)
    before = spelled(kept_plan(checked)[1])
    sides = []
    for whole in map(without_lattices, (given_, others)):
        mine = {name: each for name, each in whole.items() if name in checked.columns}
        tickers = [
            DataflowTicker(each, strategy=strategy, keeps_state=True)
            for each in (checked, replace(checked))
        ]
        seen = [Counter(r for found in present_at(mine, at).values() for r in found)
                for at in instants]  # fmt: skip
        sides.append((tickers, list(zip(instants, [Counter[Record](), *seen], seen, strict=False))))
    while any(left for _, left in sides):
        tickers, left = rng.choice([each for each in sides if each[1]])
        at, gone, come = left.pop(0)
        moved = (come - gone, gone - come)
        together, alone = (told(each, TickGiven(at, *map(by_predicate, moved))) for each in tickers)
        assert together == alone, (at, example.text)
    assert spelled(kept_plan(checked)[1]) == before


def by_predicate(records: Counter[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records.elements():
        found.setdefault(record.predicate, []).append(record)
    return found


def told(ticker: DataflowTicker, tick: TickGiven) -> tuple[object, ...]:
    """All that a tick says, in an order of its own."""
    try:
        (answer,) = ticker.run([tick])
    except LimitPassed as error:
        assume(False)
        raise AssertionError from error
    parts = (answer.facts, answer.errors, answer.messages)
    return *(sorted(map(repr, each)) for each in parts), ticker.take_state()


def test_literals_have_the_words_of_each_engine() -> None:
    checked = check(parse(LITERALS), CATALOG)
    first, second = Texts(), Texts()
    for text in ("z", "c", "b"):
        second.number(text)
    engines = [DataflowEngine(checked, texts=texts) for texts in (first, second)]
    given_ = [Presence(Record("n", (name, 1), 0, 9, ()), 0, 9) for name in ("a", "b", "c")]
    told = []
    for engine in engines:
        engine.feed_presences("n", given_)
        engine.feed_presences("f", [Presence(Record("f", (1, 2.0), None, None, ()), 0, 9)])
        told.append({name: [*each.records()] for name, each in engine.step(5).items()})
    assert told[0] == told[1]
    assert {name: len(each) for name, each in told[0].items()} == {"d": 3, "q": 1}
    templates = [[rule.columns.template.tolist() for rule in each.plan.rules] for each in engines]
    assert templates[0] != templates[1]


def test_a_program_is_lowered_once_and_a_like_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are equal to Python may differ: 1 and true are equal there."""
    checked, lowered = check(parse(LITERALS), CATALOG), list[object]()

    def counted(*given_: object) -> DataflowPlan:
        lowered.append(given_)
        return lower(*given_)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(kept_plans, "lower", counted)
    engines = [DataflowEngine(checked) for _ in range(3)]
    assert len(lowered) == 1
    assert len({id(each.plan.values) for each in engines}) == 3
    DataflowEngine(checked, carrying=["n"])
    DataflowEngine(replace(checked))
    assert len(lowered) == 3
    for _ in range(2):
        DataflowTicker(checked)
    assert len(lowered) == 3
    plan = logical_plan(checked)
    for _ in range(2):
        DataflowEngine(checked, plan=plan)
    assert len(lowered) == 4
    for _ in range(PLANS_KEPT):
        DataflowEngine(replace(checked))
    DataflowEngine(checked)
    assert len(lowered) == 5 + PLANS_KEPT, "a plan that many others came after is lowered anew"


def test_plans_of_long_programs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of what is kept is bounded by rules, and not by programs alone."""
    for rules, lowered in ((RULES_KEPT, 1), (RULES_KEPT + 1, 2)):
        text = "".join(f"q{n}(x) := n(_, x) if x > {n};" for n in range(rules))
        checked, made = check(parse(text), CATALOG), list[DataflowPlan]()
        monkeypatch.setattr(
            kept_plans, "lower", lambda *given_, made=made: made.append(lower(*given_)) or made[-1]
        )
        assert len({id(kept_plan(checked)[1]) for _ in range(2)}) == len(made) == lowered


def test_a_plan_as_one_engine_has_it_leaves_the_plan_as_it_was() -> None:
    plan = lower(plan_of(check(parse(LITERALS), CATALOG)))
    before = spelled(plan)
    mine = numbered(plan, Texts())
    assert mine.values is not plan.values
    assert {id(each.schema.values) for each in mine.collections.values()} == {id(mine.values)}
    assert {id(each.columns.values) for each in mine.rules} == {id(mine.values)}
    assert spelled(plan) == before
