"""One event that records state with several values of a sum or an average.

A merge is commutative, associative and idempotent, so no order of the records can be seen. A fact
has made one contribution for each value that is stated of it, whatever else rides beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES, TALLIES, inject_given, merge_parafacts
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.state import decode_fields, encode_fields
from tidemill.datalog.strategy import Strategy
from tidemill.errors import Corrupt
from tidemill.testkit.drawing import STRATEGIES, drawn
from tidemill.testkit.held import Held, lives
from tidemill.testkit.ranges.evaluating import evaluated_by_ranges
from tidemill.testkit.ranges.task import RangeSettings
from tidemill.testkit.tidelog import UPPER
from tidemill.testkit.twins.pointwise import answers

LAW = drawn(60)
PROGRAMS = (
    "out(h) := load(h);",
    "out(k) := load(h) ^ ping(k);",
    "out(h) @expires(t + 6) := load(h) ^ ping(h) @time(t);",
    "out(h) := load(h) ~expires ^ ping(h);",
    "a(h) := load(h); a(h) := ping(h); b(h) := a(h); out(k) := b(h) ^ a(h) ^ ping(k);",
    "r(h) := load(h); r(k) := r(h) ^ ping(k); out(h) := r(h);",
    "out(h) @max(v) := load(h) @{kind}(v);",
    "out(h) @{kind}(v) := load(h) @{kind}(v);",
    "a(h) @{kind}(v) := load(h) @{kind}(v); out(k) := a(h) ^ load(h) ^ ping(k);",
    "out() @max(k) := load(h) @{kind}(v) ^ ping(k) if v > k;",
)


def checked(program: str, kind: str) -> CheckedProgram:
    of = "int" if kind == "sum" else "float"
    load = InputSchema("load", "events", (("", "int"),), lattices=((kind, (of,)),))
    ping = InputSchema("ping", "events", (("", "int"),))
    text = program.replace("{kind}", kind)
    return check(parse(text), InputSchemas({"load": load, "ping": ping}))


@st.composite
def records(draw: st.DrawFn, kind: str) -> dict[str, list[Presence]]:
    found: dict[str, list[Presence]] = {"load": [], "ping": []}
    small = st.integers(0, 2)
    for _ in range(draw(st.integers(1, 6))):
        value = draw(st.integers(-2, 3))
        said = ((kind, value if kind == "sum" else value / 2),)
        at, end = draw(small), draw(st.sampled_from((None, 5, 7)))
        record = Record("load", (draw(st.integers(0, 1)),), at, end, said)
        start = at + draw(small)
        stop = draw(st.integers(start + 1, UPPER)) if draw(st.booleans()) else END
        stop = stop if end is None else min(stop, end)
        if start < stop:
            found["load"].append(Presence(record, start, stop))
    for at in draw(st.lists(small, max_size=3, unique=True)):
        found["ping"].append(Presence(Record("ping", (draw(st.integers(0, 1)),), at), at, END))
    return found


def once(given_: Mapping[str, Sequence[Presence]]) -> dict[str, list[Presence]]:
    """No record is there twice at an instant: inputs are sets."""
    found: dict[str, list[Presence]] = {}
    for name, presences in given_.items():
        mine = found.setdefault(name, [])
        for each in presences:
            apart = [
                o.record != each.record or o.end <= each.start or each.end <= o.start for o in mine
            ]
            mine += [each] * all(apart)
    return found


CASES = st.sampled_from(PROGRAMS), st.sampled_from(("sum", "average"))


@LAW
@given(*CASES, st.data(), STRATEGIES, st.randoms(use_true_random=False))
def test_an_event_with_two_values_counts_with_both_in_whatever_order_they_come(
    program: str, kind: str, data: st.DataObject, strategy: Strategy, random: Random
) -> None:
    program_, given_ = checked(program, kind), once(data.draw(records(kind)))
    expected = [at.records["out"] for at in answers(program_, given_, 0, UPPER)]
    for carrying in ((), ("load",)):
        held = Held(program_, strategy=strategy, carrying=carrying)
        waiting = [(name, each) for name, presences in given_.items() for each in presences]
        random.shuffle(waiting)
        for stop in range(UPPER + 1):
            for name, each in [w for w in waiting if w[1].start < stop or random.random() < 0.3]:
                held.feed({name: [each]})
                waiting.remove((name, each))
            held.step(stop)
            assert held.texts("out") == set(expected[stop]), (stop, carrying)


@LAW
@given(*CASES, st.data(), STRATEGIES, st.lists(st.integers(1, UPPER - 1), min_size=1, unique=True))
def test_an_engine_that_begins_again_goes_on_with_both_values(
    program: str, kind: str, data: st.DataObject, strategy: Strategy, deaths: list[int]
) -> None:
    program_, given_ = checked(program, kind), once(data.draw(records(kind)))
    expected = [at.records["out"] for at in answers(program_, given_, 0, UPPER)]
    for stop, held in lives(program_, given_, sorted(deaths), strategy=strategy):
        assert held.texts("out") == set(expected[stop]), (stop, deaths)


def test_a_sum_of_one_event_is_the_sum_of_the_values_that_it_was_told_with() -> None:
    """Two values are two contributions, and the same one again is none."""
    program = checked("out(h) := load(h);", "sum")
    said = [(3, None), (4, None), (3, 9)]
    told = [Record("load", (7,), 1, end, (("sum", value),)) for value, end in said]
    for order in permutations(told):
        held = Held(program)
        for each in order:
            held.feed({"load": [Presence(each, 1)]})
        held.step(3)
        assert held.texts("out") == {"out(7) @time(1) @sum(7)"}


@pytest.mark.parametrize("kind", sorted(TALLIES))
def test_merges_of_what_records_of_one_event_carry_are_those_of_a_semilattice(kind: str) -> None:
    said = [((kind, value), ("max", most)) for value in (0, 1, 2) for most in (1, 2)]
    inner = [inject_given(Record("e", (1,), 5, None, each), LATTICES) for each in said]
    for a, b, c in permutations(inner, 3):
        left = merge_parafacts(merge_parafacts(a, b, LATTICES), c, LATTICES)
        right = merge_parafacts(a, merge_parafacts(c, b, LATTICES), LATTICES)
        assert left == right
        assert merge_parafacts(left, a, LATTICES) == left


def test_a_state_of_before_goes_on_with_the_value_in_the_identity() -> None:
    """By the fact alone its contribution would be beside that of the fact that comes again."""
    record = Record("e", ("x",), 5, None, (("sum", 3),))
    now = inject_given(record, LATTICES)
    assert now is not None
    for tag in ("members", "matches"):
        old = f'[{{"tally":"sum","{tag}":[[["given","e",["x"],5],3]]}}]'
        assert decode_fields(old)[0] == now[0][1]
    assert '"told"' in encode_fields((now[0][1],))
    with pytest.raises(Corrupt):
        decode_fields('[{"tally":"sum","later":[[["told","e",["x"],5,3],3]]}]')


@LAW
@given(
    *CASES, st.data(), STRATEGIES, st.lists(st.integers(1, UPPER - 1), max_size=3),
    st.integers(1, 4),
)  # fmt: skip
def test_ranges_say_what_the_program_says_of_two_values(
    program: str, kind: str, data: st.DataObject, strategy: Strategy, cuts: list[int],
    ranges: int,
) -> None:  # fmt: skip
    program_, given_ = checked(program, kind), once(data.draw(records(kind)))
    found = evaluated_by_ranges(
        program_, given_, upper=UPPER, cuts=cuts, ranges=ranges, settings=RangeSettings(strategy)
    )
    for at, expected in enumerate(answers(program_, given_, 0, UPPER), -1):
        there = [each for each in found.presences["out"] if each.start <= at < each.end]
        assert {format_record(each.record) for each in there} == set(expected.records["out"]), at
