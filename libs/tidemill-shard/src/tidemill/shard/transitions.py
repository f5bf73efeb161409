"""The commands of a collection as pure functions: (state, command) → (answer, next state).

A transition that changes nothing returns the same state. Rule ids are those of the formalism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tidemill.shard.capabilities import Appended, AppendOutcome, UpperMismatch
from tidemill.shard.state import (
    Batch,
    Garbage,
    LastWrite,
    Part,
    ReadHold,
    State,
    WriteHold,
    settle,
)
from tidemill.time import (
    BeforeSince,
    CapabilityExpired,
    Frontier,
    NotYet,
    UnknownCapability,
    UsageError,
    frontier,
)

Hold = TypeVar("Hold", ReadHold, WriteHold)


@dataclass(frozen=True, slots=True)
class Updates:
    """What an append brings: parts already written, and the span of their times (None: no updates)."""

    parts: tuple[Part, ...] = ()

    @property
    def times(self) -> tuple[int, int] | None:
        """(least, greatest) time."""
        if not self.parts:
            return None
        return min(p.time_min for p in self.parts), max(p.time_max for p in self.parts)


def check_bounds(lower: Frontier, new: Frontier, times: tuple[int, int] | None) -> None:
    """UP2: every time is at or after lower and before new. Raises UsageError with the rule broken."""
    if not lower.precedes(new):
        raise UsageError(
            f"append refused: the new upper {new} is not beyond the lower {lower}",
            reason="InvalidBounds", lower=lower, upper=new,
        )  # fmt: skip
    if times is None:
        return
    if lower == new:
        raise UsageError(
            f"append refused: updates in the empty interval [{lower}, {new})",
            reason="InvalidEmptyTimeInterval", lower=lower, upper=new,
        )  # fmt: skip
    least, greatest = times
    if not lower.less_equal(least):
        raise UsageError(
            f"append refused: the time {least} is not beyond the lower {lower}",
            reason="UpdateNotBeyondLower", lower=lower, upper=new, time=least,
        )  # fmt: skip
    if new.less_equal(greatest):
        raise UsageError(
            f"append refused: the time {greatest} is beyond the new upper {new}",
            reason="UpdateBeyondUpper", lower=lower, upper=new, time=greatest,
        )  # fmt: skip


def append(
    state: State,
    expected: Frontier,
    new: Frontier,
    updates: Updates,
    writer: str,
    token: str | None,
) -> tuple[AppendOutcome, State]:
    """Compare-and-append on the collection's upper, for internal writers (UP1, UP5, UP6)."""
    check_bounds(expected, new, updates.times)
    known = _already_done(state, writer, token)
    if known is not None:
        return known, state
    if expected != state.upper:
        return UpperMismatch(state.upper), state
    if expected == new:
        return Appended(new), state
    appended = replace(
        state,
        upper=new,
        batches=(
            *state.batches,
            Batch(expected, new, _least(state.since, expected), updates.parts),
        ),
        last_writes=_with_token(state.last_writes, writer, token, new),
    )
    return Appended(new), settle(appended)


def update(
    state: State,
    capability: str,
    stated: Frontier,
    new: Frontier,
    updates: Updates,
    token: str | None,
) -> tuple[AppendOutcome, State]:
    """UpdateAndDowngrade: compare-and-append on what this write capability holds (UP1–UP6, K2)."""
    hold = live_write(state, capability)
    check_bounds(stated, new, updates.times)
    known = _already_done(state, capability, token)
    if known is not None:
        return known, state
    if stated != hold.frontier:
        return UpperMismatch(hold.frontier), state
    if stated == new:
        return Appended(new), state
    moved = replace(
        state,
        writes={**state.writes, capability: replace(hold, frontier=new)},
        staged=(*state.staged, *updates.parts),
        last_writes=_with_token(state.last_writes, capability, token, new),
    )
    return Appended(new), seal(state.upper, settle(moved))


def seal(lower: Frontier, state: State) -> State:
    """Staged parts that upper has passed become a batch; parts that straddle it stay staged."""
    if lower == state.upper:
        return state
    done = tuple(part for part in state.staged if not state.upper.less_equal(part.time_max))
    left = tuple(part for part in state.staged if state.upper.less_equal(part.time_max))
    batch = Batch(lower, state.upper, _least(state.since, lower), done)
    if state.closed:
        return state
    return replace(state, batches=(*state.batches, batch), staged=left)


