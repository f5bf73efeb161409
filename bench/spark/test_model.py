"""The model of histories on more executors than were measured."""

from __future__ import annotations

import pytest

from bench.spark.model import DIVIDED, Fixed, Stage, makespan, predict

FREE = Fixed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def even(ranges: int, seconds: float) -> Stage:
    """A fragment without inputs of its own."""
    return Stage((), (seconds / ranges,) * ranges, (0,) * ranges)


def test_even_work_divides_among_executors() -> None:
    for executors in (1, 2, 4, 16, 64):
        found = predict([even(64, 64.0)], FREE, executors, 64)
        assert found.wall_s == pytest.approx(64.0 / executors)
        assert found.bottleneck == DIVIDED


def test_no_executors_shorten_the_heaviest_range() -> None:
    heavy = Stage((), (10.0, *[1.0] * 15), (0,) * 16)
    assert predict([heavy], FREE, 16, 16).wall_s == 10.0
    assert predict([heavy], FREE, 16, 16).bottleneck == "the heaviest range"
    assert predict([heavy], FREE, 1, 16).bottleneck == DIVIDED


def test_parts_of_inputs_bound_how_many_read_them() -> None:
    stage = Stage((8.0, 8.0), (0.5,) * 16, (0,) * 16)
    found = predict([stage], FREE, 16, 16)
    assert found.wall_s == pytest.approx(8.5)
    assert found.bottleneck == "the largest part"


def test_set_up_is_paid_once_on_any_number_of_executors() -> None:
    fixed = Fixed(1.0, 3.0, 0.0, 0.0, 0.0, 0.5)
    stages = [Stage((0.0,), (0.0,) * 2, (0, 0)), even(2, 2.0)]
    for executors, work in ((1, 2.0), (2, 1.0)):
        found = predict(stages, fixed, executors, 2)
        assert found.wall_s == pytest.approx(1.0 + 0.5 + work)
        assert found.processor_s == pytest.approx(3.0 + 2.0)
    assert predict([even(2, 0.0)], fixed, 64, 2).bottleneck == "set-up"


def test_each_task_and_byte_costs_its_executor() -> None:
    fixed = Fixed(0.0, 0.0, 0.5, 0.001, 0.0, 0.0)
    stage = Stage((), (1.0, 1.0), (1000, 3000))
    assert predict([stage], fixed, 2, 2).wall_s == pytest.approx(0.5 + 1.0 + 3.0)
    assert predict([stage], fixed, 1, 2).processor_s == pytest.approx(1.0 + 2.0 + 4.0)


def test_fewer_ranges_are_empty_less_often() -> None:
    fixed = Fixed(0.0, 0.0, 0.0, 0.0, 0.25, 0.0)
    assert predict([even(8, 4.0)], fixed, 1, 2).wall_s == pytest.approx(4.0 - 6 * 0.25)


def test_tasks_begin_in_their_order() -> None:
    assert makespan([1.0, 1.0, 4.0], 2) == 5.0
    assert makespan([4.0, 1.0, 1.0], 2) == 4.0
    assert makespan([], 2) == 0.0
