"""Laws of traces: what they answer, how few batches they keep, how little each insert reads."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.trace import (
    Description,
    ImportedTrace,
    SharedTrace,
    Spine,
    TableBatch,
)
from tidemill.arrangement.updates import DIFF, accumulate, concatenate, update_schema
from tidemill.errors import BeforeSince, NotYet, UsageError
from tidemill.testkit.generators import small_times
from tidemill.testkit.partial_orders import RowBatch, read_at, updates_of
from tidemill.testkit.partial_orders.update_sets import advance_updates
from tidemill.testkit.twins.traces import TraceTwin
from tidemill.time import U64_TIME, Antichain, Lattice, ProductOrder, frontier

DIFFS = st.sampled_from([1, 2, -1])
LATTICES: list[Any] = [U64_TIME, ProductOrder(2), ProductOrder(3)]

lattices = st.sampled_from(LATTICES)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Any, list[tuple[Any, Any, list[Any]]]]:
    """A lattice and consecutive intervals, each with updates that lie within it."""
    lattice = draw(lattices)
    times = small_times(lattice, 3)
    lower = Antichain.minimum(lattice)
    rounds = []
    for _ in range(draw(st.integers(1, 6))):
        upper = lower.join(
            Antichain.of(lattice, draw(st.lists(times, min_size=1, max_size=3))), lattice
        )
        if upper == lower:
            continue
        listed = st.lists(
            st.tuples(st.sampled_from("abc"), times, st.sampled_from([1, 2, -1])), max_size=6
        )
        inside = [u for u in draw(listed) if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
        rounds.append((lower, upper, inside))
        lower = upper
    return lattice, rounds


def all_times(lattice: Any) -> list[Any]:
    if lattice is U64_TIME:
        return list(range(7))
    return list(product(range(4), repeat=lattice.lanes))


@pytest.mark.rule("A1")
@settings(max_examples=50, deadline=None)
@given(schedules(), st.data())
def test_compaction_changes_no_accumulation_beyond_the_logical_frontier(
    schedule: Any, data: st.DataObject
) -> None:
    lattice, rounds = schedule
    spine: Spine[Any, RowBatch[str, Any]] = Spine(lattice)
    twin: TraceTwin[str, Any] = TraceTwin(lattice)
    for lower, upper, updates in rounds:
        spine.insert(RowBatch.of(lattice, lower, upper, updates))
        twin.insert(updates)
        if data.draw(st.booleans()):
            spine.set_physical(upper)
        if data.draw(st.booleans()):
            to = st.lists(small_times(lattice, 3), min_size=1, max_size=2)
            logical = spine.logical.join(Antichain.of(lattice, data.draw(to)), lattice)
            spine.set_logical(logical)
        for _ in range(data.draw(st.integers(0, 3))):
            spine.exert()
        for at in all_times(lattice):
            if not spine.logical.less_equal(at):
                with pytest.raises(BeforeSince):
                    read_at(spine, at)
            elif spine.upper.less_equal(at):
                with pytest.raises(NotYet):
                    read_at(spine, at)
            else:
                assert read_at(spine, at) == twin.read(at)


@pytest.mark.rule("A2")
@settings(max_examples=50, deadline=None)
@given(schedules(), st.data())
def test_a_cut_holds_exactly_the_updates_before_it(schedule: Any, data: st.DataObject) -> None:
    lattice, rounds = schedule
    spine: Spine[Any, RowBatch[str, Any]] = Spine(lattice)
    twin: TraceTwin[str, Any] = TraceTwin(lattice)
    uppers = []
    for lower, upper, updates in rounds:
        spine.insert(RowBatch.of(lattice, lower, upper, updates))
        twin.insert(updates)
        uppers.append(upper)
        spine.set_physical(spine.physical.join(data.draw(st.sampled_from(uppers)), lattice))
    spine.settle()
    for upper in [*uppers, Antichain(lattice)]:
        if spine.physical.precedes(upper):
            found = advance_updates(updates_of(spine.through(upper)), spine.logical, lattice)
            assert set(found) == set(advance_updates(twin.through(upper), spine.logical, lattice))
        else:
            with pytest.raises(UsageError):
                spine.through(upper)


@pytest.mark.rule("A2")
def test_batches_stay_apart_until_the_physical_frontier_has_passed_them() -> None:
    spine: Spine[int, RowBatch[str, int]] = Spine(U64_TIME)
    rows = [("abc"[at % 3], at, 1) for at in range(6)]
    for at, row in enumerate(rows):
        spine.insert(RowBatch.of(U64_TIME, frontier(at), frontier(at + 1), [row]))
    for passed in (0, 4):
        if passed:
            spine.set_physical(frontier(passed))
        spine.settle()
        for cut in range(1, 7):
            if cut < passed:
                with pytest.raises(UsageError):
                    spine.through(frontier(cut))
            else:
                assert sorted(updates_of(spine.through(frontier(cut)))) == sorted(rows[:cut])
    assert [len(batch) for batch in spine.batches()] == [4, 1, 1]


@pytest.mark.rule("A3")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=80), st.sampled_from([1, 4, 1000]))
def test_batches_stay_logarithmic_and_fuel_bounds_what_an_insert_reads(
    sizes: list[int], effort: int
) -> None:
    spine: Spine[int, RowBatch[int, int]] = Spine(U64_TIME, effort)
    rows = 0
    for at, size in enumerate(sizes):
        before = spine.rows_read
        updates = [(rows + i, at, 1) for i in range(size)]
        spine.insert(RowBatch.of(U64_TIME, frontier(at), frontier(at + 1), updates))
        spine.set_physical(frontier(at + 1))
        rows += size
        layers = max(rows, 2).bit_length() + 2
        assert len(spine.batches()) <= 2 * layers
        # Each layer gets 8 rows of fuel for each charged row, and what rolls up was charged before.
        assert spine.rows_read - before <= 10 * effort * max(2 * size, 1) * layers
        touching = [batch.description for batch in spine.batches()]
        assert touching[0].lower == frontier(0)
        assert all(a.upper == b.lower for a, b in pairwise(touching))
    spine.settle()
    assert sum(1 for batch in spine.batches() if len(batch)) <= 1
    assert sum(len(batch) for batch in spine.batches()) == rows


@pytest.mark.rule("A3")
def test_an_insert_of_one_row_reads_a_small_part_of_a_large_merge() -> None:
    spine: Spine[int, RowBatch[int, int]] = Spine(U64_TIME)
    rows = 2_048
    reads = []
    for at in range(rows):
        before = spine.rows_read
        spine.insert(RowBatch.of(U64_TIME, frontier(at), frontier(at + 1), [(at, at, 1)]))
        spine.set_physical(frontier(at + 1))
        reads.append(spine.rows_read - before)
    bound = 20 * (rows.bit_length() + 2)
    assert max(reads) <= bound
    # Merges are larger than the share of one insert: without fuel one would be read at once.
    assert max(len(batch) for batch in spine.batches()) > 2 * bound


@pytest.mark.rule("A4")
def test_a_clone_holds_what_its_original_holds_and_not_what_the_trace_does() -> None:
    shared: SharedTrace[int, RowBatch[str, int]] = SharedTrace(Spine(U64_TIME))
    original, other = shared.hold("original"), shared.hold("other")
    shared.insert(RowBatch.of(U64_TIME, frontier(0), frontier(9), [("a", 3, 1)]))
    original.set_logical(frontier(5))
    original.set_physical(frontier(9))
    clone = original.clone("clone")
    assert (clone.logical, clone.physical) == (frontier(5), frontier(9))
    original.drop()
    other.drop()
    assert (shared.logical, shared.physical) == (frontier(5), frontier(9))


def test_a_merge_stops_inside_the_history_of_one_record_and_goes_on() -> None:
    a = RowBatch.of(U64_TIME, frontier(0), frontier(50), [("k", i, 1) for i in range(50)])
    b = RowBatch.of(U64_TIME, frontier(50), frontier(99), [("k", i, -1) for i in range(50, 99)])
    merger = a.begin_merge(b, frontier(98))
    steps = 0
    while not merger.complete:
        assert merger.work(7) <= 7
        steps += 1
    assert steps == -(-99 // 7)
    assert list(merger.outcome()) == [("k", 98, 1)]


def test_an_unfinished_merge_has_no_outcome() -> None:
    a = RowBatch.of(U64_TIME, frontier(0), frontier(1), [("k", 0, 1)])
    b = RowBatch.of(U64_TIME, frontier(1), frontier(2), [("k", 1, 1)])
    with pytest.raises(UsageError):
        a.begin_merge(b, frontier(0)).outcome()
    with pytest.raises(UsageError):
        b.begin_merge(a, frontier(0))
    with pytest.raises(UsageError):
        a.merge_empty(b, frontier(0))


def test_a_description_starts_somewhere_and_does_not_end_before() -> None:
    with pytest.raises(UsageError):
        Description(frontier(), frontier(), frontier(0))
    with pytest.raises(UsageError):
        Description(frontier(2), frontier(1), frontier(0))


@pytest.mark.rule("A5")
def test_every_holder_sees_its_own_history_whatever_the_others_release() -> None:
    spine: Spine[int, RowBatch[str, int]] = Spine(U64_TIME)
    shared: SharedTrace[int, RowBatch[str, int]] = SharedTrace(spine)
    early, late = shared.hold("early"), shared.hold("late")
    for i in range(20):
        shared.insert(RowBatch.of(U64_TIME, frontier(i), frontier(i + 1), [("d", i, 1)]))
        late.set_logical(frontier(i))
        late.set_physical(frontier(i + 1))
    early.set_logical(frontier(3))
    early.set_physical(frontier(5))
    while shared.exert():
        pass
    assert sorted(updates_of(early.through(frontier(7)))) == [
        ("d", 3, 4),
        ("d", 4, 1),
        ("d", 5, 1),
        ("d", 6, 1),
    ]
    with pytest.raises(UsageError):
        late.through(frontier(7))
    status = shared.status()
    assert (status.logical, status.physical, status.upper) == (
        frontier(3),
        frontier(5),
        frontier(20),
    )
    assert [holder.name for holder in status.holders] == ["early", "late"]
    assert status.updates == sum(len(batch) for batch in early.history())
    early.set_logical(frontier(20))
    early.set_physical(frontier(20))
    while shared.exert():
        pass
    assert updates_of(late.through(frontier(20))) == [("d", 19, 20)]
    early.drop()
    early.drop()
    assert shared.physical == frontier(20)
    with pytest.raises(UsageError):
        early.through(frontier(20))
    with late:
        assert shared.status().batches <= 2
    assert (shared.logical, shared.physical) == (frontier(), frontier())
    with pytest.raises(UsageError):
        shared.hold("after")


def test_without_handles_only_the_upper_moves_on() -> None:
    spine: Spine[int, RowBatch[str, int]] = Spine(U64_TIME)
    shared: SharedTrace[int, RowBatch[str, int]] = SharedTrace(spine)
    shared.hold("only").drop()
    shared.insert(RowBatch.of(U64_TIME, frontier(0), frontier(1), [("d", 0, 1)]))
    assert shared.upper == frontier(1)
    assert shared.status().updates == 0
    with pytest.raises(UsageError):
        shared.insert(RowBatch.of(U64_TIME, frontier(0), frontier(1), []))


@pytest.mark.rule("A6")
@settings(max_examples=50, deadline=None)
@given(schedules(), st.data())
def test_an_import_gives_each_update_once_at_its_advanced_time(
    schedule: Any, data: st.DataObject
) -> None:
    lattice, rounds = schedule
    listed = st.lists(small_times(lattice, 3), min_size=1, max_size=2)
    since = Antichain.of(lattice, data.draw(listed))
    until = Antichain.of(lattice, data.draw(st.lists(small_times(lattice, 3), max_size=2)))
    started = data.draw(st.integers(0, len(rounds)))
    spine: Spine[Any, RowBatch[str, Any]] = Spine(lattice)
    shared: SharedTrace[Any, RowBatch[str, Any]] = SharedTrace(spine)
    source = shared.hold("source")
    imported = None
    found: list[Any] = []
    everything: list[Any] = []
    for i, (lower, upper, updates) in enumerate(rounds):
        if i == started:
            imported = ImportedTrace(source, "import", since, until)
        shared.insert(RowBatch.of(lattice, lower, upper, updates))
        everything += updates
        source.set_physical(upper)
        shared.exert()
        if imported is not None:
            found += updates_of(imported.step())
    if imported is not None:
        wanted = advance_updates(everything, since, lattice)
        visible = {u for u in wanted if not until.less_equal(u[1])}
        got = set(advance_updates(found, since, lattice))
        assert got == visible
        assert imported.frontier.empty == until.precedes(shared.upper)


def test_an_import_ends_at_until_and_holds_nothing_then() -> None:
    spine: Spine[int, RowBatch[str, int]] = Spine(U64_TIME)
    shared: SharedTrace[int, RowBatch[str, int]] = SharedTrace(spine)
    source = shared.hold("source")
    shared.insert(RowBatch.of(U64_TIME, frontier(0), frontier(3), [("a", 0, 1), ("b", 2, 1)]))
    imported = ImportedTrace(source, "import", frontier(1), frontier(4))
    assert updates_of(imported.step()) == [("a", 1, 1), ("b", 2, 1)]
    assert imported.step() == []
    shared.insert(RowBatch.of(U64_TIME, frontier(3), frontier(6), [("c", 3, 1), ("d", 4, 1)]))
    assert updates_of(imported.step()) == [("c", 3, 1)]
    assert imported.frontier == frontier()
    assert [holder.name for holder in shared.status().holders] == ["source"]
    source.set_logical(frontier(5))
    with pytest.raises(BeforeSince):
        ImportedTrace(source, "late", frontier(4))


def test_the_traces_of_lattices_are_generic() -> None:
    lattice: Lattice[tuple[int, ...]] = ProductOrder(4)
    spine: Spine[tuple[int, ...], RowBatch[str, tuple[int, ...]]] = Spine(lattice)
    upper = Antichain.of(lattice, [(1, 0, 0, 0), (0, 0, 0, 2)])
    spine.insert(RowBatch.of(lattice, spine.upper, upper, [("a", (0, 5, 5, 1), 1)]))
    assert read_at(spine, (0, 6, 6, 1)) == {"a": 1}
    assert spine.state() == ""
    assert spine.pending == 1


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_trace_of_tables_holds_what_a_trace_of_rows_holds(data: st.DataObject) -> None:
    """Any batches may be in a trace; merged by fuel, they accumulate to the same."""
    spines: list[Spine[int, Any]] = [Spine(U64_TIME), Spine(U64_TIME)]
    lower = 0
    for _ in range(data.draw(st.integers(1, 12))):
        upper = lower + data.draw(st.integers(1, 3))
        update = st.tuples(st.sampled_from("abc"), st.integers(lower, upper - 1), DIFFS)
        updates = data.draw(st.lists(update, max_size=8))
        names = pa.schema([("name", pa.string())])
        columns = list(zip(*updates, strict=True)) or [(), (), ()]
        table = pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, update_schema(names), strict=True)],
            schema=update_schema(names),
        )  # fmt: skip
        logical = data.draw(st.integers(0, upper))
        for spine, batch in zip(
            spines,
            (
                RowBatch.of(U64_TIME, frontier(lower), frontier(upper), updates),
                TableBatch.of(frontier(lower), frontier(upper), table),
            ),
            strict=True,
        ):
            spine.insert(batch)
            spine.set_logical(spine.logical.join(frontier(logical), U64_TIME))
            spine.set_physical(frontier(upper))
        lower = upper
    everything = concatenate([batch.updates for batch in spines[1].batches()])
    for at in range(lower):
        if spines[0].logical.less_equal(at):
            rows = accumulate(everything, at)
            found = dict(zip(rows["name"].to_pylist(), rows[DIFF].to_pylist(), strict=True))
            assert found == read_at(spines[0], at)


def test_idle_merging_does_what_its_logic_says_and_asks_to_go_on() -> None:
    spine: Spine[int, RowBatch[int, int]] = Spine(U64_TIME)
    shared: SharedTrace[int, RowBatch[int, int]] = SharedTrace(spine)
    handle = shared.hold("reader")
    seen: list[int] = []
    asked: list[bool] = []

    def exertion(batches: Any) -> int:
        seen.append(len(batches))
        return 1 if len(batches) > 1 else 0

    shared.set_exertion(exertion, lambda: asked.append(True))
    for time in range(9):
        rows = [(time * 10 + i, time, 1) for i in range(3)]
        shared.insert(RowBatch.of(U64_TIME, frontier(time), frontier(time + 1), rows))
        handle.set_physical(frontier(time + 1))
    while asked:
        asked.clear()
        shared.exert()
    assert len(shared.spine.batches()) == 1
    assert min(seen) == 1 < max(seen)
    assert not shared.exert()


def test_what_nobody_accumulates_is_forgotten_behind_the_physical_frontier() -> None:
    spine: Spine[int, RowBatch[str, int]] = Spine(U64_TIME)
    shared: SharedTrace[int, RowBatch[str, int]] = SharedTrace(spine)
    behind, ahead = shared.hold("behind"), shared.hold("ahead")
    for time in range(4):
        shared.insert(RowBatch.of(U64_TIME, frontier(time), frontier(time + 1), [("a", time, 1)]))
    for handle, place in ((behind, 1), (ahead, 3)):
        handle.set_physical(frontier(place))
    assert shared.status().updates == 4
    behind.set_logical(frontier())
    assert shared.status().updates == 4
    ahead.set_logical(frontier())
    assert shared.status().updates == 3
    assert updates_of(behind.following(frontier(1))) == [("a", time, 1) for time in (1, 2, 3)]
    behind.drop()
    assert shared.status().updates == 1
    assert (shared.upper, shared.status().batches > 0) == (frontier(4), True)
