"""Keys that many facts have are divided among all ranges, and nothing of the answer changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.evaluating import undeclared
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import (
    HeavyKey,
    Place,
    Placement,
    live_line,
    live_of,
    live_of_heavy,
    placement_document,
    placement_lines,
    placement_of,
)
from tidemill.datalog.placement.hashing import range_of
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.errors import TidemillError
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.ranges.evaluating import evaluated_by_ranges, feed
from tidemill.testkit.ranges.running import Ranges
from tidemill.testkit.ranges.task import RangeSettings
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import CATALOG, UPPER, Example, inputs, programs, programs_alike
from tidemill.testkit.tidelog import INPUTS as NAMES

LAW = drawn(15, times=6)
FIRST = ("s(k, x)", "b(k, x)", "s(x, k)", "b(x, k)", "t(k, x)")
MORE = (
    "b(k, y)", "s(y, k)", "r(k) ^ b(k, y)", "b(k, y) ^ not r(k)", "b(k, y) ^ not s(k, y)",
    "t(k, y)", "b(_, k) ^ s(k, y)", "f(k, _) ^ b(y, k)",
)  # fmt: skip
HEADS = (
    "t(x, y)", "t(k, x)", "t(x, k)", "t(y, x)", "p(x)", "p(y)", "p(k)", "t(x, k) @time(3)",
    "q(k) @count(x)", "p(y) @set(x)",
)  # fmt: skip
GUARDS = ("", "", " if x != y", " if 2 / x > 0")


@st.composite
def joins(draw: st.DrawFn) -> Example:
    """Rules of several atoms with a variable in common."""
    rules = ["t(x, y) := s(x, y) ^ r(x);"]
    for _ in range(draw(st.integers(1, 3))):
        head, first, more, guard = (draw(st.sampled_from(e)) for e in (HEADS, FIRST, MORE, GUARDS))
        rules.append(f"{head} := {first} ^ {more}{guard};")
    text = "\n".join(rules)
    try:
        return Example(text, check(parse(text), CATALOG))
    except ProgramErrors:
        reject()


EXAMPLE = programs(8, rules_min=2) | programs_alike()
INPUTS = inputs(rows_min=2, rows_max=6)
CUTS = st.lists(st.integers(0, UPPER - 1), max_size=2)
HEAVY_INPUTS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
SEEN = {"examples": 0, "divided": 0}
_SCHEMAS = {
    name: InputSchema(name, "relation", tuple((column, "int") for column in columns.split()))
    for name, columns in {"order": "id customer", "customer": "id town", "paid": "id"}.items()
}


def answer(evaluation: Evaluation) -> object:
    """Presences and errors, without an order."""
    found = {
        name: {(str(p.record), p.start, p.end) for p in each}
        for name, each in evaluation.presences.items()
    }
    return found, {(e.text, e.start, e.end) for e in evaluation.errors}


def heavy_in(given_: Presences, heavy: Sequence[str]) -> list[HeavyKey]:
    """All values of some inputs, said to be heavy."""
    found = {}
    for name in heavy:
        for each in given_.get(name, ()):
            for column, value in enumerate(each.record.arguments, 1):
                key = HeavyKey(name, column, value, 1_000)
                found[name, column, key.spot] = key
    return [*found.values()]


def placed(example: Example, given_: Presences, heavy: Sequence[str]) -> Placement:
    carrying = undeclared(example.checked, given_)
    return placement_of(example.checked, carrying, heavy=heavy_in(given_, heavy))


def divides(placement: Placement) -> bool:
    """Whether some rule reads facts of heavy keys elsewhere than other facts."""
    return any(read.place.heavy for each in placement.fragments for read in each.reads)


def require_one_answer(
    example: Example, given_: Presences, ranges: int, cuts: Sequence[int], placement: Placement
) -> None:
    try:
        wanted = answer(evaluated(example.checked, given_, upper=UPPER))
    except LimitPassed:
        return
    found = evaluated_by_ranges(
        example.checked, given_, upper=UPPER, cuts=cuts, ranges=ranges, placement=placement
    )
    assert answer(found) == wanted, example.text


@LAW
@given(joins(), INPUTS, st.sampled_from((2, 5)), CUTS, HEAVY_INPUTS)
def test_heavy_keys_of_joins_in_pieces_answer_as_one_process(
    example: Example, given_: Presences, ranges: int, cuts: Sequence[int], heavy: Sequence[str]
) -> None:
    placement = placed(example, given_, heavy)
    SEEN["examples"] += 1
    SEEN["divided"] += divides(placement)
    require_one_answer(example, given_, ranges, cuts, placement)


def test_a_part_of_the_joins_had_keys_in_pieces() -> None:
    assert 15 * SEEN["divided"] > SEEN["examples"] > 0


@LAW
@given(EXAMPLE, INPUTS, st.sampled_from((2, 5)), CUTS, HEAVY_INPUTS)
def test_heavy_keys_of_any_program_in_pieces_answer_as_one_process(
    example: Example, given_: Presences, ranges: int, cuts: Sequence[int], heavy: Sequence[str]
) -> None:
    require_one_answer(example, given_, ranges, cuts, placed(example, given_, heavy))


def misplaced(placement: Placement) -> Placement:
    """The same, where facts that go to all ranges for a heavy key are in one of them alone."""

    def wrong(place: Place) -> Place:
        return replace(place, pieces=place.pieces or place.positions)

    return replace(
        placement,
        fragments=tuple(
            replace(each, reads=tuple(replace(r, place=wrong(r.place)) for r in each.reads))
            for each in placement.fragments
        ),
    )


def test_the_law_notices_facts_that_are_not_in_all_pieces() -> None:
    """The companion: of the same examples, dealt out otherwise, some answer wrongly."""
    wrong = []

    @settings(LAW, max_examples=150, derandomize=False, backend=seeded_backend(4), database=None)
    @given(joins(), INPUTS, HEAVY_INPUTS)
    def law(example: Example, given_: Presences, heavy: Sequence[str]) -> None:
        placement = misplaced(placed(example, given_, heavy))
        try:
            wanted = answer(evaluated(example.checked, given_, upper=UPPER))
            found = evaluated_by_ranges(
                example.checked, given_, upper=UPPER, ranges=5, placement=placement
            )
        except TidemillError:
            return
        if answer(found) != wanted:
            wrong.append(example)

    law()
    assert len(wrong) > 5


HEAVY = HeavyKey("order", 2, 7, 600)


def program(text: str) -> CheckedProgram:
    """A program over orders and customers."""
    return check(parse(text), InputSchemas(_SCHEMAS))


def orders() -> Presences:
    """600 orders of customer 7 among 1,000."""
    customer = {n: 7 if n % 5 < 3 else n % 40 for n in range(1_000)}
    return {
        "order": [Presence(Record("order", (n, c)), n % 30) for n, c in customer.items()],
        "customer": [Presence(Record("customer", (c, c % 3)), c % 20) for c in range(40)],
        "paid": [Presence(Record("paid", (n,)), 5) for n in range(0, 1_000, 3)],
    }


def most_in_one_range(checked: CheckedProgram, placement: Placement, ranges: int) -> int:
    """The rows of the largest range of the first fragment."""
    running = Ranges(placement, ranges, checked.derived, RangeSettings())
    feed(running, {n: each for n, each in orders().items() if n in checked.inputs})
    works = next(running.step(100))
    return max(sum(map(len, work.changes.values())) for work in works)


PROGRAMS = {
    "a join": "in_town(o, c, t) := order(o, c) ^ customer(c, t);",
    "a join whose head lacks the rest of the key": "there(t) := order(_, c) ^ customer(c, t);",
    "a join whose head has the key alone": "known(c) := order(_, c) ^ customer(c, _);",
    "what is not there": "lost(o, c) := order(o, c) ^ not customer(c, 1);",
    "a join of what is derived": """
        open(o, c) := order(o, c) ^ not paid(o);
        in_town(o, t) := open(o, c) ^ customer(c, t);
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_heavy_key_is_divided_among_all_ranges(name: str) -> None:
    checked = program(PROGRAMS[name])
    given_ = {n: each for n, each in orders().items() if n in checked.inputs}
    placement = placement_of(checked, heavy=[HEAVY])
    assert divides(placement)
    found = evaluated_by_ranges(checked, given_, upper=40, ranges=8, placement=placement)
    assert answer(found) == answer(evaluated(checked, given_, upper=40))
    if "open" not in PROGRAMS[name]:
        assert most_in_one_range(checked, placement_of(checked), 8) > 600
        assert most_in_one_range(checked, placement, 8) < 300


