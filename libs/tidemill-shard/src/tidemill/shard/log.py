"""The log of one collection as this process knows it: catching up, committing, rolling up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

from tidemill.errors import Corrupt, Indeterminate, TidemillError, Unavailable, UnknownCollection
from tidemill.shard.encoding import (
    Entry,
    decode_entry,
    decode_rollup,
    encode_entry,
    encode_rollup,
    first_entry,
    next_entry,
    patch,
    rebuild,
)
from tidemill.shard.pacing import Shown, about, follows, leaving, shown
from tidemill.shard.ports import Blob, Clock, Consensus, Seen, Version, digest_of
from tidemill.shard.state import Paced, State
from tidemill.time import Frontier

ROLLUP_EVERY = 128
OUTDATED_S = float("-inf")
"""When a version was read of which a newer one is known."""
WRITE_ATTEMPTS = 4

Answer = TypeVar("Answer")
Transition = Callable[[State], tuple[Answer, State]]


def folder_of(collection: str) -> str:
    """The Blob folder of a collection, whose name may hold any character."""
    return blake2b(collection.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version of the state with its place in the log, and the newest rollup that the log
    names. `digest` is that of its bytes.
    """

    number: int
    state: State
    rollup: tuple[str, int] | None
    digest: str

    @property
    def seen(self) -> Seen:
        """The version as whoever writes behind it expects it."""
        return Seen(self.number, self.digest)


class Planned(NamedTuple):
    """A version that is to follow the known one."""

    known: KnownVersion
    after: State
    version: Version
    entry: Entry


class _Newest(NamedTuple):
    """Number of a version that a process has seen in the log, and the write that made it."""

    number: int
    attempt: str


class _Followed(NamedTuple):
    """Statements of the paces of a version, their uppers, and what it stands for by them."""

    known: KnownVersion
    said: tuple[Paced | None, ...]
    uppers: tuple[Frontier, ...]
    shown: Shown


class Paces(Protocol):
    """The other collections, some of which this one may follow; these never follow any."""

    async def catch_up(self, collection: str, age_s_max: float = 0.0) -> KnownVersion:
        """The newest version, as `CollectionLog.refresh` finds it."""
        ...

    def cached(self, collection: str) -> KnownVersion | None:
        """The last known version, as `CollectionLog.cached` gives it."""
        ...

    async def commit(self, collection: str, transition: Transition[None]) -> None:
        """Commit a transition, as `CollectionLog.commit` does."""
        ...


