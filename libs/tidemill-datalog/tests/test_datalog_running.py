"""When ticks run and what they take in: the scheduler seen from outside (language.md 7.5)."""

from __future__ import annotations

import os
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog.admission import Admission, Batch, Skew
from tidemill.datalog.check import check
from tidemill.datalog.incremental import IncrementalEngine
from tidemill.datalog.incremental.running import TickRunner
from tidemill.datalog.incremental.scheduling import Runnable
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.records import Record, format_record
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, inputs, programs

DIFFERENCE = "c(x) := a(x) ^ not b(x);"
KEPT = DIFFERENCE + "\na(x) @next := a(x);"


class World:
    """A runner, a clock that stands still unless moved, and events that come between strata."""

    def __init__(self, text: str, **admissions: Admission) -> None:
        self.now_ms = 0
        self.meanwhile: dict[int, list[tuple[str, Record]]] = {}
        self.asked = 0
        self.engine = IncrementalEngine(check(parse(text), InputSchemas(closed=False)))
        self.runner = TickRunner(self.engine, lambda: self.now_ms, admissions, self.arrivals)

    def arrivals(self) -> list[tuple[str, Record]]:
        found = self.meanwhile.pop(self.asked, [])
        self.asked += 1
        return found

    def offer(self, name: str, *values: int) -> None:
        self.runner.offer(name, Record(name, values))

    def held(self, name: str) -> set[tuple[object, ...]]:
        return {record.arguments for record in self.engine.records(name)}

    def tick(self) -> None:
        self.asked = 0
        self.runner.run_tick()


def test_the_tick_rises_even_when_there_is_nothing_to_do() -> None:
    world = World(DIFFERENCE)
    world.tick()
    world.tick()
    assert world.runner.current_tick == 2
    assert len(world.runner.run_available()) == 1
    assert world.runner.current_tick == 3


def test_what_is_deferred_justifies_the_next_tick_until_nothing_is() -> None:
    world = World("n(x) := start(x);\nn(x + 1) @next := n(x) if x < 9;")
    world.offer("start", 0)
    seen = []
    for tick in world.runner.run_available():
        seen += [str(c.record) for c in tick.changes.facts if c.diff > 0]
    assert seen == [f"n({i})" for i in range(10)]
    assert world.runner.current_tick == 10


def test_kept_rows_do_not_keep_the_ticks_going() -> None:
    world = World("p(x) := a(x);\np(x) @next := p(x);\nq(x) := r(x) ^ not p(x);")
    world.offer("a", 1)
    assert len(world.runner.run_available(ticks_max=50)) == 2
    assert world.held("p") == {(1,)}


def test_what_is_deferred_for_ever_goes_on_until_it_is_stopped() -> None:
    world = World("a() := start();\nb() @next := a();\na() @next := b() ^ not stop();")
    world.offer("start")
    assert len(world.runner.run_available(ticks_max=7)) == 7
    world.offer("stop")
    assert len(world.runner.run_available(ticks_max=7)) == 1


def test_an_event_behind_a_complete_stratum_waits_for_the_next_tick() -> None:
    world = World(KEPT + "\nd(x) := a(x) ^ not c(x);", b="stratum")
    world.offer("a", 1)
    world.meanwhile[1] = [("b", Record("b", (1,)))]
    seen = []
    for _ in range(3):
        world.tick()
        seen.append((world.held("c"), world.held("d")))
    assert seen == [({(1,)}, set()), (set(), {(1,)}), ({(1,)}, set())]


def test_an_event_before_its_stratum_is_taken_in_at_once_unless_it_has_to_wait() -> None:
    for admission, seen in (("stratum", set()), ("eager", set()), ("tick", {(1,)})):
        world = World(DIFFERENCE, b=admission)  # type: ignore[arg-type]
        world.offer("a", 1)
        world.meanwhile[0] = [("b", Record("b", (1,)))]
        world.tick()
        assert world.held("c") == seen, admission


def test_an_event_for_a_higher_stratum_is_seen_in_the_tick_that_runs() -> None:
    text = "x(v) := a(v);\ny() @count(v) := x(v);\nz(n) := y() @count(n) ^ late(n);"
    world = World(text, late="stratum")
    world.offer("a", 7)
    world.meanwhile[1] = [("late", Record("late", (1,)))]
    world.tick()
    assert world.held("z") == {(1,)}


