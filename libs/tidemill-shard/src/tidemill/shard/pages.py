"""Pages of a part: their places in its object and their first values, for look-ups.

An object of many rows is a Parquet file with one thing more. Between rows and footer lies an index
of ours, which readers of Parquet pass over. A few pages, with a footer that is made for them, are a
file by themselves. So a look-up reads these pages alone.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.arrangement.arrow_bytes import checked
from tidemill.errors import Corrupt
from tidemill.shard.compact_thrift import I64, LIST, STRUCT, Field, read_struct, write_fields
from tidemill.shard.framing import PAGES, decoding, framed, unframed

TEXT_BOUND_CHARS = 64
"""Of a text that bounds others, or begins a page, so much is kept."""
MAGIC = b"PAR1"
_CODEC = "zstd"
_DICTIONARY = 2
"""The type of a page with the dictionary of a column in a row group."""

Span: TypeAlias = "tuple[int, int]"
Value: TypeAlias = "int | str"
Numbers: TypeAlias = "npt.NDArray[Any]"
"""Whole numbers."""
Column: TypeAlias = "pa.ChunkedArray[pa.Scalar[pa.DataType]]"


class IndexPlace(NamedTuple):
    """The place of the index in an object, and the CRC-32 of its bytes there."""

    start: int
    stop: int
    checksum: int

    @property
    def span(self) -> Span:
        """Its bytes."""
        return self.start, self.stop


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """The index as it is stored; see `PageIndex`."""

    column: str
    columns: int
    footer: bytes
    chunks: int
    pages: int
    numbers: bytes
    checksums: bytes
    firsts: list[Value]


def with_pages(
    data: bytes, sorted_by: Column, name: str, footer: bytes
) -> tuple[bytes, IndexPlace]:
    """An object with an index of its pages by its first column, and where in it that is.

    `sorted_by` are the values of this column, nulls last. `footer` is that of a file of one row
    group with the same columns and encodings. Cost: O(pages).
    """
    metadata, view = pq.read_metadata(pa.BufferReader(data)), memoryview(data)
    counts, lengths, rows = [], [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(metadata.num_columns):
            found = list(_pages(view[slice(*chunk_span(group.column(column)))]))
            counts.append(len(found))
            lengths += [length for length, _ in found]
            rows += [count for _, count in found]
    numbers = np.array([*counts, *lengths, *rows], np.uint32)
    index = PageIndex.of(name, metadata.num_columns, len(rows), numbers)
    sums = [zlib.crc32(view[slice(*index.span(page))]) for page in range(len(rows))]
    places = pa.array(index.starts[:-1])
    firsts = [shortened(value) for value in sorted_by.take(places).to_pylist()]
    packed = _Packed(
        name, metadata.num_columns, footer, len(counts), len(rows),
        pa.compress(numbers.tobytes(), _CODEC, asbytes=True), np.array(sums, np.uint32).tobytes(),
        [value for value in firsts if value is not None],
    )  # fmt: skip
    payload = framed(PAGES, msgspec.msgpack.encode(packed))
    begin = len(data) - len(footer_of(data)) - 8
    place = IndexPlace(begin, begin + len(payload), zlib.crc32(payload))
    return data[:begin] + payload + data[begin:], place


def _pages(chunk: memoryview) -> Sequence[tuple[int, int]]:
    """The bytes of each page of a column in a row group, and its rows; a dictionary has none."""
    found, at = [], 0
    while at < len(chunk):
        header, begin = read_struct(chunk, at)
        end = begin + header[3].value
        told = header.get(5) or header.get(8)
        found.append((end - at, 0 if told is None else told.value[1].value))
        at = end
    return found


def footer_of(data: bytes) -> bytes:
    """The footer of a Parquet file."""
    return data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]


def shortened(value: Any) -> Any:
    """A value as the index has it."""
    return value[:TEXT_BOUND_CHARS] if isinstance(value, str) else value


def chunk_span(chunk: pq.ColumnChunkMetaData) -> Span:
    """The bytes of the pages of a column in a row group."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    return start, start + chunk.total_compressed_size


@dataclass(frozen=True, slots=True)
class Run:
    """Pages of one column, with the dictionary that they need, and their rows."""

    dictionary: int | None
    pages: range
    rows: range

    @property
    def numbers(self) -> Sequence[int]:
        """All of its pages."""
        return [*(() if self.dictionary is None else (self.dictionary,)), *self.pages]