def test_rules_that_divide_other_keys_read_one_predicate_each_by_its_own() -> None:
    """For `a` customer 8 stays in one range, since many facts of both sides have it."""
    text = """
        b(o, c) := order(o, c) ^ paid(c);
        a(o, c, t) := order(o, c) ^ customer(c, t);
    """
    checked = program(text)
    heavy = [HEAVY, HeavyKey("order", 2, 8, 300), HeavyKey("customer", 1, 8, 300)]
    placement = placement_of(checked, heavy=heavy)
    given_ = {
        "order": [Presence(Record("order", (n, 8)), 0) for n in range(20)],
        "customer": [Presence(Record("customer", (8, 1)), 0)],
        "paid": [Presence(Record("paid", (8,)), 0)],
    }
    found = evaluated_by_ranges(checked, given_, upper=40, ranges=8, placement=placement)
    assert answer(found) == answer(evaluated(checked, given_, upper=40))


def test_one_and_one_point_oh_are_one_heavy_key() -> None:
    place = Place((1,), heavy=frozenset({HeavyKey("p", 1, 1.0, 9).spot}), pieces=(1, 2))
    assert place.ranges_of(Record("p", (1, 5)), 64) == (range_of((1, 5), 64),)
    assert place.ranges_of(Record("p", (2, 5)), 64) == (range_of((2,), 64),)


