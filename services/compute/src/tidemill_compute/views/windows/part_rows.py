"""Rows of immutable parts by the hash of a key, in files that are made once on each machine.

A file is Arrow, sorted by hash, and mapped. A look for few keys reads few pages. Small parts have
their rows in the log, and come with each window: their rows are kept in the memory of a process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import between
from tidemill.datalog.placement.column_hashes import spots_of_columns
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.state import Description

SPOT = "#spot"
FILES_BYTES_MAX = 8 << 30
"""Bytes of files on one machine, of which the oldest are deleted first."""
HELD_BYTES_MAX = 64 << 20
"""Memory of small parts that a process keeps, of which those used last stay."""
ENTRY_BYTES = 8 << 10
"""Memory of a table beside its buffers: objects of columns, chunks and schema; measured 5.4 kB."""
LISTS_MAX = 512
"""Lists of parts that a process keeps, of 256 parts each: about 1 kB a part."""
Spots: TypeAlias = "npt.NDArray[np.uint64]"
KeyOf: TypeAlias = "Callable[[pa.Table], Sequence[pa.Array]]"


@dataclass(frozen=True, slots=True)
class Key:
    """Columns by which rows are looked up, of all rows or of some `among` them, and its name."""

    name: str
    columns: KeyOf
    among: Callable[[pa.Table], pa.Table] | None = None

    def ordered(self, table: pa.Table) -> pa.Table:
        """The rows in the order of their spots, which they have as a column more."""
        table = table if self.among is None else self.among(table)
        spots = spots_of_columns(self.columns(table))
        order = np.argsort(spots, kind="stable")
        found = table.append_column(SPOT, pa.array(spots)).take(pa.array(order))
        return found.combine_chunks()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hashes from `begin` on and below `end`: the ascending `spots`, or all of them `but` some."""

    begin: int
    end: int
    spots: Spots | None = None
    but: Spots | None = None


class HeldRows:
    """Rows of small parts in the order of a key, by a name that says which, and lists of parts.

    For any thread.

    Cost: O(1), and the parts used last, of up to `bytes_max`. That is their buffers, and
    `ENTRY_BYTES` for each: nearly all of it where parts have a row or two.
    """

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[bytes, pa.Table] = OrderedDict()
        self._lists: OrderedDict[str, tuple[Part, ...]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, name: bytes) -> pa.Table | None:
        """The rows of a name, if they are kept."""
        with self._lock:
            found = self._held.get(name)
            if found is not None:
                self._held.move_to_end(name)
            return found

    def listed(self, key: str) -> tuple[Part, ...] | None:
        """The parts that an object names, if they are kept."""
        with self._lock:
            return self._lists.get(key)

    def keep_listed(self, key: str, parts: tuple[Part, ...]) -> None:
        """Keep the parts that an object names; those kept first go where there are many."""
        with self._lock:
            self._lists[key] = parts
            while len(self._lists) > LISTS_MAX:
                self._lists.popitem(last=False)

    def keep(self, name: bytes, table: pa.Table) -> None:
        """Keep the rows of a name; others go where there is no room."""
        with self._lock:
            if name not in self._held:
                self._held[name] = table
                self._bytes += _size_of(table)
            while self._bytes > self._bytes_max:
                self._bytes -= _size_of(self._held.popitem(last=False)[1])


def _size_of(table: pa.Table) -> int:
    return int(table.get_total_buffer_size()) + ENTRY_BYTES


class PartRows:
    """Finds the rows of some keys in parts. Cost: the rows found; the whole part the first time."""

    def __init__(self, store: PartStore, folder: Path | None, held: HeldRows) -> None:
        """Without a `folder` each part in Blob is read again each time."""
        self._store = store
        self._folder = folder
        self._held = held

    async def parts_of(self, key: str) -> tuple[Part, ...]:
        """The parts that an object names, read once by a process. Raises: PartGone, Corrupt."""
        if self._folder is None:
            return await self._store.read_list(key)
        found = self._held.listed(key)
        if found is None:
            found = await self._store.read_list(key)
            self._held.keep_listed(key, found)
        return found

    async def whole(self, part: Part, description: Description) -> pa.Table:
        """All updates of a part in its interval. Raises: PartGone, Corrupt."""
        return _in_interval(await self._store.table(part, description, keep=False), part)

    async def some(
        self, part: Part, description: Description, key: Key, wanted: Wanted
    ) -> pa.Table:
        """The updates of a part whose keys have the wanted hashes. Raises: PartGone, Corrupt."""
        ordered = await self._by_key(part, description, key)
        found = ordered.take(pa.array(_places(ordered.column(SPOT), wanted)))
        return _in_interval(found.drop_columns([SPOT]), part)

    async def _by_key(self, part: Part, description: Description, key: Key) -> pa.Table:
        told = "\0".join([part.key or "", key.name, *map(str, description.update_schema())])
        name = blake2b(told.encode() + (part.inline or b""), digest_size=16)
        if part.inline is not None:
            table = self._held.get(name.digest())
            if table is None:
                table = key.ordered(await self._store.table(part, description, keep=False))
                self._held.keep(name.digest(), table)
            return table
        if self._folder is None:
            return key.ordered(await self._store.table(part, description, keep=False))
        file = self._folder / f"{name.hexdigest()}.arrow"
        with suppress(OSError, pa.ArrowInvalid):
            return pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        table = key.ordered(await self._store.table(part, description, keep=False))
        self._keep(file, table)
        return table

    def _keep(self, file: Path, table: pa.Table) -> None:
        """Write a file under another name first: others may look for it at this moment."""
        unfinished = file.with_suffix(f".{token_hex(8)}")
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(table.nbytes)
            with (
                pa.OSFile(str(unfinished), "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as to,
            ):
                to.write_table(table)
            unfinished.rename(file)

    def _make_room(self, size: int) -> None:
        assert self._folder is not None
        files = sorted((each.stat().st_mtime_ns, each) for each in self._folder.iterdir())
        total = size + sum(each.stat().st_size for _, each in files)
        for _, each in files:
            if total <= FILES_BYTES_MAX:
                return
            total -= each.stat().st_size
            each.unlink(missing_ok=True)


def _places(column: pa.ChunkedArray, wanted: Wanted) -> npt.NDArray[np.int64]:
    """The places of the wanted hashes in an ascending column."""
    spots = column.to_numpy()
    ends = np.array([wanted.begin, wanted.end], np.uint64)
    first, last = np.searchsorted(spots, ends).tolist()
    if wanted.spots is None:
        kept = np.ones(last - first, np.bool_)
        if wanted.but is not None:
            for side in np.searchsorted(spots[first:last], [wanted.but, wanted.but + 1]).T.tolist():
                kept[slice(*side)] = False
        left: npt.NDArray[np.int64] = np.flatnonzero(kept) + first
        return left
    begins = np.searchsorted(spots, wanted.spots, "left")
    counts = np.searchsorted(spots, wanted.spots, "right") - begins
    shifts = np.repeat(begins - (np.cumsum(counts) - counts), counts)
    places: npt.NDArray[np.int64] = np.arange(int(counts.sum())) + shifts
    return places


def _in_interval(table: pa.Table, part: Part) -> pa.Table:
    cut = part.lower or part.upper is not None
    return between(table, part.lower, part.upper) if cut else table
