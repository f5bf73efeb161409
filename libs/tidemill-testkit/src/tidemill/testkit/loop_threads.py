"""Threads that the event loop drives (*work in turn*), for tests that move a virtual clock.

Virtual time that moves with every turn of the loop does not wait for a real thread. The load of the
machine would settle how far it runs ahead until the thread is done. Here a seed settles it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random  # noqa: TID251  seeded by who asks
from typing import Any, TypeVar

T = TypeVar("T")
TURNS_MAX = 4
"""Turns of the loop, at most, before the work is done, and again before its outcome is told."""


def run_threads_on_loop(seed: int) -> None:
    """Make the running event loop do the work of threads itself, a few turns later.

    Numbers of turns drawn from the seed pass before the work is done, and before its outcome is
    told. A caller that gives up waiting does not stop it, as with a thread. Not for work that waits
    for something to happen on the loop.
    """
    random, loop = Random(seed), asyncio.get_running_loop()

    def run_in_executor(_: object, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        outcome: asyncio.Future[T] = loop.create_future()

        def tell(call: Callable[[Any], None], what: object) -> None:
            if not outcome.done():
                call(what)

        def do() -> None:
            try:
                found = work(*arguments)
            except Exception as error:
                later(partial(tell, outcome.set_exception, error))
            else:
                later(partial(tell, outcome.set_result, found))

        later(do)
        return outcome

    def later(call: Callable[[], None]) -> None:
        _after(loop, random.randrange(1, TURNS_MAX + 1), call)

    setattr(loop, "run_in_executor", run_in_executor)  # noqa: B010  a method, for this loop alone


def _after(loop: asyncio.AbstractEventLoop, turns: int, call: Callable[[], None]) -> None:
    if turns == 0:
        call()
    else:
        loop.call_soon(_after, loop, turns - 1, call)
