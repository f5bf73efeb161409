"""Loops that number rows and list ticks equal their twins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.interval_updates.clocks import tick_pairs
from tidemill.arrangement.kernels.numbering import number
from tidemill.testkit.twins import numbering as twin

LAW = settings(max_examples=100, deadline=None)
Words = npt.NDArray[np.int64]

small = st.integers(-3, 3)
wide = small | st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 40])


def columns(rows: list[tuple[int, ...]], width: int) -> list[Words]:
    return [np.array([row[at] for row in rows], np.int64) for at in range(width)]


@LAW
@given(st.sampled_from([small, wide]).flatmap(lambda v: st.lists(st.tuples(v, v), max_size=40)))
def test_equal_rows_have_one_number(rows: list[tuple[int, ...]]) -> None:
    ids, firsts = number(np.array(rows, np.int64).reshape(-1, 2))
    assert ids.tolist() == twin.numbers(rows)
    assert [rows[at] for at in firsts] == list(dict.fromkeys(rows))


def test_many_different_rows_outgrow_the_first_table() -> None:
    drawn = np.random.default_rng(5).integers(-(1 << 62), 1 << 62, (20_000, 2))
    ids, firsts = number(np.concatenate([drawn, drawn]))
    assert ids.tolist() == [*range(20_000), *range(20_000)]
    assert firsts.tolist() == list(range(20_000))


@LAW
@given(
    st.lists(st.tuples(small, st.integers(1, 4), *[st.integers(-9, 9)] * 3)),
    st.integers(-9, 9),
    st.integers(0, 40),
)
def test_a_clock_ticks_between_its_limits(
    clocks: list[tuple[int, int, int, int, int]], upper: int, most: int
) -> None:
    offset, period, low, high, stop = columns([*clocks], 5)
    found = tick_pairs(offset, period, low, high, (stop, upper), most)
    expected = [
        (i, time)
        for i, (*clock, greatest, end) in enumerate(clocks)
        for time in twin.ticks(*clock, min(greatest, end - 1, upper - 1))
    ]
    if found is None:
        assert len(expected) > most
    else:
        assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
        assert len(expected) <= most


LAST = (1 << 63) - 1
far = st.sampled_from((-LAST, -LAST + 1, -3, 0, 1, 2, 1 << 62, LAST - 1, LAST))


@LAW
@given(st.lists(st.tuples(far, far.filter(lambda n: n > 0), far, far, far), max_size=4))
def test_a_clock_ticks_at_no_word_that_there_is_not(
    clocks: list[tuple[int, int, int, int, int]],
) -> None:
    offset, period, low, high, stop = columns([*clocks], 5)
    found = tick_pairs(offset, period, low, high, (stop, LAST), 99)
    expected = [
        range(
            max(first, -((first - least) // step) * step + first), min(greatest, end - 1) + 1, step
        )
        for first, step, least, greatest, end in clocks
    ]
    if found is None:
        assert sum(max(0, -((t.start - t.stop) // t.step)) for t in expected) > 99
    else:
        pairs = [(row, time) for row, times in enumerate(expected) for time in times]
        assert list(zip(*(column.tolist() for column in found), strict=True)) == pairs
