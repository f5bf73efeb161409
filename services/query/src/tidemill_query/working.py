"""Threads on which questions are worked out beside the event loop: a few at once, fewer of one caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from tidemill.datalog.evaluation.allowance import Allowance
from tidemill.rpc.identity import caller
from tidemill.time import Exhausted
from tidemill_query.settings import QuestionLimits

AT_ONCE, OF_ONE_CALLER = 4, 2
"""So many questions are worked out at once, each with a share of the interpreter; the others wait for their turn."""

T = TypeVar("T")


class Workers:
    """What works longer than a moment. Who goes away, or waits too long, has it ended within moments.

    A caller is a name of the token file; without one all callers are one, who leaves half of the threads unused.
    """

    def __init__(self, limits: QuestionLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(AT_ONCE, "questions")
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._of_callers: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def allowance(self) -> Allowance:
        """What one question may hold."""
        limit = self._limits.memory_bytes
        return Allowance(limit, "limits.question_memory_bytes", "the question")

    async def run(self, allowance: Allowance, work: Callable[..., T], *given: object) -> T:
        """What `work` returns, which looks at the allowance now and then.

        Raises: Exhausted if it takes longer than `limits.question_s`, and what `work` raises.
        """
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._run(allowance, partial(work, *given))
        except TimeoutError:
            raise Exhausted(
                f"the question was given up: it took more than {self._limits.seconds:g} s "
                "(limits.question_s); ask for less, or raise the limit",
                setting="limits.question_s",
            ) from None

    async def _run(self, allowance: Allowance, work: Callable[[], T]) -> T:
        name = caller.get().name
        mine = self._of_callers.get(name)
        if mine is None:
            mine = self._of_callers[name] = asyncio.Semaphore(OF_ONE_CALLER)
        async with mine:
            await self._turns.acquire()
            loop = asyncio.get_running_loop()
            working = loop.run_in_executor(self._threads, work)
            working.add_done_callback(lambda _: self._turns.release())
            try:
                # NB: shielded, so that turn and place are given back when the thread is free, not before.
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                allowance.call_off()
                await asyncio.wait([working])
                if not working.cancelled():
                    working.exception()
                raise
