"""Laws: each kernel gives what its twin says, whatever the widths, diffs and frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement import kernels
from tidemill.arrangement.kernels import Columns, Layout, RunJoin, RunMerge, consolidating
from tidemill.arrangement.kernels.closing import ACTIVE, close_times
from tidemill.arrangement.kernels.probing import add_small_sums, add_sums
from tidemill.arrangement.operators import (
    Reduction,
    count,
    distinct,
    greatest,
    least,
    top,
    total,
)
from tidemill.arrangement.operators.interesting_times import interesting_times
from tidemill.errors import UsageError
from tidemill.testkit.twins import columns as twins
from tidemill.testkit.twins.columns import Row
from tidemill.time import Antichain, ProductOrder

law = settings(deadline=None)  # the first example may pay for compiling

WORDS = st.one_of(
    st.integers(0, 3), st.integers(0, 2**20), st.integers(2**64 - 4, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)  # fmt: skip
DIFFS = st.one_of(st.integers(-2, 2), st.integers(-(2**40), 2**40))


@st.composite
def rows_of(draw: st.DrawFn, lanes: int, most: int = 40) -> list[Row]:
    values = draw(st.lists(WORDS, min_size=1, max_size=6))
    one = st.sampled_from(values)
    times = st.tuples(*[st.one_of(st.integers(0, 3), one)] * lanes)
    return draw(st.lists(st.tuples(one, one, times, DIFFS), max_size=most))


def columns(rows: Sequence[Row], lanes: int) -> Columns:
    if not rows:
        return Columns.empty(lanes)
    keys, vals, times, diffs = zip(*rows, strict=True)
    return Columns(
        np.array(keys, np.uint64), np.array(vals, np.uint64),
        np.ascontiguousarray(np.array(times, np.uint64).T), np.array(diffs, np.int64),
    )  # fmt: skip


def rows(updates: Columns) -> list[Row]:
    times = [tuple(time) for time in updates.times.T.tolist()]
    return list(
        zip(
            updates.keys.tolist(), updates.vals.tolist(), times, updates.diffs.tolist(), strict=True
        )
    )


LANES = st.integers(1, 4)


@law
@given(st.data(), LANES)
def test_consolidate_gives_one_row_for_each_record_and_time(
    data: st.DataObject, lanes: int
) -> None:
    given_rows = data.draw(rows_of(lanes))
    assert rows(kernels.consolidate(columns(given_rows, lanes))) == twins.consolidated(given_rows)


@pytest.mark.parametrize("bits", [3, 20, 33, 64])
@pytest.mark.parametrize("spread", [1, 7, 2**40])
@pytest.mark.parametrize("many", [1000, 10_000])
def test_consolidate_agrees_on_thousands_of_rows_of_every_width(
    bits: int, spread: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long ties, short ties and none; diffs that ride in the word or not; in buckets or not."""
    monkeypatch.setattr(consolidating, "_MANY", many)
    random = np.random.default_rng(bits * spread)
    keys, vals = (random.integers(0, 2**bits - 1, 3000, np.uint64, endpoint=True) for _ in range(2))
    keys[::3] = keys[0]
    diffs = random.integers(-spread, spread, 3000, endpoint=True)
    updates = Columns(keys, vals, random.integers(0, 3, (2, 3000), np.uint64), diffs)
    assert rows(kernels.consolidate(updates)) == twins.consolidated(rows(updates))


@pytest.mark.parametrize("n", [2, 1000])
@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_a_sum_of_diffs_beyond_64_bits_is_refused(n: int, key: int) -> None:
    """Few rows and many, rows of one word and wide ones."""
    keys, vals = np.full(n, key, np.uint64), np.zeros(n, np.uint64)
    keys[1:-1] = np.arange(1, n - 1)
    vals[1:-1] = key
    diffs = np.ones(n, np.int64)
    diffs[-1] = 2**63 - 1
    with pytest.raises(UsageError) as refused:
        kernels.consolidate(Columns.at((0,), keys, vals, diffs))
    assert refused.value.reason == "Overflow"
    diffs[0] = -1
    assert kernels.consolidate(Columns.at((0,), keys, vals, diffs)).diffs.max() == 2**63 - 2
    diffs[:] = [1, *[0] * (n - 2), 2**63 - 2]
    assert kernels.consolidate(Columns.at((0,), keys, vals, diffs)).diffs.max() == 2**63 - 1