class CollectionLog:
    """All versions of one collection.

    A commit is a compare-and-set on the version that it follows. Of several processes one wins; the
    others catch up and apply their transition to its state. A write whose outcome is unknown is
    written again at the same number; its attempt's name tells whether the first one had landed. The
    newest version of a resting collection is shown as its paces state it, and leaves all of them
    before another one follows. A log without a version that was seen here is Unavailable until it
    has it again: its store is another one, or an older copy.
    """

    def __init__(
        self,
        collection: str,
        consensus: Consensus,
        blob: Blob,
        clock: Clock,
        unique: Callable[[], str],
        paces: Paces | None = None,
    ) -> None:
        """Without `paces` versions are shown as they were written, and one that rests is not
        followed.
        """
        self.collection = collection
        self._paces = paces
        self.lost = 0
        self.commits = 0
        self._consensus = consensus
        self._blob = blob
        self._clock = clock
        self._unique = unique
        self._known: KnownVersion | None = None
        # IMPORTANT: kept where the known version is forgotten. A store that has lost it is noticed.
        self._newest: _Newest | None = None
        self._followed: _Followed | None = None
        self._read_at_s = 0.0
        self._reads_begun = self._read_last = 0
        self.turn = asyncio.Lock()
        """Held by whoever commits or looks."""

    @property
    def written(self) -> KnownVersion | None:
        """The newest version this process has seen, as it was written."""
        return self._known

    @property
    def cached(self) -> KnownVersion | None:
        """The newest version this process has seen."""
        known = self._known
        if known is None or self._paces is None or not known.state.paces:
            return known
        found = [self._paces.cached(each) for each in known.state.paces]
        paces = [each.state for each in found if each is not None]
        seen = self._seen(known, paces) if len(paces) == len(found) else None
        return known if seen is None else replace(known, state=seen.state)

    async def create(self, state: State) -> bool:
        """Write version 0; False if the collection exists. Durable on return."""
        async with self.turn:
            if self._newest is not None:
                await self._catch_up()
                return False
            entry = first_entry(self._unique(), state)
            version = Version(0, encode_entry(entry))
            won = await self._write(None, version, entry.attempt)
            if won:
                self._known = KnownVersion(0, state, None, digest_of(version.data))
                self._newest = _Newest(0, entry.attempt)
            return won

    async def refresh(self, age_s_max: float = 0.0) -> KnownVersion:
        """The newest version, or one that was the newest at most `age_s_max` ago.

        Of many that ask at once, two read the log: what was read after one asked is new enough for
        it. A reader that allows an age does not wait for a commit, whose flush may take long.

        Raises: UnknownCollection if there is none, Corrupt, Unavailable.
        """
        if (recent := await self._recent(age_s_max)) is not None:
            return recent
        asked_after = self._reads_begun
        async with self.turn:
            age_s = self._clock.monotonic_s() - self._read_at_s
            read_since = self._read_last > asked_after
            known = self._known
            if known is None or not (read_since or age_s < age_s_max):
                of_pace_s = 0.0 if self._read_at_s == OUTDATED_S else age_s_max
                if known is not None and (still := await self._still_at_rest(known, of_pace_s)):
                    return replace(known, state=still)
                known = await self._catch_up()
            known, seen = await self._show(known, age_s_max)
            return known if seen.state is known.state else replace(known, state=seen.state)

    async def _recent(self, age_s_max: float) -> KnownVersion | None:
        """The known version, if it is new enough, and no pace of it says that one follows it."""
        known = self._known
        if known is None or not self._clock.monotonic_s() - self._read_at_s < age_s_max:
            return None
        paces = await self._paces_of(known, age_s_max)
        if not paces:
            return known
        seen = self._seen(known, paces)
        return None if seen is None else replace(known, state=seen.state)

    async def _paces_of(self, known: KnownVersion, age_s_max: float) -> list[State]:
        """The paces that a version names, in that order; none if they cannot be read here."""
        if self._paces is None:
            return []
        return [(await self._paces.catch_up(each, age_s_max)).state for each in known.state.paces]

    async def _still_at_rest(self, known: KnownVersion, age_s_max: float) -> State | None:
        """The state of a version, if a pace says that it follows; then it is the newest one.

        Many at rest thus share one read, that of their pace.
        """
        paces = await self._paces_of(known, age_s_max)
        if not any(follows(pace, self.collection, known.number) for pace in paces):
            return None
        seen = self._seen(known, paces)
        return None if seen is None else seen.state

    @property
    def alone(self) -> bool:
        """Whether a version is known that follows no pace: its newness is a look at its own log."""
        return self._known is not None and not self._known.state.paces

    def is_older(self, age_s: float) -> bool:
        """Whether it was read longer ago, and no newer version is known of."""
        return self._read_at_s != OUTDATED_S and (
            self._clock.monotonic_s() - self._read_at_s >= age_s
        )

    def confirm(self, head: Version | None, at_s: float) -> None:
        """The head of the log, read after `at_s`: if it is the known version, this is as new.

        Any other one is left to a look, which tells a newer version from another history.
        """
        known = self._known
        if known is None or head is None or self._read_at_s == OUTDATED_S:
            return
        if (head.number, digest_of(head.data)) == (known.number, known.digest):
            self._read_at_s = max(self._read_at_s, at_s)

    def outdated(self) -> None:
        """There is a newer version than the one known: the next `refresh` reads, whatever age it
        allows.
        """
        self._read_at_s = OUTDATED_S

    async def commit(self, transition: Transition[Answer]) -> tuple[Answer, bool]:
        """(the transition's answer on the newest state, whether it made a version).

        Durable on return. An error of the transition is about the newest state, and nothing was
        written. Raises: Unavailable (nothing happened), Indeterminate (it may have).
        """
        async with self.turn:
            known = self._known or await self._catch_up()
            while True:
                known, seen = await self._show(known)
                refused: TidemillError | None = None
                try:
                    answer, after = transition(seen.state)
                except TidemillError as error:
                    refused, after = error, seen.state
                if after is not seen.state:
                    if not seen.settled:
                        await self._leave(known)
                        continue
                    if await self._append(known, after):
                        return answer, True
                    self.lost += 1
                # A refusal counts only if it is about the newest version.
                newest = await self._catch_up()
                if newest.number == known.number:
                    if refused is not None:
                        raise refused
                    if after is seen.state:
                        return answer, False
                    raise Unavailable(
                        f"the store refuses what is to follow {self._where(known.number)}, and has"
                        " nothing that follows it", collection=self.collection,
                    )  # fmt: skip
                known = newest

    async def _show(
        self, known: KnownVersion, age_s_max: float = 0.0
    ) -> tuple[KnownVersion, Shown]:
        """The newest version and what it stands for.

        IMPORTANT: paces are read after the version. A version that one says follows it then was
        the newest one.
        """
        while known.state.paces:
            paces = await self._paces_of(known, age_s_max)
            if not paces:
                return known, Shown(known.state, settled=False)
            seen = self._seen(known, paces)
            if seen is not None:
                return known, seen
            known = await self._catch_up()
        return known, Shown(known.state, settled=True)

    def _seen(self, known: KnownVersion, paces: Sequence[State]) -> Shown | None:
        """The state that a version stands for at these states of its paces; None if there is a
        newer version.
        """
        before, number = self._followed, known.number
        said = tuple(about(pace, self.collection, number) for pace in paces)
        uppers = tuple(pace.upper for pace in paces)
        if before is not None and before.known is known:
            if any(old and not new for old, new in zip(before.said, said, strict=True)):
                return None  # it has followed, and is not the newest any more
            if (before.said, before.uppers) == (said, uppers):
                return before.shown
        seen = shown(known.state, self.collection, number, paces)
        if seen is not None and any(each is not None for each in said):
            self._followed = _Followed(known, said, uppers, seen)
        return seen

    async def _leave(self, known: KnownVersion) -> None:
        """Keep this version where it is now: the collection leaves its groups in all paces."""
        assert self._paces is not None
        collection, number = self.collection, known.number
        for each in known.state.paces:
            await self._paces.commit(each, lambda pace: leaving(pace, collection, number))

    async def shorten(self) -> None:
        """Replace all versions before a tombstone by a rollup of it.

        Data that was kept in the log is gone from it then. Without a tombstone nothing happens.
        Cost: a commit, once.
        """
        async with self.turn:
            known = await self._catch_up()
            if not known.state.closed:
                return
            if known.rollup is not None and (await self._from_rollup_alone(known.rollup)).closed:
                await self._consensus.truncate(self.collection, known.rollup[1] + 1)
                return
            await self._append(known, known.state, rolled_up=True)

    async def _write(self, expected: Seen | None, version: Version, attempt: str) -> bool:
        """Append a version behind `expected`; whether it, not another's, is there."""
        unknown: Indeterminate | None = None
        for _ in range(WRITE_ATTEMPTS):
            try:
                if await self._consensus.compare_and_set(self.collection, expected, version):
                    return True
                return unknown is not None and await self._find_landed(version, attempt)
            except Indeterminate as error:
                self._known, unknown = None, error
            except Unavailable:
                if unknown is None:
                    raise
            await self._clock.sleep(0)
        assert unknown is not None
        raise unknown

    async def _find_landed(self, version: Version, attempt: str) -> bool:
        """Whether an earlier try of the same write is what the log has at its number."""
        found = await self._consensus.scan(self.collection, version.number)
        if not found or found[0].number != version.number:
            raise Indeterminate(
                f"version {version.number} of {self.collection} is no longer in the log",
                collection=self.collection,
            )
        return decode_entry(found[0].data, self._where(version.number)).attempt == attempt

    async def _append(self, known: KnownVersion, after: State, *, rolled_up: bool = False) -> bool:
        """Append the version that leads from `known` to `after`; whether nobody else was faster.

        Every so many versions, or if asked for, a rollup of `known` is stored first, for the entry
        to name.
        """
        rollup = await self._rollup(known, rolled_up)
        if rollup != known.rollup and known.rollup is not None:
            # Somebody may be opening the log from it: it goes as other garbage does.
            given_up = {known.rollup[0]: self._clock.now_ms()}
            after = replace(after, garbage={**after.garbage, **given_up})
        entry = next_entry(self._unique(), rollup, known.state, after)
        planned = Planned(known, after, _version(known, entry), entry)
        try:
            won = await self._write(known.seen, planned.version, entry.attempt)
        except Unavailable:
            await self._forget_rollup(known, rollup)
            raise
        if not won:
            await self._forget_rollup(known, rollup)
            return False
        self._advance(planned)
        if rollup is not None and rollup != known.rollup:
            with suppress(Unavailable, Indeterminate):
                await self._consensus.truncate(self.collection, rollup[1] + 1)
        return True

    def _advance(self, done: Planned) -> None:
        """Know a version that was appended behind another one."""
        number, data = done.version
        self._known = KnownVersion(number, done.after, done.entry.rollup, digest_of(data))
        self._newest = _Newest(number, done.entry.attempt)
        self._read_at_s = self._clock.monotonic_s()
        self.commits += 1

    def plan(self, transition: Transition[object]) -> Planned | None:
        """The version behind the known one, for whoever has the turn; None if it needs a look.

        So it does where nothing is known, or the version follows paces. So it does where a rollup
        is due, and where the transition is refused or changes nothing.
        """
        known = self._known
        if known is None or known.state.paces or _rollup_due(known):
            return None
        try:
            _, after = transition(known.state)
        except TidemillError:
            return None
        if after is known.state:
            return None
        entry = next_entry(self._unique(), known.rollup, known.state, after)
        return Planned(known, after, _version(known, entry), entry)

    def settle(self, planned: Planned, landed: bool | None) -> None:
        """A planned version has landed or not; None: nobody knows, and the next look tells."""
        if landed is None:
            self._known = None
        elif landed:
            self._advance(planned)

    async def _rollup(self, known: KnownVersion, due: bool) -> tuple[str, int] | None:
        """The rollup that the entry behind `known` names: a new one if it is due, or if its turn
        has come.

        IMPORTANT: a rollup is stored just before an entry names it, and never kept for later. An
        object that no version names may be reaped once it is old, and a log without its rollup
        cannot be opened.
        """
        if not due and not _rollup_due(known):
            return known.rollup
        key = f"{folder_of(self.collection)}/rollup-{known.number:012d}-{self._unique()}"
        try:
            await self._blob.put(key, encode_rollup(known.state))
        except (Unavailable, Indeterminate):
            # Rollups are only for speed: the commit goes on, and the next one is tried in time.
            return known.rollup
        return key, known.number

    async def _forget_rollup(self, known: KnownVersion, rollup: tuple[str, int] | None) -> None:
        """Delete a rollup that no version will ever name; what fails is left to the reaper."""
        if rollup is None or rollup == known.rollup:
            return
        with suppress(Unavailable, Indeterminate):
            await self._blob.delete(rollup[0])

    async def _catch_up(self) -> KnownVersion:
        self._reads_begun += 1
        # IMPORTANT: a read that fails or is cancelled tells nobody who waits what is there.
        begun = self._reads_begun
        if self._known is not None:
            # IMPORTANT: from the known version on, which says whether the newer ones follow it.
            found = await self._consensus.scan(self.collection, self._known.number)
            if not found:
                raise self._lost(None)
            if found[0].number == self._known.number:
                self._same(decode_entry(found[0].data, self._where(found[0].number)), found[0])
                self._read_last, self._read_at_s = begun, self._clock.monotonic_s()
                if len(found) > 1:
                    self._known = self._replayed(self._known, found[1:])
                return self._known
        self._known = await self._read_all()
        self._read_last, self._read_at_s = begun, self._clock.monotonic_s()
        return self._known

    def _replayed(self, known: KnownVersion, versions: Sequence[Version]) -> KnownVersion:
        entries = []
        number, rollup, digest = known.number, known.rollup, known.digest
        for version in versions:
            number += 1
            if version.number != number:
                raise Corrupt(
                    f"the log of {self.collection} has a hole before version {version.number}",
                    collection=self.collection,
                )
            entry = decode_entry(version.data, self._where(number))
            self._same(entry, version)
            entries.append(entry)
            rollup = entry.rollup
        state = patch(known.state, entries, self.collection)
        if entries:
            self._newest = _Newest(number, entries[-1].attempt)
            digest = digest_of(versions[-1].data)
        return KnownVersion(number, state, rollup, digest)

    def _where(self, number: int) -> str:
        return f"version {number} of {self.collection}"

    def _same(self, entry: Entry, version: Version) -> None:
        """Raises: Unavailable if another write made a version that was seen here."""
        newest = self._newest or _Newest(-1, "")
        if version.number == newest.number and entry.attempt != newest.attempt:
            raise self._lost(version.number)

    def _lost(self, last: int | None) -> Unavailable:
        """The error of a log that has not the newest version that was seen here."""
        assert self._newest is not None
        has = "has none" if last is None else f"has another version {last}"
        return Unavailable(
            f"the store has lost version {self._newest.number} of {self.collection}, which was"
            f" seen here, and {has}: connect to the store that it was in, or restore it, and start"
            " again",
            reason="LostVersion", collection=self.collection,
        )  # fmt: skip

    async def _read_all(self) -> KnownVersion:
        """Read from the newest rollup on, or from version 0."""
        failure: Corrupt | None = None
        for _ in range(8):
            head = await self._consensus.head(self.collection)
            if self._newest is not None and (head is None or head.number < self._newest.number):
                raise self._lost(None if head is None else head.number)
            if head is None:
                raise UnknownCollection(
                    f"there is no collection {self.collection}", collection=self.collection
                )
            rollup = decode_entry(head.data, self._where(head.number)).rollup
            try:
                return await (self._from_start() if rollup is None else self._from_rollup(rollup))
            except Corrupt as error:
                # A newer rollup may have taken over between the reads: what is missing stays
                # missing.
                failure = error
        assert failure is not None
        raise failure

    async def _from_start(self) -> KnownVersion:
        versions = await self._consensus.scan(self.collection, 0)
        if not versions or versions[0].number != 0:
            raise Corrupt(
                f"the log of {self.collection} has no beginning and names no rollup",
                collection=self.collection,
            )
        where = self._where(0)
        entry = decode_entry(versions[0].data, where)
        self._same(entry, versions[0])
        state = rebuild(entry.cells, where)
        if len(versions) == 1:
            self._newest = _Newest(0, entry.attempt)
        first = KnownVersion(0, state, None, digest_of(versions[0].data))
        return self._replayed(first, versions[1:])

    async def _from_rollup(self, rollup: tuple[str, int]) -> KnownVersion:
        state = await self._from_rollup_alone(rollup)
        versions = await self._consensus.scan(self.collection, rollup[1] + 1)
        if not versions:
            raise Corrupt(
                f"the log of {self.collection} has lost the version that names {rollup[0]}",
                collection=self.collection,
            )
        return self._replayed(KnownVersion(rollup[1], state, rollup, ""), versions)

    async def _from_rollup_alone(self, rollup: tuple[str, int]) -> State:
        data = await self._blob.get(rollup[0])
        if data is None:
            raise Corrupt(
                f"the rollup {rollup[0]} of {self.collection} is missing", object=rollup[0]
            )
        return decode_rollup(data, f"the rollup {rollup[0]}")


def _version(known: KnownVersion, entry: Entry) -> Version:
    """The version that an entry makes behind another one."""
    return Version(known.number + 1, encode_entry(entry))


def _rollup_due(known: KnownVersion) -> bool:
    """Whether the entry behind a version is to name a new rollup."""
    behind = known.number - (0 if known.rollup is None else known.rollup[1])
    return behind > 0 and behind % ROLLUP_EVERY == 0
