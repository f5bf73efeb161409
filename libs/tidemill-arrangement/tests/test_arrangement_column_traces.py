"""Laws of traces of columns: batch by batch they are the traces of rows, however rows are packed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.columns import (
    ColumnArrangement,
    ColumnBatch,
    ColumnBatcher,
    EnteredTrace,
    FilteredTrace,
    ImportedColumns,
    Spill,
    batches,
)
from tidemill.arrangement.columns.storage import DiffColumn, InMemory
from tidemill.arrangement.kernels import Columns, consolidating
from tidemill.arrangement.trace import Description, ImportedTrace, RowBatch, SharedTrace, Spine
from tidemill.arrangement.trace.row_batches import sort_updates
from tidemill.errors import UsageError
from tidemill.testkit.generators import small_times
from tidemill.time import U64_TIME, Antichain, ProductOrder, frontier

LATTICES: list[Any] = [U64_TIME, ProductOrder(2), ProductOrder(3), ProductOrder(4)]

EVERYTHING = {
    lattice: Description(Antichain.minimum(lattice), Antichain(lattice), Antichain.minimum(lattice))
    for lattice in LATTICES
}

Change = tuple[tuple[int, int], Any, int]


def columns(changes: list[Change], lanes: int) -> Columns:
    if not changes:
        return Columns.empty(lanes)
    keys, vals = zip(*(data for data, _, _ in changes), strict=True)
    times = [time if isinstance(time, tuple) else (time,) for _, time, _ in changes]
    return Columns(
        np.array(keys, np.uint64),
        np.array(vals, np.uint64),
        np.ascontiguousarray(np.array(times, np.uint64).T),
        np.array([diff for _, _, diff in changes], np.int64),
    )


def changes_of(batch: ColumnBatch) -> list[Change]:
    found = batch.updates()
    times: list[Any] = [tuple(time) for time in found.times.T.tolist()]
    if batch.lattice is U64_TIME:
        times = [time[0] for time in times]
    data = list(zip(found.keys.tolist(), found.vals.tolist(), strict=True))
    return list(zip(data, times, found.diffs.tolist(), strict=True))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Any, int, list[tuple[Any, Any, list[Change]]]]:
    """A lattice, its lanes, and consecutive intervals with updates; words of every width."""
    lattice = draw(st.sampled_from(LATTICES))
    lanes = 1 if lattice is U64_TIME else lattice.lanes
    widest = draw(st.sampled_from([3, 2**20, 2**64 - 1]))
    word = st.one_of(st.integers(0, 2), st.integers(0, widest))
    edit = st.tuples(
        st.tuples(word, word),
        small_times(lattice, 3),
        st.sampled_from([1, 1, 2, -1, 200, -(2**40)]),
    )
    lower = Antichain.minimum(lattice)
    rounds = []
    for _ in range(draw(st.integers(1, 7))):
        times = draw(st.lists(small_times(lattice, 3), min_size=1, max_size=3))
        upper = lower.join(Antichain.of(lattice, times), lattice)
        if upper != lower:
            listed = draw(st.lists(edit, max_size=12))
            inside = [u for u in listed if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
            rounds.append((lower, upper, inside))
            lower = upper
    return lattice, lanes, rounds


@pytest.fixture(params=["few", "packed"], scope="module")
def _sizes(request: pytest.FixtureRequest) -> Any:
    """The same law where handfuls of rows are treated as such, and where they are packed."""
    few, plain = consolidating.FEW, batches.PLAIN_ROWS
    if request.param == "packed":
        consolidating.FEW = batches.FEW = batches.PLAIN_ROWS = 0
    yield
    consolidating.FEW = batches.FEW = few
    batches.PLAIN_ROWS = plain


@settings(max_examples=60, deadline=None)
@given(schedules(), st.data())
@pytest.mark.usefixtures("_sizes")
def test_traces_of_columns_are_those_of_rows(schedule: Any, data: st.DataObject) -> None:
    lattice, lanes, rounds = schedule
    spine: Spine[Any, ColumnBatch] = Spine(lattice)
    twin: Spine[Any, RowBatch[tuple[int, int], Any]] = Spine(lattice)
    for lower, upper, changes in rounds:
        spine.insert(ColumnBatch.of(lattice, lower, upper, columns(changes, lanes)))
        twin.insert(RowBatch.of(lattice, lower, upper, changes))
        physical, effort = data.draw(st.booleans()), data.draw(st.integers(0, 8))
        to = data.draw(st.lists(small_times(lattice, 3), min_size=1, max_size=2))
        logical = spine.logical.join(Antichain.of(lattice, to), lattice)
        for trace in (spine, twin):
            trace.set_logical(logical)
            if physical:
                trace.set_physical(upper)
            if effort:
                trace.exert(effort)
        assert spine.state() == twin.state()
        assert spine.rows_read == twin.rows_read
        for ours, theirs in zip(spine.batches(), twin.batches(), strict=True):
            assert ours.description == theirs.description
            assert changes_of(ours) == list(theirs)


@settings(max_examples=60, deadline=None)
@given(schedules(), st.data())
def test_a_batcher_gives_each_update_in_the_batch_of_its_time(
    schedule: Any, data: st.DataObject
) -> None:
    lattice, lanes, rounds = schedule
    everything = [change for _, _, changes in rounds for change in changes]
    batcher = ColumnBatcher(lattice)
    cut = data.draw(st.integers(0, len(everything)))
    for part in (everything[:cut], everything[cut:]):
        batcher.push(columns(part, lanes))
    for lower, upper, changes in rounds:
        rest = RowBatch.of(lattice, lower, Antichain(lattice), [
            change for change in everything if lower.less_equal(change[1])
        ])  # fmt: skip
        assert batcher.lower == lower
        assert batcher.frontier() == Antichain.of(lattice, rest.times)
        sealed = batcher.seal(upper)
        assert changes_of(sealed) == list(RowBatch.of(lattice, lower, upper, changes))
        with pytest.raises(UsageError):
            batcher.seal(lower)


def at(time: int, keys: list[int], diff: int = 1) -> Columns:
    column = np.array(keys, np.uint64)
    return Columns.at((time,), column, column * 0, np.full(len(keys), diff, np.int64))


def test_an_update_outside_the_interval_is_refused() -> None:
    for time, reason in ((0, "UpdateNotBeyondLower"), (2, "UpdateBeyondUpper")):
        with pytest.raises(UsageError) as refused:
            ColumnBatch.of(U64_TIME, frontier(1), frontier(2), at(time, [1, 2]))
        assert refused.value.reason == reason


def test_a_merge_stops_inside_the_history_of_one_record_and_goes_on() -> None:
    history = Columns(
        np.zeros(99, np.uint64), np.zeros(99, np.uint64),
        np.arange(99, dtype=np.uint64).reshape(1, -1), np.array([1] * 50 + [-1] * 49),
    )  # fmt: skip
    a = ColumnBatch.of(U64_TIME, frontier(0), frontier(50), history.slice(0, 50))
    b = ColumnBatch.of(U64_TIME, frontier(50), frontier(99), history.slice(50, 99))
    merger = a.begin_merge(b, frontier(98))
    with pytest.raises(UsageError):
        merger.outcome()
    steps = 0
    while not merger.complete:
        assert merger.work(7) <= 7
        steps += 1
    assert steps == -(-99 // 7)
    assert changes_of(merger.outcome()) == [((0, 0), 98, 1)]
    with pytest.raises(UsageError):
        b.begin_merge(a, frontier(0))
    with pytest.raises(UsageError):
        a.merge_empty(b, frontier(0))


@pytest.mark.parametrize("spread", [1, 2**64 - 1])
def test_a_merge_refuses_a_sum_beyond_64_bits(spread: int) -> None:
    keys = sorted({spread, *range(300)})
    a = ColumnBatch.of(U64_TIME, frontier(0), frontier(1), at(0, keys, 2**62))
    b = ColumnBatch.of(U64_TIME, frontier(1), frontier(2), at(1, keys, 2**62))
    with pytest.raises(UsageError) as refused:
        a.begin_merge(b, frontier(1)).work(10_000)
    assert refused.value.reason == "Overflow"


def test_rows_at_rest_take_the_bits_they_need() -> None:
    keys = np.arange(10_000, dtype=np.uint64)
    ones = np.ones(10_000, np.int64)
    for vals, words in ((keys * 0, 1), (keys, 1), (keys * np.uint64(2**50), 2)):
        batch = ColumnBatch.of(
            U64_TIME, frontier(0), frontier(9), Columns.at((7,), keys, vals, ones)
        )
        assert batch.nbytes == 10_000 * 8 * words + 1


@given(st.lists(st.lists(st.sampled_from([1, 1, 1, -1, 127, 128, 2**62]), max_size=4)))
def test_diffs_at_rest_are_those_written(pieces: list[list[int]]) -> None:
    everything = [diff for piece in pieces for diff in piece]
    column = DiffColumn(InMemory(), len(everything))
    for piece in pieces:
        column.append(np.array(piece, np.int64))
    found = column.array()
    assert np.broadcast_to(found, len(everything)).tolist() == everything if everything else True
    assert found.nbytes <= 8 * len(everything)


def test_what_exceeds_the_budget_is_in_files_and_comes_back_when_nobody_needs_it(
    tmp_path: Path,
) -> None:
    spill = Spill(tmp_path, memory_bytes_max=100_000)
    spine: Spine[int, ColumnBatch] = Spine(U64_TIME)
    twin: Spine[int, ColumnBatch] = Spine(U64_TIME)
    random = np.random.default_rng(1)
    for i in range(40):
        keys = random.integers(0, 2**40, 3000, np.uint64)
        updates = Columns.at((i,), keys, keys >> np.uint64(20), random.integers(-3, 4, 3000))
        for trace, storage in ((spine, spill), (twin, InMemory())):
            trace.insert(ColumnBatch.of(U64_TIME, frontier(i), frontier(i + 1), updates, storage))
            trace.set_logical(frontier(i + 1))
            trace.set_physical(frontier(i + 1))
    spine.settle()
    twin.settle()
    assert spill.memory_bytes <= 100_000 < spill.file_bytes
    assert list(tmp_path.iterdir()) == []  # files without a name
    assert [changes_of(batch) for batch in spine.batches()] == [
        changes_of(batch) for batch in twin.batches()
    ]
    del spine, trace
    assert (spill.memory_bytes, spill.file_bytes) == (0, 0)


@settings(max_examples=40, deadline=None)
@given(schedules(), st.data())
def test_an_import_gives_each_update_once_at_its_advanced_time(
    schedule: Any, data: st.DataObject
) -> None:
    lattice, lanes, rounds = schedule
    listed = st.lists(small_times(lattice, 3), min_size=1, max_size=2)
    since = Antichain.of(lattice, data.draw(listed))
    until = Antichain.of(lattice, data.draw(st.lists(small_times(lattice, 3), max_size=2)))
    started = data.draw(st.integers(0, len(rounds)))
    arranged, by_row = ColumnArrangement(lattice), SharedTrace[Any, Any](Spine(lattice))
    sources = arranged.trace.hold("source"), by_row.hold("source")
    imports: list[Any] = []
    for i, (lower, upper, changes) in enumerate(rounds):
        if i == started:
            imports = [
                ImportedColumns(sources[0], "import", since, until),
                ImportedTrace(sources[1], "import", since, until),
            ]
        arranged.push(columns(changes, lanes), upper)
        by_row.insert(RowBatch.of(lattice, lower, upper, changes))
        for source in sources:
            source.set_physical(upper)
        arranged.exert()
        if imports:
            ours, theirs = (one.step() for one in imports)
            found = ColumnBatch.sorted(lattice, EVERYTHING[lattice], ours)
            assert changes_of(found) == sort_updates(theirs, lattice)
            assert imports[0].frontier == imports[1].frontier


def test_a_status_says_what_is_held_and_by_whom() -> None:
    arranged = ColumnArrangement(U64_TIME, "writer")
    reader = arranged.trace.hold("reader")
    for i in range(20):
        arranged.push(at(i, list(range(100))), frontier(i + 1))
    arranged.compact(frontier(20))
    held = arranged.status()
    assert [(h.name, h.logical, h.physical) for h in held.holders] == [
        ("writer", frontier(20), frontier(20)),
        ("reader", frontier(0), frontier(0)),
    ]
    assert (held.batches, held.updates, held.pending, held.logical) == (20, 2000, 20, frontier(0))
    assert held.bytes == sum(batch.nbytes for batch in reader.history())
    reader.drop()
    arranged.push(at(20, []), frontier(21))
    while arranged.exert():
        pass
    alone = arranged.status()
    assert (alone.batches, alone.updates, alone.pending) == (1, 100, 0)
    assert 800 <= alone.bytes < held.bytes
    assert alone.layers == "7:1(100)"


PROGRAM = """
import resource, sys
import numpy as np
from pathlib import Path
from tidemill.arrangement.columns import ColumnArrangement, InMemory, Spill
from tidemill.arrangement.kernels import Columns
from tidemill.time import U64_TIME, frontier

