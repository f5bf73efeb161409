"""What holders present, and the normal outcomes of a write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, TypeAlias

from tidemill.time import Frontier

CapabilityId = NewType("CapabilityId", str)
"""Unguessable; whoever presents it has the right. Never log it."""


@dataclass(frozen=True, slots=True)
class ReadCapability:
    """The right to read a collection, holding its since at or before `frontier`."""

    id: CapabilityId
    collection: str
    frontier: Frontier

    def __repr__(self) -> str:
        return f"ReadCapability(r…, {self.collection}, {self.frontier})"


@dataclass(frozen=True, slots=True)
class WriteCapability:
    """The right to write a collection at and after `frontier`, holding its upper there."""

    id: CapabilityId
    collection: str
    frontier: Frontier

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
    """Who keeps history: a name, the frontier held, when the lease ends (None: never)."""

    owner: str
    frontier: Frontier
    lease_end_ms: int | None


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """A collection as its operators see it."""

    id: str
    kind: str
    timeline: str
    since: Frontier
    upper: Frontier
    holders: tuple[Holder, ...]
    writers: int
    batches: int
    updates: int
    bytes: int
    version: int
