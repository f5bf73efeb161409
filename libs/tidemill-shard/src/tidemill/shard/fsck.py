"""Check a store: every byte of every object, and everything that the state says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.errors import Corrupt, Unavailable
from tidemill.shard.conforming import adding_up
from tidemill.shard.hashing import key_hashes
from tidemill.shard.listed import PartList, is_list
from tidemill.shard.log import CollectionLog, KnownVersion, folder_of
from tidemill.shard.offloading import compute_beside
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import Part, decode_part, sorted_updates
from tidemill.shard.ports import Blob, BlobEntry, Clock, Consensus
from tidemill.shard.pruning import guarantee, matching
from tidemill.shard.reading import VersionReader
from tidemill.shard.state import Description, State, compaction_frontier
from tidemill.time import Frontier


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    `repair` says what would put it right, empty if only a backup can. A finding is `harmless` if no
    answer depends on it.
    """

    collection: str
    object: str
    problem: str
    repair: str
    harmless: bool = False


Judge = Callable[[pa.Table, Frontier, Frontier], Iterable[str]]
"""Problems of all updates of a collection of some kind, with its since and its upper."""

LEFT_BEHIND = "delete it once it is older than any upload: reap_orphans does"
NO_REPAIR = ""
MAY_BE_LISTED = "is named by no version, unless by a list that cannot be read"
KEEP = "keep it until the list is put back"


class StoreCheck:
    """Reads everything once and changes nothing; `checked` counts what was looked at."""

    def __init__(
        self, consensus: Consensus, blob: Blob, clock: Clock, judges: Mapping[str, Judge] = {}
    ) -> None:
        """With `judges` also the contents of collections, by their kind."""
        self._judges = dict(judges)
        self._consensus = consensus
        self._blob = blob
        self._clock = clock
        self._parts = PartStore(blob, _no_name)
        self._reader = VersionReader(self._parts)
        self.checked: Counter[str] = Counter()
        self._listed: dict[str, set[str]] = {}
        """Objects that the lists of the collection name, by the list: a list never changes."""
        self._unread: set[str] = set()
        """Lists of the collection that are missing or damaged."""

    async def findings(self) -> AsyncIterator[Finding]:
        """Everything that is wrong, collection by collection, then what belongs to none."""
        entries = {entry.key: entry for entry in await self._blob.list("")}
        try:
            collections = await self._consensus.keys()
        except Corrupt as error:
            yield Finding("", "", str(error), NO_REPAIR)
            return
        folders = {folder_of(collection) for collection in collections}
        for collection in collections:
            self.checked["collections"] += 1
            folder = folder_of(collection) + "/"
            self._listed, self._unread = {}, set()
            mine = {key: entry for key, entry in entries.items() if key.startswith(folder)}
            async for finding in self._collection(collection, mine):
                yield finding
        for key in sorted(entries):
            if key.split("/")[0] not in folders:
                yield Finding("", key, "belongs to no collection", "delete it", harmless=True)

    async def _collection(
        self, collection: str, entries: Mapping[str, BlobEntry]
    ) -> AsyncIterator[Finding]:
        log = CollectionLog(collection, self._consensus, self._blob, self._clock, _no_name)
        try:
            known = await log.refresh()
            self.checked["versions"] += len(await self._consensus.scan(collection, 0))
        except Corrupt as error:
            yield Finding(collection, "", str(error), NO_REPAIR)
            return
        for problem in state_problems(known.state):
            yield Finding(collection, "", problem, NO_REPAIR)
        listed: list[Part] = []
        for each in (each for batch in known.state.batches for each in batch.lists):
            problem, parts = await self._read_listed(each)
            listed += parts
            if problem and each.key in (await log.refresh()).state.objects():
                yield Finding(collection, each.key, problem, NO_REPAIR)
        direct = [part for batch in known.state.batches for part in batch.parts]
        unlisted: set[str] = set()
        for part in _distinct((*direct, *listed, *known.state.staged_parts())):
            problems = await self._part_problems(known.state.description, part)
            if part.key is not None and not problems and part.key not in entries:
                unlisted.add(part.key)
            for problem in problems:
                if part.key is None or part.key in await self._read_named(log):
                    yield Finding(collection, part.key or "inline", problem, NO_REPAIR)
        if unlisted:
            entries = await self._list_again(folder_of(collection), unlisted)
        for problem in await self._judge(log):
            yield Finding(collection, "", problem, NO_REPAIR)
        for key in sorted(set(entries) - await self._read_named(log)):
            if self._unread & (await log.refresh()).state.objects():
                yield Finding(collection, key, MAY_BE_LISTED, KEEP)
            else:
                yield Finding(collection, key, "is named by no version", LEFT_BEHIND, harmless=True)

    async def _list_again(self, folder: str, unlisted: set[str]) -> Mapping[str, BlobEntry]:
        """The objects of a folder, of which some were read and not listed: they are new, or gone.

        Raises: Unavailable for a store that lists less than it has. One that answers with what is
        no page of a listing does so.
        """
        again = {entry.key: entry for entry in await self._blob.list(f"{folder}/")}
        for key in sorted(unlisted - again.keys()):
            if await self._blob.get_range(key, 0, 1) is not None:
                raise Unavailable(f"the store has {key}, and does not list it: ask again later")
        return again

    async def _judge(self, log: CollectionLog) -> list[str]:
        """Damage in the contents of a collection; reading ends at the first part that cannot be
        read.
        """
        while True:
            state = (await log.refresh()).state
            judge = self._judges.get(state.description.kind)
            if judge is None:
                return []
            with suppress(Corrupt, PartGone):
                updates = await self._reader.changes(state, 0, None)
                found = partial(_told, judge, updates, state)
                return await compute_beside(updates.num_rows, found)
            if (await log.refresh()).state.batches == state.batches:
                return []  # what is missing or damaged has been told, part by part

    async def _read_listed(self, listed: PartList) -> tuple[str, list[Part]]:
        """The problem of a list, empty if there is none, and the parts that it names."""
        self.checked["lists"] += 1
        try:
            return "", await self._parts.parts_of([listed])
        except PartGone:
            return "the object is missing", []
        except Corrupt as error:
            return str(error), []

    async def _read_named(self, log: CollectionLog) -> set[str]:
        """Objects that the newest version names, or that go with what it gave up."""
        known = await log.refresh()
        named = known.state.objects() | set(known.state.garbage) | _rollup_of(known)
        for key in [key for key in named if is_list(key)]:
            with suppress(PartGone, Corrupt):  # told of above
                if key not in self._listed:
                    self._unread.add(key)
                    parts = await self._parts.read_list(key)
                    self._listed[key] = {part.key for part in parts if part.key}
                    self._unread.remove(key)
                named |= self._listed[key]
        return named

    async def _part_problems(self, description: Description, part: Part) -> list[str]:
        self.checked["parts"] += 1
        self.checked["bytes"] += part.size
        schema, arrived = description.update_schema(), description.arrived
        try:
            data = await self._parts.data(part)
            table = await compute_beside(
                part.rows, lambda: decode_part(data, part, schema, arrived)
            )
        except PartGone:
            return ["the object is missing"]
        except Corrupt as error:
            return [str(error)]
        self.checked["rows"] += table.num_rows
        return await compute_beside(
            part.rows, lambda: list(part_problems(description, part, table))
        )