def told(text: str, *heavy: HeavyKey) -> list[str]:
    checked = program(text)
    placement = placement_of(checked, heavy=heavy)
    return placement_lines(placement_document(placement, checked))


def test_a_plan_says_which_heavy_keys_are_divided_and_by_what() -> None:
    lines = told(PROGRAMS["a join"], HEAVY)
    assert "    about 600 rows of order with 7 as customer: in all ranges" in lines
    assert "    reads order by (customer); of those keys by (id, customer)" in lines
    assert "    reads customer by (id); of those keys in all ranges" in lines


def windows_of(text: str) -> str:
    checked = program(text)
    plain = live_of(placement_of(checked), checked.derived)
    heavy = placement_of(checked, heavy=[HEAVY])
    return live_line(live_of_heavy(plain, heavy, checked.derived))


def test_a_plan_says_which_windows_divide_heavy_keys() -> None:
    few = "  live: windows over the keys that changes touch"
    assert windows_of(PROGRAMS["a join"]) == few
    assert windows_of(PROGRAMS["a join whose head has the key alone"]) == (
        f"{few}; these divide no heavy key, since no collection has known as it crosses to another "
        "fragment"
    )
    assert windows_of(PROGRAMS["a join whose head lacks the rest of the key"]).startswith(
        "  live: windows over all keys"
    )


def test_a_plan_says_why_a_heavy_key_stays_in_one_range() -> None:
    (line,) = (line for line in told(PROGRAMS["a join"], HEAVY, HeavyKey("customer", 1, 7, 600))
               if "with 7 as customer" in line)  # fmt: skip
    assert line.endswith(
        "in one range, since many other facts have it, too, and would be in all ranges"
    )
    counts = "load(c) @count(o) := order(o, c);"
    (line,) = (line for line in told(counts, HEAVY) if "with 7" in line)
    assert line.endswith("in one range, since load: one range has to have all its matches")


def test_rules_are_not_split_where_no_key_is_heavy() -> None:
    text = PROGRAMS["a join whose head has the key alone"]
    assert len(placement_of(program(text)).fragments) == 1
    assert len(placement_of(program(text), heavy=[HEAVY]).fragments) == 2
