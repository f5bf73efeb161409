"""The checkers of histories accept what can happen, refuse what cannot, and agree with brute
force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.testkit.faults.histories import Operation, Recorder, read_history
from tidemill.testkit.faults.linearizability import first_impossible, upper_after
from tidemill.testkit.faults.list_append import Transaction, anomalies


def append(began: int, ended: int | None, bounds: tuple[int, int], answer: Any) -> Operation:
    return Operation("p", "append", bounds, began, ended, answer)


def read(began: int, ended: int, upper: int) -> Operation:
    return Operation("p", "read", None, began, ended, upper)


def test_what_can_happen_is_accepted() -> None:
    history = [
        append(0, 9, (0, 1), ("appended", 1)),
        append(1, 8, (0, 2), ("mismatch", 1)),
        read(2, 7, 0),
        read(3, 6, 1),
        append(10, None, (1, 5), None),
        read(11, 12, 1),
        read(13, 14, 5),
    ]
    assert first_impossible(history, 0, upper_after) is None


@pytest.mark.parametrize(
    "history",
    [
        [append(0, 1, (0, 1), ("appended", 1)), read(2, 3, 0)],
        [append(0, 1, (0, 1), ("appended", 1)), append(2, 3, (0, 2), ("appended", 2))],
        [append(0, 9, (0, 1), ("appended", 1)), append(0, 9, (0, 1), ("appended", 1))],
        [append(0, 1, (0, 1), ("mismatch", 0))],
        [append(0, 1, (0, 1), ("appended", 2))],
        [append(0, 9, (0, 1), ("appended", 1)), read(1, 2, 1), read(3, 4, 0)],
        [append(0, None, (0, 1), None), read(1, 2, 1), read(3, 4, 0)],
        [append(5, None, (0, 1), None), read(1, 2, 1)],
    ],
    ids=[
        "stale read", "append below upper", "two winners", "refused without reason", "told another upper",
        "upper went back", "upper went back after an unknown outcome", "effect before its cause",
    ],
)  # fmt: skip
def test_what_cannot_happen_is_refused(history: list[Operation]) -> None:
    assert first_impossible(sorted(history, key=lambda o: o.began), 0, upper_after) is not None


def possible_in_some_order(history: Sequence[Operation]) -> bool:
    """The obvious twin: try every order of what was answered and of any of the rest."""
    told = [operation for operation in history if operation.ended is not None]
    rest = [operation for operation in history if operation.ended is None]
    for count in range(len(rest) + 1):
        for some in combinations(rest, count):
            for order in permutations([*told, *some]):
                if in_real_time(order) and runs(order):
                    return True
    return False


def in_real_time(order: Sequence[Operation | Transaction]) -> bool:
    return not any(
        after.ended is not None and after.ended < before.began
        for place, before in enumerate(order)
        for after in order[place + 1 :]
    )


def runs(order: Sequence[Operation]) -> bool:
    upper: int | None = 0
    for operation in order:
        upper = upper_after(upper, operation)
        if upper is None:
            return False
    return True


@st.composite
def register_histories(draw: st.DrawFn) -> list[Operation]:
    instants = draw(st.permutations(range(10)))
    history = []
    for number in range(draw(st.integers(1, 5))):
        began, ended = sorted(instants[2 * number : 2 * number + 2])
        if draw(st.booleans()):
            history.append(read(began, ended, draw(st.integers(0, 2))))
            continue
        expected = draw(st.integers(0, 2))
        new = expected + draw(st.integers(1, 2))
        answer = draw(st.sampled_from([("appended", new), ("mismatch", 1), ("mismatch", 2), None]))
        history.append(append(began, None if answer is None else ended, (expected, new), answer))
    return sorted(history, key=lambda operation: operation.began)


@settings(max_examples=300, deadline=None)
@given(register_histories())
def test_the_checker_of_registers_agrees_with_every_order(history: list[Operation]) -> None:
    accepted = first_impossible(history, 0, upper_after) is None
    assert accepted == possible_in_some_order(history)


def transaction(
    name: str,
    span: tuple[int, int | None],
    reads: Mapping[str, Sequence[int]],
    appends: Sequence[tuple[str, int]] = (),
    *,
    failed: bool = False,
) -> Transaction:
    return Transaction(name, span[0], span[1], reads, appends, failed)


def test_transactions_in_an_order_are_accepted() -> None:
    history = [
        transaction("a", (0, 5), {"x": []}, [("x", 1), ("y", 2)]),
        transaction("b", (1, 6), {"x": [1], "y": [2]}, [("x", 3)]),
        transaction("c", (2, None), {}, [("y", 4)]),
        transaction("d", (7, 8), {"x": [1, 3], "y": [2]}),
        transaction("e", (9, 10), {"y": [2, 4]}),
        transaction("f", (3, 4), {}, [("x", 9)], failed=True),
        transaction("g", (3, None), {}, [("x", 10)]),
    ]
    assert anomalies(history, {"x": [1, 3], "y": [2, 4]}) == []


X1, Y1 = ("x", 1), ("y", 1)


@pytest.mark.parametrize(
    ("history", "final", "why"),
    [
        ([transaction("a", (0, 1), {}, [X1])], {"x": []}, "lost"),
        ([transaction("a", (0, None), {}, [X1, Y1])], {"x": [1], "y": []}, "half"),
        ([transaction("a", (0, 1), {}, [X1])], {"x": [1, 1]}, "twice"),
        ([], {"x": [7]}, "nobody"),
        ([transaction("a", (0, 1), {}, [X1], failed=True)], {"x": [1]}, "failed"),
        ([transaction("a", (0, 1), {}, [X1]), transaction("b", (2, 3), {"x": [2]})], {"x": [1]}, "never"),
        ([transaction("a", (0, 9), {}, [X1, ("x", 2)]), transaction("b", (2, 3), {"x": [2, 1]})], {"x": [1, 2]}, "never"),
        ([transaction("a", (0, 1), {}, [X1]), transaction("b", (2, 3), {"x": []})], {"x": [1]}, "order"),
        ([transaction("a", (0, 9), {"y": []}, [X1]), transaction("b", (0, 9), {"x": []}, [Y1])], {"x": [1], "y": [1]}, "order"),
        ([transaction("a", (0, 9), {"y": [1]}, [X1]), transaction("b", (0, 9), {"x": [1]}, [Y1])], {"x": [1], "y": [1]}, "order"),
        (
            [
                transaction("a", (0, 9), {}, [X1]),
                transaction("b", (0, 9), {}, [Y1]),
                transaction("c", (0, 9), {"x": [1], "y": []}),
                transaction("d", (0, 9), {"x": [], "y": [1]}),
            ],
            {"x": [1], "y": [1]},
            "order",
        ),
        ([transaction("a", (0, 1), {}, [("x", 2)]), transaction("b", (2, 3), {}, [X1])], {"x": [1, 2]}, "order"),
        ([transaction("a", (5, None), {}, [X1]), transaction("b", (0, 1), {"x": [1]})], {"x": [1]}, "order"),
    ],
    ids=[
        "lost", "by half", "doubled", "from nowhere", "failed and there", "phantom", "another order",
        "stale read", "write skew", "circular reads", "long fork", "late append first", "before its cause",
    ],
)  # fmt: skip
def test_transactions_in_no_order_are_refused(
    history: list[Transaction], final: dict[str, list[int]], why: str
) -> None:
    found = anomalies(history, final)
    assert found
    assert why in found[0]


def serializable(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> bool:
    """The obvious twin: some order in real time, with any of the untold, gives these reads and
    lists.
    """
    told = [each for each in history if each.ended is not None and not each.failed]
    rest = [each for each in history if each.ended is None]
    for count in range(len(rest) + 1):
        for some in combinations(rest, count):
            for order in permutations([*told, *some]):
                if in_real_time(order) and replays(order, final):
                    return True
    return False


def replays(order: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> bool:
    lists: dict[str, list[int]] = {key: [] for key in final}
    for each in order:
        if each.ended is not None and any(lists[key] != seen for key, seen in each.reads.items()):
            return False
        for key, element in each.appends:
            lists[key].append(element)
    return lists == final


@st.composite
def list_histories(draw: st.DrawFn) -> tuple[list[Transaction], dict[str, list[int]]]:
    """Histories of a serial run, told of at other times, and sometimes misread."""
    instants = draw(st.permutations(range(8)))
    lists: dict[str, list[int]] = {"x": [], "y": []}
    history = []
    for number in range(draw(st.integers(1, 4))):
        began, ended = sorted(instants[2 * number : 2 * number + 2])
        keys = draw(st.sets(st.sampled_from("xy")))
        reads = {key: list(lists[key]) for key in keys}
        for key in reads:
            if reads[key] and draw(st.integers(0, 3)) == 0:
                reads[key] = reads[key][:-1]
        appends = [(key, number) for key in sorted(draw(st.sets(st.sampled_from("xy"))))]
        fate = draw(st.sampled_from(["told", "told", "told", "untold", "never", "failed"]))
        span = (began, ended if fate in ("told", "failed") else None)
        history.append(transaction(f"t{number}", span, reads, appends, failed=fate == "failed"))
        if fate in ("told", "untold"):
            for key, element in appends:
                lists[key].append(element)
    return history, lists


@settings(max_examples=300, deadline=None)
@given(list_histories())
def test_the_checker_of_lists_agrees_with_every_order(
    drawn: tuple[list[Transaction], dict[str, list[int]]],
) -> None:
    history, final = drawn
    assert (anomalies(history, final) == []) == serializable(history, final)


def test_a_history_survives_its_process(tmp_path: Path) -> None:
    instants = iter(range(100))
    one = Recorder(tmp_path / "one", "one", lambda: next(instants))
    two = Recorder(tmp_path / "two", "two", lambda: next(instants))
    first = one.began("append", [0, 1])
    two.began("read", None)
    one.ended(first, ["appended", 1])
    one.close()
    two.close()
    assert read_history([tmp_path / "one", tmp_path / "two"]) == [
        Operation("one", "append", [0, 1], 0, 2, ["appended", 1]),
        Operation("two", "read", None, 1),
    ]
