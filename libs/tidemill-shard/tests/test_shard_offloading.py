"""Long work that leaves the event loop looks; what stays on the loop never pauses it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tidemill.arrangement.looks import (
    BESIDE,
    LOOK,
    THINGS_A_LOOK,
    let_go,
    look,
    looking,
    with_looks,
)
from tidemill.errors import Unavailable
from tidemill.shard.offloading import ROWS_INLINE_MAX, compute_beside


def test_a3_things_come_in_order_with_a_look_before_each_some_of_them() -> None:
    looks: list[int] = []
    seen = 0

    def counted(each: int) -> int:
        nonlocal seen
        seen += 1
        return each

    token = LOOK.set(lambda: looks.append(seen))
    try:
        found = [counted(each) for each in with_looks(range(2 * THINGS_A_LOOK + 1))]
        assert list(with_looks([])) == []
    finally:
        LOOK.reset(token)
    assert found == list(range(2 * THINGS_A_LOOK + 1))
    assert looks == [0, THINGS_A_LOOK, 2 * THINGS_A_LOOK]


async def test_a3_work_on_a_thread_looks_as_it_begins_and_then_by_itself() -> None:
    looked: list[int] = []
    token = BESIDE.set(lambda: looked.append(threading.get_ident()))
    try:
        await compute_beside(ROWS_INLINE_MAX + 1, look)
        assert len(looked) == 2
        assert threading.get_ident() not in looked
        await compute_beside(ROWS_INLINE_MAX, look)
        look()
        assert len(looked) == 2  # the loop itself pauses for nobody
    finally:
        BESIDE.reset(token)


def test_a3_what_a_look_raises_ends_the_work() -> None:
    def refuse() -> None:
        raise TimeoutError

    def work() -> bool:
        token = BESIDE.set(refuse)
        try:
            looking(lambda: None)
        except TimeoutError:
            return True
        finally:
            BESIDE.reset(token)
        return False

    before = LOOK.get()
    assert work()
    LOOK.set(before)


@pytest.mark.parametrize("kind", [list, dict.fromkeys])
def test_a3_many_things_are_freed_with_looks(
    kind: Callable[[range], list[int] | dict[int, None]],
) -> None:
    left: list[int] = []
    things = kind(range(2 * THINGS_A_LOOK + 1))
    token = LOOK.set(lambda: left.append(len(things)))
    try:
        let_go(things)
    finally:
        LOOK.reset(token)
    assert not things
    assert left == [2 * THINGS_A_LOOK + 1, THINGS_A_LOOK + 1, 1]


def test_a3_what_nobody_waits_for_any_more_is_freed_to_the_end() -> None:
    """The error of the look would leave it to the event loop."""

    def look() -> None:
        raise Unavailable("called off")

    things = list(range(2 * THINGS_A_LOOK + 1))
    token = LOOK.set(look)
    try:
        let_go(things)
    finally:
        LOOK.reset(token)
    assert not things
