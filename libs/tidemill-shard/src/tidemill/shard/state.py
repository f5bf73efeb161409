"""The state of one collection: a value that transitions map to the next one.

Everything here is immutable. Unchanged pieces keep their identity from version to version, so that the
difference of two versions is found by `is`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tidemill.time import Frontier, frontier


@dataclass(frozen=True, slots=True)
class Description:
    """What a collection is; fixed when it is created.

    `schema`: the data columns. `key`: the columns by which parts are sorted and split, all if empty.
    `retain_ms`: since follows upper at this distance unless a reader holds it; None keeps all history.
    `user_writable`: upper is the meet of its write capabilities; otherwise internal writers append by
    compare-and-append on upper.
    """

    schema: pa.Schema
    kind: str = "table"
    timeline: str = "system"
    key: tuple[str, ...] = ()
    retain_ms: int | None = None
    allow_negative: bool = False
    user_writable: bool = False

    def update_schema(self) -> pa.Schema:
        """The data columns with the lanes `_time` and `_diff`."""
        return self.schema.append(pa.field("_time", pa.uint64())).append(
            pa.field("_diff", pa.int64())
        )


@dataclass(frozen=True, slots=True)
class Part:
    """One sorted run of updates, inline or in Blob, with the statistics that let readers skip it.

    `bounds` are least and greatest value of each column that has them, as JSON values.
    """

    rows: int
    size: int
    checksum: str
    time_min: int
    time_max: int
    key: str | None = None
    inline: bytes | None = None
    bounds: Mapping[str, tuple[object, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """The updates of [lower, upper), correct for readers at or beyond since."""

    lower: Frontier
    upper: Frontier
    since: Frontier
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class ReadHold:
    """A live read capability; `lease_ms` None never runs out."""

    frontier: Frontier
    owner: str
    lease_ms: int | None
    renewed_ms: int

    def lease_end_ms(self) -> int | None:
        """When the lease runs out."""
        return None if self.lease_ms is None else self.renewed_ms + self.lease_ms


@dataclass(frozen=True, slots=True)
class WriteHold:
    """A live write capability."""

    frontier: Frontier
    owner: str
    lease_ms: int | None
    renewed_ms: int

    def lease_end_ms(self) -> int | None:
        """When the lease runs out."""
        return None if self.lease_ms is None else self.renewed_ms + self.lease_ms


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The last successful token of a writer and the upper it came to."""

    token: str
    upper: Frontier


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that no version from now on names, since when."""

    key: str
    dropped_ms: int


@dataclass(frozen=True, slots=True)
class State:
    """One version of a collection.

    `gone` remembers how a capability ended: "dropped" or "expired". `staged` are parts of writers that
    are ahead of upper: durable, and read only as far as upper has come.
    """

    description: Description
    since: Frontier
    upper: Frontier
    policy: Frontier | None = None
    reads: Mapping[str, ReadHold] = field(default_factory=dict)
    writes: Mapping[str, WriteHold] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    last_writes: Mapping[str, LastWrite] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    staged: tuple[Part, ...] = ()
    garbage: Mapping[str, Garbage] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether the collection is a tombstone."""
        return self.since.empty and self.upper.empty

    def parts(self) -> tuple[Part, ...]:
        """All parts a reader may need, oldest first."""
        return tuple(part for batch in self.batches for part in batch.parts) + self.staged


def initial_state(description: Description, start: Frontier) -> State:
    """A bound collection at the beginning of its life: since equals upper."""
    return State(description, start, start)


def settle(state: State) -> State:
    """The state with since and upper where the live capabilities and the policy let them be.

    Neither moves back; since never passes a live read hold, the policy, or upper. A tombstone has no
    data. Cost: O(holds).
    """
    upper = state.upper
    if state.description.user_writable and state.writes:
        held = _meet([hold.frontier for hold in state.writes.values()])
        upper = _later(upper, held)
    since = _later(state.since, _since_target(state, upper))
    if upper is not state.upper or since is not state.since:
        state = replace(state, upper=upper, since=since)
    if state.closed and (state.batches or state.staged):
        dropped = {part.key for part in state.parts() if part.key is not None}
        garbage = {**state.garbage, **{key: Garbage(key, 0) for key in dropped}}
        state = replace(state, batches=(), staged=(), garbage=garbage)
    return state


def _since_target(state: State, upper: Frontier) -> Frontier:
    """Where the holds and the policy would let since go, capped at upper."""
    limits = [hold.frontier for hold in state.reads.values()]
    policy = _policy(state, upper)
    if policy is not None:
        limits.append(policy)
    if not limits:
        return state.since
    return _meet([*limits, upper])


def _policy(state: State, upper: Frontier) -> Frontier | None:
    if state.policy is not None:
        return state.policy
    retain_ms = state.description.retain_ms
    if retain_ms is None:
        return None
    if upper.empty:
        return state.since
    return frontier(max(0, upper.elements[0] - retain_ms))


def _meet(frontiers: list[Frontier]) -> Frontier:
    met = frontiers[0]
    for each in frontiers[1:]:
        met = met.meet(each)
    return met


def _later(held: Frontier, target: Frontier) -> Frontier:
    """The join of two totally ordered frontiers; `held` itself if the target is no later."""
    return held if target.precedes(held) else target