def _told(judge: Judge, updates: pa.Table, state: State) -> list[str]:
    return list(judge(updates, state.since, state.upper))


def state_problems(state: State) -> Iterator[str]:
    """Contradictions of a state to the formalism (F14, L2c, K1, K2) or to itself."""
    if not state.since.precedes(state.upper):
        yield f"since {state.since} is past upper {state.upper}"
    for hold in state.reads.values():
        if not state.since.precedes(hold.frontier):
            yield f"since {state.since} is past the hold {hold.frontier} of {hold.owner or 'a reader'}"
    for hold in state.writes.values():
        if not state.upper.precedes(hold.frontier):
            yield f"upper {state.upper} is past the hold {hold.frontier} of {hold.owner or 'a writer'}"
    lowers = [batch.lower for batch in state.batches]
    for before, after in zip(lowers, [*lowers[1:], state.upper], strict=False):
        if before == after or not before.precedes(after):
            yield f"the batch at {before} does not end before {after}"
    for batch, end in zip(state.batches, [*lowers[1:], state.upper], strict=False):
        if not state.closed and batch.compacted > compaction_frontier(state.since):
            yield f"the batch at {batch.lower} is compacted to {batch.compacted}, past since"
        least = max(batch.compacted, *batch.lower.elements)
        for part in batch.pieces:
            if part.time_min < least:
                yield f"the batch at {batch.lower} has times before {least}"
            if end.less_equal(part.time_max) and part.time_max > batch.compacted:
                yield f"the batch at {batch.lower} has times beyond its end {end}"


def part_problems(description: Description, part: Part, table: pa.Table) -> Iterator[str]:
    """Contradictions of a part's rows to its statistics, its order, or the shape of updates."""
    if table.num_rows != part.rows:
        yield f"{table.num_rows} rows are there, {part.rows} were written"
    if not table.num_rows:
        yield "a part without rows"
        return
    times = np.asarray(table.column(TIME).to_numpy(), np.uint64)
    if part.is_whole and (int(times.min()), int(times.max())) != (part.time_min, part.time_max):
        yield f"times are {times.min()} to {times.max()}, not {part.time_min} to {part.time_max}"
    with adding_up():
        added = sorted_updates(table, description.key)
    if not _same_rows(table, added):
        yield "updates are not sorted, or not added up"
    if part.key is not None:
        hashes = key_hashes(table, description.key)
        if int(hashes.min()) < part.hash_min or int(hashes.max()) > part.hash_max:
            yield "keys are outside the hash range of the part"
        if part.bounds:
            data = table.drop_columns([TIME, DIFF])
            kept = matching(data, guarantee(part, description.schema)).num_rows
            if kept != table.num_rows:
                yield f"{table.num_rows - kept} rows are outside the bounds of the part"
    if pc.any(pc.equal(table.column(DIFF), 0)).as_py():
        yield "an update has the difference 0"


def _same_rows(a: pa.Table, b: pa.Table) -> bool:
    """Whether two tables have the same rows in the same order, NaN being equal to itself."""
    return (
        a.num_rows == b.num_rows
        and bool((key_hashes(a, ()) == key_hashes(b, ())).all())
        and a.select([TIME, DIFF]).equals(b.select([TIME, DIFF]))
    )


def _distinct(parts: Sequence[Part]) -> Iterator[Part]:
    """Each object once, however many intervals of it are named."""
    seen: set[str] = set()
    for part in parts:
        if part.key is None:
            yield part
        elif part.key not in seen:
            seen.add(part.key)
            yield part


def _rollup_of(known: KnownVersion) -> set[str]:
    return set() if known.rollup is None else {known.rollup[0]}


def _no_name() -> str:
    raise AssertionError("a check writes nothing")
