"""Claims kept beside the work: signs of life go on while the event loop of the work is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.claims.claimant import Claim, Claimant, Owned
from tidemill.shard.ports import Clock

T = TypeVar("T")

BEAT_SHARE = 0.3
"""Of a lease: silence of so long lets a sign of life be given by itself.

Work that keeps up renews before.
"""

PATIENCE_S = 120.0
"""Work that has not asked for so long does not go on any more; loops may be compiled for a minute.
"""


class There(Protocol):
    """Carries out a call where the claims are kept, and returns what came of it."""

    def __call__(self, call: Coroutine[Any, Any, T], /) -> Awaitable[T]: ...


class KeptClaimant:
    """A claimant on another loop (`there`), where `keep` sends heartbeats all the time.

    Work on an event loop that is busy for longer than the lease keeps its claims, as long as it
    asks once in `PATIENCE_S`. Work that has stopped for good loses them. A claim past its lease is
    never counted on: `held` and `check` look at the clock, here and there alike. Calls are those of
    Claimant.
    """

    sole = False

    def __init__(self, claimant: Claimant, there: There, clock: Clock) -> None:
        self._claimant = claimant
        self._there = there
        self._clock = clock
        self._asked_s = float("-inf")
        self.happened = claimant.happened
        self.lease_s = claimant.lease_s

    @property
    def held_until_s(self) -> float:
        """As of Claimant."""
        return self._claimant.held_until_s

    @property
    def silence_s(self) -> float:
        """As of Claimant."""
        return self._claimant.silence_s

    def held(self) -> dict[str, Claim]:
        """As of Claimant; nothing is asked."""
        return self._claimant.held()

    def check(self, claim: Claim) -> None:
        """As of Claimant; nothing is asked."""
        self._claimant.check(claim)

    async def confirm(self, claim: Claim) -> None:
        """As of Claimant."""
        await self._there(self._claimant.confirm(claim))

    async def renew(self, wanted: Iterable[str], left: Iterable[str] = ()) -> list[Claim]:
        """As of Claimant; the work goes on."""
        self._asked_s = self._clock.monotonic_s()
        return await self._there(self._claimant.renew(wanted, left))

    async def give_up(self, claims: Collection[Claim]) -> None:
        """As of Claimant."""
        await self._there(self._claimant.give_up(claims))

    async def leave(self) -> None:
        """As of Claimant."""
        await self._there(self._claimant.leave())

    async def owners(self) -> tuple[Owned, ...]:
        """As of Claimant."""
        return await self._there(self._claimant.owners())

    async def keep(self) -> None:
        """Give the signs of life that the work is too busy to give, until cancelled; to be run
        there.
        """
        due_s = self.lease_s * BEAT_SHARE
        while True:
            left_s = due_s - self._claimant.silent_s
            asked_s = self._clock.monotonic_s() - self._asked_s
            if left_s <= 0 and asked_s < PATIENCE_S:
                with suppress(Unavailable, Indeterminate):
                    await self._claimant.beat()
            # Not again at once: a failure comes again, and so does the rounding of an instant.
            await self._clock.sleep(max(left_s, due_s / 4))


class Keeper:
    """A thread with an event loop of its own, on which the claims of a process are kept.

    Calls of claimants run there: their Consensus is used, and closed, on that loop alone. One other
    event loop, which may be busy, may use it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._keeping: list[Future[None]] = []
        self._thread = threading.Thread(target=self._run, name="claims", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def there(self, call: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """The result of a call on the keeper's loop."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def asked(self, claimant: Claimant) -> KeptClaimant:
        """A claimant that is asked for owners, and claims nothing."""
        return KeptClaimant(claimant, self.there, self._clock)

    def kept(self, claimant: Claimant) -> KeptClaimant:
        """A claimant whose claims are kept from now on, until `close`."""
        kept = self.asked(claimant)
        self._keeping.append(asyncio.run_coroutine_threadsafe(kept.keep(), self._loop))
        return kept

    async def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End the signs of life, call `last` on the keeper's loop, end the thread."""
        for keeping in self._keeping:
            keeping.cancel()
        await self.there(last())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
