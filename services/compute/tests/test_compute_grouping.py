"""Groups of firings: each event is in one message, the same one whatever cuts the history."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidemill.runtime.durations import Milliseconds
from tidemill.runtime.resources.specs import GroupSpec
from tidemill.testkit.effects import in_order
from tidemill.time import U64_MAX
from tidemill_compute.actions.grouping import EVENTS_MAX, Grouping, grouping_of
from tidemill_compute.actions.outbox import BEGIN, END, Firing

EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.booleans(), st.booleans()), max_size=40
)


def firings(events: Sequence[tuple[int, int, bool, bool]]) -> list[Firing]:
    """Firings of lines, in the order of their effects."""
    return in_order(
        Firing(f"e{n:02}", "tell", at, f"r{n}", json.dumps([n, f"line {line}"]), at, f"e{n:02}",
               END if ends else BEGIN, limited)
        for n, (line, at, ends, limited) in enumerate(events)
    )  # fmt: skip


def together(one: Firing, other: Firing, within: int, by: Sequence[int]) -> bool:
    """The twin: whether two firings are in one message."""
    arguments = json.loads(one.arguments), json.loads(other.arguments)
    return (
        one.instant // within == other.instant // within
        and one.phase == other.phase
        and all(arguments[0][at] == arguments[1][at] for at in by)
    )


@given(EVENTS, st.integers(1, 30), st.booleans(), st.lists(st.integers(0, 70), max_size=6))
def test_messages_are_the_same_whatever_cuts_the_history(
    events: list[tuple[int, int, bool, bool]], within: int, by_line: bool, cuts: list[int]
) -> None:
    due, grouping = firings(events), Grouping(within, [1] if by_line else [])
    told, lower = list[Firing](), 0
    for cut in (*sorted(cuts), U64_MAX):
        upper = grouping.whole(cut)
        if lower < upper:
            stretch = [each for each in due if lower <= each.instant < upper]
            told += grouping.messages(stretch)
            lower = upper
    assert told == grouping.messages(due)
    assert [grouping.end_of(each) for each in told] == sorted(map(grouping.end_of, told))
    in_messages = [event for message in told for event in message.events]
    assert in_order(in_messages) == [each for each in due if not each.limited]
    assert len({message.key for message in told}) == len(told)
    for one in in_messages:
        alike = [each for each in in_messages if together(one, each, within, grouping.by)]
        (message,) = (each for each in told if one in each.events)
        assert list(message.events) == in_order(alike)


def test_a_message_has_so_many_events_and_the_next_ones_are_another() -> None:
    due = [Firing(f"{n:04}", "tell", 5, f"r{n}", "[]", None) for n in range(EVENTS_MAX + 2)]
    first, second = Grouping(10).messages(due)
    assert (len(first.events), len(second.events)) == (EVENTS_MAX, 2)
    assert first.key != second.key
    assert json.loads(second.line)["events"][1]["record"] == f"r{EVENTS_MAX + 1}"
    assert second.record == f"r{EVENTS_MAX}\nr{EVENTS_MAX + 1}"


def test_a_group_is_named_by_the_arguments_that_make_it() -> None:
    grouping = grouping_of(GroupSpec(within=Milliseconds(10), by=("line",)), ["number", "line"])
    assert grouping is not None
    due = [Firing(f"k{n}", "tell", n, "r", json.dumps([n, "a"]), n) for n in range(3)]
    (message,) = grouping.messages(due)
    assert (message.arguments, message.instant, message.event_time) == ('["a"]', 2, None)
    assert grouping_of(None, []) is None