def filled(storage, batches, rows):
    arranged = ColumnArrangement(U64_TIME, storage=storage)
    random = np.random.default_rng(1)
    for i in range(batches):
        keys, vals = random.integers(0, 2**64, (2, rows), np.uint64)
        updates = Columns.at((i,), keys, vals, np.ones(rows, np.int64))
        arranged.push(updates, frontier(i + 1))
        arranged.compact(frontier(i + 1))
    return arranged

filled(InMemory(), 3, 1000)
used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 60_000_000, used + 60_000_000))
storage = Spill(Path(sys.argv[2]), 10_000_000) if sys.argv[1] == "spill" else InMemory()
try:
    arranged = filled(storage, 40, 150_000)
except MemoryError:
    print("out of memory")
else:
    status = arranged.status()
    (probe,) = [int(b.updates().keys[-1]) for b in arranged.batches()[-1:]]
    print(status.updates, status.bytes > 90_000_000)
"""


@pytest.mark.parametrize(("storage", "said"), [
    ("spill", "6000000 True"),
    ("memory", "out of memory"),  # the limit is one
])  # fmt: skip
def test_an_arrangement_larger_than_memory_keeps_working(
    storage: str, said: str, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, storage, str(tmp_path)], capture_output=True, text=True
    )
    assert run.stdout.strip() == said, run.stderr


@settings(max_examples=40, deadline=None)
@given(schedules(), st.data())
def test_views_show_what_the_trace_holds(schedule: Any, data: st.DataObject) -> None:
    """From inside a loop every update is at round zero; a filter shows what it keeps until then."""
    lattice, lanes, rounds = schedule
    arranged = ColumnArrangement(lattice)
    handle = arranged.trace.hold("reader")
    inside = EnteredTrace(handle)
    until = Antichain.of(lattice, data.draw(st.lists(small_times(lattice, 3), max_size=2)))
    odd = FilteredTrace(handle, lambda updates: updates.keys % np.uint64(2) == 1, until)
    for _, upper, changes in rounds:
        arranged.push(columns(changes, lanes), upper)
    everything = [change for batch in handle.history() for change in changes_of(batch)]
    entered = [change for batch in inside.history() for change in changes_of(batch)]
    tuples = [(d, t if isinstance(t, tuple) else (t,), n) for d, t, n in everything]
    assert entered == [(d, (*t, 0), n) for d, t, n in tuples]
    shown = [change for batch in odd.history() for change in changes_of(batch)]
    assert shown == [u for u in everything if u[0][0] % 2 == 1 and not until.less_equal(u[1])]
    for trace in (inside, odd):
        reader = trace.clone("view")
        assert [len(b) for b in reader.through(reader.upper)] == [
            len(b) for b in trace.history() if len(b)
        ]
        reader.set_physical(reader.upper)
        reader.set_logical(reader.upper)
        assert (reader.physical, reader.logical) == (trace.upper, trace.upper)
        assert all(not len(batch) for batch in reader.following(reader.upper))
        reader.drop()
    assert [holder.name for holder in arranged.status().holders] == ["arrange", "reader"]
    assert handle.logical == Antichain.minimum(lattice)
