"""Quick steps of views go one after the other, and nobody waits for long or twice for one."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest

from tidemill.runtime.clock import ManualClock
from tidemill_compute.views import shared_inputs
from tidemill_compute.views.shared_inputs import QUICK_S, SharedInputs, TurnOfSteps

LONG_S = 60.0


def stepped(clock: ManualClock, count: int) -> list[TurnOfSteps]:
    """Turns of so many views that have had a quick first step."""
    inputs = SharedInputs()
    turns = [inputs.turn_of_steps(clock) for _ in range(count)]
    for turn in turns:
        with turn:
            assert not turn.alone
    return turns


def test_quick_steps_of_views_go_one_after_the_other_and_slow_ones_beside_them() -> None:
    clock = ManualClock()
    quick, other, slow = stepped(clock, 3)
    with slow:
        clock.move(QUICK_S)
    with quick, slow:
        assert quick.alone
        assert not slow.alone
    with quick, other:  # waits for a moment, and goes on all the same
        assert quick.alone
        assert not other.alone
    with other:
        assert other.alone


def test_nobody_waits_for_the_first_step_of_a_view() -> None:
    inputs, clock = SharedInputs(), ManualClock()
    fresh, quick = inputs.turn_of_steps(clock), inputs.turn_of_steps(clock)
    with quick:
        pass
    with fresh:
        for _ in range(2):
            with quick:
                assert quick.alone
        assert not fresh.alone


def test_nobody_waits_for_a_step_that_has_lasted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    held, *others = stepped(clock, 3)
    waits = list[float]()
    ended = held._quick._ended
    monkeypatch.setattr(ended, "wait_for", lambda until, timeout: waits.append(timeout))
    with held:
        for turn in others:  # it is not known yet that it lasts
            with turn:
                assert not turn.alone
        assert waits == [QUICK_S, QUICK_S]
        clock.move(QUICK_S)
        for turn in others * 10:
            with turn:
                assert not turn.alone
        assert len(waits) == 2
    with others[0]:
        assert others[0].alone
    with held:  # it was slow, so it goes beside the others
        assert not held.alone


def test_a_step_that_waits_goes_once_the_one_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    first, second = stepped(clock, 2)
    ended, waiting, alone = first._quick._ended, Event(), list[bool]()
    monkeypatch.setattr(shared_inputs, "QUICK_S", LONG_S)
    wait_for = ended.wait_for

    def waited(until: Callable[[], bool], timeout: float) -> bool:
        waiting.set()
        return wait_for(until, timeout)

    monkeypatch.setattr(ended, "wait_for", waited)

    def step() -> None:
        with second:
            alone.append(second.alone)

    thread = Thread(target=step)
    with first:
        thread.start()
        assert waiting.wait(LONG_S)
        assert not alone
    thread.join(LONG_S)
    assert alone == [True]
