"""Auditors: they see every version as it is made, every deleted object, and every answer.

Their findings are kept, and not raised at their place: the code under audit could hide them there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.shard import (
    BlobEntry,
    Capability,
    Clock,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
    Version,
)
from tidemill.shard.encoding import decode_entry, decode_list, patch, rebuild
from tidemill.shard.fsck import state_problems
from tidemill.shard.listed import is_list
from tidemill.shard.log import CollectionLog, folder_of
from tidemill.shard.ports import Expected
from tidemill.shard.state import Hold, State
from tidemill.time import Frontier

REOPENED_EVERY = 40
SKEW_MS_MAX = 10_000
"""No clock of a process is further off than this."""

Row = tuple[int, int]
"""A row that is written once only, and the amount that it moves."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The updates of one append: (time, row, diff)."""

    token: str
    updates: tuple[tuple[int, Row, int], ...]


@dataclass(slots=True)
class _Seen:
    """The known state of one collection."""

    number: int
    state: State
    rollup: tuple[str, int] | None
    units: list[Unit] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    named: frozenset[str] = frozenset()


class Audit:
    """Everything that was promised so far, and everything that broke a promise."""

    def __init__(self, consensus: MemoryConsensus, blob: MemoryBlob, clock: Clock) -> None:
        self.violations: list[str] = []
        self.checked: Counter[str] = Counter()
        self._consensus = consensus
        self._blob = blob
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._pending: dict[str, Unit] = {}
        self._held: dict[str, dict[str, Capability]] = defaultdict(dict)
        self._contents: dict[tuple[str, int], int] = {}
        self._reads: Counter[tuple[str, int]] = Counter()

    def found(self, problem: str) -> None:
        """A promise was broken."""
        self.violations.append(f"at {self._clock.monotonic_s():.3f} s: {problem}")

    def expect(self, holds: object, problem: str) -> None:
        """A promise was broken unless this holds."""
        if not holds:
            self.found(problem)

    def begun(self, unit: Unit) -> None:
        """Somebody is going to write this."""
        self._pending[unit.token] = unit

    def acknowledged(self, collection: str, unit: Unit, upper: Frontier) -> None:
        """Somebody was told that this is durable (S4, D1)."""
        self.checked["acknowledged appends"] += 1
        known = unit.token in self._seen[collection].tokens
        self.expect(known, f"{unit.token} was acknowledged to {upper} and is not in {collection}")

    def refused(self, collection: str, unit: Unit, why: str) -> None:
        """Somebody was told that this did not happen (K10)."""
        self.checked["refused appends"] += 1
        known = unit.token in self._seen[collection].tokens
        self.expect(not known, f"{unit.token} was refused ({why}) and is in {collection}")

    def confirmed(self, capability: Capability) -> None:
        """Somebody was told that this is held."""
        self._held[capability.collection][capability.id] = capability

    def released(self, capability: Capability) -> None:
        """Somebody is about to drop this, or was told that it is gone."""
        self._held[capability.collection].pop(capability.id, None)

    def contents(self, collection: str, as_of: int) -> Counter[Row]:
        """The contents at `as_of`, by the committed updates."""
        total: Counter[Row] = Counter()
        for unit in self._seen[collection].units:
            for time, row, diff in unit.updates:
                if time <= as_of:
                    total[row] += diff
        return Counter({row: n for row, n in total.items() if n})

    def updates(self, collection: str, lower: int, upper: int) -> Counter[tuple[int, Row]]:
        """The updates with lower <= time < upper, by what was committed."""
        total: Counter[tuple[int, Row]] = Counter()
        for unit in self._seen[collection].units:
            for time, row, diff in unit.updates:
                if lower <= time < upper:
                    total[time, row] += diff
        return Counter({key: n for key, n in total.items() if n})

    def read(self, collection: str, as_of: int, rows: Counter[Row]) -> None:
        """Two reads at one time are equal, sum to nothing, and are what was written (P1, F5,
        F11).
        """
        self.checked["reads"] += 1
        place = collection, as_of
        self.checked["repeated reads"] += place in self._reads
        self._reads[place] += 1
        digest = hash(frozenset(rows.items()))
        same = self._contents.setdefault(place, digest) == digest
        self.expect(same, f"two reads of {collection} at {as_of} differ")
        balance = sum(amount * n for (_, amount), n in rows.items())
        self.expect(not balance, f"{collection} at {as_of} sums to {balance}")
        expected = self.contents(collection, as_of)
        if rows != expected:
            missing, extra = expected - rows, rows - expected
            self.found(
                f"{collection} at {as_of} lacks {dict(missing)} and has {dict(extra)} beside"
            )

    async def note_commit(self, key: str, version: Version) -> None:
        """A version was made: everything that holds in every state (formalism, section 7)."""
        self.checked["versions"] += 1
        entry = decode_entry(version.data, f"version {version.number} of {key}")
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = _Seen(version.number, rebuild(entry.cells, key), entry.rollup)
            return
        before, after = seen.state, patch(seen.state, [entry], key)
        self.expect(version.number == seen.number + 1, f"version {version.number} of {key} is not the next")  # fmt: skip
        seen.number, seen.state, seen.rollup = version.number, after, entry.rollup
        where = f"version {version.number} of {key}"
        self.expect(before.since.precedes(after.since), f"{where}: since went from {before.since} to {after.since}")  # fmt: skip
        self.expect(before.upper.precedes(after.upper), f"{where}: upper went from {before.upper} to {after.upper}")  # fmt: skip
        self.checked["since moved"] += before.since != after.since
        self.checked["upper moved"] += before.upper != after.upper
        for problem in state_problems(after):
            self.found(f"{where}: {problem}")
        self._check_holds(where, before, after)
        self._check_confirmed(where, self._held[key], after)
        self._check_tokens(where, seen, before, after)
        await self._check_objects(where, seen)
        if version.number % REOPENED_EVERY == 0:
            await self._reopen(key, seen)

    def _check_holds(self, where: str, before: State, after: State) -> None:
        latest_ms = self._clock.now_ms() + SKEW_MS_MAX
        for old, new in ((before.reads, after.reads), (before.writes, after.writes)):
            for name, hold in old.items():
                self._check_hold(where, name, hold, new, after.expired, latest_ms)

    def _check_confirmed(
        self, where: str, confirmed: Mapping[str, Capability], after: State
    ) -> None:
        """Capabilities that a holder was told of stand until it drops them or their lease ends
        (K10, D1).
        """
        for name, capability in confirmed.items():
            reads = isinstance(capability, ReadCapability)
            held = (after.reads if reads else after.writes).get(name)
            if held is None:
                self.expect(name in after.expired, f"{where}: a confirmed hold at {capability.frontier} is gone")  # fmt: skip
            else:
                self.expect(capability.frontier.precedes(held.frontier), f"{where}: {held.owner} was told {capability.frontier} and holds {held.frontier}")  # fmt: skip

    def _check_hold(
        self,
        where: str,
        name: str,
        hold: Hold,
        new: Mapping[str, Hold],
        expired: Mapping[str, int],
        latest_ms: int,
    ) -> None:
        if name in new:
            moved = new[name].frontier
            self.expect(hold.frontier.precedes(moved), f"{where}: the hold of {hold.owner} went from {hold.frontier} to {moved}")  # fmt: skip
        elif name in expired:
            self.checked["expired leases"] += 1
            end_ms = hold.lease_end_ms()
            self.expect(end_ms is not None and end_ms < latest_ms, f"{where}: the lease of {hold.owner} ended early")  # fmt: skip
        else:
            self.checked["dropped holds"] += 1

    def _check_tokens(self, where: str, seen: _Seen, before: State, after: State) -> None:
        for writer, last in after.last_writes.items():
            if writer in before.last_writes and before.last_writes[writer].token == last.token:
                continue
            self.checked["committed appends"] += 1
            self.expect(last.token not in seen.tokens, f"{where}: {last.token} was applied twice")
            seen.tokens.add(last.token)
            if last.token in self._pending:
                seen.units.append(self._pending[last.token])

    async def _check_objects(self, where: str, seen: _Seen) -> None:
        named = seen.state.objects() | ({seen.rollup[0]} if seen.rollup else set())
        for key in sorted(filter(is_list, named)):
            data = await self._blob.get(key)
            if data is not None:  # else it is found missing below
                self.checked["lists of parts"] += 1
                named |= {part.key for part in decode_list(data, key) if part.key}
        seen.named = frozenset(named)
        for key in sorted(named):
            self.expect(
                await self._blob.get_range(key, 0, 1), f"{where} names {key}, which is gone"
            )

    async def _reopen(self, key: str, seen: _Seen) -> None:
        """A process that begins now finds the contents that the versions add up to (S3)."""
        self.checked["cold opens"] += 1
        log = CollectionLog(key, self._consensus, self._blob, self._clock, lambda: "audit")
        found = await log.refresh()
        self.expect(found.number == seen.number and found.state == seen.state, f"{key} opens differently at version {seen.number}")  # fmt: skip

    def deleted(self, key: str) -> None:
        """An object goes: no current version may name it (P8)."""
        self.checked["deleted objects"] += 1
        for collection, seen in self._seen.items():
            if key.startswith(folder_of(collection)):
                self.expect(key not in seen.named, f"{key} of {collection} is deleted and named by version {seen.number}")  # fmt: skip


