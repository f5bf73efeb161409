"""The state of one collection: a value that transitions map to the next one.

Everything here is immutable. Unchanged pieces keep their identity from version to version, so that
the difference of two versions is found by `is`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tidemill.arrangement.arrow_bytes import check_columns
from tidemill.arrangement.updates import DIFF, TIME
from tidemill.errors import UsageError
from tidemill.shard.listed import PartList
from tidemill.shard.parts import Part
from tidemill.time import Frontier, frontier, sole_time

KEEP_ALL_MS = 2**64 - 1
"""A retention longer than any timeline: all history is kept, whatever readers let go."""

TOKENS_KEPT_MAX = 1024
"""So many of the newest tokens of a capability that many use are remembered."""

EXPIRED_KEPT_MAX = 4096
"""So many expired capabilities are told from unknown ones."""


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a collection.

    `schema`: the data columns. `key`: the columns by which parts are sorted and split, all if
    empty. `retain_ms`: the distance at which since follows upper, more if a reader holds it. None:
    since follows the readers, and stays while there are none. KEEP_ALL_MS: since never moves.
    `user_writable`: users may have write capabilities. While there are any, upper is their meet;
    otherwise internal writers append by compare-and-append on upper. `arrived`: the columns in the
    order of their arrival, if the schema has another. Columns are of types that storage gives back
    unchanged, `tidemill.arrangement.arrow_bytes.STORED`. `created`: by a command of its users, not
    for a resource.
    """

    schema: pa.Schema
    kind: str = "table"
    timeline: str = "system"
    key: tuple[str, ...] = ()
    retain_ms: int | None = None
    allow_negative: bool = False
    user_writable: bool = False
    arrived: tuple[str, ...] = ()
    created: bool = False
    _no_updates: pa.Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = self.schema.names
        if len(set(names)) != len(names) or TIME in names or DIFF in names:
            raise UsageError(
                f"the columns {names} are not distinct, or use a name of ours", reason="Schema"
            )
        try:
            check_columns(self.schema)
        except pa.ArrowInvalid as error:
            raise UsageError(str(error), reason="Schema") from error
        unknown = [name for name in self.key if name not in names]
        if unknown or len(set(self.key)) != len(self.key):
            raise UsageError(f"the key {self.key} is not a set of columns", reason="Schema")
        if self.retain_ms is not None and self.retain_ms < 0:
            raise UsageError(f"history cannot be kept for {self.retain_ms} ms", reason="Retention")
        lanes = self.schema.append(pa.field(TIME, pa.uint64())).append(pa.field(DIFF, pa.int64()))
        object.__setattr__(self, "_no_updates", pa.Table.from_batches([], lanes))

    def update_schema(self) -> pa.Schema:
        """The data columns with the lanes `_time` and `_diff`."""
        return self._no_updates.schema

    def no_updates(self) -> pa.Table:
        """The empty table of `update_schema`, one for all: a quiet view reads it at each step."""
        return self._no_updates


@dataclass(frozen=True, slots=True)
class Batch:
    """The updates whose original times are from `lower` to the next batch's lower, or to upper.

    Times before `compacted` have been advanced to it; it never comes up to since. The parts are of
    so many `runs`; those of one run share no record. Of a batch of many, `lists` name most.
    """

    lower: Frontier
    compacted: int
    parts: tuple[Part, ...]
    runs: int = 1
    lists: tuple[PartList, ...] = ()

    @property
    def pieces(self) -> tuple[Part | PartList, ...]:
        """Statements of this version about all parts: about each, or those of a list together."""
        return (*self.parts, *self.lists)

    @property
    def rows(self) -> int:
        """Number of updates in all parts."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(piece.size for piece in self.pieces)

    @property
    def time_max(self) -> int:
        """The greatest time of an update, 0 if all have cancelled."""
        return max((piece.time_max for piece in self.pieces), default=0)

    @property
    def inline_bytes(self) -> int:
        """Bytes of its updates that are in the log."""
        return _inline_bytes(self.parts)


@dataclass(frozen=True, slots=True)
class Hold:
    """The frontier that a live capability holds; `lease_ms` None never runs out.

    A `named` hold is found again by the name of its owner. It holds this frontier since `moved_ms`.
    Objects that were given up after `keeps_ms` are kept for it; None: it asks for none. `renewals`
    counts the heartbeats of its holder: a process ends a lease if it hears of none for its length.
    `token` is that of the request that it answers.
    """

    frontier: Frontier
    owner: str
    lease_ms: int | None
    renewed_ms: int
    created_ms: int
    named: bool = False
    moved_ms: int = 0
    keeps_ms: int | None = None
    renewals: int = 0
    token: str = ""

    def lease_end_ms(self) -> int | None:
        """When the lease runs out, by the clock of who renewed it; for people."""
        return None if self.lease_ms is None else self.renewed_ms + self.lease_ms


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The last successful token of a writer and the upper it came to."""

    token: str
    upper: Frontier


