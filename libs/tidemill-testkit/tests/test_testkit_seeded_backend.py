"""Examples that depend on a seed and on nothing else."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.testkit import tidelog
from tidemill.testkit.seeded_backend import seeded_backend


def drawn(seed: int) -> list[object]:
    found: list[object] = []

    @settings(max_examples=40, backend=seeded_backend(seed), database=None, deadline=None)
    @given(
        st.tuples(
            tidelog.programs(2), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
            st.integers(0, 3),
        )
    )  # fmt: skip
    def law(example: object) -> None:
        found.append(example)

    law()
    return found


def test_a_seed_draws_the_same_examples_whatever_is_loaded() -> None:
    first = drawn(1)
    import_module("tidemill.testkit.conformance.__main__")
    assert drawn(1) == first
    assert drawn(2) != first
    assert len({str(example) for example in first}) > 30


def test_failures_are_shrunk() -> None:
    @settings(backend=seeded_backend(3), database=None)
    @given(st.lists(st.integers(0, 99)))
    def law(numbers: list[int]) -> None:
        assert sum(numbers) < 50

    with pytest.raises(AssertionError) as failure:
        law()
    assert "numbers=[50]" in "".join(getattr(failure.value, "__notes__", ()))
