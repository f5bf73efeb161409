"""What a tick hands to the next can be kept as rows, and a tick that may be left out says nothing new."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.dataflow import missing_in
from tidemill.datalog.dataflow.ticking import DataflowTicker
from tidemill.datalog.incremental import IncrementalEngine, Strategy
from tidemill.datalog.incremental.ticks import IncrementalTicker
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.scratch import Engine
from tidemill.datalog.state import StateRow
from tidemill.datalog.tick_state import (
    Handed,
    carried_row,
    handed_from,
    handed_of,
    message_of,
    message_row,
    tick_state_of,
)
from tidemill.datalog.ticks import Message, Ticker, present_at
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, inputs, ticked_programs
from tidemill.testkit.twins.pointwise import tick_answers

LAW = settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "80")),
    derandomize="LAW_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Inputs = Mapping[str, Sequence[Presence]]
STRATEGIES: st.SearchStrategy[Strategy] = st.sampled_from(["strata", "retraction"])


def rows_of(handed: Handed) -> list[StateRow]:
    rows = list(handed.solutions.to_rows())
    rows += [row for fact, said in handed.carried.items() if (row := carried_row(fact, said))]
    return sorted(rows, key=str)


@LAW
@given(
    ticked_programs(), inputs(), st.lists(st.integers(0, UPPER - 1), min_size=1, unique=True),
    STRATEGIES, st.randoms(use_true_random=False),
)  # fmt: skip
def test_an_engine_that_begins_anew_at_any_tick_goes_on_with_the_same_answers(
    example: Example, given_: Inputs, instants: list[int], strategy: Strategy, random: object
) -> None:
    """On any engine, changed at will between ticks; the dataflow takes no lattices of inputs."""
    choose = random.random  # type: ignore[attr-defined]  # hypothesis draws a Random
    known = {name: found for name, found in given_.items() if name in example.checked.columns}
    engines = ["scratch", "incremental"]
    if missing_in(example.checked) is None:
        engines += ["dataflow", "dataflow"]
        known = {
            name: [replace(p, record=replace(p.record, parafacts=())) for p in presences]
            for name, presences in known.items()
        }
    instants.sort()
    records = [present_at(known, at) for at in instants]
    rows: list[StateRow] = []
    try:
        expected = tick_answers(example.checked, records, instants)
        for at, present, tick in zip(instants, records, expected, strict=True):
            handed = handed_of(rows)
            chosen = engines[int(choose() * len(engines))]
            if chosen == "scratch":
                ticker = Ticker(Engine(example.checked))
                answer = ticker.tick(at, present, tick_state_of(handed))
                found = {n: set(map(format_record, answer.records(n))) for n in DERIVED}
                rows = rows_of(handed_from(answer.state))
            elif chosen == "dataflow":
                found, rows = on_dataflow(example, strategy, rows, at, present)
            else:
                engine = IncrementalEngine(
                    example.checked, strategy=strategy, state=handed.solutions
                )
                mine = IncrementalTicker(engine, handed.carried)
                said = mine.tick(at, present)
                found = {n: set(map(format_record, said.records(n))) for n in DERIVED}
                carried = dict(handed.carried)
                carried.update(mine.take_carried())
                rows = rows_of(Handed(carried, engine.state()))
            assert found == {n: set(tick.records.get(n, ())) for n in DERIVED}, (at, example.text)
    except LimitPassed:
        assume(False)


def on_dataflow(
    example: Example,
    strategy: Strategy,
    rows: Sequence[StateRow],
    at: int,
    present: Mapping[str, Sequence[Record]],
) -> tuple[dict[str, set[str]], list[StateRow]]:
    """The answer of a tick that goes on from rows, and the rows that it hands on."""
    node = DataflowTicker(
        example.checked, handed=handed_of(rows), strategy=strategy, keeps_state=True
    )
    answer = node.tick(at, present, {})
    found: dict[str, set[str]] = {name: set() for name in DERIVED}
    for record, diff in answer.facts:
        assert diff == 1
        found[record.predicate].add(format_record(record))
    gone, come = node.take_state()
    assert gone <= set(rows)
    assert not come & set(rows)
    return found, [*set(rows) - gone, *come]


@LAW
@given(ticked_programs(), inputs(), STRATEGIES)
def test_a_tick_at_rest_says_what_the_one_before_said(
    example: Example, given_: Inputs, strategy: Strategy
) -> None:
    known = {name: found for name, found in given_.items() if name in example.checked.columns}
    instants = list(range(UPPER))
    records = [present_at(known, at) for at in instants]
    mine = IncrementalTicker(IncrementalEngine(example.checked, strategy=strategy))
    engine = mine._engine
    try:
        expected = tick_answers(example.checked, records, instants)
    except LimitPassed:
        assume(False)
        raise
    before: dict[str, list[Record]] | None = None
    for at, present, tick in zip(instants, records, expected, strict=True):
        soonest = engine.present.agenda.soonest
        rests = not mine.unsettled and (soonest is None or soonest > at)
        if before is None or present != before or not rests:
            mine.tick(at, present)
        before = present
        found = {n: set(map(format_record, engine.records(n))) for n in DERIVED}
        assert found == {n: set(tick.records.get(n, ())) for n in DERIVED}, (at, example.text)


def test_a_message_is_a_row_and_back() -> None:
    message = Message(3, Record("p", ("a", 1.5, None), 7, 9, (("set", frozenset({1, 2})),)))
    assert message_of(message_row(5, message)) == (5, message)
