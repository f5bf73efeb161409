"""Filters of many tests hold where the tests do, however many there are."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.filters import either, every

MANY = """
import pyarrow as pa, pyarrow.compute as pc
from tidemill.arrangement.filters import either, every
rows = pa.table({"x": [1, 2]})
tests = [pc.field("x") != number for number in range(2, 50_000)]
assert rows.filter(every(tests)).num_rows == 1
assert rows.filter(either(tests)).num_rows == 2
"""


@given(st.lists(st.integers(0, 8)), st.lists(st.integers(0, 8), min_size=1))
def test_every_and_either_are_all_and_any(bounds: list[int], values: list[int]) -> None:
    rows = pa.table({"x": pa.array(values, pa.int64())})
    tests = [pc.field("x") >= bound for bound in bounds]
    for joined, of_all in ((every(tests), all), (either(tests), any)):
        if joined is None:
            assert not bounds
            continue
        found = rows.filter(joined)["x"].to_pylist()
        assert found == [x for x in values if of_all(x >= bound for bound in bounds)]


def test_a2_a_filter_of_many_tests_does_not_end_the_process() -> None:
    """A2: joined in a chain, ten thousand of them were a segmentation fault; in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", MANY], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
