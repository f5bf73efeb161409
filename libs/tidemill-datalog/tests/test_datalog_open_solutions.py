"""Blocks of open solutions are in one order, however it is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.dataflow.operators import open_solutions

WORDS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=1)
    )
)
def test_solutions_are_in_the_order_of_their_words(rows: list[list[int]]) -> None:
    words = np.array(rows, np.int64).T.copy()
    assert open_solutions._order(words).tolist() == np.lexsort(words).tolist()


def test_the_order_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_solutions, "order_of", lambda columns: None)
    assert open_solutions._order(np.array([[1, 0, 1], [2, 2, 0]])).tolist() == [2, 1, 0]
