"""The state between ticks can be kept as rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import missing_in
from tidemill.datalog.dataflow.ticker import DataflowTicker
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.state import StateRow
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.tick_state import handed_of, message_of, message_row
from tidemill.datalog.ticks import Message
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, inputs, ticked_programs
from tidemill.testkit.twins.pointwise import tick_answers
from tidemill.testkit.twins.sampling import present_at

LAW = drawn(80)


def fits(checked: CheckedProgram) -> bool:
    """Whether the dataflow evaluates all of a program."""
    return missing_in(checked) is None


@LAW
@given(
    ticked_programs(fits=fits), inputs(),
    st.lists(st.integers(0, UPPER - 1), min_size=1, unique=True), STRATEGIES,
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_an_engine_that_begins_anew_at_any_tick_goes_on_with_the_same_answers(
    example: Example, given_: Presences, instants: list[int], strategy: Strategy, random: Random
) -> None:
    """Some ticks go on with the engine of the one before, others with a new one."""
    known = {
        name: [replace(p, record=replace(p.record, parafacts=())) for p in found]
        for name, found in given_.items()
        if name in example.checked.columns
    }
    instants.sort()
    records = [present_at(known, at) for at in instants]
    rows: set[StateRow] = set()
    node, held, before = None, Counter[Record](), Counter[Record]()
    try:
        expected = tick_answers(example.checked, records, instants)
        for at, present, tick in zip(instants, records, expected, strict=True):
            if node is None or random.random() < 0.5:
                node = DataflowTicker(
                    example.checked, handed=handed_of(rows), strategy=strategy, keeps_state=True
                )
                held, before = Counter(), Counter()
            now = Counter(record for found in present.values() for record in found)
            answer = node.tick(at, by_name(now - before), by_name(before - now))
            before = now
            held.update(dict(answer.facts))
            assert set(held.values()) <= {0, 1}
            found: dict[str, set[str]] = {name: set() for name in DERIVED}
            for record in +held:
                found[record.predicate].add(format_record(record))
            assert found == {n: set(tick.records.get(n, ())) for n in DERIVED}, (at, example.text)
            gone, come = node.take_state()
            assert gone <= rows
            assert not come & rows
            rows = rows - gone | come
    except LimitPassed:
        assume(False)


def by_name(records: Counter[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records.elements():
        found.setdefault(record.predicate, []).append(record)
    return found


def test_a_message_is_a_row_and_back() -> None:
    message = Message(3, Record("p", ("a", 1.5, None), 7, 9, (("set", frozenset({1, 2})),)))
    assert message_of(message_row(5, message)) == (5, message)
