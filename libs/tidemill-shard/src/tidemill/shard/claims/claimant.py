"""One replica of a group: its session, what it has claimed, and since when nobody has heard of
others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidemill.errors import Fenced, UsageError
from tidemill.shard.claims.register import Register
from tidemill.shard.claims.tables import (
    Member,
    Members,
    Owners,
    beaten,
    confirmed,
    epoch_of,
    given_up,
    joined,
    settled,
    to_claim,
    to_give_up,
    unclaimed,
    without,
)
from tidemill.shard.ports import Clock, Consensus

LEASE_S = 4.0
"""Seconds without a heartbeat that end a session: enough for a busy machine, soon after a death."""

HELD_SHARE = 0.8
"""Share of its lease for which a replica counts on its claims: others take them later than that."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An item that this replica has, and the epoch to present where its effects happen."""

    group: str
    item: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Owned:
    """An item as its group sees it: who has it, and by which epoch."""

    item: str
    name: str
    details: str
    epoch: int


class Claiming(Protocol):
    """The interface of a claimant for work on claims; its promises are those of Claimant."""

    @property
    def sole(self) -> bool:
        """Whether there are no other replicas: a renewal grants everything at once, at no cost."""

    @property
    def lease_s(self) -> float:
        """Seconds without a heartbeat that end the session."""

    @property
    def held_until_s(self) -> float:
        """Monotonic second until which the claims are counted on."""

    @property
    def silence_s(self) -> float:
        """As of Claimant."""

    @property
    def happened(self) -> Mapping[str, int]:
        """As of Claimant."""

    def held(self) -> dict[str, Claim]:
        """Item → its claim, for claims that are still counted on."""

    async def confirm(self, claim: Claim) -> None:
        """Raises: Fenced unless the claim is held."""

    async def owners(self) -> tuple[Owned, ...]:
        """Every item that a live replica has, and its owner."""

    async def renew(self, wanted: Iterable[str], left: Iterable[str] = ()) -> list[Claim]:
        """Send a heartbeat and claim free items; returns the claims to give up."""

    async def give_up(self, claims: Collection[Claim]) -> None:
        """Release items whose work has stopped."""

    async def leave(self) -> None:
        """End the session: all its items are free."""


