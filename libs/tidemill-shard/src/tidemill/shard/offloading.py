"""Work beside the event loop: what is long on a thread, several waits at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from tidemill.arrangement.looks import FOR_OTHERS, looking

T = TypeVar("T")

ROWS_INLINE_MAX = 20_000
"""So many rows take about as long as a few hops between threads."""

OBJECT_ROWS = 8
"""Work on a Python object takes as long as work on so many rows of columns."""

TO_THREAD: ContextVar[Callable[[Callable[[], Any]], Awaitable[Any]]] = ContextVar(
    "to_thread", default=asyncio.to_thread
)
"""Takes long work of this context to a thread, once there is room for it."""


async def compute_beside(rows: int, work: Callable[[], T]) -> T:
    """The result of `work` on about so many rows; on a thread, with looks, if they are many."""
    if rows <= ROWS_INLINE_MAX:
        return work()
    found: T = await TO_THREAD.get()(partial(looking, work))
    return found


@asynccontextmanager
async def while_others_wait(lock: asyncio.Lock) -> AsyncIterator[None]:
    """Hold a lock that several wait for. Long work meanwhile is not behind that of one user."""
    async with lock:
        told = FOR_OTHERS.set(True)
        try:
            yield
        finally:
            FOR_OTHERS.reset(told)


async def all_of(awaited: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order.

    Raises: the error of the first that fails, once the others have ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in awaited]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Return once one has returned, and end the others. Raises: what that one raises."""
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
