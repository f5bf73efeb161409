"""Whether a history could have happened one operation at a time, each at an instant between asking
and answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from tidemill.testkit.faults.histories import Operation

S = TypeVar("S", bound=Hashable)
Step = Callable[[S, Operation], S | None]
"""(state, operation) → the state after it; None if the answer cannot be from this state.

An operation without an answer may have any. For one that would change nothing the result is None:
it need not have happened, and there are fewer orders to try.
"""


def first_impossible(history: Sequence[Operation], initial: S, step: Step[S]) -> Operation | None:
    """The first operation whose answer fits no order of what came before; None if the history is
    linearizable.

    An operation that nobody was told of may have happened at any instant after it was asked, or
    never. Cost: each answer tries the orders of what is open then; linear in histories of few
    processes. Source: the just-in-time linearization of G. Lowe, Testing for linearizability, 2017.
    """
    possible: set[tuple[S, frozenset[int]]] = {(initial, frozenset())}
    opened: set[int] = set()
    for number, ends in _events(history):
        if not ends:
            opened.add(number)
            continue
        possible = _having_done(number, possible, opened, history, step)
        if not possible:
            return history[number]
        opened.remove(number)
    return None


def _events(history: Sequence[Operation]) -> Iterable[tuple[int, bool]]:
    """(operation, whether it ends) in the order of time; at one instant beginnings come first."""
    events = []
    for number, operation in enumerate(history):
        events.append((operation.began, False, number))
        if operation.ended is not None:
            events.append((operation.ended, True, number))
    return [(number, ends) for _, ends, number in sorted(events)]


def _having_done(
    due: int,
    possible: set[tuple[S, frozenset[int]]],
    opened: set[int],
    history: Sequence[Operation],
    step: Step[S],
) -> set[tuple[S, frozenset[int]]]:
    """Every way in which `due` has happened by now, and maybe others that are open."""
    done: set[tuple[S, frozenset[int]]] = set()
    seen = set(possible)
    waiting = list(possible)
    while waiting:
        state, happened = waiting.pop()
        if due in happened:
            done.add((state, happened - {due}))
            continue
        for number in opened - happened:
            after = step(state, history[number])
            if after is not None:
                reached = after, happened | {number}
                if reached not in seen:
                    seen.add(reached)
                    waiting.append(reached)
    return done


def upper_after(upper: int, operation: Operation) -> int | None:
    """The upper of a collection as a register: `read`, and `append` of (expected, new)."""
    if operation.call == "read":
        return upper if operation.answer == upper else None
    expected, new = operation.arguments
    if operation.answer is None:
        return int(new) if expected == upper else None
    outcome, told = operation.answer
    if outcome == "appended":
        return int(new) if expected == upper and told == new else None
    return upper if told == upper != expected else None
