"""Rows that join a tick which has run: what it said stays, and what follows from them is added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import missing_in
from tidemill.datalog.dataflow.ticker import DataflowTicker
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.joining import joining_inputs
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END
from tidemill.datalog.records import Record, format_record, parse_record
from tidemill.datalog.state import StateRow
from tidemill.datalog.tick_plan import TickPlan
from tidemill.datalog.tick_state import Handed
from tidemill.datalog.ticking import TickRun, TickStart, recorded, why_in_ticks
from tidemill.datalog.ticking.run import of_node
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, accepted, inputs, ticked_programs
from tidemill.testkit.twins.pointwise import tick_answers

LAW = drawn(60)
Moved = dict[str, list[tuple[Record, int, int]]]
PERIOD = 5


def fits(checked: CheckedProgram) -> bool:
    """Whether rows may join ticks of a program that the dataflow evaluates."""
    return missing_in(checked) is None and bool(joining_inputs(checked))


def moved(checked: CheckedProgram, given_: Presences) -> Moved:
    """Presences of the inputs that a program reads, as changes; lattices ride beside none."""
    changes: Moved = {}
    for name, presences in given_.items():
        if name in checked.columns and name not in checked.derived:
            found = [
                (Record(name, p.record.arguments, p.record.time, p.record.expires), p)
                for p in presences
            ]
            moves = [(record, int(p.start), 1) for record, p in found]
            moves += [(record, int(p.end), -1) for record, p in found if p.end != END]
            changes[name] = sorted(moves, key=lambda each: each[1])
    return changes


class Seen:
    """Input of each tick by definition, instant by instant."""

    def __init__(self, changes: Moved, joining: frozenset[str]) -> None:
        self.ticks: list[tuple[int, Counter[Record]]] = []
        now: Counter[Record] = Counter()
        waiting: Counter[Record] = Counter()
        self.at: list[tuple[int, Counter[Record], int]] = []
        """Instant, records, number of the tick."""
        for at in range(UPPER):
            for name, moves in changes.items():
                mine = [(record, diff) for record, when, diff in moves if when == at]
                taken = [r for r, diff in mine if diff < 0 and not (r.expires or END) <= at]
                joins = (
                    at % PERIOD and name in joining and not taken and appears(mine, now, waiting)
                )
                for record, diff in mine:
                    (now if joins and diff > 0 else waiting)[record] += diff
            if at % PERIOD == 0:
                now.update(waiting)
                waiting.clear()
            self.at.append((at, +now, at // PERIOD))


def appears(
    moves: Sequence[tuple[Record, int]], now: Counter[Record], waiting: Counter[Record]
) -> bool:
    """Whether the facts that are present are others after some moves, told by their keys."""
    before: Counter[object] = Counter()
    for record in {*now, *waiting}:
        before[record.key] += now[record] + waiting[record]
    after = Counter(before)
    for record, diff in moves:
        after[record.key] += diff
    changed = {key for key in {*before, *after} if (before[key] > 0) != (after[key] > 0)}
    return bool(changed) and any(diff > 0 for _, diff in moves)


def by_name(records: Counter[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.predicate, []).append(record)
    return found


def expected_of(checked: CheckedProgram, changes: Moved, joining: frozenset[str]) -> list[object]:
    """At each instant what the tick says of what it has seen, if it alone were run anew."""
    found: list[object] = []
    ended: list[tuple[int, Counter[Record]]] = []
    last: tuple[int, Counter[Record], int] | None = None
    for at, seen, number in Seen(changes, joining).at:
        if last is not None and number != last[2]:
            ended.append(last[:2])
        if last is None or number != last[2] or seen != last[1]:
            ticks = [*ended, (at, seen)]
            answer = tick_answers(checked, [by_name(s) for _, s in ticks], [t for t, _ in ticks])[
                -1
            ]
            last = (at, seen, number)
        found.append({n: {t for t in answer.records.get(n, ()) if lives(t, at)} for n in DERIVED})
    return found


def lives(text: str, at: int) -> bool:
    expires = parse_record(text).expires
    return expires is None or expires > at


class Running:
    """A run that can be stopped at any instant, and goes on from rows."""

    def __init__(self, checked: CheckedProgram, plan: TickPlan, changes: Moved) -> None:
        self._checked, self._plan, self._changes = checked, plan, changes
        self.rows: frozenset[StateRow] = frozenset()
        self.held: Counter[Record] = Counter()
        self.begin(0)

    def begin(self, lower: int) -> None:
        present = {
            name: list(net([each for each in moves if each[1] < lower]).elements())
            for name, moves in self._changes.items()
        }
        start = TickStart(lower, lower == 0, present, self.rows)
        self._run = TickRun(self._plan, self._changes, self._made, start, lambda *_: None)
        self._anew, self._own = True, frozenset(r for r in self.rows if "@" not in r[1])

    def _made(self, number: int, handed: Handed) -> DataflowTicker:
        return DataflowTicker(
            self._checked, handed=handed, limits=Limits(rounds=200), keeps_state=True,
            may_go_on=True,
        )  # fmt: skip

    def go_on(self, lower: int, upper: int) -> None:
        run = self._run
        run.take(
            {n: [e for e in each if lower <= e[1] < upper] for n, each in self._changes.items()}
        )
        while (at := min(run.next_arrival(), run.next_tick())) < upper:
            if run.next_arrival() <= at:
                run.arrive(int(at))
                continue
            for each in run.tick(int(at)):
                if self._anew:
                    self._anew, self.held = False, Counter()
                self.held.update(dict(each.answer.facts))
        rows = set(self.rows - self._own)
        for node in run.nodes:
            left, entered = node.ticks.take_state()
            gone = {of_node(row, node.number) for row in left}
            assert gone <= rows
            come = {of_node(row, node.number) for row in entered}
            assert not come & (rows - gone)
            rows = rows - gone | come
        self._own = frozenset(run.own_rows())
        self.rows = frozenset(rows | self._own)

    def said(self, at: int) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in DERIVED}
        for record in +self.held:
            if record.expires is None or record.expires > at:
                found[record.predicate].add(format_record(record))
        return found


def net(moves: Sequence[tuple[Record, int, int]]) -> Counter[Record]:
    found: Counter[Record] = Counter()
    for record, _, diff in moves:
        found[record] += diff
    return +found


HANDED = (
    ["q(x) @next := r(x);", "p(x) := q(x) ^ s(x, _);"],
    ["q(x) @next := q(x) ^ not r(x);", "t(x, y) := q(x) ^ s(x, y);", "q(y) @next := s(_, y);"],
    ["p(x) @next := q(x);", "q(y) @next := s(_, y) ^ not p(y);", "d(x, y) := p(x) ^ s(x, y);"],
)
"""Rules by which what joins a tick meets what the tick was handed, and is handed on itself."""
HANDING = st.sampled_from(HANDED).map(lambda rules: accepted(rules, fits))


@LAW
@given(
    HANDING | ticked_programs(fits=fits), inputs(), st.sets(st.integers(1, UPPER - 1), min_size=5)
)
def test_what_joins_a_tick_is_seen_at_its_instant_also_after_a_restart(
    example: Example, given_: Presences, restarts: set[int]
) -> None:
    checked = example.checked
    joining = joining_inputs(checked)
    changes = moved(checked, given_)
    plan = TickPlan(PERIOD, admission=dict.fromkeys(joining, "stratum"))
    running = Running(checked, plan, changes)
    try:
        expected = expected_of(checked, changes, joining)
        for at in range(UPPER):
            if at in restarts:
                running.begin(at)
            running.go_on(at, at + 1)
            assert running.said(at) == expected[at], (at, example.text)
    except LimitPassed:
        assume(False)


@LAW
@given(ticked_programs(sends=True, fits=fits), inputs(), st.integers(0, UPPER - 1))
def test_a_tick_that_goes_on_takes_nothing_back_and_is_proved(
    example: Example, given_: Presences, at: int
) -> None:
    checked = example.checked
    changes = moved(checked, given_)
    plan = TickPlan(PERIOD, 2, admission=dict.fromkeys(joining_inputs(checked), "stratum"))
    try:
        history = recorded(
            checked, plan, TickStart(0, True, dict.fromkeys(changes, ())), changes, UPPER,
            Limits(rounds=200),
        )  # fmt: skip
    except LimitPassed:
        assume(False)
        raise
    for node in history.nodes:
        starts = {number for number, first in enumerate(node.first) if number == first}
        for record, _, ended in node.said.every():
            assert (
                ended == END
                or ended in starts
                or (record.expires or END) <= node.instants[int(ended)]
            )
        for name in DERIVED:
            present = [p.record for p in node.presences().get(name, ()) if p.start <= at < p.end]
            for record in present[:1]:
                proof = why_in_ticks(history, record, at, node.number)
                assert proof is not None
                assert not any(part.kind == "handed" for part in proof.every_part())


OPEN = {
    "d(x) := late(x);": {"a", "late"},
    "c(x) := a(x) ^ not b(x); d(x) := a(x) ^ late(x);": {"a", "late"},
    "n() @count(x) := a(x); d(x) ~count := n() @count(x) ^ late(x); e(x) := d(x);": {"late"},
    "d(x) := late(x); e() @count(x) := d(x);": {"a"},
    "d(x) @next := late(x) ^ not b(x);": {"a", "b", "late"},
    "d(x) @async(0) := late(x) ^ not b(x);": {"a", "late"},
    "d(x) := late(x) ^ clock(0, 9) @time(_);": set(),
    "d(x) @expires(9) := late(x);": set(),
    "d(x) := a(x) ^ not e(x);": set(),
}  # fmt: skip


@pytest.mark.parametrize("text", OPEN)
def test_rows_join_where_nothing_that_was_said_can_become_wrong(text: str) -> None:
    schemas = {n: InputSchema(n, "relation", (("", "int"),)) for n in ("a", "b", "late")}
    schemas["e"] = InputSchema("e", "events", (("", "int"),))
    if "e(x) :=" in text or "e() @" in text:
        del schemas["e"]
    program = check(parse(text + " x() @next := a(_);"), InputSchemas(schemas))
    assert joining_inputs(program) - {"e"} == OPEN[text]
