"""When ticks run and what they take in: the scheduler seen from outside (language.md 7.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from random import Random

import numpy as np
import pytest
from hypothesis import given

from tidemill.arrangement.interval_updates import Change
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, missing_in
from tidemill.datalog.dataflow.scheduler import NOTHING, ByStrata
from tidemill.datalog.dataflow.ticker import DataflowTicker
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import NO_RULE, decode_fields
from tidemill.datalog.tick_plan import Admission, Batch, Skew, TickPlan
from tidemill.datalog.tick_state import Handed
from tidemill.datalog.ticking import TickRun, TickStart
from tidemill.datalog.ticking.admitting import HELD
from tidemill.datalog.ticking.run import RAN
from tidemill.errors import Corrupt
from tidemill.testkit.drawing import drawn
from tidemill.testkit.tidelog import UPPER, Example, inputs, programs

PERIOD = 10
DIFFERENCE = "c(x) := a(x) ^ not b(x);\nx() @next := c(_);"
Row = tuple[object, ...]


class World:
    """A program at one node, and the ticks that have run of it."""

    def __init__(
        self, text: str, period: int | None = PERIOD, number: str | None = None,
        returns_max: int = 100, **admissions: Admission,
    ) -> None:  # fmt: skip
        self.program = check(parse(text), InputSchemas(closed=False))
        plan = TickPlan(period, admission=admissions, number=number)
        names = self.program.inputs.keys() - set(self.program.derived) - {number}
        start = TickStart(0, True, dict.fromkeys(names, ()))
        self.run = TickRun(plan, names, self._made, start, lambda *_: None, returns_max)
        self.ran: list[int] = []
        self.facts: Counter[Record] = Counter()
        self.come: dict[str, list[tuple[Record, int, int]]] = {}

    def _made(self, number: int, handed: Handed) -> DataflowTicker:
        self.ticker = DataflowTicker(self.program, handed=handed)
        return self.ticker

    def offer(self, at: int, name: str, *values: object, until: int | None = None) -> None:
        """A row comes at an instant; it goes at the next one, or when it is said."""
        record, gone = Record(name, values), at + 1 if until is None else until
        self.come.setdefault(name, []).extend([(record, at, 1), (record, gone, -1)])

    def go_on(self, upper: int) -> None:
        """Everything below an instant happens."""
        taken = {n: [e for e in each if e[1] < upper] for n, each in self.come.items()}
        self.come = {n: [e for e in each if e[1] >= upper] for n, each in self.come.items()}
        self.run.take({n: sorted(each, key=lambda e: e[1]) for n, each in taken.items()})
        while (at := min(self.run.next_arrival(), self.run.next_tick())) < upper:
            if self.run.next_arrival() <= at:
                self.run.arrive(int(at))
                continue
            for each in self.run.tick(int(at)):
                self.ran.append(each.at)
                self.facts.update(dict(each.answer.facts))

    def held(self, name: str) -> set[Row]:
        return {record.arguments for record in +self.facts if record.predicate == name}


def test_the_number_of_a_tick_rises_even_when_there_is_nothing_to_do() -> None:
    world = World("seen(n) := now(n);\nx() @next := seen(_);", number="now")
    for number in range(4):
        world.go_on(PERIOD * number + 1)
        assert world.held("seen") == {(number,)}


@pytest.mark.parametrize(
    ("period", "admission", "kept"),
    [(PERIOD, "tick", 0), (PERIOD, "eager", 0), (PERIOD, "stratum", 1), (None, "tick", 1)],
)
def test_keys_of_facts_are_kept_only_where_a_tick_needs_a_reason(
    period: int | None, admission: Admission, kept: int
) -> None:
    world = World(DIFFERENCE, period=period, b=admission)
    for at in range(3, 6):
        world.offer(at, "b", at, until=7)
    world.go_on(2 * PERIOD)
    assert len(world.run.nodes[0].present) == 0, "facts that have gone are kept"
    world.offer(2 * PERIOD + 3, "b", 1, until=100 * PERIOD)
    world.go_on(4 * PERIOD)
    assert len(world.run.nodes[0].present) == kept


def test_what_is_deferred_justifies_the_next_tick_until_nothing_is() -> None:
    world = World("n(x) := start(x);\nn(x + 1) @next := n(x) if x < 9;", period=None)
    world.offer(5, "start", 0)
    for number in range(10):
        world.go_on(5 + number + 1)
        assert world.held("n") == {(number,)}
    world.go_on(1_000)
    assert world.ran == list(range(5, 16))  # the last one says that nothing is there any more


def test_kept_rows_do_not_keep_the_ticks_going() -> None:
    text = "p(x) := a(x);\np(x) @next := p(x);\nq(x) := r(x) ^ not p(x);"
    world = World(text, period=None)
    world.offer(5, "a", 1)
    world.go_on(1_000)
    assert world.ran == [5, 6]
    assert world.held("p") == {(1,)}


def test_what_is_deferred_for_ever_goes_on_until_it_is_stopped() -> None:
    text = "a() := start();\nb() @next := a();\na() @next := b() ^ not stop();"
    world = World(text, period=None, returns_max=20)
    world.offer(5, "start")
    world.offer(12, "stop", until=20)
    world.go_on(1_000)
    assert world.ran == [*range(5, 14), 20]
    world.offer(2_000, "start")
    with pytest.raises(LimitPassed, match="no rest after 20 ticks that nothing but @next"):
        world.go_on(3_000)


def test_an_event_behind_a_complete_stratum_waits_for_the_next_tick() -> None:
    text = "c(x) := a(x) ^ not b(x);\nd(x) := a(x) ^ not c(x);\nx() @next := c(_);"
    world = World(text, b="tick")  # what `stratum` is where a row may contradict: see the catalog
    world.offer(10, "a", 1, until=100)
    world.offer(13, "b", 1, until=23)
    seen = []
    for upper in (11, 20, 21, 31):
        world.go_on(upper)
        seen.append((world.held("c"), world.held("d")))
    assert seen == [({(1,)}, set()), ({(1,)}, set()), (set(), {(1,)}), ({(1,)}, set())]


def test_an_event_that_comes_before_its_stratum_ends_is_taken_in() -> None:
    world = World(DIFFERENCE, b="stratum")
    world.offer(10, "a", 1, until=100)
    world.offer(10, "b", 1, until=100)
    world.go_on(100)
    assert world.held("c") == set()


def test_an_event_for_a_higher_stratum_is_seen_in_the_tick_that_runs() -> None:
    text = (
        "x(v) := a(v);\ny() @count(v) := x(v);\nz(n) := y() @count(n) ^ late(n);"
        "\nw(n) @next := z(n);"
    )
    seen = {}
    for admission in ("stratum", "tick"):
        world = World(text, late=admission)  # type: ignore[arg-type]
        world.offer(10, "a", 7, until=100)
        world.offer(14, "late", 1, until=100)
        seen[admission] = []
        for upper in (14, 15, 20, 21):
            world.go_on(upper)
            seen[admission].append((world.held("z"), world.held("w")))
    there = {(1,)}
    assert seen["stratum"] == [(set(), set()), (there, set()), (there, set()), (there, there)]
    assert seen["tick"] == [(set(), set()), (set(), set()), (set(), set()), (there, set())]


def test_a_tick_on_change_goes_on_where_only_more_is_said() -> None:
    text = "z(n) := late(n);\nw(n) @next := z(n);\nseen(n) := now(n);\nx() @next := go();"
    world = World(text, period=None, number="now", late="stratum")
    world.offer(10, "go", until=100)
    world.go_on(40)
    number = world.held("seen")
    world.offer(50, "late", 3, until=90)
    world.go_on(51)
    assert world.held("z") == {(3,)}
    assert world.held("seen") == number
    world.go_on(52)
    assert world.held("w") == {(3,)}


def test_an_eager_event_wakes_a_tick_and_a_patient_one_does_not() -> None:
    world = World(DIFFERENCE, a="eager")
    world.go_on(11)
    ran = len(world.ran)
    world.offer(12, "b", 1, until=100)
    world.offer(13, "a", 1, until=100)
    world.go_on(13)
    assert len(world.ran) == ran
    world.go_on(14)
    assert world.ran[ran:] == [13]


def test_batches_take_fewer_ticks_and_end_in_the_same_state() -> None:
    keeping = "kept(x) := a(x);\nkept(x) @next := kept(x);"
    admissions: list[tuple[Admission, int]] = [(Batch(100), 42), ("tick", 1_002)]
    ends = []
    for admission, most in admissions:
        world = World(keeping, period=1, a=admission)
        for i in range(1_000):
            world.offer(1 + i, "a", i, until=5_000)
        world.go_on(2_000)
        assert len(world.ran) <= most
        ends.append(world.held("kept"))
    assert ends[0] == ends[1] == {(i,) for i in range(1_000)}


def test_a_batch_is_due_when_its_first_event_has_waited_long_enough() -> None:
    world = World(DIFFERENCE, period=1, a=Batch(10, wait_ms=50))
    world.offer(3, "a", 1, until=100)
    world.go_on(53)
    assert world.held("c") == set()
    world.go_on(54)
    assert world.held("c") == {(1,)}


def test_an_input_with_skew_is_taken_in_by_the_time_of_its_events() -> None:
    text = "c(x) @time(t) := a(x) @time(t);\nx() @next := c(_);"
    world = World(text, period=None, a=Skew(10))
    events = [(Record("a", (x,), time), time, 1) for x, time in ((1, 5), (2, 14), (3, 16))]
    world.run.take({"a": events})
    world.go_on(16)
    assert world.held("c") == set()
    world.go_on(17)
    assert world.held("c") == {(1,)}
    waiting = [decode_fields(row[2]) for row in world.run.own_rows() if row[1] == HELD]
    assert sum(diff for _, _, _, diff, *_ in waiting) == 2


class ByHeap:
    """The other form that the queue could have: one heap by (rank, number)."""

    def __init__(self, ranks: Mapping[str, int]) -> None:
        self._ranks = ranks
        self._heap: list[tuple[int, int, str, Change]] = []
        self._number = 0

    def put(self, collection: str, change: Change) -> None:
        self._number += 1
        heappush(self._heap, (self._ranks[collection], self._number, collection, change))

    def wake(self, collection: str) -> None:
        self.put(collection, NOTHING)

    def take(self) -> tuple[str, Change] | None:
        return heappop(self._heap)[2:] if self._heap else None


def fits(checked: CheckedProgram) -> bool:
    """Whether the dataflow evaluates all of a program."""
    return missing_in(checked) is None


@drawn(40)
@given(programs(fits=fits), inputs())
def test_a_queue_by_priority_gives_the_same_answers(
    example: Example, given_: Mapping[str, Sequence[Presence]]
) -> None:
    engines = [DataflowEngine(example.checked, carrying=given_) for _ in range(2)]
    ranks = {name: each.rank for name, each in engines[1].plan.collections.items()}
    waiting, engines[1]._pending = engines[1]._pending, ByHeap(ranks)
    while (found := waiting.take()) is not None:
        engines[1]._pending.put(*found)
    for engine in engines:
        for name, presences in given_.items():
            engine.feed_presences(name, Random(7).sample(presences, len(presences)))
    for at in range(UPPER):
        one, other = (
            {name: sorted(map(str, told.records())) for name, told in engine.step(at + 1).items()}
            for engine in engines
        )
        assert one == other


def test_the_smallest_of_the_inputs_that_follow_each_other_is_taken_first() -> None:
    ranks = {"a": 0, "b": 1, "c": 2, "derived": 3, "d": 4}
    pending = ByStrata(ranks, {"a", "b", "c", "d"})
    for name, rows in (("d", 1), ("derived", 1), ("b", 2), ("a", 9), ("c", 2), ("b", 3)):
        pending.put(name, np.zeros((rows, 4), np.int64))
    taken = [pending.take() for _ in range(5)]
    assert [(found[0], len(found[1])) for found in taken if found is not None] == [
        ("c", 2), ("b", 5), ("a", 9), ("derived", 1), ("d", 1),
    ]  # fmt: skip
    assert pending.take() is None


@pytest.mark.parametrize("strata", [1, 20])
def test_an_idle_tick_takes_nothing_in(strata: int) -> None:
    rules = ["p0(x) := a(x);", "x() @next := p0(_);"]
    rules += [f"p{i}(x) := a(x) ^ not p{i - 1}(x);" for i in range(1, strata)]
    ticker = World("\n".join(rules)).ticker
    ticker.tick(0, {}, {})
    taken: list[str] = []
    take = ticker.engine._take

    def counted(collection: str, change: Change) -> None:
        taken.append(collection)
        take(collection, change)

    ticker.engine._take = counted  # type: ignore[method-assign]
    assert ticker.tick(1, {}, {}).facts == []
    assert taken == []
    ticker.tick(2, {"a": [Record("a", (1,))]}, {})
    assert "p0" in taken


def seen_in_ticks(
    text: str, rows: list[dict[str, list[tuple[object, ...]]]], name: str
) -> list[set[Row]]:
    """Facts of a predicate in each tick, one for each set of rows, which last for that tick."""
    world, found = World(text), []
    for number, given_ in enumerate(rows):
        for predicate, each in given_.items():
            for row in dict.fromkeys(each):
                world.offer(PERIOD * number, predicate, *row)
        world.go_on(PERIOD * number + 1)
        found.append(world.held(name))
    return found


SCHEDULED = {
    "S03 a loop over ticks yields a row in each": (
        "n(0) := go();\nn(x + 1) @next := n(x) if x < 4;",
        [{"go": [()]}, {}, {}, {}, {}, {}],
        [{(0,)}, {(1,)}, {(2,)}, {(3,)}, {(4,)}, set()],
    ),
    "S06 a doubling loop goes one tick at a time": (
        "n(x) := r(x);\nn(x * 2) @next := n(x) if x < 99;",
        [{"r": [(1,), (3,)]}, {}, {}, {}],
        [{(1,), (3,)}, {(2,), (6,)}, {(4,), (12,)}, {(8,), (24,)}],
    ),
    "S07 a kept sum goes on from what was kept": (
        "k(x) := r(x);\nk(x) @next := k(x);\nn(s) := sum() @sum(s);\nsum() @sum(x) := k(x);",
        [{}, {"r": [(1,)]}, {}, {"r": [(2,)]}, {}],
        [set(), {(1,)}, {(1,)}, {(3,)}, {(3,)}],
    ),
    "S10 what is counted in a tick is gone in the next": (
        "n(c) := all() @count(c);\nall() @count(x) := r(x);",
        [{"r": [(7,)]}, {}, {}],
        [{(1,)}, set(), set()],
    ),
    "S11 a row that is kept twice is one row": (
        "a(x) := r(x);\na(x) @next := a(x);\nb(x) := a(x);\nb(x) @next := b(x);\n"
        "n(c) := all() @count(c);\nall() @count(x) := b(x);",
        [{"r": [(5,)]}, {"r": [(5,)]}, {}, {}],
        [{(1,)}] * 4,
    ),
    "S12 the difference to the tick before is that of sets": (
        "n(x) := r(x) ^ not was(x);\nwas(x) @next := r(x);",
        [{"r": [(3,), (4,), (3,)]}, {"r": [(3,), (5,), (3,), (3,)]}],
        [{(3,), (4,)}, {(5,)}],
    ),
    "S13 what goes round comes exactly one tick later, whoever is first in the text": (
        "n(x) := back(x);\nback(x) @next := sent(x);\nsent(x) := r(x);",
        [{"r": [(1,)]}, {"r": [(2,)]}, {}],
        [set(), {(1,)}, {(2,)}],
    ),
    "S14 an extreme is read when it is final for the tick": (
        "n(x) := r(x) ^ top() @max(x);\ntop() @max(x) := all(x);\nall(x) := r(x);\nall(x) := s(x);",
        [{"r": [(1,), (4,)]}, {"r": [(1,)], "s": [(1,)]}, {"r": [(1,)], "s": [(2,)]}],
        [{(4,)}, {(1,)}, set()],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SCHEDULED)
def test_ticks_hold_what_the_cases_of_schedulers_ask_for(case: str) -> None:
    """S01 to S16 in spirit: five above, S09 with the units, S15 with the checks, S16 in cases."""
    text, rows, expected = SCHEDULED[case]
    assert seen_in_ticks(text, rows, "n") == expected


def test_a_kind_of_state_that_is_not_known_is_refused() -> None:
    """A newer version has written it; without it the ticks would say something else."""
    program = check(parse(DIFFERENCE), InputSchemas(closed=False))
    for kind in (RAN, f"{RAN}/2"):
        start = TickStart(1, False, {"a": (), "b": ()}, [(NO_RULE, kind, "0")])
        begin = partial(
            TickRun, TickPlan(PERIOD), ["a", "b"],
            lambda _, handed: DataflowTicker(program, handed=handed), start, lambda *_: None,
        )  # fmt: skip
        if kind == RAN:
            begin()
            continue
        with pytest.raises(Corrupt, match="ran/2"):
            begin()


@pytest.mark.parametrize(
    "text",
    [
        '[{"tally":"median","members":[["a",1]]}]', '[{"tally":"sum","facts":[["a",1]]}]',
        '[{"tally":"sum","members":[["a",1]],"of":1}]', '[{"set":[1],"of":1}]', '[{"wider":"1"}]',
    ],
)  # fmt: skip
def test_a_text_of_state_with_a_tag_that_is_not_known_is_refused(text: str) -> None:
    """Of a tally whose kind was not known, the average was taken."""
    assert decode_fields('[{"tally":"sum","members":[["a",1]]}]')[0].value == 1
    with pytest.raises(Corrupt):
        decode_fields(text)
