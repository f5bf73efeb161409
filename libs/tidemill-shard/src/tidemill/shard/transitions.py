"""Effects of capabilities on a collection: pure functions (state, command) → (answer, next state).

A transition that changes nothing returns the same state; one that refuses raises and changes
nothing (K10). Rule ids are those of the formalism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from tidemill.errors import BeforeSince, CapabilityExpired, NotYet, UnknownCapability, UsageError
from tidemill.shard.capabilities import Capability, ReadCapability
from tidemill.shard.state import (
    EXPIRED_KEPT_MAX,
    KEEP_ALL_MS,
    Hold,
    State,
    at_upper,
    settle,
)
from tidemill.time import Frontier, frontier

Value = TypeVar("Value")


def live_read(state: State, capability: str) -> Hold:
    """The hold of a read capability (K4).

    Raises UnknownCapability, CapabilityExpired, UsageError.
    """
    return _live(state, capability, state.reads, state.writes, "read")


def live_write(state: State, capability: str) -> Hold:
    """The hold of a write capability (K4).

    Raises UnknownCapability, CapabilityExpired, UsageError.
    """
    return _live(state, capability, state.writes, state.reads, "write")


def presented(
    state: State, capability: Capability, *, exact: bool, to: Frontier | None = None
) -> Hold:
    """The hold of a capability that is as its holder states it (K4), or stands at `to` already.

    Raises: UnknownCapability, CapabilityExpired; UsageError for another kind or, if `exact`,
    frontier.
    """
    live = live_read if isinstance(capability, ReadCapability) else live_write
    hold = live(state, capability.id)
    if exact and hold.frontier not in (capability.frontier, to):
        raise UsageError(
            f"capability refused: it states {capability.frontier} and holds {hold.frontier}",
            reason="NotAsStated", stated=capability.frontier, held=hold.frontier,
        )  # fmt: skip
    return hold


def renewed(hold: Hold, now_ms: int) -> Hold:
    """The hold with its lease begun anew (K12), never to end sooner; the same without a lease."""
    if hold.lease_ms is None:
        return hold
    return replace(hold, renewed_ms=max(now_ms, hold.renewed_ms), renewals=hold.renewals + 1)


def _live(
    state: State,
    capability: str,
    holds: Mapping[str, Hold],
    others: Mapping[str, Hold],
    right: str,
) -> Hold:
    hold = holds.get(capability)
    if hold is not None:
        return hold
    if capability in others:
        raise UsageError(f"this capability does not {right}", reason="WrongCapability")
    if capability in state.expired:
        raise CapabilityExpired(
            f"the lease of this capability ran out: acquire again; since is {state.since}",
            since=state.since, upper=state.upper, expired_ms=state.expired[capability],
        )  # fmt: skip
    raise UnknownCapability("this capability was dropped, or never issued")


def hold_read(
    state: State,
    capability: str,
    *,
    at: Frontier | None = None,
    owner: str = "",
    lease_ms: int | None = None,
    now_ms: int = 0,
    token: str = "",
) -> tuple[Frontier, State]:
    """A new read capability at since, or at `at` if that is later (AC1, CR1)."""
    held = state.since if at is None or at.precedes(state.since) else at
    hold = Hold(held, owner, lease_ms, now_ms, now_ms, moved_ms=now_ms, token=token)
    state = replace(state, reads={**state.reads, capability: hold})
    return held, settle(state, owner, now_ms)


def hold_named(
    state: State,
    capability: str,
    *,
    at: Frontier | None = None,
    owner: str,
    lease_ms: int | None = None,
    now_ms: int = 0,
) -> tuple[tuple[str, Frontier], State]:
    """The capability that `owner` holds without a lease, as it stands; else a new one.

    The answer is its id and frontier. One with a lease belongs to a session, and is always new.
    """
    if lease_ms is None and owner:
        for found, hold in state.reads.items():
            if hold.named and hold.owner == owner:
                return (found, hold.frontier), state
    held, state = hold_read(state, capability, at=at, owner=owner, lease_ms=lease_ms, now_ms=now_ms)
    if lease_ms is None and owner:
        named = replace(state.reads[capability], named=True)
        state = replace(state, reads={**state.reads, capability: named})
    return (capability, held), state


def hold_named_write(
    state: State, capability: str, *, owner: str, now_ms: int = 0
) -> tuple[tuple[str, Frontier], State]:
    """The write capability that `owner` holds without a lease, as it stands; else a new one at
    upper. Raises: UnknownCapability for a tombstone, which has no writers.
    """
    if state.closed:
        raise UnknownCapability("the collection is gone, and who wrote it with it")
    for found, hold in state.writes.items():
        if hold.named and hold.owner == owner:
            return (found, hold.frontier), state
    held, state = hold_write(state, capability, owner=owner, now_ms=now_ms)
    named = replace(state.writes[capability], named=True)
    return (capability, held), replace(state, writes={**state.writes, capability: named})


def hold_write(
    state: State,
    capability: str,
    *,
    owner: str = "",
    lease_ms: int | None = None,
    now_ms: int = 0,
    token: str = "",
) -> tuple[Frontier, State]:
    """A new write capability at upper (AC1, CR1)."""
    hold = Hold(state.upper, owner, lease_ms, now_ms, now_ms, moved_ms=now_ms, token=token)
    state = replace(state, writes={**state.writes, capability: hold})
    return state.upper, settle(state, owner, now_ms)


def asked_before(holds: Mapping[str, Hold], token: str) -> tuple[str, Frontier] | None:
    """(id, frontier) of the capability that a request with this token has been answered with, if it
    lives.
    """
    if not token:
        return None
    return next(((name, h.frontier) for name, h in holds.items() if h.token == token), None)


def clone(
    state: State,
    capability: str,
    copy: str,
    now_ms: int = 0,
    owner: str | None = None,
    token: str = "",
) -> tuple[Frontier, State]:
    """The same right at the same frontier with a life of its own (K6)."""
    reads = capability in state.reads
    hold = state.reads[capability] if reads else live_write(state, capability)
    named = hold.owner if owner is None else owner
    twin = replace(
        hold, owner=named, renewed_ms=now_ms, created_ms=now_ms, named=False, keeps_ms=None,
        renewals=0, token=token,
    )  # fmt: skip
    if reads:
        return hold.frontier, replace(state, reads={**state.reads, copy: twin})
    return hold.frontier, replace(state, writes={**state.writes, copy: twin})


def transfer(state: State, capability: str, owner: str, now_ms: int = 0) -> State:
    """Another party answers for the capability from now on (K7); its identifier stays."""

    def given(hold: Hold) -> Hold:
        return replace(renewed(hold, now_ms), owner=owner, named=False)

    return _with_hold(state, capability, given)


def renew(state: State, capability: str, now_ms: int) -> State:
    """The lease begins anew (K12)."""
    return _with_hold(state, capability, lambda hold: renewed(hold, now_ms))


def keep_version(state: State, capability: str, copy: str, lease_ms: int, now_ms: int) -> State:
    """A clone of a read capability while which lives the objects of this version are not deleted
    (P8).

    It has a lease even if the capability has none: nobody would find it again after a crash.
    """
    live_read(state, capability)
    _, state = clone(state, capability, copy, now_ms)
    kept = replace(state.reads[copy], lease_ms=lease_ms)
    return keep_objects(replace(state, reads={**state.reads, copy: kept}), copy, now_ms)


def keep_objects(state: State, capability: str, now_ms: int) -> State:
    """The objects of this version are not deleted while a read capability lives (P8)."""
    hold = live_read(state, capability)
    # Clocks differ: what is garbage by now is so by its stamp, whoever stamped it.
    keeps_ms = max([now_ms, *state.garbage.values()])
    return replace(state, reads={**state.reads, capability: replace(hold, keeps_ms=keeps_ms)})


def _with_hold(state: State, capability: str, change: Callable[[Hold], Hold]) -> State:
    reads = capability in state.reads
    hold = state.reads[capability] if reads else live_write(state, capability)
    changed = change(hold)
    if changed is hold:
        return state
    if reads:
        return replace(state, reads={**state.reads, capability: changed})
    return replace(state, writes={**state.writes, capability: changed})


def downgrade(
    state: State, capability: str, to: Frontier, now_ms: int = 0
) -> tuple[Frontier, State]:
    """The hold moves to a later frontier, or stays at an equal one (K8); its lease begins anew
    (K11).
    """
    hold = live_read(state, capability)
    if not hold.frontier.precedes(to):
        raise UsageError(
            f"downgrade refused: {to} is not beyond the held frontier {hold.frontier}",
            reason="NotBeyondHeld", held=hold.frontier, target=to,
        )  # fmt: skip
    if to == hold.frontier:
        return to, renew(state, capability, now_ms)
    moved = replace(renewed(hold, now_ms), frontier=to, moved_ms=now_ms)
    state = replace(state, reads={**state.reads, capability: moved})
    return to, settle(state, f"downgrade by {hold.owner or 'a reader'}", now_ms)


def drop(state: State, capability: str, now_ms: int = 0) -> State:
    """The hold ends (K9); dropping the last write capability sends upper to empty (K15)."""
    if capability in state.reads:
        hold = state.reads[capability]
        state = replace(state, reads=_without(state.reads, capability))
        return settle(state, f"drop by {hold.owner or 'a reader'}", now_ms)
    hold = live_write(state, capability)
    by = f"drop by {hold.owner or 'a writer'}"
    state = replace(
        state,
        writes=_without(state.writes, capability),
        last_writes=_without(state.last_writes, capability),
    )
    if not state.writes and state.description.user_writable:
        return at_upper(state, frontier(), by, now_ms)
    return settle(state, by, now_ms)


def expire(state: State, capabilities: Sequence[str], now_ms: int = 0) -> State:
    """These leases ran out (K12): since may move at once; upper stays if the last writer went
    (K15).
    """
    ended = [name for name in capabilities if name in state.reads or name in state.writes]
    if not ended:
        return state
    owners = {(state.reads.get(name) or state.writes[name]).owner for name in ended}
    expired = {**state.expired, **dict.fromkeys(ended, now_ms)}
    if len(expired) > EXPIRED_KEPT_MAX:
        expired = dict(list(expired.items())[-EXPIRED_KEPT_MAX:])
    state = replace(
        state,
        reads=_without(state.reads, *ended),
        writes=_without(state.writes, *ended),
        last_writes=_without(state.last_writes, *ended),
        expired=expired,
    )
    return settle(state, f"end of the lease of {', '.join(sorted(owners)) or 'a reader'}", now_ms)


def _without(held: Mapping[str, Value], *names: str) -> Mapping[str, Value]:
    if not any(name in held for name in names):
        return held
    gone = set(names)
    return {name: value for name, value in held.items() if name not in gone}


def set_policy(state: State, to: Frontier, now_ms: int = 0) -> State:
    """A fixed retention frontier. Raises UsageError if it goes back."""
    if state.policy is not None and not state.policy.precedes(to):
        raise UsageError(
            f"retention refused: {to} is not beyond the policy {state.policy}",
            reason="NotBeyondHeld", held=state.policy, target=to,
        )  # fmt: skip
    if to == state.policy:
        return state
    return settle(replace(state, policy=to), "the retention policy", now_ms)


def set_retention(state: State, retain_ms: int | None, now_ms: int = 0) -> State:
    """The state with since at this distance behind upper; None keeps all history, whoever leaves.

    It takes the place of a fixed policy. A longer retention brings nothing back (F14).
    """
    distance_ms = KEEP_ALL_MS if retain_ms is None else retain_ms
    if distance_ms == state.description.retain_ms and state.policy is None:
        return state
    description = replace(state.description, retain_ms=distance_ms)
    retained = replace(state, description=description, policy=None)
    return settle(retained, "the retention policy", now_ms)


def extend_schema(state: State, schema: pa.Schema) -> State:
    """The collection has these data columns from now on; rows from before are null in new ones.

    Raises: UsageError unless the present columns are there, unchanged and in their order, and new
    ones are nullable.
    """
    description = state.description
    held = description.schema
    if schema.equals(held):
        return state
    kept = [column for column in schema if column.name in held.names]
    gained = [column for column in schema if column.name not in held.names]
    if kept != list(held) or not all(column.nullable for column in gained):
        raise UsageError(
            f"schema refused: {schema.names} is not {held.names} with nullable columns added",
            reason="Schema", held=held.names, target=schema.names,
        )  # fmt: skip
    arrived = (*(description.arrived or held.names), *(column.name for column in gained))
    # Parts stay split by what they were split by: a hash of more columns is another one.
    wider = replace(
        description,
        schema=schema,
        key=description.key or tuple(held.names),
        arrived=() if list(arrived) == schema.names else arrived,
    )
    return replace(state, description=wider)


def let_users_write(state: State) -> State:
    """Upper is the meet of the write capabilities from now on."""
    if state.description.user_writable:
        return state
    return replace(state, description=replace(state.description, user_writable=True))


def close(state: State, now_ms: int = 0) -> State:
    """No update will follow: upper becomes empty and every write capability ends (L3)."""
    if state.upper.empty:
        return state
    return at_upper(replace(state, writes={}, last_writes={}), frontier(), "close", now_ms)


def retire(state: State, now_ms: int = 0) -> State:
    """Close the collection without keeping history: its last reader leaves a tombstone (L3)."""
    closed = close(state, now_ms)
    if closed.policy == frontier():
        return closed
    return settle(replace(closed, policy=frontier()), "retirement", now_ms)


def check_since(state: State, as_of: int) -> None:
    """Raises BeforeSince unless `as_of` is beyond since (F12, SU7)."""
    if not state.since.less_equal(as_of):
        raise BeforeSince(
            f"the contents at {as_of} are no longer distinguishable: since is {state.since}",
            requested=as_of, since=state.since, holder=state.moved_by,
        )  # fmt: skip


def check_readable(state: State, as_of: int) -> None:
    """Raises BeforeSince or NotYet unless the contents at `as_of` are exact (F11–F13)."""
    check_since(state, as_of)
    if state.upper.less_equal(as_of):
        raise NotYet(
            f"the contents at {as_of} may still change: upper is {state.upper}",
            requested=as_of, upper=state.upper,
        )  # fmt: skip
