"""Presences of the records of an input: as the obvious reading of its changes has them."""

from __future__ import annotations

import gc
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.looks import LOOK
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.directory import Readable
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.errors import BeforeSince, Unavailable
from tidemill.host.questions.histories import (
    Columns,
    Histories,
    Move,
    Stretch,
    holding,
    presences_of,
)
from tidemill.host.questions.limits import QuestionLimits
from tidemill.host.questions.working import Workers
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier

MANY = 50_000


def record(number: int) -> Record:
    return Record("p", (number,), time=None if number % 2 else 3)


def twin(stretch: Stretch) -> list[Presence]:
    """Each record with the instant at which it came, until it goes."""
    came: dict[Record, float] = {}
    for each in stretch.present:
        came[each] = -math.inf if stretch.begins == 0 and each.time is None else stretch.begins
    ended: list[Presence] = []
    for each, at, diff in stretch.moves:
        if diff > 0:
            came[each] = at
        else:
            ended.append(Presence(each, came.pop(each), at))
    return ended + [Presence(each, at, math.inf) for each, at in came.items()]


@given(
    begins=st.sampled_from([0, 5]),
    there=st.sets(st.integers(0, 5)),
    turned=st.lists(st.integers(0, 5), max_size=12),
)
def test_presences_are_those_of_the_twin_in_its_order(
    begins: int, there: set[int], turned: list[int]
) -> None:
    now, moves = set(there), list[Move]()
    for at, number in enumerate(turned, begins + 1):
        moves.append((record(number), at, -1 if number in now else 1))
        now ^= {number}
    moving = {each for each, _, _ in moves}
    stretch = Stretch(begins, [record(number) for number in sorted(there)], moves, moving)
    assert stretch.presences() == twin(stretch)


def table(numbers: Iterable[int], diff: int = 1) -> pa.Table:
    """Rows of a collection, each at the instant that is its number."""
    rows = list(numbers)
    return pa.table({"n": rows, TIME: rows, DIFF: [diff] * len(rows)})


READABLE = Readable(
    "c", "p", (("n", "int"),), 1, lambda rows: [record(n) for n in rows["n"].to_pylist()]
)


def read(present: pa.Table, news: pa.Table) -> list[Presence]:
    return Columns(READABLE, 0, present, news).presences(Allowance())


@given(
    there=st.dictionaries(st.integers(0, 5), st.sampled_from([-1, 1, 2])),
    twice=st.sets(st.integers(0, 5)),
)
def test_a_row_there_twice_is_there_once_and_one_taken_away_is_not(
    there: dict[int, int], twice: set[int]
) -> None:
    counts = Counter(there)
    counts.update(twice)
    rows = [*there, *twice]
    diffs = [*there.values(), *(1 for _ in twice)]
    present = pa.table({"n": pa.array(rows, pa.int64()), TIME: [0] * len(rows), DIFF: diffs})
    found = read(present, table([]))
    assert {each.record for each in found} == {record(n) for n, c in counts.items() if c > 0}
    assert len(found) == len({each.record for each in found})


def sizes_of_young(work: Callable[[], object]) -> list[int]:
    """The size of the largest container that is young, at each look."""
    sizes: list[int] = []

    def look() -> None:
        young = [*gc.get_objects(generation=0), *gc.get_objects(generation=1)]
        sizes.append(max(len(each) for each in young if type(each) in (dict, list, set, Counter)))

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000, 2, 7_000)  # of a server
    token = LOOK.set(look)
    try:
        work()
    finally:
        LOOK.reset(token)
        gc.set_threshold(*thresholds)
    return sizes


@pytest.mark.parametrize("moved", [False, True])
def test_a3_the_collector_of_garbage_finds_no_large_container_that_is_young(moved: bool) -> None:
    """It goes through a young one as a whole, twice: 8 ms for a dict of 200,000 records."""
    many, none = table(range(MANY)), table([])
    sizes = sizes_of_young(lambda: read(none, many) if moved else read(many, none))
    assert len(sizes) > MANY / 1_000
    assert max(sizes) < MANY / 5


@pytest.mark.parametrize("looks", [3, 150, 300])
def test_a3_work_that_is_called_off_leaves_nothing_to_the_error(looks: int) -> None:
    """The event loop would free at once all that an error holds."""
    left = iter(range(looks))

    def look() -> None:
        if next(left, None) is None:
            raise Unavailable("called off")

    token = LOOK.set(look)
    try:
        with pytest.raises(Unavailable) as told:
            read(table(range(MANY)), table(range(0, MANY, 2), -1))
    finally:
        LOOK.reset(token)
    held = [each for entry in told.traceback for each in entry.frame.f_locals.values()]
    stretches = [each for each in held if isinstance(each, Stretch)]
    held += [part for each in stretches for part in (each.present, each.moves, each.moving)]
    assert max(len(each) for each in held if isinstance(each, list | dict | set)) < 1_000


def test_a3_presences_are_freed_where_they_were_made_however_the_question_ends() -> None:
    """On the event loop it takes 20 ms to free 200,000 presences."""
    columns = Columns(READABLE, 0, table(range(MANY)), table([]))
    held: list[list[Presence]] = []

    def question() -> None:
        with presences_of({"p": columns}, Allowance()) as found:
            held.append(found["p"])
            assert len(found["p"]) == MANY
            raise Unavailable("given up")

    with pytest.raises(Unavailable):
        question()
    assert held == [[]]


def test_a3_a_question_that_waits_for_its_turn_holds_nothing_for_the_collector() -> None:
    """It goes through all that eight questions hold in one go: 83 ms for one of 200,000 rows."""
    rows = table(range(MANY))
    gc.collect()
    before = len(gc.get_objects())
    waiting = [Columns(READABLE, 0, rows, rows) for _ in range(8)]
    assert len(gc.get_objects()) - before < MANY / 100
    assert len(waiting[0].presences(Allowance())) == MANY


async def test_an_instant_before_the_history_of_an_input_says_since_as_every_question_does() -> (
    None
):
    ids = map(str, itertools.count())
    collections = Collections(MemoryConsensus(), MemoryBlob(), ManualClock(0), ids.__next__)
    schema = pa.schema([("n", pa.int64())])
    held, _ = await collections.create("c", Description(schema, retain_ms=30))
    await collections.drop(held)
    rows = pa.table({"n": [1], TIME: pa.array([10], pa.uint64()), DIFF: [1]})
    await collections.compare_and_append("c", frontier(0), frontier(100), rows, writer="w")
    hold = holding(collections, 60_000)
    histories = Histories(collections, hold, Workers(QuestionLimits()))
    with pytest.raises(BeforeSince) as early:
        await histories.read({"p": READABLE}, 0, 20, {}, Allowance())
    assert early.value.details["since"] == frontier(70)
    assert early.value.details["requested"] == 20