@dataclass(frozen=True, slots=True)
class Frame:
    """A footer's words that do not depend on pages: before and behind those on row groups, and the
    first ones on each column. `absent` are the words on columns whose pages are nowhere.
    """

    begin: bytes
    chunks: Sequence[bytes]
    absent: Sequence[bytes]
    end: bytes

    @classmethod
    def of(cls, footer: bytes) -> Frame:
        """The frame that the footer of a file with one row group has."""
        said, _ = read_struct(footer)
        (group,) = said[4].value[1]
        chunks = []
        for chunk in group[1].value[1]:
            kinds = {number: chunk[3].value[number] for number in (1, 2, 3, 4)}
            own = Field(STRUCT, write_fields(kinds))  # its end comes with the other fields
            chunks.append(write_fields({2: chunk[2], 3: own}))
        begin = {number: each for number, each in said.items() if number < 3}
        end = {number: each for number, each in said.items() if number > 4}
        absent = [_chunk(head, 0, 0, 0, 0) for head in chunks]
        return cls(write_fields(begin), chunks, absent, write_fields(end, after=4) + b"\0")


@dataclass(frozen=True, slots=True)
class PageIndex:
    """The places of the pages of an object, by the column in which it is sorted, nulls last.

    `counts` are the numbers of pages by row group and column. `ends` is where each page ends, and
    `rows` how many rows it has; a dictionary has none. Of the pages of the first column `groups`
    are the row groups, and `starts` the rows that they begin with. Its end is the number of rows.
    `firsts` are the first values of these pages, but for those that begin with a null. `frame` is
    common to all files of some of the pages.
    """

    column: str
    counts: Numbers
    ends: Numbers
    rows: Numbers
    groups: Numbers
    starts: Numbers
    checksums: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    firsts: Sequence[Value] = ()
    frame: Frame = field(default_factory=lambda: Frame(b"", (), (), b""))

    @classmethod
    def of(cls, column: str, columns: int, pages: int, numbers: Numbers) -> PageIndex:
        """Made of the number of pages of each column in each row group, and of the bytes and the
        rows of each page. Raises: ValueError if they do not fit.
        """
        counts, lengths, rows = np.split(numbers.astype(np.int64), [-2 * pages, -pages])
        if counts.sum() != pages:
            raise ValueError(f"{counts.sum()} pages by row groups, of {pages}")
        owners = np.repeat(np.arange(counts.size), counts)
        first = (owners % columns == 0) & (rows > 0)
        return cls(
            column, counts.reshape(-1, columns), len(MAGIC) + np.cumsum(lengths), rows,
            owners[first] // columns, starts_of(rows[first]),
        )  # fmt: skip

    def span(self, page: int) -> Span:
        """The bytes of a page."""
        return int(self.ends[page - 1]) if page else len(MAGIC), int(self.ends[page])

    def holding(self, wanted: Value) -> range:
        """The pages of the first column that may hold a value. Cost: O(log pages)."""
        wanted = shortened(wanted)
        before = bisect_left(self.firsts, wanted)
        return range(max(0, before - 1), bisect_right(self.firsts, wanted))

    def read(self, number: int) -> Reading:
        """The pages of all columns that have rows of a page of the first one. Cost: O(pages)."""
        group = int(self.groups[number])
        first, stop = self.starts[number : number + 2].tolist()
        at = int(self.counts[:group].sum())
        begin = int(self.starts[np.searchsorted(self.groups, group)])
        runs = []
        for count in self.counts[group].tolist():
            own = self.rows[at : at + count]
            words = int(own[0] == 0)
            known = begin + starts_of(own[words:])
            low = int(np.searchsorted(known, first, "right")) - 1
            high = int(np.searchsorted(known, stop))
            pages = range(at + words + low, at + words + high)
            runs.append(Run(at if words else None, pages, range(int(known[low]), int(known[high]))))
            at += count
        return Reading(self, runs, range(first, stop))


