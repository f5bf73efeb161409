"""Admission: limits on the calls of one user, at once and per second; other users go on.

Within the limits users share the event loop: see `fair_steps`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from tidemill.errors import Exhausted
from tidemill.rpc.fair_steps import FairSteps
from tidemill.rpc.identity import caller
from tidemill.rpc.strangers import Strangers
from tidemill.rpc.turns import PRECEDENCE

T = TypeVar("T")

USERS_MAX = 10_000
"""So many users are remembered; those with nothing under way are forgotten first."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one port; a user is a name of a token file, and everybody where there is none.

    Calls are those that end by themselves; subscriptions are counted apart. A rate lets twice what
    comes in a second be spent at once.
    """

    calls: int = 2_000
    calls_per_user: int = 500
    subscriptions: int = 2_000
    subscriptions_per_user: int = 500
    calls_per_s: float = 2_000.0
    bytes_per_s: float = inf
    connections: int = 2_000
    rows_per_s: float = inf
    strangers: int = 500
    stranger_s: float = 10.0


@dataclass(slots=True)
class Bucket:
    """Tokens that come at a rate and are spent.

    A cost is known late, so that it may leave a debt.
    """

    per_s: float
    left: float
    at_s: float

    def open(self, now_s: float) -> bool:
        """Whether something is left to spend."""
        if self.per_s == inf:
            return True
        self.left = min(2 * self.per_s, self.left + (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        return self.left > 0

    def spend(self, cost: float) -> None:
        """Take what something has cost."""
        self.left -= cost

    def debt_s(self) -> float:
        """Seconds until nothing is owed."""
        return max(0.0, -self.left / self.per_s)


@dataclass(slots=True)
class _Use:
    """The calls of one user that are under way, and the credit that is left to the user."""

    rate: Bucket
    volume: Bucket
    rows: Bucket
    under_way: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})


class Admissions:
    """Counts what is under way on one port, by user and in all."""

    def __init__(
        self,
        limits: CallLimits,
        now_s: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.limits = limits
        self._sleep = sleep
        self._now_s = now_s
        self.steps = FairSteps(now_s)
        self.strangers = Strangers(limits.strangers, limits.stranger_s, now_s)
        self._users: dict[str, _Use] = {}
        self._under_way = {False: 0, True: 0}

    @contextmanager
    def admitted(
        self, user: str, endless: bool, request_bytes: int | None
    ) -> Iterator[Callable[[int], None]]:
        """One call of a user, for as long as it takes; what it gives is told the bytes of answers.

        Long work of other users pauses meanwhile, unless the call is one that waits without end.
        `request_bytes` is None for a body whose bytes were throttled as they came.
        Raises: Exhausted, which names the limit and its setting.
        """
        use = self._use(user)
        self._refuse_beyond(user, use, endless, request_bytes)
        use.rate.spend(1)
        use.volume.spend(request_bytes or 0)
        use.under_way[endless] += 1
        self._under_way[endless] += 1
        if not endless:
            PRECEDENCE.begin(user)
        try:
            yield use.volume.spend
        finally:
            if not endless:
                PRECEDENCE.end(user)
            use.under_way[endless] -= 1
            self._under_way[endless] -= 1

    async def end_strangers(self, port: int, refused: Callable[[str], None]) -> None:
        """End connections of `port` whose callers stay unknown, until cancelled; see
        `Strangers`.
        """
        await self.strangers.end_forever(port, self._sleep, refused)

    async def throttle_rows(self, user: str, count: int) -> None:
        """Return when the user may write `count` rows more: at once, or after earlier ones.

        A call that is cancelled while it waits has written nothing, and owes nothing.
        """
        rows = self._use(user).rows
        debt_s = self._debt_s(rows)
        rows.spend(count)
        if debt_s:
            try:
                await self._sleep(debt_s)
            except asyncio.CancelledError:
                rows.spend(-count)
                raise

    async def throttle_bytes(self, user: str, count: int = 0) -> None:
        """Return when the user may send, or be sent, more; `count` bytes have come since."""
        volume = self._use(user).volume
        volume.spend(count)
        if debt_s := self._debt_s(volume):
            await self._sleep(debt_s)

    def _debt_s(self, bucket: Bucket) -> float:
        bucket.open(self._now_s())
        return bucket.debt_s()

    def _use(self, user: str) -> _Use:
        found = self._users.get(user)
        if found is None:
            if len(self._users) >= USERS_MAX:
                idle = [
                    name for name, use in self._users.items() if not any(use.under_way.values())
                ]
                for name in idle:
                    del self._users[name]
            limits, now_s = self.limits, self._now_s()
            found = self._users[user] = _Use(
                Bucket(limits.calls_per_s, 2 * limits.calls_per_s, now_s),
                Bucket(limits.bytes_per_s, 2 * limits.bytes_per_s, now_s),
                Bucket(limits.rows_per_s, 2 * limits.rows_per_s, now_s),
            )
        return found

    def _refuse_beyond(
        self, user: str, use: _Use, endless: bool, request_bytes: int | None
    ) -> None:
        limits, now_s = self.limits, self._now_s()
        what = "subscriptions" if endless else "calls"
        most = limits.subscriptions if endless else limits.calls
        own = limits.subscriptions_per_user if endless else limits.calls_per_user
        if use.under_way[endless] >= own:
            raise _exhausted(f"{user} has {own} {what} under way", f"limits.{what}_per_user")
        if self._under_way[endless] >= most:
            raise _exhausted(f"all users have {most} {what} under way", f"limits.{what}")
        if not use.rate.open(now_s):
            says = f"{user} makes more than {limits.calls_per_s:g} calls a second"
            raise _exhausted(says, "limits.calls_per_s")
        if request_bytes is not None and not use.volume.open(now_s):
            says = f"{user} sends and is sent more than {limits.bytes_per_s:,.0f} bytes a second"
            raise _exhausted(says, "limits.bytes_per_s")


of_call: ContextVar[Admissions | None] = ContextVar("of_call", default=None)
"""The admissions that count the call of this context; None on a port of services."""


async def in_steps_of_call(work: Awaitable[T]) -> T:
    """The result of work that a task of its own does beside a call, still in the turns of the
    caller.
    """
    ours = of_call.get()
    if ours is None:
        return await work
    return await ours.steps.steps_of(caller.get().name, work)


async def throttle_rows_of_call(count: int) -> None:
    """Return when the caller may write `count` rows more."""
    ours = of_call.get()
    if ours is not None:
        await ours.throttle_rows(caller.get().name, count)


def _exhausted(says: str, setting: str) -> Exhausted:
    return Exhausted(f"call refused: {says}; ask again later ({setting})", setting=setting)
