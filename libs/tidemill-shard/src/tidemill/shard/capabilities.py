"""Capabilities, the normal outcomes of a write, and the status of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NewType, TypeAlias

from tidemill.shard.state import Description, Hold, State, policy_frontier
from tidemill.time import Frontier

CapabilityId = NewType("CapabilityId", str)
"""Unguessable; whoever presents it has the right. Never log it."""


@dataclass(frozen=True, slots=True)
class ReadCapability:
    """The right to read a collection, holding its since at or before `frontier`."""

    id: CapabilityId
    collection: str
    frontier: Frontier

    def at(self, held: Frontier) -> ReadCapability:
        """The same capability, known to hold `held` now."""
        return ReadCapability(self.id, self.collection, held)

    def __repr__(self) -> str:
        return f"ReadCapability(r…, {self.collection}, {self.frontier})"


@dataclass(frozen=True, slots=True)
class WriteCapability:
    """The right to write a collection at and after `frontier`, holding its upper there."""

    id: CapabilityId
    collection: str
    frontier: Frontier

    def at(self, held: Frontier) -> WriteCapability:
        """The same capability, known to hold `held` now."""
        return WriteCapability(self.id, self.collection, held)

    def __repr__(self) -> str:
        return f"WriteCapability(w…, {self.collection}, {self.frontier})"


Capability: TypeAlias = "ReadCapability | WriteCapability"


@dataclass(frozen=True, slots=True)
class Appended:
    """The append is durable; also the answer to a retry whose token is already known."""

    upper: Frontier


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The race was lost and nothing was written: re-read, recompute, retry at `current`."""

    current: Frontier


AppendOutcome: TypeAlias = "Appended | UpperMismatch"


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of since or upper: name, frontier held, and end of its lease (None: never).

    `since_ms` is the time of its acquisition, `moved_ms` that of its last move to this frontier.
    `key` names the capability for an operator who may end it, and gives no right to use it. A
    `named` holder is its owner's for good.
    """

    owner: str
    frontier: Frontier
    lease_end_ms: int | None
    since_ms: int = 0
    moved_ms: int = 0
    key: str = ""
    named: bool = False


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """A collection as its operators see it: `holders` of since, `writing` those of upper.

    `updates` and `bytes` count what is stored, what compaction will remove included. `inline_bytes`
    are those in the log. Everything is read off `state` when it is asked for.
    """

    id: str
    version: int
    state: State = field(repr=False)

    @property
    def description(self) -> Description:
        """The description of the collection."""
        return self.state.description

    @property
    def since(self) -> Frontier:
        """The least instant at which it can be read."""
        return self.state.since

    @property
    def upper(self) -> Frontier:
        """The least instant at which it is not definite."""
        return self.state.upper

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The holders of since. Cost: O(holders)."""
        return _holders(self.state.reads)

    @property
    def writing(self) -> tuple[Holder, ...]:
        """The holders of upper. Cost: O(holders)."""
        return _holders(self.state.writes)

    @property
    def staged(self) -> int:
        """Number of updates that wait for upper."""
        return sum(part.rows for part in self.state.staged_parts())

    @property
    def garbage(self) -> int:
        """Number of objects that are to be removed."""
        return len(self.state.garbage)

    @property
    def moved_by(self) -> str:
        """The name of who or what let since come where it is."""
        return self.state.moved_by

    @property
    def retained(self) -> Frontier | None:
        """The frontier to which the retention would let since go, None without one."""
        return policy_frontier(self.state)

    @property
    def batches(self) -> int:
        """Number of batches."""
        return len(self.state.batches)

    @property
    def updates(self) -> int:
        """Number of updates in all batches. Cost: O(parts)."""
        return sum(batch.rows for batch in self.state.batches)

    @property
    def bytes(self) -> int:
        """Bytes of all batches. Cost: O(parts)."""
        return sum(batch.size for batch in self.state.batches)

    @property
    def inline_bytes(self) -> int:
        """Bytes in the log. Cost: O(parts)."""
        return self.state.inline_bytes()

    @property
    def writers(self) -> int:
        """Number of live write capabilities."""
        return len(self.writing)

    @property
    def kind(self) -> str:
        """The kind of its description."""
        return self.description.kind

    @property
    def timeline(self) -> str:
        """The timeline of its description."""
        return self.description.timeline

    @property
    def closed(self) -> bool:
        """Whether it is a tombstone: complete, and nothing of it can be read any more."""
        return self.since.empty and self.upper.empty

    @property
    def holding_back(self) -> tuple[Holder, ...]:
        """The holders for whose sake since is not later than it is."""
        return tuple(holder for holder in self.holders if holder.frontier.precedes(self.since))


def _holders(holds: Mapping[str, Hold]) -> tuple[Holder, ...]:
    holders = (holder_of(name, hold) for name, hold in holds.items())
    return tuple(sorted(holders, key=lambda holder: (holder.owner, holder.since_ms)))


def holder_of(capability: str, hold: Hold) -> Holder:
    """A hold as operators see it."""
    moved_ms = hold.moved_ms or hold.created_ms
    return Holder(
        hold.owner, hold.frontier, hold.lease_end_ms(), hold.created_ms, moved_ms,
        holder_key(capability),
        hold.named,
    )  # fmt: skip


def holder_key(capability: str) -> str:
    """The key by which operators name a holder, which gives no right."""
    return blake2b(capability.encode(), digest_size=6, person=b"holder").hexdigest()
