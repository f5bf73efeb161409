"""Looks of long work: now and then a thread that computes lets short work go first, or ends.

Threads of one process share one interpreter. A thread with much to do looks at least once in about
a millisecond. The beginner of the work chooses the effect of a look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from tidemill.errors import TidemillError

T = TypeVar("T")

Look: TypeAlias = "Callable[[], None]"
"""Pauses for a moment, or raises if nobody waits for the work any longer."""

Things: TypeAlias = "list[Any] | dict[Any, Any] | set[Any]"
"""A container of many Python objects."""

THINGS_A_LOOK = 500
"""Python objects that are read or made between two looks: less than a millisecond."""


def _nothing() -> None:
    return


LOOK: ContextVar[Look] = ContextVar("look", default=_nothing)
"""Look of the work of this context; on the event loop, which never pauses, it does nothing."""

BESIDE: ContextVar[Look] = ContextVar("beside", default=_nothing)
"""Look of work that leaves the event loop for a thread."""


def look() -> None:
    """Look once, on the thread that works. Raises: what the look raises."""
    LOOK.get()()


def with_looks(things: Iterable[T], count: int = THINGS_A_LOOK) -> Iterator[T]:
    """The same things in order, with a look before each `count` of them. Raises: as `look`."""
    left = iter(things)
    while some := list(islice(left, count)):
        look()
        yield from some


FOR_OTHERS: ContextVar[bool] = ContextVar("for_others", default=False)
"""Whether others wait for work of this context: it stands in no queue of one user."""


def let_go(things: Things, count: int = THINGS_A_LOOK) -> None:
    """Free the things of a container, `count` of them between two looks; it is empty then.

    To free many at once holds the interpreter: some 20 ms for 200,000 facts. They are freed even
    if the looks raise, since the error would leave them to the event loop, all at once.
    """
    while things:
        with suppress(TidemillError):
            look()
        if isinstance(things, list):
            del things[-count:]
        else:
            take = things.pop if isinstance(things, set) else things.popitem
            for _ in range(min(count, len(things))):
                take()


def looking(work: Callable[[], T]) -> T:
    """The result of work that has left the event loop for this thread; it looks as it begins.

    For a context of its own, such as that of `asyncio.to_thread`.
    """
    LOOK.set(BESIDE.get())
    look()
    return work()
