"""Proofs and reasons over ticks and nodes, from a history of the inputs."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import missing_in
from tidemill.datalog.dataflow.ticker import DataflowTicker
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END
from tidemill.datalog.proofs import Proof
from tidemill.datalog.records import Record, parse_record
from tidemill.datalog.tick_state import Handed
from tidemill.datalog.ticking import (
    TickHistory,
    TickPlan,
    TickRun,
    TickStart,
    recorded,
    why_in_ticks,
    why_not_in_ticks,
)
from tidemill.datalog.ticking.run import of_node
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, inputs, ticked_programs

LAW = drawn(60)
Moved = dict[str, list[tuple[Record, int, int]]]
PLANS = st.builds(
    TickPlan, st.sampled_from((None, 1, 3)), st.integers(1, 3), st.sampled_from(({}, {"r": 0}))
)


def program(text: str) -> CheckedProgram:
    return check(parse(text), InputSchemas(closed=False))


def fits(checked: CheckedProgram) -> bool:
    """Whether the dataflow evaluates all of a program."""
    return missing_in(checked) is None


def moved(checked: CheckedProgram, given_: Presences) -> Moved:
    """Presences of the inputs of a program, as changes; double records count twice."""
    changes: Moved = {}
    for name, presences in given_.items():
        if name in checked.columns and name not in checked.derived:
            changes[name] = [
                each
                for p in presences
                for each in ((p.record, int(p.start), 1), (p.record, p.end, -1))
                if each[1] != END
            ]
    return changes


def history_of(example: Example, plan: TickPlan, given_: Presences) -> TickHistory:
    changes = moved(example.checked, given_)
    start = TickStart(0, True, dict.fromkeys(changes, ()))
    try:
        return recorded(example.checked, plan, start, changes, UPPER, Limits(rounds=200))
    except LimitPassed:
        assume(False)
        raise


def rests_on_what_was_seen(history: TickHistory, proof: Proof) -> bool:
    """Whether every fact of a proof was there at its tick, and every leaf is what it says."""
    there = [
        {
            (p.record.key, at)
            for presences in node.presences().values()
            for p in presences
            for at in node.instants
            if p.start <= at < p.end
        }
        for node in history.nodes
    ]
    for part in proof.every_part():
        if part.kind in ("absent", "clock"):
            continue
        assert part.record is not None
        node = int(part.place.split()[1]) if part.place.startswith("node") else 0
        if (part.record.key, part.at) not in there[node]:
            return False
        if part.kind == "input" and part.record.predicate not in history.inputs:
            return False
    return True


@LAW
@given(
    ticked_programs(sends=True, fits=fits), inputs(), PLANS, st.integers(0, UPPER - 1), st.data()
)
def test_every_record_of_a_tick_has_a_proof_down_to_inputs_and_every_other_a_reason(
    example: Example, given_: Presences, plan: TickPlan, at: int, data: st.DataObject
) -> None:
    history = history_of(example, plan, given_)
    node = data.draw(st.integers(0, plan.nodes - 1))
    found = {
        name: [p.record for p in presences if p.start <= at < p.end]
        for name, presences in history.nodes[node].presences().items()
    }
    present = [record for name in DERIVED for record in found.get(name, ())]
    for record in present[:3]:
        proof = why_in_ticks(history, record, at, node)
        assert proof is not None, (record, at, node)
        assert proof.record is not None
        assert proof.record.key == record.key
        assert rests_on_what_was_seen(history, proof)
        assert proof.render()
        assert not any(part.kind == "handed" for part in proof.every_part())
        said = why_not_in_ticks(history, record, at, node, upper=UPPER)
        assert [reason.reason for reason in said] == ["present"]
    absent = Record("t", (0, 2), None)
    if not any(record.arguments == absent.arguments for record in found.get("t", ())):
        assert why_in_ticks(history, absent, at, node) is None
        reasons = why_not_in_ticks(history, absent, at, node, upper=UPPER)
        assert reasons
        assert all(reason.reason != "present" and reason.render() for reason in reasons)


@LAW
@given(ticked_programs(sends=True, fits=fits), inputs(), PLANS, st.integers(1, UPPER - 1))
def test_a_history_that_begins_later_is_the_rest_of_the_whole_one(
    example: Example, given_: Presences, plan: TickPlan, cut: int
) -> None:
    checked, limits = example.checked, Limits(rounds=200)
    whole = history_of(example, plan, given_)
    changes = moved(checked, given_)

    def made(number: int, handed: Handed) -> DataflowTicker:
        return DataflowTicker(
            checked, handed=handed, limits=limits, keeps_state=True, carrying=changes
        )

    run = TickRun(
        plan, changes, made, TickStart(0, True, dict.fromkeys(changes, ())), lambda *_: None
    )
    run.take(changes)
    while (at := min(run.next_arrival(), run.next_tick())) < cut:
        if run.next_arrival() <= at:
            run.arrive(int(at))
        else:
            list(run.tick(int(at)))
    state = run.own_rows()
    for node in run.nodes:
        state |= {of_node(row, node.number) for row in node.ticks.take_state()[1]}
    present = {name: [p.record for p in given_[name] if p.start < cut <= p.end] for name in changes}
    later = {name: [each for each in news if each[1] >= cut] for name, news in changes.items()}
    start = TickStart(cut, False, present, frozenset(state))
    rest = recorded(checked, plan, start, later, UPPER, limits)
    for before, after in zip(whole.nodes, rest.nodes, strict=True):
        # It runs at once, whether anything can differ or not: what was said before is not known.
        assert {at for at in before.instants if at >= cut} <= {*after.instants}
        for at in after.instants:
            said = [
                {
                    str(p.record)
                    for name, presences in node.presences().items()
                    for p in presences
                    if name in checked.derived and p.start <= at < p.end
                }
                for node in (before, after)
            ]
            assert said[0] == said[1]
            for text in sorted(said[1])[:2]:
                proof = why_in_ticks(rest, parse_record(text), at, after.number)
                assert proof is not None


def test_a_life_that_ticks_hand_on_is_proved_by_the_tick_in_which_its_facts_met() -> None:
    text = "open(x, y) := e(x) ^ f(y) ~expires;\nheld(x) @next := open(x, _) ^ not open(x, 0);"
    changes: Moved = {
        "e": [(Record("e", (1,)), 10, 1), (Record("e", (1,)), 40, -1)],
        "f": [(Record("f", (2,)), 5, 1), (Record("f", (2,)), 20, -1)],
    }
    start = TickStart(0, True, {"e": [], "f": []})
    history = recorded(program(text), TickPlan(10), start, changes, 60)
    proof = why_in_ticks(history, Record("open", (1, 2)), 30)
    assert proof is not None
    assert [(each.text, each.place) for each in proof.premises()] == [
        ("e(1)", "at 10"), ("f(2)", "at 10"),
    ]  # fmt: skip
    assert why_in_ticks(history, Record("open", (1, 2)), 40) is None


COUNTER = """
    n(0) := start();
    n(x + 1) @next := n(x) ^ not stop() if x < 1000000;