class AuditedConsensus(MemoryConsensus):
    """A Consensus whose every version is audited."""

    def __init__(self) -> None:
        super().__init__()
        self.audit: Audit | None = None

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        won = await super().compare_and_set(key, expected, version)
        if won and self.audit is not None:
            await self.audit.note_commit(key, version)
        return won


class AuditedBlob(MemoryBlob):
    """A Blob whose every deletion is audited."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.audit: Audit | None = None

    async def delete(self, key: str) -> None:
        if self.audit is not None and await self.get_range(key, 0, 0) is not None:
            self.audit.deleted(key)
        await super().delete(key)

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        return await super().list(prefix)


def rows_of(table: pa.Table) -> Counter[Row]:
    """Rows with their multiplicities."""
    total: Counter[Row] = Counter()
    columns = (table["id"].to_pylist(), table["amount"].to_pylist(), table[DIFF].to_pylist())
    for row, amount, diff in zip(*columns, strict=True):
        total[row, amount] += diff
    return total


def updates_of(table: pa.Table) -> Counter[tuple[int, Row]]:
    """Updates with their times."""
    total: Counter[tuple[int, Row]] = Counter()
    for row in table.to_pylist():
        total[row[TIME], (row["id"], row["amount"])] += row[DIFF]
    return Counter({key: n for key, n in total.items() if n})


def table_of(unit: Unit) -> pa.Table:
    """The updates of a unit."""
    return pa.table(
        {
            "id": pa.array([row for _, (row, _), _ in unit.updates], pa.int64()),
            "amount": pa.array([amount for _, (_, amount), _ in unit.updates], pa.int64()),
            TIME: pa.array([time for time, _, _ in unit.updates], pa.uint64()),
            DIFF: pa.array([diff for _, _, diff in unit.updates], pa.int64()),
        }
    )