def test_an_eager_event_wakes_a_tick_and_a_patient_one_does_not() -> None:
    world = World(DIFFERENCE, a="eager")
    world.offer("b", 1)
    assert not world.runner.wants_tick
    world.offer("a", 1)
    assert world.runner.wants_tick
    world.tick()
    assert not world.runner.wants_tick


def test_batches_take_fewer_ticks_and_end_in_the_same_state() -> None:
    keeping = "kept(x) := a(x);\nkept(x) @next := kept(x);"
    ends = []
    for admission, most in ((Batch(100), 23), ("tick", 1_100)):
        world = World(keeping, a=admission)  # type: ignore[arg-type]
        for i in range(1_000):
            world.offer("a", i)
            if admission == "tick" or world.runner.wants_tick:
                world.tick()
        world.runner.run_available(ticks_max=3)
        assert world.runner.current_tick <= most
        ends.append(world.held("kept"))
    assert ends[0] == ends[1] == {(i,) for i in range(1_000)}


def test_a_batch_is_due_when_its_first_event_has_waited_long_enough() -> None:
    world = World(DIFFERENCE, a=Batch(10, wait_ms=50))
    world.offer("a", 1)
    world.now_ms = 49
    assert not world.runner.wants_tick
    world.now_ms = 50
    assert world.runner.wants_tick
    world.tick()
    assert world.held("c") == {(1,)}


def test_an_input_with_skew_is_taken_in_by_the_time_of_its_events() -> None:
    world = World("c(x) @time(t) := a(x) @time(t);", a=Skew(10))
    for x, time in ((1, 5), (2, 14), (3, 16)):
        world.runner.offer("a", Record("a", (x,), time))
    world.tick()
    assert world.held("c") == set()  # 5 is below 16 - 10, but comes to its own time
    assert [len(waiting) for waiting in world.runner._waiting.values()] == [2]


class PriorityScheduler:
    """The other form that the scheduler could have: one heap by (level, number)."""

    eager = False
    between = None

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Runnable]] = []

    def schedule(self, unit: Runnable) -> None:
        if not unit.scheduled:
            unit.scheduled = True
            heappush(self._heap, (unit.level, unit.number, unit))

    def run(self) -> None:
        while self._heap:
            unit = heappop(self._heap)[2]
            unit.run()
            unit.scheduled = False

    def flow(self) -> None:
        """Nothing runs between two changes of one instant."""


@settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "40")),
    deadline=None,
    derandomize="LAW_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(programs(), inputs(), st.integers(0, 99))
def test_a_queue_by_priority_gives_the_same_answers(
    example: Example, given_: object, seed: int
) -> None:
    engines = [IncrementalEngine(example.checked) for _ in range(2)]
    engines[1]._scheduler = PriorityScheduler()  # type: ignore[assignment]
    for engine in engines:
        rng = Random(seed)
        for name, presences in given_.items():  # type: ignore[attr-defined]
            engine.feed(name, rng.sample(presences, len(presences)))
    for at in range(UPPER):
        for engine in engines:
            engine.advance(at + 1)
        one, other = (
            {name: set(map(format_record, engine.records(name))) for name in DERIVED}
            for engine in engines
        )
        assert one == other


@pytest.mark.parametrize("strata", [1, 20])
def test_an_idle_tick_runs_no_unit(strata: int) -> None:
    rules = ["p0(x) := a(x);"]
    rules += [f"p{i}(x) := a(x) ^ not p{i - 1}(x);" for i in range(1, strata)]
    world = World("\n".join(rules))
    world.tick()
    before = [unit.runs for unit in world.engine.units]
    world.tick()
    assert [unit.runs for unit in world.engine.units] == before


def seen_in_ticks(
    text: str, rows: list[dict[str, list[tuple[object, ...]]]], name: str
) -> list[set[tuple[object, ...]]]:
    """What a predicate holds in each tick, one for each set of rows, which last for that tick."""
    world = World(text)
    found = []
    for given_ in rows:
        for predicate, each in given_.items():
            for row in each:
                world.offer(predicate, *row)  # type: ignore[arg-type]
        world.tick()
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
    """S01 to S16 in spirit: S01, S02, S04, S05, S08 above, S09 with the units, S15 with the checks, S16 in the cases."""
    text, rows, expected = SCHEDULED[case]
    assert seen_in_ticks(text, rows, "n") == expected
