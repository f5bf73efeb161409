"""Laws: each kernel gives what its twin says, whatever the widths, diffs and frontiers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.kernels import I64Array, U64Array, consolidating, reducing
from tidemill.arrangement.kernels.consolidating import consolidate_columns
from tidemill.arrangement.kernels.packing import Layout
from tidemill.errors import UsageError
from tidemill.testkit.partial_orders import (
    Reduction,
    count,
    distinct,
    greatest,
    least,
    top,
    total,
)
from tidemill.testkit.twins import columns as twins
from tidemill.testkit.twins.columns import Row

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


def columns(rows: Sequence[Row], lanes: int) -> tuple[list[U64Array], I64Array]:
    table = np.array([(k, v, *t) for k, v, t, _ in rows], np.uint64).reshape(-1, 2 + lanes)
    diffs = np.array([diff for *_, diff in rows], np.int64)
    return [np.ascontiguousarray(column) for column in table.T], diffs


def rows(found: tuple[Sequence[U64Array], I64Array]) -> list[Row]:
    table = np.array(found[0], np.uint64).T.tolist()
    return [(k, v, tuple(t), n) for (k, v, *t), n in zip(table, found[1].tolist(), strict=True)]


LANES = st.integers(1, 4)


@law
@given(st.data(), LANES)
def test_consolidate_gives_one_row_for_each_record_and_time(
    data: st.DataObject, lanes: int
) -> None:
    given_rows = data.draw(rows_of(lanes))
    found = consolidate_columns(*columns(given_rows, lanes))
    assert rows(found) == twins.consolidated(given_rows)


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
    updates = [keys, vals, *random.integers(0, 3, (2, 3000), np.uint64)]
    found = consolidate_columns(updates, diffs)
    assert rows(found) == twins.consolidated(rows((updates, diffs)))


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
        consolidate_columns([keys, vals], diffs)
    assert refused.value.reason == "Overflow"
    diffs[0] = -1
    assert consolidate_columns([keys, vals], diffs)[1].max() == 2**63 - 2
    diffs[:] = [1, *[0] * (n - 2), 2**63 - 2]
    assert consolidate_columns([keys, vals], diffs)[1].max() == 2**63 - 1


@pytest.mark.parametrize("n", [4, 1000])
def test_a_sum_that_only_passes_through_greater_numbers_is_right(n: int) -> None:
    diffs = np.zeros(n, np.int64)
    diffs[:3] = 2**63 - 1, 2**63 - 1, -(2**63 - 2)
    diffs[-1] = -(2**63 - 2)
    zeros = np.zeros(n, np.uint64)
    found = consolidate_columns([zeros, zeros], diffs)
    assert found[1].tolist() == [sum(diffs.tolist())]


REDUCTIONS: list[tuple[int, int, Reduction]] = [
    (reducing.COUNT, 1, count), (reducing.SUM, 1, total), (reducing.LEAST, 1, least),
    (reducing.GREATEST, 1, greatest), (reducing.DISTINCT, 1, distinct), (reducing.TOP, 3, top(3)),
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
    (keys, vals, _), diffs = columns(given_rows, 1)
    keys, results, diffs = reducing.reduce_groups(keys, vals, diffs, kind, limit)
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
    updates, _ = columns(given_rows, lanes)
    layout = Layout.of(updates)
    packed = layout.pack(updates)
    assert packed.shape == (len(given_rows), layout.words)
    for column, unpacked in zip(updates, layout.unpack_all(packed), strict=True):
        assert unpacked.tolist() == column.tolist()
    assert sorted(map(tuple, packed.tolist())) == [
        tuple(packed[at].tolist())
        for at in sorted(range(len(given_rows)), key=lambda at: given_rows[at][:3])
    ]
