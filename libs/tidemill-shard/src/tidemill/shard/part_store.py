"""Parts in Blob and in memory: written once, decoded once while they are in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from tidemill.errors import Corrupt, Indeterminate, Unavailable
from tidemill.shard.conforming import DIFF_MAX, ROW_BYTES_MAX
from tidemill.shard.encoding import decode_list, encode_list
from tidemill.shard.listed import PartList, list_name, list_of
from tidemill.shard.log import folder_of
from tidemill.shard.offloading import compute_beside
from tidemill.shard.parts import (
    INLINE_BYTES_MAX,
    PART_BYTES_MAX,
    Part,
    decode_part,
    encode_parts,
    grown,
    part_name,
    placed,
    sorted_updates,
)
from tidemill.shard.ports import Blob
from tidemill.shard.stages import StageTimes
from tidemill.shard.state import Batch, Description, State

CACHE_BYTES_MAX = 256 * 1024 * 1024
LISTED_PARTS = 256
LISTS_KEPT_MAX = 256
"""Lists of parts in memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of sizes.

    Writes of up to `inline_bytes_max` stay in the log until compaction. Parts are split at about
    `part_bytes_max` in memory; decoded parts up to `cache_bytes_max` in all are kept. An append is
    refused if a row is longer than `row_bytes_max`, or a record's multiplicity changes by more than
    `diff_max`. With None sums of diffs may pass 64 bits, and are Corrupt then. Batches of more than
    `listed_parts` have them in lists of so many each.
    """

    inline_bytes_max: int = INLINE_BYTES_MAX
    part_bytes_max: int = PART_BYTES_MAX
    cache_bytes_max: int = CACHE_BYTES_MAX
    row_bytes_max: int = ROW_BYTES_MAX
    diff_max: int | None = DIFF_MAX
    listed_parts: int = LISTED_PARTS


LIMITS = Limits()


class PartGone(Exception):
    """An object was collected after the state that names it was read: read the state again."""


class PartStore:
    """Writes and reads parts. Decoded ones are kept.

    The ones that followers have passed are forgotten first, so that who lags behind finds the next
    ones in memory. Then the least recently used one is.
    """

    def __init__(
        self,
        blob: Blob,
        unique: Callable[[], str],
        limits: Limits = LIMITS,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        stages: StageTimes | None = None,
    ) -> None:
        self.blob = blob
        self.stages = stages or StageTimes(lambda: 0.0)
        self.limits = limits
        self._now_ms = now_ms
        self._unique = unique
        self._held: OrderedDict[str, pa.Table] = OrderedDict()
        self._lists: OrderedDict[str, tuple[Part, ...]] = OrderedDict()
        self._bytes = 0

    async def write(
        self,
        collection: str,
        description: Description,
        updates: pa.Table | None,
        *,
        inline: bool = True,
        keep: bool = False,
    ) -> tuple[Part, ...]:
        """Parts of the updates, consolidated; what is too big for the log is in Blob on return.

        `updates` have the columns and types of the description, as `conform` gives them. With
        `keep` one part in Blob is in memory as well: its readers decode nothing.
        """
        if updates is None or not updates.num_rows:
            return ()
        key = description.key
        inline_max = self.limits.inline_bytes_max if inline else 0

        def encoded() -> tuple[pa.Table, list[tuple[Part, bytes]]]:
            with self.stages.timed("sort", updates.num_rows):
                table = sorted_updates(updates, key).combine_chunks()
            with self.stages.timed("encode", table.num_rows):
                limits = {
                    "inline_bytes_max": inline_max,
                    "part_bytes_max": self.limits.part_bytes_max,
                }
                return table, list(encode_parts(table, key, **limits))

        written = []
        table, pieces = await compute_beside(updates.num_rows, encoded)
        for part, data in pieces:
            if part.inline is None:
                name = part_key(collection, self._unique(), self._now_ms())
                with self.stages.timed("write", part.rows):
                    await self._put(name, data)
                part = placed(part, name)
                if keep and len(pieces) == 1:
                    self._remember(name, table)
            written.append(part)
        return tuple(written)

    async def _put(self, key: str, data: bytes) -> None:
        try:
            await self.blob.put(key, data)
        except Indeterminate as error:
            # Whether the object is there or not, nothing names it: the write did not happen.
            raise Unavailable(f"the object {key} may not be stored: {error}") from error

    async def in_lists(self, collection: str, batch: Batch) -> Batch:
        """The batch with its parts in lists, durable on return; the same if it has few.

        A list is of neighbours by hash. Parts in the log, and those of which only an interval
        counts, stay where they are: others may name these objects.
        """
        if len(batch.parts) <= self.limits.listed_parts:
            return batch
        apart = [part for part in batch.parts if part.key and part.is_whole]
        left = tuple(part for part in batch.parts if not (part.key and part.is_whole))
        ordered = sorted(apart, key=lambda part: part.hash_min)
        lists = list(batch.lists)
        for start in range(0, len(ordered), self.limits.listed_parts):
            some = ordered[start : start + self.limits.listed_parts]
            key = f"{folder_of(collection)}/{list_name(self._unique(), self._now_ms())}"
            await self._put(key, encode_list(some))
            lists.append(list_of(key, some))
        return replace(batch, parts=left, lists=tuple(lists)) if ordered else batch

    async def parts_of(self, lists: Iterable[PartList]) -> list[Part]:
        """The parts that lists name, in their order. Raises: PartGone, Corrupt.

        Cost: a read of each list that is not in memory. Those in memory are taken first: so of more
        than memory keeps, each call reads only what is over.
        """
        wanted = list(lists)
        found = {each.key: self._lists[each.key] for each in wanted if each.key in self._lists}
        for key in found:
            self._lists.move_to_end(key)
        for each in wanted:
            if each.key in found:
                continue
            parts = await self.read_list(each.key)
            told = list_of(each.key, parts)
            if (told if each.bounds else replace(told, bounds={})) != each:
                raise Corrupt(f"{each.key} lists other parts", object=each.key)
            found[each.key] = self._lists[each.key] = parts
            if len(self._lists) > LISTS_KEPT_MAX:
                self._lists.popitem(last=False)
        return [part for each in wanted for part in found[each.key]]

    async def read_list(self, key: str) -> tuple[Part, ...]:
        """The parts that an object lists. Raises: PartGone, Corrupt."""
        data = await self.blob.get(key)
        if data is None:
            raise PartGone(key)
        return decode_list(data, f"the object {key}")

    async def whole(self, state: State) -> State:
        """A version with all of its parts by themselves; the same if none is listed.

        Raises: PartGone, Corrupt.
        """
        if not any(batch.lists for batch in state.batches):
            return state
        batches = [
            replace(batch, parts=(*batch.parts, *await self.parts_of(batch.lists)), lists=())
            for batch in state.batches
        ]
        return replace(state, batches=tuple(batches))

    async def discard(self, parts: Iterable[Part | PartList]) -> None:
        """Delete the objects of parts, or of lists, that no version will ever name; what fails is
        left to the reaper.
        """
        for part in parts:
            if part.key is not None:
                self._forget(part.key)
                try:
                    await self.blob.delete(part.key)
                except (Unavailable, Indeterminate):
                    continue

    async def data(self, part: Part) -> bytes:
        """The bytes of a part as they are stored. Raises: PartGone."""
        if part.inline is not None:
            return part.inline
        assert part.key is not None
        data = await self.blob.get(part.key)
        if data is None:
            raise PartGone(part.key)
        return data

    def cached(self, part: Part, schema: pa.Schema) -> pa.Table | None:
        """The updates of a part if they are in memory."""
        held = self._held.get(part.key or "")
        if held is None:
            return None
        self._held.move_to_end(part.key or "")
        return grown(held, schema)

    def kept_piece(self, part: Part, name: str) -> pa.Table | None:
        """A row group, or a page, of a part in Blob, if it is in memory."""
        key = f"{part.key}#{name}"
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def keep_piece(self, part: Part, name: str, table: pa.Table) -> None:
        """Keep a row group, or a page, of a part in memory, as whole parts are kept."""
        self._remember(f"{part.key}#{name}", table)

    async def table(
        self, part: Part, description: Description, *, keep: bool = True, passed: bool = False
    ) -> pa.Table:
        """All updates of a part, also those outside its interval; kept in memory if `keep`.

        One in memory that its reader has `passed` is the first to be forgotten. One that is decoded
        stays at first: others may follow close behind. Raises: PartGone, Corrupt.
        """
        schema, arrived = description.update_schema(), description.arrived
        held = self.cached(part, schema)
        if held is not None:
            if passed and part.key is not None:
                self._held.move_to_end(part.key, last=False)
            return held
        with self.stages.timed("read", part.rows):
            data = await self.data(part)
            table = await compute_beside(
                part.rows, lambda: decode_part(data, part, schema, arrived).combine_chunks()
            )
        if part.key is not None and keep:
            self._remember(part.key, table)
        return table

    def _remember(self, key: str, table: pa.Table) -> None:
        self._forget(key)
        size = table.get_total_buffer_size()  # a slice keeps all of what it is cut from
        if size > self.limits.cache_bytes_max:
            return
        self._held[key] = table
        self._bytes += size
        while self._bytes > self.limits.cache_bytes_max:
            self._forget(next(iter(self._held)))

    def _forget(self, key: str) -> None:
        dropped = self._held.pop(key, None)
        if dropped is not None:
            self._bytes -= dropped.get_total_buffer_size()


def part_key(collection: str, unique: str, begun_ms: int) -> str:
    """The Blob key of a new part, which says since when its writer has it in hand."""
    return f"{folder_of(collection)}/{part_name(unique, begun_ms)}"
