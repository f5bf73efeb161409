"""The state of a group in Consensus, as values: members with their heartbeats, and owners of items.

Two logs, since members beat all the time and items change hands rarely. Functions here are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec


class Member(msgspec.Struct, frozen=True):
    """A live replica. `beat` grows with each sign of life; silence of `lease_ms` ends its session.

    It `leaves` items to others: those whose work has failed with it, for as long as it names them.
    """

    name: str
    details: str
    lease_ms: int
    beat: int = 0
    leaves: tuple[str, ...] = ()


class Members(msgspec.Struct, frozen=True):
    """The live sessions of a group. A session that is not here any more never comes back."""

    sessions: dict[str, Member] = {}


class Owner(msgspec.Struct, frozen=True):
    """Owner of an item. If the session is not a member, the item is free."""

    session: str
    epoch: int


class Owners(msgspec.Struct, frozen=True):
    """Item → owner; `epoch` is the greatest that was ever given."""

    epoch: int = 0
    items: dict[str, Owner] = {}


def joined(members: Members, session: str, member: Member) -> Members:
    """The group with one more session."""
    return Members({**members.sessions, session: member})


def beaten(members: Members, session: str, leaves: tuple[str, ...] = ()) -> Members:
    """The session, which is there, has given one more sign of life, and says what it leaves to
    others.
    """
    member = members.sessions[session]
    later = msgspec.structs.replace(member, beat=member.beat + 1, leaves=leaves)
    return Members({**members.sessions, session: later})


def without(members: Members, sessions: Collection[str]) -> Members:
    """These sessions have ended; the same value if none of them was there."""
    if members.sessions.keys().isdisjoint(sessions):
        return members
    return Members({name: m for name, m in members.sessions.items() if name not in sessions})


def settled(
    owners: Owners,
    members: Members,
    session: str,
    held: Mapping[str, int],
    gained: Sequence[str],
) -> Owners:
    """Owners after the session gained items, each by an epoch greater than any before.

    The session keeps the items that it holds. Other items of its own in the log are free, as are
    those of ended sessions. The same value if nothing changes but names of ended sessions.
    """
    won = {item: Owner(session, owners.epoch + 1 + at) for at, item in enumerate(gained)}
    forgotten = [
        item
        for item, owner in owners.items.items()
        if owner.session == session and held.get(item) != owner.epoch and item not in won
    ]
    if not won and not forgotten:
        return owners
    kept = {
        item: owner
        for item, owner in owners.items.items()
        if owner.session in members.sessions and item not in forgotten
    }
    return Owners(owners.epoch + len(won), {**kept, **won})


def confirmed(owners: Owners, claims: Mapping[str, int]) -> dict[str, int]:
    """Those of the claims that the log has, by the same epoch."""
    return {item: epoch for item, epoch in claims.items() if epoch_of(owners, item) == epoch}


def given_up(owners: Owners, claims: Mapping[str, int]) -> Owners:
    """Nobody has these items, as far as they are still had by these epochs; the same value if none
    is.
    """
    gone = {item for item, epoch in claims.items() if epoch_of(owners, item) == epoch}
    if not gone:
        return owners
    return Owners(owners.epoch, {item: o for item, o in owners.items.items() if item not in gone})


def epoch_of(owners: Owners, item: str) -> int | None:
    """By which epoch an item is had, if it is."""
    owner = owners.items.get(item)
    return None if owner is None else owner.epoch


def fair_share(owners: Owners, members: Members, wanted: Collection[str], session: str) -> int:
    """Number of the wanted items that a session should have: all the same number, some one more.

    One more is for those who have most already, so that nothing moves without need. The items are
    those of one kind, see `alike`, that nobody leaves to others.
    """
    share, more = divmod(len(wanted), len(members.sessions))
    had = Counter(
        owner.session
        for item, owner in owners.items.items()
        if item in wanted and owner.session in members.sessions
    )
    whole = _whole_of(next(iter(wanted), ""))
    liked = {name: _affinity(each.name, whole) for name, each in members.sessions.items()}
    ranked = sorted(members.sessions, key=lambda name: (-had[name], whole and liked[name], name))
    return share + (ranked.index(session) < more)


def alike(wanted: Iterable[str], members: Members) -> list[list[str]]:
    """The wanted items that are dealt out together: shares of one work, and all that have none.

    So sessions have the same number of each work's shares. Items that some sessions leave to others
    do not count: their taker has them beside its part.
    """
    left, found = left_to(members), dict[str, list[str]]()
    for item in wanted:
        if item not in left:
            found.setdefault(_whole_of(item), []).append(item)
    return list(found.values())


def _whole_of(item: str) -> str:
    """The work of which an item is one share; empty for an item that is none."""
    return item.rpartition("#")[0]


def to_claim(
    owners: Owners,
    members: Members,
    wanted: Collection[str],
    session: str,
    held: Mapping[str, int],
) -> list[str]:
    """The items that a session should take now: free ones up to its share, and those that are left
    to it.

    An item that is its own in the log but not among those `held` with their epochs comes from a
    call whose outcome was unknown. It is taken anew: a late effect of that call is then impossible.
    """
    left = left_to(members)

    def is_free(item: str) -> bool:
        owner = owners.items.get(item)
        if not is_owned(owners, members, item):
            return True
        return owner is not None and owner.session == session and held.get(item) != owner.epoch

    found = [item for item in wanted if left.get(item) == session and is_free(item)]
    name = members.sessions[session].name
    for items in alike(wanted, members):
        room = fair_share(owners, members, items, session) - sum(item in held for item in items)
        free = sorted(filter(is_free, items), key=lambda item: (_affinity(name, item), item))
        found += free[: max(0, room)]
    return found


def is_owned(owners: Owners, members: Members, item: str) -> bool:
    """Whether a live session has an item."""
    owner = owners.items.get(item)
    return owner is not None and owner.session in members.sessions


def unclaimed(owners: Owners, members: Members, wanted: Iterable[str]) -> list[str]:
    """The wanted items that no live session has, but for those that one leaves to another."""
    left = left_to(members)
    return [item for item in wanted if item not in left and not is_owned(owners, members, item)]


def to_give_up(
    owners: Owners,
    members: Members,
    wanted: Collection[str],
    session: str,
    held: Collection[str],
    beside: Collection[str] = (),
) -> list[str]:
    """The held items that a session should release.

    These are the unwanted items, those that it leaves, and those beyond its share. Items that it
    has `beside` its share stay.
    """
    left, leaves = left_to(members), members.sessions[session].leaves
    unwanted = sorted(
        item for item in held if item not in wanted or (item in left and item in leaves)
    )
    name = members.sessions[session].name
    for items in alike(wanted, members):
        kept = [item for item in items if item in held and item not in beside]
        surplus = len(kept) - fair_share(owners, members, items, session)
        kept.sort(key=lambda item: (_affinity(name, item), item))
        unwanted += kept[-surplus:] if surplus > 0 else []
    return unwanted


def left_to(members: Members) -> dict[str, str]:
    """Item → the session that takes it if it is free, for items that some sessions leave to others.

    An item that every session leaves is left to none of them: it counts as if nobody did.
    """
    found = {}
    for item in {item for member in members.sessions.values() for item in member.leaves}:
        others = [
            (_affinity(member.name, item), session)
            for session, member in members.sessions.items()
            if item not in member.leaves
        ]
        if others:
            found[item] = min(others)[1]
    return found


def _affinity(name: str, item: str) -> bytes:
    """A number of each pair: replicas prefer different items, and each the same ones after a
    restart.
    """
    return blake2b(f"{len(name)} {name}{item}".encode(), digest_size=8).digest()