@pytest.mark.parametrize("n", [4, 1000])
def test_a_sum_that_only_passes_through_greater_numbers_is_right(n: int) -> None:
    diffs = np.zeros(n, np.int64)
    diffs[:3] = 2**63 - 1, 2**63 - 1, -(2**63 - 2)
    diffs[-1] = -(2**63 - 2)
    zeros = np.zeros(n, np.uint64)
    found = kernels.consolidate(Columns.at((0,), zeros, zeros, diffs))
    assert found.diffs.tolist() == [sum(diffs.tolist())]


@law
@given(st.data(), LANES, st.integers(1, 50))
def test_a_merge_of_runs_is_their_consolidated_union_whatever_the_fuel(
    data: st.DataObject, lanes: int, fuel: int
) -> None:
    a, b = data.draw(rows_of(lanes)), data.draw(rows_of(lanes))
    merging = RunMerge(
        *(kernels.consolidate(columns(given_rows, lanes)) for given_rows in (a, b))
    )  # fmt: skip
    while not merging.complete:
        assert 0 < merging.work(fuel) <= fuel + 1
    assert rows(merging.outcome()) == twins.consolidated([*a, *b])


def test_a_merge_refuses_a_sum_beyond_64_bits() -> None:
    run = Columns.at((0,), np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.array([2**62]))
    with pytest.raises(UsageError):
        kernels.merge(run, run)


@law
@given(st.data(), LANES)
def test_times_split_and_advance_as_the_lattice_says(data: st.DataObject, lanes: int) -> None:
    times = st.tuples(*[st.integers(0, 4)] * lanes)
    given_rows = data.draw(rows_of(lanes))
    elements = data.draw(st.lists(times, max_size=3))
    frontier = np.array(elements, np.uint64).reshape(-1, lanes)
    updates = columns(given_rows, lanes)
    before, beyond = kernels.split(updates, frontier)
    assert rows(before) == [row for row in given_rows if not twins.is_beyond(row[2], elements)]
    assert rows(beyond) == [row for row in given_rows if twins.is_beyond(row[2], elements)]
    advanced = kernels.advance_by(updates.times, frontier)
    assert [tuple(t) for t in advanced.T.tolist()] == [
        twins.advanced(time, elements) for _, _, time, _ in given_rows
    ]


@law
@given(st.data(), LANES, st.integers(1, 30))
def test_a_join_gives_every_pair_once_in_bounded_pieces(
    data: st.DataObject, lanes: int, limit: int
) -> None:
    small = st.integers(-3, 3).filter(bool)
    a, b = (
        [(k, v, t, data.draw(small)) for k, v, t, _ in data.draw(rows_of(lanes, most=20))]
        for _ in range(2)
    )
    a, b = twins.consolidated(a), twins.consolidated(b)
    matches = RunJoin(columns(a, lanes), columns(b, lanes))
    found: list[twins.Joined] = []
    while not matches.done:
        piece, others = matches.work(limit)
        assert len(piece) <= limit
        found += (
            (k, v, w, t, n) for (k, v, t, n), w in zip(rows(piece), others.tolist(), strict=True)
        )
    assert sorted(found) == sorted(twins.joined(a, b))


def test_a_join_refuses_a_product_beyond_64_bits() -> None:
    zero = np.zeros(1, np.uint64)
    a = Columns.at((0,), zero, zero, np.array([2**40]))
    for diff in (2**23, -(2**63)):
        with pytest.raises(UsageError):
            kernels.join(a, Columns.at((0,), zero, zero, np.array([diff])))
    assert kernels.join(a, Columns.at((0,), zero, zero, np.array([-(2**23)])))[0].diffs[0] == -(
        2**63
    )


REDUCTIONS: list[tuple[int, int, Reduction]] = [
    (kernels.COUNT, 1, count), (kernels.SUM, 1, total), (kernels.LEAST, 1, least),
    (kernels.GREATEST, 1, greatest), (kernels.DISTINCT, 1, distinct), (kernels.TOP, 3, top(3)),
]  # fmt: skip


@law
@given(st.data(), st.sampled_from(REDUCTIONS))
def test_groups_reduce_as_the_reduction_of_rows_says(
    data: st.DataObject, reduction: tuple[int, int, Reduction]
) -> None:
    kind, limit, expected = reduction
    one = st.integers(0, 5)
    given_rows = twins.consolidated(
        data.draw(st.lists(st.tuples(one, one, st.just((0,)), st.integers(-3, 3))))
    )
    updates = columns(given_rows, 1)
    keys, results, diffs = kernels.reduce_groups(
        updates.keys, updates.vals, updates.diffs, kind, limit
    )
    wanted = [
        (key, result, n)
        for key in sorted({row[0] for row in given_rows})
        for result, n in expected([(v, n) for k, v, _, n in given_rows if k == key])
    ]
    assert (
        list(zip(keys.tolist(), results.view(np.int64).tolist(), diffs.tolist(), strict=True))
        == wanted
    )