"""


def counted(upper: int) -> TickHistory:
    start = TickStart(0, True, {"start": [Record("start", ())], "stop": []})
    changes: Moved = {"start": [(Record("start", ()), 1, -1)], "stop": []}
    return recorded(program(COUNTER), TickPlan(1), start, changes, upper)


def test_a_proof_goes_back_over_thousands_of_ticks() -> None:
    history = counted(3_000)
    proof = why_in_ticks(history, Record("n", (2_999,)), 2_999)
    assert proof is not None
    parts = list(proof.every_part())
    assert len(parts) == 3_000 + 1 + 2_999  # facts, the input, an absence in each tick
    assert proof.leaves() == {"start()", "not stop()"}
    assert parts[1].place == "at 2998"
    assert proof.render().count("\n") >= 5_999


def test_a_kept_fact_is_proved_by_the_tick_in_which_it_came() -> None:
    text = "kept(x) := new(x);\nkept(x) @next := kept(x) ^ not gone(x);"
    changes: Moved = {
        "new": [(Record("new", (7,)), 100, 1), (Record("new", (7,)), 130, -1)],
        "gone": [(Record("gone", (7,)), 1_000, 1)],
    }
    start = TickStart(0, True, {"new": [], "gone": []})
    history = recorded(program(text), TickPlan(20), start, changes, 2_000)
    proof = why_in_ticks(history, Record("kept", (7,)), 900)
    assert proof is not None
    lines = proof.render().splitlines()
    assert lines[0] == ("kept(7)  [at 140, rule 2: kept(x) @next := kept(x) ^ not gone(x);]")
    assert lines[-1].strip("│├└─ ") == "not gone(7)  [at 120]"
    assert proof.leaves() == {"new(7)", "not gone(7)"}
    (reason,) = [
        r
        for r in why_not_in_ticks(history, Record("kept", (7,)), 1_100, upper=2_000)
        if r.rule == 2
    ]
    assert reason.render() == "rule 2, in the tick at 1000: blocked by gone(7)"


KEPT = {
    "by itself": ("p(x) @next := new(x); p(x) @next := p(x) ^ not gone(x);", 6),
    "beside another predicate": (
        "p(x) := new(x); k(x) @next := p(x); p(x) := k(x) ^ not gone(x);", 5
    ),
    "by turns": (
        "p(x) @next := new(x); q(x) @next := p(x); p(x) @next := q(x) ^ not gone(x);", 6
    ),
    "through three": (
        "p(x) := new(x); q(x) := p(x); r(x) @next := q(x); s(x) @next := r(x); "
        "p(x) := s(x) ^ not gone(x);", 8,
    ),
    "beside what goes on": (
        "n(0) @next := new(_); n(x + 1) @next := n(x) if x < 1000000; "
        "p(x) := new(x); k(x) @next := p(x) ^ n(_); p(x) := k(x) ^ not gone(x);", 60,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", KEPT)
def test_w9_what_is_kept_takes_the_lines_of_one_round(how: str) -> None:
    text, most = KEPT[how]
    changes: Moved = {
        "new": [(Record("new", (7,)), 100, 1), (Record("new", (7,)), 330, -1)],
        # Something changes again and again, so that ticks run.
        "gone": [(Record("gone", (x,)), 400 + 20 * x, 1) for x in range(100, 500)],
    }
    start = TickStart(0, True, {"new": [], "gone": []})
    history = recorded(program(text), TickPlan(20), start, changes, 12_000)
    assert len(history.nodes[0].instants) > 400
    proof = why_in_ticks(history, Record("p", (7,)), 11_990)
    assert proof is not None
    assert len(proof.render().splitlines()) <= most
    assert proof.leaves() == {"new(7)", "not gone(7)"}
    assert rests_on_what_was_seen(history, proof)


MESSAGES = """
    asked(k) @async(1) := put(0, k);
    known(k) := asked(k);
    known(k) @next := known(k) ^ not gone(k);
    answered(k) @async(0) := known(k) ^ asked(k);
