"""A speed is that of the last half minute, and an estimate is given only where there is an end."""

from __future__ import annotations

from tidemill.host.speed import WINDOW_S, Speed, time_left_ms
from tidemill.runtime.clock import ManualClock


def test_a_speed_is_that_of_the_last_half_minute() -> None:
    clock = ManualClock(0)
    speed = Speed(clock)
    assert speed.per_s() == 0
    count = 0
    for each in [10] * 100 + [1_000] * 31:
        speed.note(count)
        clock.move(1)
        count += each
    assert 950 <= speed.per_s() <= 1_000


def test_a_count_that_stands_still_has_no_speed_after_the_window() -> None:
    clock = ManualClock(0)
    speed = Speed(clock)
    speed.note(0)
    clock.move(1)
    speed.note(900)
    clock.move(1)
    assert speed.per_s() == 450
    clock.move(WINDOW_S)
    assert speed.per_s() == 0


def test_a_first_note_counts_from_where_the_count_began_if_that_is_known() -> None:
    clock = ManualClock(0)
    known, unknown = Speed(clock, 0), Speed(clock)
    clock.move(10)
    for speed in (known, unknown):
        speed.note(1_000)
    assert (known.per_s(), unknown.per_s()) == (100, 0)


def test_a_count_that_begins_anew_is_no_negative_speed() -> None:
    clock = ManualClock(0)
    speed = Speed(clock)
    for count in (0, 5_000, 10, 20):
        speed.note(count)
        clock.move(1)
    assert speed.per_s() == 5


def test_the_samples_that_are_kept_are_few_however_often_a_count_is_noted() -> None:
    clock = ManualClock(0)
    speed = Speed(clock)
    for number in range(10_000):
        speed.note(number)
        clock.move(0.007)
    assert len(speed._samples) <= 124
    assert round(speed.per_s()) == round(1 / 0.007)


def test_the_time_left_counts_what_arrives_meanwhile() -> None:
    assert time_left_ms(1_000, 100) == 10_000
    assert time_left_ms(1_000, 100, 50) == 20_000
    assert time_left_ms(0, 0) == 0


def test_no_time_is_named_where_the_end_comes_no_nearer() -> None:
    assert time_left_ms(1_000, 0) is None
    assert time_left_ms(1_000, 100, 100) is None
    assert time_left_ms(1_000, 100, 97) is None
