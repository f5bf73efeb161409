"""A fifth counts what was seen between its borders, and a start is no part of the first."""

from __future__ import annotations

import pytest

from bench.pipeline.fifths import Fifths


def looked(*looks: tuple[float, float, float, float]) -> dict[str, float]:
    """The figures of some looks."""
    fifths = Fifths()
    for look in looks:
        fifths.look(*look)
    return fifths.figures()


def test_the_first_fifth_begins_with_the_work_and_a_slow_last_one_shows() -> None:
    even = [(n / 10, 5.0 + n, 2.0 * n, 100.0) for n in range(10)]
    found = looked((0.0, 3.0, 0.0, 50.0), *even, (1.0, 24.0, 20.0, 900.0))
    assert [found[f"fifth_{n}_s"] for n in range(1, 6)] == pytest.approx([2, 2, 2, 2, 11])
    assert found["last_by_first"] == pytest.approx(2 / 11)
    assert found["last_by_first_processor"] == pytest.approx(1)
    assert (found["fifth_1_mb"], found["fifth_5_mb"]) == (100, 900)


def test_a_fifth_between_two_looks_or_an_end_that_nobody_saw_tells_nothing() -> None:
    assert looked(*((n / 10, n, n, 1.0) for n in range(8)), (1.0, 9.0, 9.0, 1.0)) == {}
    assert looked(*((n / 10, n, n, 1.0) for n in range(10))) == {}