@dataclass(frozen=True, slots=True)
class Paced:
    """Statement of a pace: version `number` of a collection follows it, with its group.

    With `left` that version does not follow any more, nor ever will: its upper is the later of its
    own and `left`.
    """

    number: int
    group: str
    left: Frontier | None = None


@dataclass(frozen=True, slots=True)
class State:
    """One version of a collection.

    `batches` tile the interval up to upper; the first begins at the least time that was written.
    `staged` is what writers ahead of upper have written, at times not before it, under a name of
    its own each. `garbage` are objects that no batch names any more, and since when. `expired` are
    the capabilities whose lease ran out. Objects that were begun before `reaped_ms` and are not
    named by now never will be. `paces` are the collections whose least upper this one follows until
    it is written again, once these say so in `paced`: see `tidemill.shard.pacing`. `carried` is the
    write capability that moves with it. `under` are the groups in `paced` that follow only while
    the groups named there do.
    """

    description: Description
    since: Frontier
    upper: Frontier
    policy: Frontier | None = None
    moved_by: str = ""
    reads: Mapping[str, Hold] = field(default_factory=dict)
    writes: Mapping[str, Hold] = field(default_factory=dict)
    expired: Mapping[str, int] = field(default_factory=dict)
    last_writes: Mapping[str, LastWrite] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    staged: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    garbage: Mapping[str, int] = field(default_factory=dict)
    reaped_ms: int = 0
    paces: tuple[str, ...] = ()
    carried: str = ""
    paced: Mapping[str, Paced] = field(default_factory=dict)
    under: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether the collection is a tombstone."""
        return self.since.empty and self.upper.empty

    def parts(self) -> tuple[Part, ...]:
        """All parts of batches, oldest first: what a reader may need.

        IMPORTANT: of a version whose lists were read, as `PartStore.whole` gives it.
        """
        assert not any(batch.lists for batch in self.batches), "parts that only lists name"
        return tuple(part for batch in self.batches for part in batch.parts)

    def pieces_from(self, lower: int) -> tuple[Part | PartList, ...]:
        """The parts, or lists of them, that may hold updates from `lower` on, oldest first.

        Cost: O(those pieces + log batches) for a `lower` from since on, else all.
        """
        batches = self.batches
        if self.since.less_equal(lower):
            # Times of a batch lie before the next one, or before since where they were compacted.
            starts = bisect_right(batches, lower, key=lambda batch: sole_time(batch.lower))
            batches = batches[max(0, starts - 1) :]
        return tuple(piece for batch in batches for piece in batch.pieces)

    def staged_parts(self) -> tuple[Part, ...]:
        """All parts that wait for upper."""
        return tuple(part for parts in self.staged.values() for part in parts)

    def objects(self) -> set[str]:
        """The keys of all objects in Blob that this version names: parts, and lists of parts."""
        pieces = (piece for batch in self.batches for piece in batch.pieces)
        return {piece.key for piece in (*pieces, *self.staged_parts()) if piece.key}

    def inline_bytes(self) -> int:
        """Bytes of the updates that are in the log."""
        in_batches = sum(batch.inline_bytes for batch in self.batches)
        return in_batches + _inline_bytes(self.staged_parts())


def _inline_bytes(parts: Iterable[Part]) -> int:
    return sum(len(part.inline) for part in parts if part.inline is not None)


def initial_state(description: Description, start: Frontier) -> State:
    """A bound collection at the beginning of its life: since equals upper (L1)."""
    return State(description, start, start)


def settle(state: State, by: str, now_ms: int = 0) -> State:
    """The state with since and upper where live capabilities and the policy allow (K15).

    Neither moves back (F14); since never passes a live read hold, the policy, or upper (F7, L2c).
    Staged parts that upper has passed are sealed into a batch. A tombstone has no data. `by` names
    the cause. Cost: O(holds + staged parts).
    """
    upper = state.upper
    if state.writes:
        upper = _later(upper, _meet(hold.frontier for hold in state.writes.values()))
    return at_upper(state, upper, by, now_ms)


def at_upper(state: State, upper: Frontier, by: str, now_ms: int = 0) -> State:
    """`settle` for an upper that is decided: it is not before the one of `state`."""
    if upper != state.upper:
        state = _sealed(state, upper)
    since = _later(state.since, _since_target(state))
    if since is not state.since:
        state = replace(state, since=since, moved_by=by)
    if state.closed and (state.batches or state.staged):
        given_up = dict.fromkeys(sorted(state.objects()), given_up_ms(state, now_ms))
        garbage = {**state.garbage, **given_up}
        state = replace(state, batches=(), staged={}, garbage=garbage, last_writes={})
    return state


def given_up_ms(state: State, now_ms: int) -> int:
    """The stamp of objects that this version gives up: after every version that somebody keeps."""
    kept = (hold.keeps_ms for hold in state.reads.values() if hold.keeps_ms is not None)
    return max([now_ms, *(1 + at_ms for at_ms in kept)])


def collectable(state: State, before_ms: int) -> set[str]:
    """Objects given up by `before_ms` that no kept version names (P8)."""
    kept = (hold.keeps_ms for hold in state.reads.values() if hold.keeps_ms is not None)
    latest = min([before_ms, *kept])
    return {key for key, at_ms in state.garbage.items() if at_ms <= latest} - state.objects()


def compaction_frontier(since: Frontier) -> int:
    """The time to which compaction may advance: the last one before since.

    Times beyond since stay apart from those before it. So a reader with everything before its held
    frontier still finds exactly the updates from there on.
    """
    return 0 if since.empty else max(0, since.elements[0] - 1)


def policy_frontier(state: State) -> Frontier | None:
    """Limit of since by the retention policy; None if there is no policy."""
    if state.policy is not None:
        return state.policy
    retain_ms = state.description.retain_ms
    if retain_ms is None:
        return None
    if state.upper.empty:
        return state.since
    return frontier(max(0, state.upper.elements[0] - retain_ms))


def _since_target(state: State) -> Frontier:
    """The frontier that the holds and the policy allow since, capped at upper."""
    limits = [hold.frontier for hold in state.reads.values()]
    policy = policy_frontier(state)
    if policy is not None:
        limits.append(policy)
    if not limits:
        return state.since
    return _meet([*limits, state.upper])


def _sealed(state: State, upper: Frontier) -> State:
    """Upper moved: what it passed of the staged parts is the content of one more batch."""
    visible: list[Part] = []
    runs = 0
    waiting: dict[str, tuple[Part, ...]] = {}
    bound = None if upper.empty else upper.elements[0]
    for name, parts in state.staged.items():
        seen = [early for part in parts if (early := part.before(bound)) is not None]
        visible += seen
        runs += bool(seen)
        rest = tuple(left for part in parts if (left := part.since(bound)) is not None)
        if rest:
            waiting[name] = parts if rest == parts else rest
    batches = state.batches
    if visible:
        batches = (*batches, Batch(state.upper, 0, tuple(visible), runs))
    staged = state.staged if waiting == state.staged else waiting
    return replace(state, upper=upper, batches=batches, staged=staged)


def _meet(frontiers: Iterable[Frontier]) -> Frontier:
    met: Frontier | None = None
    for each in frontiers:
        if met is None or each.precedes(met):  # in a total order one of two is their meet
            met = each
    assert met is not None
    return met


def _later(held: Frontier, target: Frontier) -> Frontier:
    """The join of two totally ordered frontiers; `held` itself if the target is no later."""
    return held if target.precedes(held) else target