class Claimant:
    """A replica that claims items of `group`; calls that are made at once wait for one another.

    `name` stays over restarts and attracts the same items; `details` is what others need to reach
    this replica. `ids` gives names that nobody ever used. Every call may raise Unavailable and
    Indeterminate: the next one goes on from there, and claims last until their lease ends. `held`
    and `check` may be called on any thread.
    """

    sole = False

    def __init__(
        self,
        consensus: Consensus,
        group: str,
        clock: Clock,
        ids: Callable[[], str],
        *,
        name: str,
        details: str = "",
        lease_s: float = LEASE_S,
        dead: Collection[str] = (),
        noted: Callable[[str], None] = lambda session: None,
    ) -> None:
        """`dead` are sessions that have surely ended; `noted` hears of ours before they begin.

        Raises: UsageError.
        """
        if not group or not lease_s > 0:
            raise UsageError(f"a group {group!r} with leases of {lease_s} s", reason="Claims")
        self.group = group
        self.lease_s = lease_s
        self.happened: Counter[str] = Counter()
        """Events by kind, for metrics: `claimed`, `given up`, `evicted` others, `lost` the session.

        Claims have `lapsed` with a session, or were `taken over` from a session that ended.
        """
        self.silence_s = 0.0
        """Of all claims taken over: from the last sign of life of who had them until they were
        claimed.
        """
        self._members = Register(consensus, f"{group}/members", Members())
        self._owners = Register(consensus, f"{group}/owners", Owners())
        self._clock = clock
        self._ids = ids
        self._member = Member(name, details, int(lease_s * 1000))
        self._dead = dead
        self._noted = noted
        self._session: str | None = None
        self._joined = False
        self._asking = asyncio.Lock()
        self._beat_s = float("-inf")
        self._held_until_s = float("-inf")
        # IMPORTANT: replaced and never changed, emptied before the lease is another session's:
        # others look on.
        self._claims: dict[str, int] = {}
        self._free_s: dict[str, float] = {}
        """Since when wanted items have been seen free, without a break."""
        self._beside: set[str] = set()
        """Claims beyond the share, of items that were free for a lease."""
        self._with: frozenset[str] = frozenset()
        """The sessions that were there as these were claimed; others deal out all items anew."""
        self._heard: dict[str, tuple[int, float]] = {}
        self._gone: dict[str, float] = {}
        """When something was last heard of sessions that have ended and may still stand beside
        items.
        """

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat that has reached Consensus."""
        return self._clock.monotonic_s() - self._beat_s

    @property
    def held_until_s(self) -> float:
        """Until when, on the monotonic clock, the claims count without another renewal."""
        return self._held_until_s

    def held(self) -> dict[str, Claim]:
        """The claims by item: empty once their lease is over by the clock of this process."""
        if self._clock.monotonic_s() >= self._held_until_s:
            return {}
        return {item: Claim(self.group, item, epoch) for item, epoch in self._claims.items()}

    def check(self, claim: Claim) -> None:
        """Raises: Fenced unless this process may still count on the claim."""
        if self.held().get(claim.item) != claim:
            raise Fenced(
                f"{claim.item} is not claimed by this replica any more (epoch {claim.epoch})",
                item=claim.item, epoch=claim.epoch,
            )  # fmt: skip

    async def confirm(self, claim: Claim) -> None:
        """Raises: Fenced unless Consensus has the claim now. Cost: two reads."""
        self.check(claim)
        async with self._asking:
            _, owners = await self._owners.read()
            _, members = await self._members.read()
            alive = self._session in members.sessions
            if not alive or epoch_of(owners, claim.item) != claim.epoch:
                self._claims = {i: e for i, e in self._claims.items() if i != claim.item}
        self.check(claim)

    async def beat(self) -> None:
        """Send a heartbeat and end silent sessions: claims that are held stay held.

        Claims that others have taken meanwhile are held no longer. A missing session does not
        begin.

        Cost: a read, a write.
        """
        async with self._asking:
            if self._joined:
                await self._beaten()

    async def renew(self, wanted: Iterable[str], left: Iterable[str] = ()) -> list[Claim]:
        """Send a heartbeat, end silent sessions, claim free items up to the fair share.

        An item that is free for a lease is claimed beyond it, so that none stays without an owner.
        An item of `left` is another replica's, as long as one lives that does not leave it too.
        Returns the claims to release: stop their work, then call `give_up`. Gains and losses show
        in `held`. Call it several times per lease. Cost: two reads, one write, and a write if
        something changes hands.
        """
        async with self._asking:
            self._member = msgspec.structs.replace(self._member, leaves=tuple(left))
            return await self._renew(dict.fromkeys(wanted))

    async def _renew(self, items: dict[str, None]) -> list[Claim]:
        while True:
            number, owners = await self._owners.read()
            # IMPORTANT: members are read after owners, so that whoever has an item and lives is
            # seen alive.
            members = await self._beaten()
            assert self._session is not None
            self._claims = confirmed(owners, self._claims)
            overdue = self._overdue(owners, members, items)
            gained = to_claim(owners, members, items, self._session, self._claims)
            beyond = [] if gained else overdue[:1]
            gained += beyond
            after = settled(owners, members, self._session, self._claims, gained)
            if after is owners:
                break
            if await self._owners.replace(number, after):
                self._claims = self._claims | {item: after.items[item].epoch for item in gained}
                self.happened["claimed"] += len(gained)
                self._count_takeovers(owners, gained)
                self._beside |= {*beyond}
                owners = after
                break
        surplus = to_give_up(owners, members, items, self._session, self._claims, self._beside)
        return [Claim(self.group, item, self._claims[item]) for item in surplus]

    def _overdue(self, owners: Owners, members: Members, items: Iterable[str]) -> list[str]:
        """The items that nobody has taken for a lease: sessions of another version may count their
        shares otherwise. A claim of such an item stays until a session comes or goes.
        """
        now_s, sessions = self._clock.monotonic_s(), frozenset(members.sessions)
        if sessions != self._with:
            self._beside, self._with, self._free_s = set(), sessions, {}
        self._beside &= self._claims.keys()
        free = unclaimed(owners, members, items)
        self._free_s = {item: self._free_s.get(item, now_s) for item in free}
        return [item for item, since_s in self._free_s.items() if now_s - since_s > self.lease_s]

    async def give_up(self, claims: Collection[Claim]) -> None:
        """Release items whose work has stopped; others may begin at once.

        Claims that are over are ignored.
        """
        async with self._asking:
            await self._give_up(claims)

    async def _give_up(self, claims: Collection[Claim]) -> None:
        going = {c.item: c.epoch for c in claims if self._claims.get(c.item) == c.epoch}
        # They are not counted on from here on, whatever becomes of the write.
        self._claims = {i: epoch for i, epoch in self._claims.items() if i not in going}
        while going:
            number, owners = await self._owners.read()
            after = given_up(owners, going)
            if after is owners or await self._owners.replace(number, after):
                break
        self.happened["given up"] += len(going)

    async def leave(self) -> None:
        """Give everything up and end the session; `renew` begins another one."""
        async with self._asking:
            await self._leave()

    async def _leave(self) -> None:
        session, self._session = self._session, None
        self._held_until_s, self._joined = float("-inf"), False
        await self._give_up([Claim(self.group, item, e) for item, e in self._claims.items()])
        while session is not None:
            number, members = await self._members.read()
            after = without(members, {session})
            if after is members or await self._members.replace(number, after):
                break

    async def owners(self) -> tuple[Owned, ...]:
        """Every item that a live replica has, ascending. Cost: two reads."""
        _, owners = await self._owners.read()
        _, members = await self._members.read()
        return tuple(
            Owned(item, found.name, found.details, owner.epoch)
            for item, owner in sorted(owners.items.items())
            if (found := members.sessions.get(owner.session)) is not None
        )

    async def _beaten(self) -> Members:
        """The members just after a sign of life of ours; our session may be a new one."""
        while True:
            number, members = await self._members.read()
            silent = self._silent(members)
            session = self._current_session(members)
            here = session in members.sessions
            after = (
                beaten(members, session, self._member.leaves)
                if here
                else joined(members, session, self._member)
            )
            after = without(after, silent)
            # The lease begins before the sign of life is under way: others hear of it later.
            begun_s = self._clock.monotonic_s()
            if await self._members.replace(number, after):
                self._held_until_s, self._joined = begun_s + self.lease_s * HELD_SHARE, True
                self._beat_s = begun_s
                self.happened["evicted"] += len(silent)
                return after

    def _current_session(self, members: Members) -> str:
        """Ours; a new one, without claims, if others have ended it.

        An ended one is never used again.
        """
        if self._joined and self._session not in members.sessions:
            self.happened["lost"] += 1
            self.happened["lapsed"] += len(self._claims)
            self._session, self._joined = None, False
        if self._session is None:
            self._session = self._ids()
            self._noted(self._session)
        if not self._joined:
            self._claims, self._held_until_s = {}, float("-inf")
        return self._session

    def _silent(self, members: Members) -> set[str]:
        """Whose lease has run out: nothing was heard for so long, by the clock of this process.

        The lease of a dead one is over at once.
        """
        now_s = self._clock.monotonic_s()
        heard = {}
        for session, member in members.sessions.items():
            beat, at_s = self._heard.get(session, (-1, now_s))
            heard[session] = (member.beat, at_s if beat == member.beat else now_s)
        ended = {name: at_s for name, (_, at_s) in self._heard.items() if name not in heard}
        self._gone |= ended
        self._heard = heard
        return {
            session
            for session, (_, at_s) in heard.items()
            if session != self._session
            and (session in self._dead or now_s - at_s >= members.sessions[session].lease_ms / 1000)
        }

    def _count_takeovers(self, owners: Owners, gained: Collection[str]) -> None:
        """Count what was gained from sessions that have ended, by what this process heard of
        them.
        """
        now_s = self._clock.monotonic_s()
        heard = self._gone | {name: at_s for name, (_, at_s) in self._heard.items()}
        for item in gained:
            owner = owners.items.get(item)
            if owner is not None and owner.session in heard and owner.session != self._session:
                self.happened["taken over"] += 1
                self.silence_s += now_s - heard[owner.session]
        named = {owner.session for owner in owners.items.values()}
        self._gone = {name: at_s for name, at_s in self._gone.items() if name in named}
