"""Work of questions beside the event loop, within limits on time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidemill.arrangement.looks import LOOK
from tidemill.datalog.allowance import Allowance
from tidemill.errors import Exhausted
from tidemill.host.questions.limits import QuestionLimits
from tidemill.rpc.turns import in_turn

CHARS_INLINE_MAX, RECORDS_INLINE_MAX = 300, 300
"""Questions of so many characters are read, so many rows made records, in a few milliseconds."""

T = TypeVar("T")


class Workers:
    """Threads for work that is longer than a moment.

    If a caller goes away, or waits too long, its work ends within moments.
    """

    def __init__(self, limits: QuestionLimits) -> None:
        self._limits = limits

    def allowance(self) -> Allowance:
        """Memory of one question."""
        limit = self._limits.memory_bytes
        return Allowance(limit, "limits.question_memory_bytes", "the question")

    async def run(self, allowance: Allowance, work: Callable[..., T], *given: object) -> T:
        """The result of `work`, which looks at the allowance now and then.

        Texts that it parses are read with looks, too. Raises: Exhausted if it takes longer than
        `limits.question_s`, and errors of `work`.
        """

        def looked_at() -> T:
            LOOK.set(lambda: allowance.take(0))
            return work(*given)

        try:
            async with asyncio.timeout(self._limits.seconds):
                return await in_turn(looked_at, allowance.call_off, allowance.interrupt)
        except TimeoutError:
            raise Exhausted(
                f"the question was given up: it took more than {self._limits.seconds:g} s "
                "(limits.question_s); ask for less, or raise the limit",
                setting="limits.question_s",
            ) from None

    async def reason(self, allowance: Allowance, work: Callable[..., T], *given: object) -> T:
        """The result of `work` on what is held already, and on the allowance. Raises: as `run`."""
        allowance.beside = allowance.held
        return await self.run(allowance, work, *given, allowance)

    async def beside(self, long: bool, work: Callable[..., T], *given: object) -> T:
        """The result of `work`, done beside the event loop if it is long. Raises: as `run`."""
        return await self.run(self.allowance(), work, *given) if long else work(*given)

    async def read_beside(self, question: str, read: Callable[..., T], *given: object) -> T:
        """The result of `read` on a question: the grammar takes some 10 µs for each character."""
        return await self.beside(len(question) > CHARS_INLINE_MAX, read, *given)
