"""A recursion evaluated by rounds over ranges answers as one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.partial import plan_in
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import Place, Placement, placement_of
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.ranges.evaluating import evaluated_by_ranges
from tidemill.testkit.ranges.task import RangeSettings

LAW = drawn(15, times=4)
UPPER = 12
VALUES = 4
SCHEMAS = {
    "edge": InputSchema("edge", "relation", (("a", "int"), ("b", "int"))),
    "link": InputSchema("link", "events", (("a", "int"), ("b", "text"))),
}


def checked(text: str) -> CheckedProgram:
    return check(parse(text), InputSchemas(SCHEMAS))


def atom(random: Random, names: Sequence[str]) -> str:
    """A predicate over two of four variables; the second column of a link is a text."""
    name = random.choice(names)
    first = random.choice("xyzw")
    return f"{name}({first}, {random.choice('st' if name == 'link' else 'xyzw')})"


def rule(random: Random, head: str) -> str:
    """A rule whose atoms share variables, maybe with a guard and an atom under `not`."""
    while True:
        body = [atom(random, ("p", "q", "edge")), atom(random, ("p", "q", "edge", "link"))]
        body += [atom(random, ("edge", "link"))] if random.random() < 0.5 else []
        known = sorted({each for one in body for each in "xyzw" if each in one[2:]} - {""})
        if len(known) > 1:
            break
    left, right = random.sample(known, 2)
    extra = random.choice(("", "", f" ^ not edge({right}, {left})", f" if {left} != {right}"))
    return f"{head}({left}, {right}) := {' ^ '.join(body)}{extra};"


def least(random: Random) -> str:
    """Least values over timeless facts, whose recursion goes forth or back."""
    step = random.choice(("edge(x, y)", "edge(y, x)", "edge(x, z) ^ edge(z, y)"))
    lattice, given_ = random.choice((("min", "n + 1"), ("max", "n - 1"), ("set", "n")))
    guard = " if n < 9" if lattice == "min" else " if n > -9" if lattice == "max" else ""
    return (
        f"d(x) @{lattice}(y) := edge(x, y); "
        f"d(y) @{lattice}({given_}) := d(x) @{lattice}(n) ^ {step}{guard};"
    )


@st.composite
def programs(draw: st.DrawFn) -> CheckedProgram:
    """Programs of which a recursion is evaluated by rounds."""
    random = Random(draw(st.integers(0, 1 << 30)))
    rules = [f"{name}(x, y) := edge({pair});" for name, pair in (("p", "x, y"), ("q", "y, x"))]
    rules += [rule(random, random.choice("pq")) for _ in range(random.randrange(1, 4))]
    text = " ".join(rules) if random.random() < 0.75 else least(random)
    text += " n(x) @count(y) := p(x, y) ^ not q(y, y);" if "p(" in text else ""
    try:
        program = checked(text)
    except ProgramErrors:
        assume(False)
        raise
    assume(any(each.returning for each in placement_of(program).fragments))
    return program


@st.composite
def facts(draw: st.DrawFn) -> Presences:
    """Edges that come, go and come back; links with ends."""
    random = Random(draw(st.integers(0, 1 << 30)))
    found: dict[str, list[Presence]] = {"edge": [], "link": []}
    for a in range(VALUES):
        for b in range(VALUES):
            at = random.randrange(UPPER)
            while at < UPPER and random.random() < 0.4:
                end = at + random.randrange(1, 6)
                found["edge"].append(Presence(Record("edge", (a, b)), at, end))
                at = end + random.randrange(1, 4)
    for _ in range(6):
        time = random.randrange(UPPER)
        record = Record("link", (random.randrange(VALUES), random.choice("stu")), time, time + 5)
        if all(each.record.key != record.key for each in found["link"]):
            found["link"].append(Presence(record, time, time + 5))
    return found


def answer(program: CheckedProgram, found: Evaluation) -> object:
    """Presences and errors, without an order."""
    presences = {
        name: {(str(p.record), p.start, p.end) for p in found.presences.get(name, ())}
        for name in program.derived
    }
    return presences, {(each.text, each.start, each.end) for each in found.errors}


@LAW
@given(programs(), facts(), st.sampled_from((2, 3, 7)), st.lists(st.integers(1, UPPER - 1)))
def test_rounds_in_any_ranges_and_windows_answer_as_one_process(
    program: CheckedProgram, given_: Presences, ranges: int, cuts: Sequence[int]
) -> None:
    found = evaluated_by_ranges(program, given_, upper=UPPER, cuts=cuts[:2], ranges=ranges)
    wanted = evaluated(program, given_, upper=UPPER)
    assert answer(program, found) == answer(program, wanted), program.program.text


def misplaced(placement: Placement) -> Placement:
    """The same fragments, of which rounds deal out by all columns of a fact."""
    fragments = []
    for each in placement.fragments:
        reads = [
            replace(read, place=Place((1, 2))) if read.predicate in each.returning else read
            for read in each.reads
        ]
        fragments.append(replace(each, reads=tuple(reads)))
    return replace(placement, fragments=tuple(fragments))


def test_the_law_notices_derivations_in_a_wrong_range() -> None:
    """The companion: rounds that deal out otherwise answer wrongly."""
    program = checked("p(x, y) := edge(x, y); p(x, z) := p(x, y) ^ p(y, z);")
    wrong = 0
    for seed in range(8):
        random = Random(seed)
        pairs = {(random.randrange(6), random.randrange(6)) for _ in range(9)}
        given_ = {"edge": [Presence(Record("edge", pair), 0) for pair in pairs]}
        placement = misplaced(placement_of(program))
        found = evaluated_by_ranges(program, given_, upper=1, ranges=5, placement=placement)
        wrong += answer(program, found) != answer(program, evaluated(program, given_, upper=1))
    assert wrong > 4


def test_more_rounds_than_are_allowed_are_given_up() -> None:
    """Paths of eight edges come in the fourth round; the fifth derives no other ones."""
    program = checked("p(x, y) := edge(x, y); p(x, z) := p(x, y) ^ p(y, z);")
    given_ = {"edge": [Presence(Record("edge", (n, n + 1)), 0) for n in range(8)]}
    few, enough = (RangeSettings(limits=Limits(rounds=rounds)) for rounds in (4, 5))
    with pytest.raises(LimitPassed):
        evaluated_by_ranges(program, given_, upper=1, settings=few)
    with pytest.raises(LimitPassed):
        evaluated(program, given_, upper=1, limits=few.limits)
    assert len(evaluated(program, given_, upper=1, limits=enough.limits).presences["p"]) == 36
    found = evaluated_by_ranges(program, given_, upper=1, settings=enough)
    assert len(found.presences["p"]) == 36


LEAST = """
    d(x) @min(y) := edge(x, y);
    d(y) @min(n + 1) := d(x) @min(n) ^ edge(x, y) if n < 20;
"""


def test_extremes_of_several_rules_are_merged_as_columns() -> None:
    """An engine merges what facts carry one by one, unless each kind of it has a column."""
    (fragment,) = placement_of(checked(LEAST)).fragments
    assert fragment.returning
    engine = DataflowEngine(fragment.plan.checked, plan=plan_in(fragment.plan, 0))
    assert not [name for name, schema in engine.schemas.items() if schema.carrying]


def test_limits_count_no_groups_that_are_still_to_be_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four nodes have a number each, and are told several: the companion counts these as well."""
    program = checked(LEAST)
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    given_ = {"edge": [Presence(Record("edge", pair), 0) for pair in pairs]}
    most = RangeSettings(limits=Limits(rows=4))
    wanted = evaluated(program, given_, upper=1, limits=most.limits)
    assert len(wanted.presences["d"]) == 4
    found = evaluated_by_ranges(program, given_, upper=1, ranges=2, settings=most)
    assert answer(program, found) == answer(program, wanted)
    monkeypatch.setattr("tidemill.datalog.dataflow.engine.GATHERED", "no name begins so")
    with pytest.raises(LimitPassed):
        evaluated_by_ranges(program, given_, upper=1, ranges=2, settings=most)
