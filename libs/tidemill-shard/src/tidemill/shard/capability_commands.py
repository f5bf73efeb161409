"""Commands that bind collections and move capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Literal, TypeAlias, overload

import pyarrow as pa

from tidemill.errors import AlreadyUsed, UnknownCapability, UsageError
from tidemill.shard import transitions
from tidemill.shard.capabilities import (
    Capability,
    CapabilityId,
    CollectionStatus,
    Holder,
    ReadCapability,
    WriteCapability,
    holder_key,
    holder_of,
)
from tidemill.shard.offloading import all_of
from tidemill.shard.state import Description, State, initial_state
from tidemill.shard.versions import Core
from tidemill.time import Frontier, frontier

LEASE_MS = 900_000
TOKEN_CHARACTERS_MIN = 16
LOOKS = 64
"""Collections that are looked at in the store at once."""
TURN = 500
"""So many statuses take some milliseconds, and then other tasks have their turn."""

Rights: TypeAlias = Literal["read", "write", "both"]


class CapabilityCommands:
    """Create, acquire, hold, clone, transfer, downgrade, drop, renew; status and retention.

    A `token` makes a command that hands out capabilities repeatable. While these live, the same
    token is answered with the same capabilities, whichever process died in between. It has to be as
    hard to guess as they are. With `exact`, a capability is refused if it does not hold the
    frontier that it states (K4). Without it, the parts of one process share a capability and need
    not know its frontier.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def bind(
        self,
        collection: str,
        description: Description,
        start: Frontier = frontier(0),  # noqa: B008
    ) -> bool:
        """Create a collection for internal writers, without a holder; True if the id was free.

        Cost: one commit.
        """
        made = await self._core.versions.log(collection).create(initial_state(description, start))
        if made:
            self._core.versions.wakeups.changed(collection)
        return made

    async def create(
        self,
        collection: str,
        description: Description,
        *,
        start: Frontier = frontier(0),  # noqa: B008  a frozen value
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        token: str | None = None,
    ) -> tuple[ReadCapability, WriteCapability | None]:
        """Bind an id: since equals upper equals `start` (CR1, L1).

        The write capability is None where only internal writers append (K13). Raises: AlreadyUsed,
        also if the collection is closed (L4, CR4).
        """
        now_ms, asked = self._core.clock.now_ms(), request_digest("create", token)
        read, fresh = CapabilityId(self._core.ids()), CapabilityId(self._core.ids())
        held, state = transitions.hold_read(
            initial_state(description, start), read,
            owner=owner, lease_ms=lease_ms, now_ms=now_ms, token=asked,
        )  # fmt: skip
        write: WriteCapability | None = None
        if description.user_writable:
            write = WriteCapability(fresh, collection, start)
            _, state = transitions.hold_write(
                state, write.id, owner=owner, lease_ms=lease_ms, now_ms=now_ms, token=asked
            )
        if await self._core.versions.log(collection).create(state):
            self._core.versions.wakeups.changed(collection)
            return ReadCapability(read, collection, held), write
        known = await self._core.versions.state(collection)
        before = transitions.asked_before(known.reads, asked)
        if before is None:
            raise AlreadyUsed(f"the id {collection} is or was bound", collection=collection)
        wrote = transitions.asked_before(known.writes, asked)
        return (
            ReadCapability(CapabilityId(before[0]), collection, before[1]),
            None
            if wrote is None
            else WriteCapability(CapabilityId(wrote[0]), collection, wrote[1]),
        )

    @overload
    async def acquire(
        self, collection: str, *, owner: str = "", lease_ms: int | None = LEASE_MS
    ) -> tuple[ReadCapability, WriteCapability | None]: ...

    @overload
    async def acquire(
        self,
        collection: str,
        *,
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        rights: Rights,
        token: str | None = None,
    ) -> tuple[ReadCapability | None, WriteCapability | None]: ...

    async def acquire(
        self,
        collection: str,
        *,
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        rights: Rights = "both",
        token: str | None = None,
    ) -> tuple[ReadCapability | None, WriteCapability | None]:
        """New capabilities at the current since and upper, which may be empty (AC1–AC3, K14).

        Only those that `rights` name; to write takes a collection that users can write. Raises:
        UnknownCollection (L0), UsageError.
        """
        now_ms, asked = self._core.clock.now_ms(), request_digest("acquire", token)
        fresh = self._core.ids(), self._core.ids()
        Taken: TypeAlias = "tuple[str, Frontier] | None"

        def acquired(state: State) -> tuple[tuple[Taken, Taken], State]:
            writable = state.description.user_writable
            if rights == "write" and not writable:
                raise UsageError(f"users cannot write {collection}", reason="NotWritable")
            read = transitions.asked_before(state.reads, asked)
            write = transitions.asked_before(state.writes, asked)
            if read is not None or write is not None:
                return (read, write), state
            if rights != "write":
                since, state = transitions.hold_read(
                    state, fresh[0], owner=owner, lease_ms=lease_ms, now_ms=now_ms, token=asked
                )
                read = fresh[0], since
            if rights != "read" and writable:
                upper, state = transitions.hold_write(
                    state, fresh[1], owner=owner, lease_ms=lease_ms, now_ms=now_ms, token=asked
                )
                write = fresh[1], upper
            return (read, write), state

        read, write = await self._core.versions.commit(collection, acquired)
        return (
            None if read is None else ReadCapability(CapabilityId(read[0]), collection, read[1]),
            None
            if write is None
            else WriteCapability(CapabilityId(write[0]), collection, write[1]),
        )

    async def write_hold(
        self, collection: str, *, owner: str, users: bool = True
    ) -> WriteCapability:
        """The write capability that `owner` has for good: the present one, else one at upper.

        Every presenter of it is one and the same writer. With `users` these can write the
        collection from then on, too; otherwise nobody gets another capability by its name (K13).
        Raises: UnknownCollection.
        """
        now_ms, fresh = self._core.clock.now_ms(), self._core.ids()

        def taken(state: State) -> tuple[tuple[str, Frontier], State]:
            state = transitions.let_users_write(state) if users else state
            return transitions.hold_named_write(state, fresh, owner=owner, now_ms=now_ms)

        found, held = await self._core.versions.commit(collection, taken)
        return WriteCapability(CapabilityId(found), collection, held)

    async def read_hold(
        self,
        collection: str,
        *,
        owner: str,
        at: Frontier | None = None,
        lease_ms: int | None = LEASE_MS,
    ) -> ReadCapability:
        """A hold at since, or at `at` if that is later.

        Without a lease it belongs to its owner, not to a process: the owner's hold is found again
        as it stands, whatever `at` says. Raises: UnknownCollection.
        """
        now_ms = self._core.clock.now_ms()
        fresh = self._core.ids()
        found, held = await self._core.versions.commit(
            collection,
            lambda state: transitions.hold_named(
                state, fresh, at=at, owner=owner, lease_ms=lease_ms, now_ms=now_ms
            ),
        )
        return ReadCapability(CapabilityId(found), collection, held)

    async def status(self, collection: str) -> CollectionStatus:
        """Frontiers, who holds since back and since when, sizes. Raises: UnknownCollection.

        Cost: a look at the store.
        """
        known = await self._core.versions.catch_up(collection)
        return CollectionStatus(collection, known.number, known.state)

    async def statuses(
        self, collections: Iterable[str], age_s_max: float | None = None
    ) -> dict[str, CollectionStatus | Exception]:
        """The statuses of many, or the error of one that has none.

        Each was the newest at most `age_s_max` before the call, by default the time between two
        looks at what others write. Cost: microseconds for one that this process has written or seen
        since, or that rests with its pace. Those that have not moved cost one exchange with the
        store for hundreds of them, if it is one of `ManyHeads`. Another one costs a look, several
        at a time.
        """
        age_s = self._core.poll_interval_s if age_s_max is None else age_s_max
        names, clock = dict.fromkeys(collections), self._core.clock
        began_s = clock.monotonic_s()
        await self._core.versions.confirm(names, age_s)
        wanted = iter(names)
        found: dict[str, CollectionStatus | Exception] = {}

        async def look() -> None:
            for number, each in enumerate(wanted, 1):
                try:
                    # NB: a slow store tells of the moment at which it was asked.
                    allowed_s = age_s + clock.monotonic_s() - began_s
                    known = await self._core.versions.catch_up(each, allowed_s)
                    found[each] = CollectionStatus(each, known.number, known.state)
                except Exception as error:  # whatever it is, the others are told of
                    found[each] = error
                if number % TURN == 0:
                    await asyncio.sleep(0)  # noqa: TID251  a turn, no time

        await all_of(look() for _ in range(LOOKS))
        return found

    async def description(self, collection: str) -> Description:
        """The description of the collection. Raises: UnknownCollection."""
        return (await self._core.versions.state(collection)).description

    async def extend_schema(self, collection: str, schema: pa.Schema) -> None:
        """Add nullable columns behind those there are; rows from before have null in them.

        Raises: UsageError for any other change.
        """
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.extend_schema(state, schema))
        )

    async def retain(self, collection: str, retain_ms: int | None) -> None:
        """Set the distance from upper at which since follows; None keeps all present history.

        History that is gone does not come back (F14).
        """
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.set_retention(state, retain_ms, now_ms))
        )

    async def set_policy(self, collection: str, to: Frontier) -> None:
        """A fixed retention frontier in place of a distance. Raises: UsageError if it goes back."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.set_policy(state, to, now_ms))
        )

    async def close_collection(self, collection: str) -> None:
        """No update will follow: upper becomes empty (L3)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.close(state, now_ms))
        )

    async def retire(self, collection: str) -> None:
        """Close the collection; its data goes with its last reader (L3)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.retire(state, now_ms))
        )

    @overload
    async def clone(
        self,
        capability: ReadCapability,
        *,
        owner: str | None = None,
        token: str | None = None,
        exact: bool = False,
    ) -> ReadCapability: ...

    @overload
    async def clone(
        self,
        capability: WriteCapability,
        *,
        owner: str | None = None,
        token: str | None = None,
        exact: bool = False,
    ) -> WriteCapability: ...

    async def clone(
        self,
        capability: Capability,
        *,
        owner: str | None = None,
        token: str | None = None,
        exact: bool = False,
    ) -> Capability:
        """The same right at the same frontier with a life of its own (K6)."""
        return await self._copy(capability, owner, request_digest("clone", token), exact)

    async def hand_over(
        self, capability: Capability, owner: str, *, token: str | None = None, exact: bool = False
    ) -> Capability:
        """The same right under a new id, for `owner`; the old id is dead, in the same step (K7)."""
        return await self._copy(
            capability, owner, request_digest("transfer", token), exact, moved=True
        )

    async def _copy(
        self,
        capability: Capability,
        owner: str | None,
        asked: str,
        exact: bool,
        *,
        moved: bool = False,
    ) -> Capability:
        copy, now_ms = CapabilityId(self._core.ids()), self._core.clock.now_ms()

        def copied(state: State) -> tuple[tuple[str, Frontier], State]:
            reads = isinstance(capability, ReadCapability)
            before = transitions.asked_before(state.reads if reads else state.writes, asked)
            if before is not None:
                return before, state
            transitions.presented(state, capability, exact=exact)
            held, state = transitions.clone(state, capability.id, copy, now_ms, owner, asked)
            return (copy, held), transitions.drop(state, capability.id, now_ms) if moved else state

        found, held = await self._core.versions.commit(capability.collection, copied)
        return type(capability)(CapabilityId(found), capability.collection, held)

    async def transfer(self, capability: Capability, owner: str) -> None:
        """Record `owner` as answerable for the capability; its id stays the right (K7)."""
        await self._move(
            capability,
            lambda state, at: transitions.transfer(state, capability.id, owner, at),
            exact=False,
        )

    async def downgrade(
        self, capability: ReadCapability, to: Frontier, *, exact: bool = False
    ) -> ReadCapability:
        """Hold a later frontier, or the same one (K8); the lease begins anew.

        Raises: UsageError with both frontiers if `to` is not beyond the held one.
        """
        await self._move(
            capability,
            lambda state, at: transitions.downgrade(state, capability.id, to, at)[1],
            exact=exact, to=to,
        )  # fmt: skip
        return capability.at(to)

    async def drop(self, capability: Capability, *, exact: bool = False) -> None:
        """Give the right up (K9). Raises: UnknownCapability at the second time."""
        await self._move(
            capability, lambda state, at: transitions.drop(state, capability.id, at), exact=exact
        )

    async def renew(self, capability: Capability, *, exact: bool = False) -> None:
        """Begin the lease anew. Raises: CapabilityExpired, UnknownCapability."""
        await self._move(
            capability, lambda state, at: transitions.renew(state, capability.id, at), exact=exact
        )

    async def _move(
        self,
        capability: Capability,
        move: Callable[[State, int], State],
        *,
        exact: bool,
        to: Frontier | None = None,
    ) -> None:
        """Commit what becomes of a capability that is as its holder states it (K4)."""
        now_ms = self._core.clock.now_ms()

        def moved(state: State) -> tuple[None, State]:
            transitions.presented(state, capability, exact=exact, to=to)
            return None, move(state, now_ms)

        await self._core.versions.commit(capability.collection, moved)

    async def expire(self, capability: Capability) -> None:
        """End a lease as if its time had run out (K12)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            capability.collection,
            lambda state: (None, transitions.expire(state, [capability.id], now_ms)),
        )

    async def expire_holder(self, collection: str, key: str) -> Holder:
        """End the capability with this key of a holder, whether it has a lease or not; who had it.

        Raises: UnknownCollection; UnknownCapability if no live one has the key; UsageError for what
        belongs to a resource, which lets go when it is deleted.
        """
        now_ms = self._core.clock.now_ms()

        def expired(state: State) -> tuple[Holder, State]:
            for name, hold in (*state.reads.items(), *state.writes.items()):
                if key == holder_key(name):
                    if hold.named:
                        raise UsageError(
                            f"{hold.owner} holds {collection} for good: delete what it is for",
                            reason="Named",
                        )
                    return holder_of(name, hold), transitions.expire(state, [name], now_ms)
            raise UnknownCapability(f"no holder of {collection} has the key {key}", key=key)

        return await self._core.versions.commit(collection, expired)


def request_digest(command: str, token: str | None) -> str:
    """The digest by which the token of a request is remembered.

    Raises: UsageError for a token that could be guessed.
    """
    if token is None:
        return ""
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise UsageError(
            f"a token of {len(token)} characters can be guessed: use {TOKEN_CHARACTERS_MIN} or more",
            reason="ShortToken",
        )
    return blake2b(f"{command} {token}".encode(), digest_size=16).hexdigest()
