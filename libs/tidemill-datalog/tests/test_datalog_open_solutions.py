"""Blocks of open solutions are in one order, however it is found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.dataflow.operators import open_solutions
from tidemill.datalog.state import StateRow

WORDS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=1)
    )
)
def test_solutions_are_in_the_order_of_their_words(rows: list[list[int]]) -> None:
    words = np.array(rows, np.int64).T.copy()
    assert open_solutions._order(words).tolist() == np.lexsort(words).tolist()


@given(st.lists(st.lists(WORDS, min_size=4, max_size=4), max_size=9))
def test_lines_are_columns_and_the_bits_of_their_nulls(rows: list[list[int]]) -> None:
    given_, columns = np.array(rows, np.int64).reshape(-1, 4), np.array([2, 0])
    lines = np.empty((3, len(rows)), np.int64)
    open_solutions._lines(given_, columns, 3, lines)
    assert lines[:2].tolist() == given_[:, columns].T.tolist()
    assert lines[2].tolist() == [(row[3] >> 2 & 1) | (row[3] & 1) << 1 for row in rows]


def test_a_row_that_comes_late_is_made_once_whoever_asks() -> None:
    made: list[str] = []

    def make() -> StateRow:
        made.append("row")
        return 7, "open", "text"

    late = open_solutions.LateRow(make, 100)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: late.row(), range(8)))
    assert rows == [(7, "open", "text")] * 8
    assert made == ["row"]
    assert late.nbytes == len("text")


def test_the_order_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_solutions, "order_of", lambda columns: None)
    assert open_solutions._order(np.array([[1, 0, 1], [2, 2, 0]])).tolist() == [2, 1, 0]