def _least(a: Frontier, b: Frontier) -> Frontier:
    return a if a.precedes(b) else b


def _already_done(state: State, writer: str, token: str | None) -> Appended | None:
    last = state.last_writes.get(writer)
    return (
        Appended(last.upper)
        if token is not None and last is not None and last.token == token
        else None
    )


def _with_token(
    known: Mapping[str, LastWrite], writer: str, token: str | None, upper: Frontier
) -> Mapping[str, LastWrite]:
    return known if token is None else {**known, writer: LastWrite(token, upper)}


def live_read(state: State, capability: str) -> ReadHold:
    """The hold behind a read capability. Raises UnknownCapability, CapabilityExpired, UsageError."""
    return _live(state, capability, state.reads, capability in state.writes, "read")


def live_write(state: State, capability: str) -> WriteHold:
    """The hold behind a write capability. Raises UnknownCapability, CapabilityExpired, UsageError."""
    return _live(state, capability, state.writes, capability in state.reads, "write")


def _live(
    state: State, capability: str, holds: Mapping[str, Hold], other_kind: bool, kind: str
) -> Hold:
    hold = holds.get(capability)
    if hold is not None:
        return hold
    if other_kind:
        raise UsageError(f"this capability does not {kind}", reason="WrongCapability")
    ended = state.gone.get(capability)
    if ended == "expired":
        raise CapabilityExpired(f"the lease of this {kind} capability ran out", since=state.since)
    raise UnknownCapability(f"this {kind} capability was dropped or never issued")


def hold_read(
    state: State,
    capability: str,
    at: Frontier | None,
    owner: str,
    lease_ms: int | None,
    now_ms: int,
) -> tuple[Frontier, State]:
    """A new read capability at since, or later at `at` (AC1, CR1). On a tombstone it holds nothing."""
    held = state.since if at is None or at.precedes(state.since) else at
    reads = {**state.reads, capability: ReadHold(held, owner, lease_ms, now_ms)}
    return held, settle(replace(state, reads=reads))


def hold_write(
    state: State, capability: str, owner: str, lease_ms: int | None, now_ms: int
) -> tuple[Frontier, State]:
    """A new write capability at upper (AC1, CR1)."""
    writes = {**state.writes, capability: WriteHold(state.upper, owner, lease_ms, now_ms)}
    return state.upper, settle(replace(state, writes=writes))


def clone(state: State, capability: str, copy: str, now_ms: int) -> tuple[Frontier, State]:
    """The same right at the same frontier with a life of its own (K6)."""
    if capability in state.reads:
        read = replace(state.reads[capability], renewed_ms=now_ms)
        return read.frontier, settle(replace(state, reads={**state.reads, copy: read}))
    write = replace(live_write(state, capability), renewed_ms=now_ms)
    return write.frontier, settle(replace(state, writes={**state.writes, copy: write}))


def downgrade(state: State, capability: str, to: Frontier) -> tuple[Frontier, State]:
    """K8: the hold moves to a later frontier; an equal one changes nothing."""
    hold = live_read(state, capability)
    if not hold.frontier.precedes(to):
        raise UsageError(
            f"downgrade refused: {to} is not beyond the held frontier {hold.frontier}",
            reason="NotBeyondHeld", held=hold.frontier, target=to,
        )  # fmt: skip
    if to == hold.frontier:
        return to, state
    reads = {**state.reads, capability: replace(hold, frontier=to)}
    return to, settle(replace(state, reads=reads))


def drop(state: State, capability: str) -> State:
    """K9, K15: the hold ends; dropping the last write capability closes upper."""
    if capability in state.reads:
        reads = {name: hold for name, hold in state.reads.items() if name != capability}
        return settle(replace(state, reads=reads, gone={**state.gone, capability: "dropped"}))
    live_write(state, capability)
    writes = {name: hold for name, hold in state.writes.items() if name != capability}
    dropped = replace(state, writes=writes, gone={**state.gone, capability: "dropped"})
    if not writes and state.description.user_writable:
        dropped = replace(dropped, upper=frontier())
    return seal(state.upper, settle(dropped))