"""


def test_a_message_is_proved_at_the_node_that_sent_it() -> None:
    start = TickStart(0, True, {"put": [], "gone": []})
    changes: Moved = {"put": [(Record("put", (0, "a")), 5, 1)], "gone": []}
    plan = TickPlan(None, 2, {"put": 0})
    history = recorded(program(MESSAGES), plan, start, changes, 100)
    proof = why_in_ticks(history, Record("answered", ("a",)), 7, 0)
    assert proof is not None
    assert proof.render().splitlines() == [
        'answered("a")  [node 0 at 7, rule 4: answered(k) @async(0) := known(k) ^ asked(k);]',
        '├─ known("a")  [node 1 at 6, rule 2: known(k) := asked(k);]',
        '│  └─ asked("a")  [node 1 at 6, rule 1: asked(k) @async(1) := put(0, k);]',
        '│     └─ put(0, "a")  [input, node 0 at 5]',
        '└─ asked("a")  [node 1 at 6, rule 1: asked(k) @async(1) := put(0, k);] (shown above)',
    ]

    def said(key: str, at: int) -> list[str]:
        asked = Record("answered", (key,))
        return [each.render() for each in why_not_in_ticks(history, asked, at, 0, upper=100)]

    assert said("b", 7) == ['rule 4, in the tick of node 1 at 6: no fact agrees with known("b")']
    assert said("a", 5) == ["rule 4: no tick was before it"]
    assert said("a", 7) == ["it is present"]
    assert said("a", 100) == ["not yet definite: upper is 100"]
