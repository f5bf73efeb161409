"""Laws of ticks on the dataflow: each tick says what the program says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from cProfile import Profile
from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.arrangement.interval_updates import Change
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import NotInDataflow, lower
from tidemill.datalog.dataflow.ticked_plan import plan_of
from tidemill.datalog.dataflow.ticker import DataflowTicker, TickGiven
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.parser import parse
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.ticks import TickAnswer
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, inputs, ticked_programs
from tidemill.testkit.twins.pointwise import tick_answers
from tidemill.testkit.twins.sampling import present_at

LAW = drawn(80)
INSTANTS = st.lists(st.integers(0, UPPER - 1), min_size=1, unique=True).map(sorted)
Given = Mapping[str, Sequence[Record]]


def fits(checked: CheckedProgram) -> bool:
    """Whether the dataflow evaluates all of a program."""
    try:
        lower(plan_of(checked))
    except NotInDataflow:
        return False
    return True


def records_at(example: Example, given_: Presences, instants: Sequence[int]) -> list[Given]:
    """The input records of each tick, without lattices that ride beside them."""
    known = {
        name: [replace(each, record=replace(each.record, parafacts=())) for each in presences]
        for name, presences in given_.items()
        if name in example.checked.columns
    }
    return [present_at(known, at) for at in instants]


def ticks_of(instants: Sequence[int], records: Sequence[Given]) -> list[TickGiven]:
    """Ticks with the input records that come and go."""
    counted = [Counter(r for found in given_.values() for r in found) for given_ in records]
    moved = [(now - before, before - now) for before, now in pairwise([Counter(), *counted])]
    return [
        TickGiven(at, by_name(come), by_name(gone))
        for at, (come, gone) in zip(instants, moved, strict=True)
    ]


def by_name(records: Counter[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records.elements():
        found.setdefault(record.predicate, []).append(record)
    return found


class Held:
    """The sum of what the ticks have told."""

    def __init__(self) -> None:
        self._held: Counter[Record] = Counter()
        self._errors: set[str] = set()

    def take(self, told: TickAnswer) -> None:
        self._held.update(dict(told.facts))
        for text, diff in told.errors:
            assert (text in self._errors) == (diff < 0)
            self._errors ^= {text}

    def now(self) -> dict[str, set[str]]:
        assert set(self._held.values()) <= {0, 1}
        found: dict[str, set[str]] = {name: set() for name in DERIVED}
        for record, count in self._held.items():
            if count:
                found[record.predicate].add(format_record(record))
        return {**found, "errors": self._errors}


def expected_of(
    example: Example, records: Sequence[Given], instants: Sequence[int]
) -> list[dict[str, set[str]]]:
    try:
        answers = tick_answers(example.checked, records, instants)
    except LimitPassed:
        assume(False)
        raise
    return [
        {**{name: set(each.records.get(name, ())) for name in DERIVED}, "errors": set(each.errors)}
        for each in answers
    ]


@LAW
@given(
    ticked_programs(fits=fits), inputs(), INSTANTS, STRATEGIES, st.lists(st.integers(1, UPPER - 1))
)
def test_each_tick_says_what_the_program_says_however_many_are_in_a_step(
    example: Example, given_: Presences, instants: list[int], strategy: Strategy, cuts: list[int]
) -> None:
    records = records_at(example, given_, instants)
    ticks, expected = ticks_of(instants, records), expected_of(example, records, instants)
    ticker, held = DataflowTicker(example.checked, strategy=strategy), Held()
    borders = sorted({0, len(ticks), *(cut for cut in cuts if cut < len(ticks))})
    for first, last in pairwise(borders):
        for number, told in enumerate(ticker.run(ticks[first:last]), first):
            held.take(told)
            assert held.now() == expected[number], (instants[number], example.text)


@LAW
@given(ticked_programs(fits=fits), inputs(), STRATEGIES)
def test_a_tick_at_rest_says_what_the_one_before_said(
    example: Example, given_: Presences, strategy: Strategy
) -> None:
    instants = list(range(UPPER))
    records = records_at(example, given_, instants)
    expected = expected_of(example, records, instants)
    ticker, held, before = DataflowTicker(example.checked, strategy=strategy), Held(), None
    for number, tick in enumerate(ticks_of(instants, records)):
        rests = before is not None and not ticker.unsettled and ticker.soonest > tick.at
        if tick.come or tick.gone or not rests:
            held.take(ticker.run([tick])[0])
        before = tick
        assert held.now() == expected[number], (tick.at, example.text)


def ticker_of(text: str) -> DataflowTicker:
    schemas = InputSchemas({"e": InputSchema("e", "relation", (("", "int"),))})
    return DataflowTicker(check(parse(text), schemas))


def run_at(
    ticker: DataflowTicker, at: int, come: Sequence[int] = (), gone: Sequence[int] = ()
) -> str:
    given_ = [{"e": [Record("e", (x,)) for x in values]} for values in (come, gone)]
    told = ticker.run([TickGiven(at, *given_)])[0]
    return " ".join(f"{diff:+d} {format_record(record)}" for record, diff in told.facts)


def test_a_match_between_two_ticks_establishes_nothing() -> None:
    """A fact is withheld until 3 and ends at 5, so a tick at 4 sees it and one at 7 does not."""
    text = (
        "m(x) @time(3) := e(x) ^ f(); p(x) @expires(9) := m(x); f() @expires(5); k() @next := k();"
    )
    seen = ticker_of(text)
    assert run_at(seen, 0, [1]) == "+1 f() @expires(5)"
    assert run_at(seen, 4) == "+1 m(1) @time(3) @expires(5) +1 p(1) @time(3) @expires(9)"
    assert run_at(seen, 7) == "-1 m(1) @time(3) @expires(5) -1 f() @expires(5)"
    missed = ticker_of(text)
    assert run_at(missed, 0, [1]) == "+1 f() @expires(5)"
    assert run_at(missed, 7) == "-1 f() @expires(5)"


def test_a_clock_without_a_start_is_an_error_of_the_tick_under_next_too() -> None:
    ticker = ticker_of("p(x) @next := clock(x, 3) @time(w) ^ e(x);")
    records = [{"e": [Record("e", (None,))]}, {"e": [Record("e", (None,))]}]
    told = [ticker.run([each])[0] for each in ticks_of([0, 1], records)]
    assert [(each.facts, each.errors) for each in told] == [
        ([], [("wrong type: e(null)", 1)]), ([], [])
    ]  # fmt: skip
    said = tick_answers(ticker.engine.checked, records, [0, 1])
    assert [each.errors for each in said] == [{"wrong type: e(null)"}] * 2


def test_facts_without_lattices_are_handed_to_those_that_carry_some() -> None:
    ticker = ticker_of("p(2) @max(x) := e(x); p(0) @next := e(1);")
    assert run_at(ticker, 0, [1]) == "+1 p(2) @max(1)"
    assert run_at(ticker, 1) == "+1 p(0)"


def test_an_end_that_may_be_infinite_is_handed_on_with_finite_ones() -> None:
    ticker = ticker_of("n(x) := e(_) @expires(x); n(x + 1) @next := n(x) if x < 9;")
    come = {"e": [Record("e", (1,)), Record("e", (2,), None, 5)]}
    said = [ticker.tick(0, come, {}), ticker.tick(1, {}, {})]
    told = [{(str(record.arguments[0]), diff) for record, diff in each.facts} for each in said]
    assert told == [{("inf", 1), ("5", 1)}, {("6", 1)}]


def test_of_a_fact_that_is_kept_nothing_moves() -> None:
    ticker = ticker_of("p(x) @next := e(x); p(x) @next := p(x);")
    for at in range(3):
        run_at(ticker, at, range(1_000) if at == 0 else (), range(1_000) if at == 1 else ())
    moved: list[str] = []
    tell = ticker.engine._tell

    def told(name: str, change: Change, net: bool = False) -> None:
        moved.extend([name] * len(change))
        tell(name, change, net)

    ticker.engine._tell = told  # type: ignore[method-assign]
    assert run_at(ticker, 3, [7_000]) == ""
    assert run_at(ticker, 4) == "+1 p(7000)"
    assert 0 < len(moved) <= 8


def test_what_is_kept_unless_something_else_is_there_moves_only_then() -> None:
    ticker = ticker_of(
        "p(x) @next := p(x); q(x) @next := q(x) ^ not stop(); q(x) := e(x) if x > 4;"
        "p(x) @next := e(x) if x < 4; stop() := e(4);"
    )
    assert run_at(ticker, 0, [1, 5]) == "+1 q(5)"
    assert run_at(ticker, 1, [], [1, 5]) == "+1 p(1)"
    assert run_at(ticker, 2, [4]) == "+1 stop()"
    assert run_at(ticker, 3, [2], [4]) == "-1 q(5) -1 stop()"
    assert run_at(ticker, 4, [], [2]) == "+1 p(2)"


def test_a_tick_costs_nothing_for_rules_that_it_does_not_reach() -> None:
    idle = " ".join(
        f"u{n}(x) := f{n}(x); w{n}(x) @next := u{n}(x); v{n}(x) @expires(9) := w{n}(x);"
        for n in range(40)
    )
    calls = []
    for text in ("p(x) @next := e(x);", f"p(x) @next := e(x); {idle}"):
        names = ["e", *(f"f{n}" for n in range(40))]
        schemas = {name: InputSchema(name, "relation", (("", "int"),)) for name in names}
        ticker = DataflowTicker(check(parse(text), InputSchemas(schemas)))
        for at in range(64):  # a multiple of the steps that are looked at together
            run_at(ticker, at, [at], [at - 1] if at else [])
        counted = Profile(builtins=False)
        counted.runcall(run_at, ticker, 64, [64], [63])
        calls.append(sum(entry.callcount for entry in counted.getstats()))
    assert calls[0] == calls[1]


def test_values_that_no_tick_hands_on_any_more_take_no_memory() -> None:
    """Sets in facts, in what is handed on, in solutions that live on."""
    text = (
        "g(0) @set(x) := e(x); last(x, y) ~set @next := g(0) @set(y) ^ e(x);"
        "h(x, y) @next := last(x, y); kept(y) @expires(x + 100) := last(x, y);"
    )
    ticker = ticker_of(text)
    most = 0
    for at in range(3_000):
        said = run_at(ticker, at, [at], [at - 1] if at else [])
        if at > 200:
            assert f"+1 last({at - 1}, {{{at - 1}}})" in said
            assert f"-1 h({at - 3}, {{{at - 3}}})" in said
        most = max(most, len(ticker.engine.plan.values))
    assert most <= 3_400  # of 6,000; rows go when there are twice as many as live
