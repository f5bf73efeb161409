"""The newest versions of all collections, and commits to them: what every command works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tidemill.errors import Corrupt, Indeterminate, Unavailable
from tidemill.shard import transitions
from tidemill.shard.leases import Leases
from tidemill.shard.log import Answer, CollectionLog, KnownVersion, Transition
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.ports import Blob, Clock, Consensus, GroupConsensus, ManyHeads
from tidemill.shard.state import State
from tidemill.shard.together import commit_together
from tidemill.shard.waking import Wakeups
from tidemill.time import sole_time

T = TypeVar("T")

HEADS_MAX = 500
"""Collections of one exchange: an answer of many long versions would keep others waiting."""


class Versions:
    """Logs by collection, each opened when it is first asked for.

    Leases end as soon as it is noticed.
    """

    def __init__(
        self, consensus: Consensus, blob: Blob, clock: Clock, ids: Callable[[], str]
    ) -> None:
        self._consensus = consensus
        self._groups = consensus if isinstance(consensus, GroupConsensus) else None
        self._blob = blob
        self._clock = clock
        self._ids = ids
        self._logs: dict[str, CollectionLog] = {}
        self._leases = Leases(clock)
        self.wakeups = Wakeups(clock)

    def log(self, collection: str) -> CollectionLog:
        """The log of a collection, which need not exist."""
        log = self._logs.get(collection)
        if log is None:
            log = CollectionLog(
                collection, self._consensus, self._blob, self._clock, self._ids, self
            )
            self._logs[collection] = log
        return log

    def seen(self) -> dict[str, State]:
        """The newest states that this process has seen, without looking."""
        cached = {name: log.cached for name, log in self._logs.items()}
        return {name: known.state for name, known in cached.items() if known is not None}

    def cached(self, collection: str) -> KnownVersion | None:
        """The newest version of a collection that this process has seen, without looking."""
        log = self._logs.get(collection)
        return None if log is None else log.cached

    def moved_by(self, collection: str, state: State) -> str:
        """The collection whose next version moves the upper of this state, which was just read:
        the pace that is least far, or the collection itself.
        """
        paces = {each: self.cached(each) for each in state.paces}
        uppers = {
            each: sole_time(known.state.upper)
            for each, known in paces.items()
            if known is not None and not known.state.upper.empty
        }
        return min(uppers, key=uppers.__getitem__, default=collection)

    def seen_past(self, collection: str, beyond: int) -> State | None:
        """The newest version that this process has seen, without looking, if its upper is past
        `beyond`.

        Its statements about instants between its frontiers stay true (P1).
        """
        known = self.cached(collection)
        return None if known is None or known.state.upper.less_equal(beyond) else known.state

    def closed(self, collections: Iterable[str]) -> list[str]:
        """Those of some collections that this process has seen as tombstones."""
        logs = ((each, self._logs[each].written) for each in collections if each in self._logs)
        return [each for each, known in logs if known is not None and known.state.closed]

    async def catch_up(self, collection: str, age_s_max: float = 0.0) -> KnownVersion:
        """The newest version, or what was the newest so long ago; leases that ran out are ended in
        it.

        Raises: UnknownCollection.
        """
        log = self.log(collection)
        known = await log.refresh(age_s_max)
        if not self._leases.over(collection, known.state):
            return known
        await self.commit(collection, lambda state: (None, state))
        return await log.refresh()

    async def confirm(self, collections: Iterable[str], age_s: float) -> None:
        """See in one exchange for many whether the known versions are still the newest.

        Those that were read within `age_s`, and those at rest, are not asked for. Nothing happens
        if the store tells one at a time, or not now: each is looked at by itself.
        """
        if not isinstance(self._consensus, ManyHeads):
            return
        known = (self._logs[each] for each in collections if each in self._logs)
        asked = [log for log in known if log.alone and log.is_older(age_s)]
        for begin in range(0, len(asked) if len(asked) > 1 else 0, HEADS_MAX):
            some, at_s = asked[begin : begin + HEADS_MAX], self._clock.monotonic_s()
            with suppress(Unavailable, Indeterminate):
                heads = await self._consensus.heads([log.collection for log in some])
                for log, head in zip(some, heads, strict=True):
                    log.confirm(head, at_s)

    async def state(self, collection: str, age_s_max: float = 0.0) -> State:
        """The state that `catch_up` finds."""
        return (await self.catch_up(collection, age_s_max)).state

    async def commit(self, collection: str, transition: Transition[Answer]) -> Answer:
        """Commit a transition; its answer. Leases that ran out are ended first."""
        answer, _ = await self.commit_counted(collection, transition)
        return answer

    async def commit_counted(
        self, collection: str, transition: Transition[Answer]
    ) -> tuple[Answer, bool]:
        """`commit`, and whether a version was made."""
        log = self.log(collection)
        answer, made = await log.commit(lambda state: transition(self.expired(collection, state)))
        if made:
            self._made(collection)
        return answer, made

    @property
    def groups(self) -> bool:
        """Whether the store has transactions over several collections."""
        return self._groups is not None

    async def commit_together(self, transitions: Mapping[str, Transition[object]]) -> bool:
        """Whether all transitions were committed in one transaction; see `commit_together`."""
        if self._groups is None:
            return False

        def current(collection: str, transition: Transition[object]) -> Transition[object]:
            return lambda state: transition(self.expired(collection, state))

        commits = [(self.log(each), current(each, made)) for each, made in transitions.items()]
        done = await commit_together(self._groups, commits)
        if done:
            for collection in transitions:
                self._made(collection)
        return done

    def _made(self, collection: str) -> None:
        """This process has made a version."""
        self.wakeups.changed(collection)
        log = self.log(collection)
        if log.cached is not None:
            self._leases.over(collection, log.cached.state)

    def expired(self, collection: str, state: State) -> State:
        """A version with the leases ended that are over."""
        over = self._leases.over(collection, state)
        return transitions.expire(state, over, self._clock.now_ms()) if over else state

    async def read(self, collection: str, read: Callable[[State], Awaitable[T]]) -> T:
        """The result of `read` on the newest version; tried again if garbage collection was
        faster.
        """
        seen: int | None = None
        while True:
            known = await self.catch_up(collection)
            try:
                return await read(known.state)
            except PartGone as gone:
                if seen == known.number:
                    raise Corrupt(
                        f"the object {gone} of {collection} is missing", object=str(gone)
                    ) from gone
                seen = known.number


@dataclass(frozen=True, slots=True)
class Core:
    """State that the commands of one process share."""

    versions: Versions
    parts: PartStore
    clock: Clock
    ids: Callable[[], str]
    poll_interval_s: float
