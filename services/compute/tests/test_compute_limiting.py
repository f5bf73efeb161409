"""Limits of actions: equal to counting over all that was told, whatever restarts in between."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.runtime.durations import Milliseconds
from tidemill.runtime.resources.specs import RateSpec
from tidemill_compute.actions.limiting import Limiter, Rate, limiter_of
from tidemill_compute.actions.outbox import BEGIN, CHANGE, END, Firing

EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(1, 15), st.booleans()), max_size=30
)


def firings(events: list[tuple[int, int, int, bool]], follow: bool) -> list[Firing]:
    """Events of groups that begin, change and end, in the order of their effects."""
    found: dict[str, Firing] = {}
    for number, (group, at, lasts, changes) in enumerate(events):
        event = f"e{number:02}"
        phases = [(BEGIN, at), (CHANGE, at + lasts), (END, at + 2 * lasts)]
        for count, (phase, instant) in enumerate(phases if follow else phases[:1]):
            if phase == CHANGE and not changes:
                continue
            key = f"{event}.{count}" if count else event
            arguments = json.dumps([group % 3, number])
            found[key] = Firing(
                key, "tell", instant, "", arguments, None, event if follow else "", phase
            )
    return sorted(found.values(), key=lambda each: (each.instant, each.key))


def told_by_counting(given_: list[Firing], rate: Rate) -> set[str]:
    """The twin: each beginning looks at all that was told before it."""
    told: list[Firing] = []
    for each in given_:
        if each.phase == BEGIN:
            alike = [
                other
                for other in told
                if other.phase == BEGIN
                and other.instant > each.instant - rate.per_ms
                and all(
                    json.loads(other.arguments)[at] == json.loads(each.arguments)[at]
                    for at in rate.by
                )
            ]
            if len(alike) < rate.count:
                told.append(each)
        elif any(other.key == each.of for other in told):
            told.append(each)
    return {each.key for each in told}


@given(EVENTS, st.integers(1, 3), st.integers(1, 20), st.booleans(), st.booleans(), st.data())
def test_a_limit_is_counting_whatever_restarts(
    events: list[tuple[int, int, int, bool]], count: int, per: int, grouped: bool, follow: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    rate = Rate(count, per, [0] if grouped else [])
    due = firings(events, follow)
    limiter, judged = Limiter(rate), list[Firing]()
    while len(judged) < len(due):
        step = data.draw(st.integers(1, len(due)))
        judged += limiter.judge(due[len(judged) : len(judged) + step])
        if data.draw(st.booleans()):
            limiter = Limiter(rate)
            for each in judged:
                limiter.recall(each)
    assert {each.key for each in judged if not each.limited} == told_by_counting(due, rate)


def test_groups_are_arguments_by_their_names() -> None:
    limiter = limiter_of(RateSpec(count=1, per=Milliseconds(10), by=("line",)), ["oven", "line"])
    assert limiter is not None
    due = [
        Firing(f"k{n}", "tell", n, "", json.dumps([n, line]), None)
        for n, line in enumerate(["x", "y", "x", "y"])
    ]
    assert [each.limited for each in limiter.judge(due)] == [False, False, True, True]
    assert limiter_of(None, []) is None


@pytest.mark.parametrize("groups", [5_000])
def test_groups_that_tell_nothing_any_more_are_forgotten(groups: int) -> None:
    limiter = Limiter(Rate(1, 10, [0]))
    limiter.judge(Firing(f"k{n}", "tell", n, "", json.dumps([n]), None) for n in range(groups))
    assert len(limiter._begun) < groups / 2