def expire(state: State, capabilities: Sequence[str]) -> State:
    """K12: these leases ran out. Since may move at once; upper stays if it was the last writer."""
    ended = [name for name in capabilities if name in state.reads or name in state.writes]
    if not ended:
        return state
    expired = replace(
        state,
        reads={name: hold for name, hold in state.reads.items() if name not in ended},
        writes={name: hold for name, hold in state.writes.items() if name not in ended},
        gone={**state.gone, **dict.fromkeys(ended, "expired")},
    )
    return seal(state.upper, settle(expired))


def expire_due(state: State, now_ms: int) -> State:
    """Every lease that has run out by now ends."""
    holds: list[tuple[str, ReadHold | WriteHold]] = [*state.reads.items(), *state.writes.items()]
    due = []
    for name, hold in holds:
        end = hold.lease_end_ms()
        if end is not None and end < now_ms:
            due.append(name)
    return expire(state, due)


def renew(state: State, capability: str, now_ms: int) -> State:
    """The lease begins anew."""
    if capability in state.reads:
        read = replace(state.reads[capability], renewed_ms=now_ms)
        return replace(state, reads={**state.reads, capability: read})
    write = replace(live_write(state, capability), renewed_ms=now_ms)
    return replace(state, writes={**state.writes, capability: write})


def set_policy(state: State, to: Frontier) -> State:
    """The retention frontier; going back is a UsageError."""
    if state.policy is not None and not state.policy.precedes(to):
        raise UsageError(
            f"the policy {to} is not beyond the policy {state.policy}",
            reason="NotBeyondHeld", held=state.policy, target=to,
        )  # fmt: skip
    return settle(replace(state, policy=to))


def set_retention(state: State, retain_ms: int | None) -> State:
    """How far since follows upper from now on; None keeps all history there is, whoever lets go.

    Since never moves back for a longer retention.
    """
    policy = (state.policy or state.since) if retain_ms is None else None
    if retain_ms == state.description.retain_ms and policy == state.policy:
        return state
    description = replace(state.description, retain_ms=retain_ms)
    return settle(replace(state, description=description, policy=policy))


def close(state: State) -> State:
    """Upper becomes empty: no update will follow. Since follows when nobody holds it."""
    if state.upper.empty:
        return state
    return seal(state.upper, settle(replace(state, upper=frontier(), writes={})))


def check_readable(state: State, as_of: int) -> None:
    """F11–F13. Raises BeforeSince or NotYet, the first checked first."""
    if not state.since.less_equal(as_of):
        raise BeforeSince(
            f"the contents at {as_of} are no longer distinguishable: since is {state.since}",
            requested=as_of, since=state.since,
        )  # fmt: skip
    if state.upper.less_equal(as_of):
        raise NotYet(
            f"the contents at {as_of} may still change: upper is {state.upper}",
            requested=as_of, upper=state.upper,
        )  # fmt: skip


def apply_merge(
    state: State, replaced: Sequence[Batch], merged: Batch, now_ms: int
) -> tuple[bool, State]:
    """Put a merged batch in place of adjacent ones iff they are still there and since allows it (P6)."""
    lowers = [batch.lower for batch in state.batches]
    if not replaced or replaced[0].lower not in lowers:
        return False, state
    first = lowers.index(replaced[0].lower)
    if state.batches[first : first + len(replaced)] != tuple(replaced):
        return False, state
    if not merged.since.precedes(state.since):
        return False, state
    kept = {part.key for part in merged.parts}
    dropped = [part.key for batch in replaced for part in batch.parts]
    garbage = dict(state.garbage)
    for key in dropped:
        if key is not None and key not in kept:
            garbage[key] = Garbage(key, now_ms)
    batches = (*state.batches[:first], merged, *state.batches[first + len(replaced) :])
    return True, replace(state, batches=batches, garbage=garbage)


def forget_garbage(state: State, keys: Sequence[str]) -> State:
    """The objects are deleted."""
    return replace(state, garbage={k: v for k, v in state.garbage.items() if k not in set(keys)})
