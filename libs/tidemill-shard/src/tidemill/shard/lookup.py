"""Rows of one part with given column values, found in its sort order without decoding all of it."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.arrangement.arrow_bytes import checked
from tidemill.arrangement.updates import one_array
from tidemill.errors import Corrupt
from tidemill.shard.offloading import ROWS_INLINE_MAX, all_of, compute_beside
from tidemill.shard.pages import PageIndex, chunk_span, merged, read_index
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import (
    BLOCK_BYTES,
    INDEXED_ROWS_MIN,
    ROWS_PER_GROUP,
    Part,
    check_blocks,
    check_rows,
    grown,
    sort_key,
    unreadable,
)
from tidemill.shard.pruning import all_equal, matching
from tidemill.shard.state import Description

Scalars: TypeAlias = "Mapping[str, pa.Scalar[pa.DataType]]"
Values: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

FOOTERS_MAX = 1024
FOOTER_BYTES = 64 * 1024
PAGES_MAX = 4
"""Of so many pages of a part each is read by itself. Of more, row groups are."""
GAP_BYTES = 16 * 1024
"""Bytes that are read rather than asked around."""
REQUESTS_MAX = 8
"""Requests for one page of all columns."""


@dataclass(frozen=True, slots=True)
class _Footer:
    """The footer of a part, and the least and greatest value of a column in each row group.

    Groups whose limits nobody knows are in `vague`.
    """

    metadata: pq.FileMetaData
    numbers: Sequence[int]
    least: Sequence[Any]
    greatest: Sequence[Any]
    vague: Sequence[int]

    @classmethod
    def of(cls, metadata: pq.FileMetaData, name: str) -> _Footer:
        """The limits of a column by which the part is sorted, nulls last. Cost: O(row groups)."""
        at = metadata.schema.names.index(name)
        numbers, least, greatest, vague = [], [], [], []
        for number in range(metadata.num_row_groups):
            found = metadata.row_group(number).column(at).statistics
            if found is None or not found.has_min_max:
                vague.append(number)
                continue
            numbers.append(number)
            least.append(found.min)
            greatest.append(found.max)
        return cls(metadata, numbers, least, greatest, vague)

    def groups(self, wanted: object) -> list[int]:
        """The row groups that may hold a value. Cost: O(log row groups)."""
        first, stop = bisect_left(self.greatest, wanted), bisect_right(self.least, wanted)
        return sorted([*self.numbers[first:stop], *self.vague])


class PartLookup:
    """Reads only the pages of a part that can hold the rows wanted, or its row groups; every byte
    read is checked.

    Both are kept in memory as whole parts are, within the same limit.
    """

    def __init__(self, parts: PartStore) -> None:
        self._parts = parts
        self._footers: OrderedDict[str, _Footer] = OrderedDict()
        self._indexes: OrderedDict[str, PageIndex] = OrderedDict()

    async def rows(self, part: Part, description: Description, scalars: Scalars) -> pa.Table:
        """The updates of a part, whatever their time, whose columns have these values.

        Raises: PartGone, Corrupt. Cost: O(log rows) in memory if the first column by which parts
        are sorted is among those wanted; else O(rows).
        """
        schema = description.update_schema()
        order = sort_key(schema, description.key)
        first = scalars.get(order[0]) if order else None
        table = self._parts.cached(part, schema)
        large = part.key is not None and part.rows >= INDEXED_ROWS_MIN
        if table is None and large and first is not None and first.is_valid:
            found = await self._pages(part, order[0], first)
            if found is None:
                found = await self._groups(part, order[0], first)
            tables = [grown(each, schema) for each in found]
            table = pa.concat_tables(tables) if tables else schema.empty_table()
        if table is None:
            table = await self._parts.table(part, description)
        left = scalars
        if first is not None and searchable(first.type) and first.is_valid:
            table = run_of(table, order[0], first)
            left = {name: scalar for name, scalar in scalars.items() if name != order[0]}
        return equal_rows(table, left)

    async def _pages(
        self, part: Part, name: str, value: pa.Scalar[pa.DataType]
    ) -> list[pa.Table] | None:
        """The pages of a part whose values of a column may include this one.

        None if they are not known by this column, or are many.
        """
        index = await self._index(part)
        if index is None or index.column != name:
            return None
        numbers = index.holding(value.as_py())
        if len(numbers) > PAGES_MAX:
            return None
        found = []
        for number in numbers:
            table = self._parts.kept_piece(part, f"page {number}")
            if table is None:
                table = await self._page(part, index, number)
                self._parts.keep_piece(part, f"page {number}", table)
            found.append(table)
        return found

    async def _index(self, part: Part) -> PageIndex | None:
        key = part.key or ""
        if part.pages is None:
            return None
        if (held := self._indexes.get(key)) is not None:
            self._indexes.move_to_end(key)
            return held
        data = await self._bytes(part, part.pages.span)
        index = read_index(data, part.pages.checksum, f"the object {key}")
        rows = int(index.starts[-1])
        if rows != part.rows:
            raise Corrupt(f"the object {key} has an index of {rows} rows", object=key)
        self._indexes[key] = index
        if len(self._indexes) > FOOTERS_MAX:
            self._indexes.popitem(last=False)
        return index

    async def _page(self, part: Part, index: PageIndex, number: int) -> pa.Table:
        """The rows of one page of the first column, read, checked and decoded."""
        reading = index.read(number)
        spans = {page: index.span(page) for page in reading.pages}
        asked = merged([*spans.values()], GAP_BYTES, REQUESTS_MAX)
        answers = await all_of(self._bytes(part, each) for each in asked)
        pieces, at = {}, 0
        for page, (start, stop) in spans.items():
            at += asked[at][1] < stop
            begin = asked[at][0]
            pieces[page] = answers[at][start - begin : stop - begin]
        try:
            return reading.table(pieces)
        except Exception as error:  # as in `decode_part`
            raise unreadable(part, error) from error

    async def _bytes(self, part: Part, span: tuple[int, int]) -> bytes:
        """Bytes of an object that are checked by whoever reads them."""
        assert part.key is not None
        data = await self._parts.blob.get_range(part.key, *span)
        if data is None:
            raise PartGone(part.key)
        return data

    async def _groups(self, part: Part, name: str, value: pa.Scalar[pa.DataType]) -> list[pa.Table]:
        """The row groups of a part whose values of a column may include this one."""
        file = SparseFile(part.size)
        footer = await self._footer(part, name, file)
        found = []
        for number in footer.groups(value.as_py()):
            table = self._parts.kept_piece(part, f"group {number}")
            if table is None:
                table = await self._group(part, footer.metadata, number, file)
                self._parts.keep_piece(part, f"group {number}", table)
            found.append(table)
        return found

    async def _group(
        self, part: Part, footer: pq.FileMetaData, number: int, file: SparseFile
    ) -> pa.Table:
        """One row group, read and decoded."""
        group = footer.row_group(number)
        starts, stops = zip(
            *(chunk_span(group.column(column)) for column in range(group.num_columns)), strict=True
        )
        await self._fetch(part, file, min(starts), max(stops))

        def decoded() -> pa.Table:
            reader = pq.ParquetFile(file, metadata=footer, pre_buffer=False)
            return checked(reader.read_row_groups([number], use_threads=False)).combine_chunks()

        try:
            return await compute_beside(ROWS_PER_GROUP, decoded)
        except Exception as error:  # as in `decode_part`
            raise unreadable(part, error) from error

    async def _footer(self, part: Part, name: str, file: SparseFile) -> _Footer:
        key = part.key or ""
        held = self._footers.get(key)
        if held is not None:
            self._footers.move_to_end(key)
            return held
        await self._fetch(part, file, max(0, part.size - FOOTER_BYTES), part.size)
        file.seek(part.size - 8)
        length = int.from_bytes(file.read(4), "little") + 8
        if length > FOOTER_BYTES:
            await self._fetch(part, file, max(0, part.size - length), part.size)
        file.seek(0)
        try:
            metadata = pq.read_metadata(file)
        except Exception as error:  # as in `decode_part`
            raise unreadable(part, error) from error
        check_rows(metadata, part)
        footer = self._footers[key] = _Footer.of(metadata, name)
        if len(self._footers) > FOOTERS_MAX:
            self._footers.popitem(last=False)
        return footer

    async def _fetch(self, part: Part, file: SparseFile, start: int, stop: int) -> None:
        """Read the blocks that cover start … stop−1 into `file`."""
        assert part.key is not None
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        data = await self._parts.blob.get_range(
            part.key, first * BLOCK_BYTES, min(last * BLOCK_BYTES, part.size)
        )
        if data is None:
            raise PartGone(part.key)
        check_blocks(data, part, first)
        if first * BLOCK_BYTES + len(data) < min(last * BLOCK_BYTES, part.size):
            raise Corrupt(f"the object {part.key} is cut off", object=part.key)
        file.add(first, data)


class SparseFile(io.RawIOBase):
    """A file of which only some blocks are here; reading others fails."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0
        self._blocks: dict[int, bytes] = {}

    def add(self, first: int, data: bytes) -> None:
        """`data` are the blocks from number `first` on."""
        for at in range(0, len(data), BLOCK_BYTES):
            self._blocks[first + at // BLOCK_BYTES] = data[at : at + BLOCK_BYTES]

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from begin, present place or end; returns it."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = begin + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on. Raises: OSError for a block that was not fetched."""
        stop = self._size if size < 0 else min(self._size, self._at + size)
        pieces = []
        while self._at < stop:
            number, inside = divmod(self._at, BLOCK_BYTES)
            if number not in self._blocks:
                raise OSError(f"block {number} was not fetched")
            piece = self._blocks[number][inside : inside + stop - self._at]
            pieces.append(piece)
            self._at += len(piece)
        return b"".join(pieces)


def searchable(kind: pa.DataType) -> bool:
    """Whether Python orders values of a type as parts are sorted."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
    )  # fmt: skip


def run_of(table: pa.Table, name: str, value: pa.Scalar[pa.DataType]) -> pa.Table:
    """The rows of a table sorted by a column, nulls last, that have this value in it."""
    column = table.column(name)
    values: Values = one_array(column)
    wanted = value.as_py()
    start = _bisected(values, wanted, after=False)
    return table.slice(start, _bisected(values, wanted, after=True) - start)


def equal_rows(table: pa.Table, scalars: Scalars) -> pa.Table:
    """The rows whose columns have these values; null is a value."""
    if not scalars or not table.num_rows:
        return table
    if table.num_rows > ROWS_INLINE_MAX:
        return matching(table, all_equal(scalars))
    for name, scalar in scalars.items():
        column = table.column(name)
        table = table.filter(pc.equal(column, scalar) if scalar.is_valid else column.is_null())
    return table


def _bisected(values: Values, wanted: object, *, after: bool) -> int:
    low, high = 0, len(values) - values.null_count
    while low < high:
        middle = (low + high) // 2
        found = values[middle].as_py()
        if found < wanted or (after and found == wanted):
            low = middle + 1
        else:
            high = middle
    return low