@law
@given(st.data(), LANES)
def test_packed_rows_unpack_to_what_they_were_and_compare_alike(
    data: st.DataObject, lanes: int
) -> None:
    given_rows = data.draw(rows_of(lanes).filter(bool))
    updates = columns(given_rows, lanes)
    layout = Layout.of(updates.columns)
    packed = layout.pack(updates.columns)
    assert packed.shape == (len(given_rows), layout.words)
    for column, unpacked in zip(updates.columns, layout.unpack_all(packed), strict=True):
        assert unpacked.tolist() == column.tolist()
    assert sorted(map(tuple, packed.tolist())) == [
        tuple(packed[at].tolist())
        for at in sorted(range(len(given_rows)), key=lambda at: given_rows[at][:3])
    ]


@law
@given(st.data())
def test_sums_of_keys_are_the_same_looked_up_or_read_through(data: st.DataObject) -> None:
    key = st.integers(0, data.draw(st.sampled_from([3, 60, 2**40])))
    row = st.tuples(key, st.integers(0, 9), st.tuples(st.integers(0, 3)), st.integers(-2, 2))
    listed = twins.consolidated(data.draw(st.lists(row, min_size=1, max_size=60))) or [
        (1, 1, (0,), 1)
    ]
    keys = sorted({*data.draw(st.lists(key, min_size=1)), *data.draw(st.sets(st.just(1)))})
    wanted = twins.weighted_sums(keys, listed)
    updates = columns(listed, 1)
    layout = Layout.of(updates.columns)
    table = layout.table
    rows_in, column = layout.pack(updates.columns), np.array(keys, np.uint64)
    for diffs in (updates.diffs, updates.diffs.astype(np.int8)):
        sums = np.ones((2, len(keys)), np.int64)
        assert add_sums(column, rows_in, table, diffs, True, sums[0])
        assert add_small_sums(column, rows_in, table, diffs, sums[1])
        assert sums.tolist() == [[n + 1 for n in wanted]] * 2
    full = np.full(len(keys), 2**63 - 1)
    assert add_small_sums(column, rows_in, table, diffs, full) == all(n <= 0 for n in wanted)


@law
@given(st.data(), st.integers(2, 4))
def test_times_at_which_output_may_change_are_those_of_the_rule(
    data: st.DataObject, lanes: int
) -> None:
    lattice = ProductOrder(lanes)
    times = st.lists(st.tuples(*[st.integers(0, 3)] * lanes), max_size=5)
    owners = data.draw(st.lists(st.tuples(times, times), min_size=1, max_size=4))
    upper = Antichain.of(lattice, data.draw(times))

    def column(side: int) -> tuple[kernels.U64Array, kernels.U64Array]:
        listed = [(at, time) for at, sides in enumerate(owners) for time in sides[side]]
        return (
            np.array([at for at, _ in listed], np.uint64),
            np.array([time for _, time in listed], np.uint64).reshape(-1, lanes),
        )

    found = close_times(
        len(owners), *column(0), *column(1), kernels.frontier_rows(upper, lanes), True
    )
    for owner, (seeds, stored) in enumerate(owners):
        first = [time for time in seeds if not upper.less_equal(time)]
        lifted = [lattice.join(time, reduce(lattice.meet, first)) for time in stored if first]
        wanted = interesting_times(lattice, seeds, (), lifted, upper)
        mine = found[0] == owner
        active, waiting = (
            [tuple(time) for time in found[1][mine & which].tolist()]
            for which in (found[2] == ACTIVE, found[2] > ACTIVE)
        )
        assert sorted(active) == list(wanted.active)
        assert (len(waiting), set(waiting)) == (len(wanted.pended), wanted.pended)


@law
@given(st.data(), LANES)
def test_a_digest_depends_on_the_collection_alone(data: st.DataObject, lanes: int) -> None:
    given_rows = data.draw(rows_of(lanes))
    shuffled = data.draw(st.permutations(given_rows))
    consolidated = kernels.consolidate(columns(given_rows, lanes))
    assert kernels.digest(consolidated.columns, consolidated.diffs) == kernels.digest(
        columns(shuffled, lanes).columns, columns(shuffled, lanes).diffs
    )
    other = columns([*given_rows, (1, 2, (3,) * lanes, 1)], lanes)
    assert kernels.digest(other.columns, other.diffs) != kernels.digest(
        consolidated.columns, consolidated.diffs
    )