def starts_of(counts: Numbers) -> Numbers:
    """The places at which things of these sizes begin, one after the other, and the end."""
    found = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """Pages that are read for some rows: a run of each column."""

    index: PageIndex
    runs: Sequence[Run]
    rows: range

    @property
    def pages(self) -> list[int]:
        """All of them, ascending."""
        return [page for run in self.runs for page in run.numbers]

    def table(self, bytes_of: Mapping[int, bytes]) -> pa.Table:
        """The rows, of the bytes of the pages.

        Raises: Corrupt for other bytes; errors of Arrow.
        """
        for page, data in bytes_of.items():
            if zlib.crc32(data) != self.index.checksums[page]:
                raise Corrupt("a page does not have the bytes that were written")
        columns: dict[int, Any] = {}
        alike: dict[range, list[int]] = {}
        for column, run in enumerate(self.runs):
            alike.setdefault(run.rows, []).append(column)
        words = [at for at, run in enumerate(self.runs) if run.dictionary is not None]
        source = pa.BufferReader(self._file(alike, bytes_of))
        # Texts of a dictionary stay numbers until the rows are cut: many pages have 16,384 rows.
        with pq.ParquetFile(source, pre_buffer=False, read_dictionary=words) as file:
            for at, (known, chosen) in enumerate(alike.items()):
                # NB: by place, for a name may begin with another one and a point.
                read = file.reader.read_row_group(at, column_indices=chosen, use_threads=False)
                first = self.rows.start - known.start
                for column, values in zip(chosen, read.columns, strict=True):
                    columns[column] = _texts(values.slice(first, len(self.rows)))
            names = file.schema_arrow.names
        # Copies, so that no more than these rows is kept in memory.
        return checked(pa.table([columns[at].combine_chunks() for at in range(len(names))], names))

    def _file(self, alike: Mapping[range, Sequence[int]], bytes_of: Mapping[int, bytes]) -> bytes:
        """A Parquet file of some pages: a row group for columns whose pages have the same rows.

        The other columns of a row group are nowhere, and must not be read.
        """
        frame = self.index.frame
        at, file, groups = len(MAGIC), [MAGIC], []
        for rows, chosen in alike.items():
            chunks = [*frame.absent]
            for column in chosen:
                pieces = [bytes_of[page] for page in self.runs[column].numbers]
                dictionary = 0 if self.runs[column].dictionary is None else len(pieces[0])
                size = sum(map(len, pieces))
                chunks[column] = _chunk(frame.chunks[column], at, dictionary, size, len(rows))
                file += pieces
                at += size
            group = {1: _structs(chunks), 2: Field(I64, at), 3: Field(I64, len(rows))}
            groups.append(write_fields(group) + b"\0")
        total = Field(I64, sum(map(len, alike)))
        own = write_fields({3: total, 4: _structs(groups)}, after=2)
        footer = frame.begin + own + frame.end
        return b"".join([*file, footer, len(footer).to_bytes(4, "little"), MAGIC])


def _texts(values: Column) -> Column:
    """The values, as texts if they are numbers of a dictionary."""
    kind: Any = values.type
    if not pa.types.is_dictionary(kind):
        return values
    values.validate(full=True)  # a cast believes the numbers
    return values.cast(kind.value_type)


def _structs(written: Sequence[bytes]) -> Field:
    return Field(LIST, (STRUCT, written))


def _chunk(head: bytes, at: int, dictionary: int, size: int, rows: int) -> bytes:
    """A footer's words on a column whose pages begin at `at`, and have `size` bytes in all."""
    said = {5: Field(I64, rows), 6: Field(I64, size), 7: Field(I64, size)}
    said |= {9: Field(I64, at + dictionary)}
    said |= {11: Field(I64, at)} if dictionary else {}
    return head + write_fields(said, after=4) + b"\0\0"


def read_index(data: bytes, checksum: int, where: str) -> PageIndex:
    """The index of which these are the bytes. Raises: Corrupt, also for that of another object."""
    if zlib.crc32(data) != checksum:
        raise Corrupt(f"{where} does not have the index that was written", object=where)
    payload = unframed(PAGES, data, where)
    with decoding(f"{where} has an index that cannot be read", where):
        packed = msgspec.msgpack.decode(payload, type=_Packed)
        size = 4 * (packed.chunks + 2 * packed.pages)
        numbers = np.frombuffer(
            pa.decompress(packed.numbers, size, _CODEC, asbytes=True), np.uint32
        )
        index = PageIndex.of(packed.column, packed.columns, packed.pages, numbers)
        return replace(
            index,
            frame=Frame.of(packed.footer),
            checksums=np.frombuffer(packed.checksums, np.uint32),
            firsts=packed.firsts,
        )


def merged(spans: Sequence[Span], gap: int, most: int) -> list[Span]:
    """At most so many spans that hold these, which ascend; close ones are one."""
    gaps = sorted((after[0] - before[1] for before, after in pairwise(spans)), reverse=True)
    bound = max(gap, gaps[most - 1]) if len(gaps) >= most else gap
    found = [spans[0]]
    for start, stop in spans[1:]:
        if start - found[-1][1] <= bound:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found
