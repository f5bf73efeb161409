"""When a view begins to follow its changes, and when it lets them come in windows."""

from __future__ import annotations

from tidemill_compute.views.following import CostModel


def test_who_is_interrupted_twice_as_often_lets_twice_as_many_moments_pass() -> None:
    model, tried = CostModel(), []
    for moment in range(40):
        if model.begins_while_idle(10):
            tried.append(moment)
            model.interrupted()
    assert tried == [0, 2, 6, 14, 30]
    model.begun()
    assert all(model.follows(True, 1, 100_000, True) for _ in range(64))
    assert model.begins_while_idle(10), "it was worth beginning"
    assert not model.begins_while_idle(1 << 30)


def test_following_that_was_begun_while_idle_is_left_for_the_first_changes_that_would_wait_for_it() -> (
    None
):
    for idle in (False, True):
        model = CostModel()
        if idle:
            model.begun()
        assert model.follows(True, 1_000, 100_000, True)
        assert model.follows(True, 20_000, 100_000, True) != idle
        if idle:
            assert not model.begins_while_idle(100_000), "a pass for nothing"
            assert not model.begins_while_idle(100_000), "too many changes came the last time"
            model.follows(False, 1, 100_000, True)
            assert model.begins_while_idle(100_000)
