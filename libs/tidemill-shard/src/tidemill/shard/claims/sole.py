"""The claimant of a process that shares its stores with no other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tidemill.errors import Fenced
from tidemill.shard.claims.claimant import Claim, Owned

CANCEL_AGAIN_S = 60.0
"""Seconds after which work that goes on although it was cancelled is cancelled again: the lease of
this claimant, which ends no claim.
"""


class SoleClaimant:
    """Guarantees of Claimant without other replicas: each wanted item is owned at once.

    No claim lapses, and nothing is read or written: no call raises Unavailable. Owners are not
    listed, since no other process is to be called.
    """

    sole = True

    def __init__(self, group: str) -> None:
        self.group = group
        self.lease_s = CANCEL_AGAIN_S
        self.happened: Counter[str] = Counter()
        self.silence_s = 0.0
        self.held_until_s = float("inf")
        self._claims: dict[str, Claim] = {}
        self._epoch = 0

    def held(self) -> dict[str, Claim]:
        """The claims by item."""
        return dict(self._claims)

    async def confirm(self, claim: Claim) -> None:
        """Raises: Fenced if the claim was given up."""
        if self._claims.get(claim.item) != claim:
            raise Fenced(
                f"{claim.item} is not claimed by this process any more (epoch {claim.epoch})",
                item=claim.item, epoch=claim.epoch,
            )  # fmt: skip

    async def renew(self, wanted: Iterable[str], left: Iterable[str] = ()) -> list[Claim]:
        """Own everything that is wanted, `left` or not; returns the claims of other items."""
        items = dict.fromkeys(wanted)
        for item in [each for each in items if each not in self._claims]:
            self._epoch += 1
            self.happened["claimed"] += 1
            self._claims[item] = Claim(self.group, item, self._epoch)
        return [claim for item, claim in self._claims.items() if item not in items]

    async def give_up(self, claims: Collection[Claim]) -> None:
        """Release items whose work has stopped."""
        for claim in claims:
            if self._claims.get(claim.item) == claim:
                del self._claims[claim.item]
                self.happened["given up"] += 1

    async def leave(self) -> None:
        """Give everything up."""
        await self.give_up(list(self._claims.values()))

    async def owners(self) -> tuple[Owned, ...]:
        """Nobody to be called."""
        return ()
