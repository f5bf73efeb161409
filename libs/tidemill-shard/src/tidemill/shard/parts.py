"""Parts: sorted, consolidated update tables as bytes, with the statistics that let readers skip
them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.arrangement.arrow_bytes import checked, read_rows
from tidemill.arrangement.row_order import ROWS_MIN, ascends
from tidemill.arrangement.updates import DIFF, TIME, consolidate
from tidemill.errors import Corrupt
from tidemill.shard.hashing import HASH_MAX, key_hashes
from tidemill.shard.heavy_values import HeavyValues, heavy_values
from tidemill.shard.pages import TEXT_BOUND_CHARS, IndexPlace, footer_of, with_pages

PART_BYTES_MAX = 64 * 1024 * 1024
INLINE_BYTES_MAX = 64 * 1024
PLAIN_BYTES_MAX = 4 * 1024
BLOCK_BYTES = 256 * 1024
ROWS_PER_GROUP = 16 * 1024
PAGE_BYTES = 32 * 1024
"""About the size of a page before it is compressed. A page has 1,024 rows at least."""
INDEXED_ROWS_MIN = 4 * ROWS_PER_GROUP
"""An object of fewer rows is read as a whole."""
DISTINCT_ROWS_MIN = 4
"""Values of a column that each come so often, on average, may be written as a dictionary."""
WIDE_BITS_MIN = 32
"""Differences of fewer bits are shorter than a dictionary, or not much longer, and encode faster.
"""

Column: TypeAlias = "pa.ChunkedArray[pa.Scalar[pa.DataType]]"

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)

Limit: TypeAlias = "int | float | str | None"
Bounds: TypeAlias = tuple[Limit, Limit, bool]
"""Least and greatest value (None: unknown; days or ticks for dates), and whether there are nulls.
"""
NULLS_ALONE: Bounds = (None, None, True)
"""Of a column of nulls."""

_NAME = re.compile(r"/(?:part|list)-(\d{13,})-")


@dataclass(frozen=True, slots=True)
class Part:
    """One sorted run of updates, inline or in Blob, with statistics.

    Only its updates at lower <= time < upper count (None: no bound). A part that upper has passed
    in the middle is named twice: by a batch, and among the staged parts. `checksums` are those of
    the object's blocks. `hash_min` and `hash_max` bound the hashes of its keys. `columns` is the
    number of data columns known when it was written. `heavy` are values that many rows have.
    `pages` is where in the object its index of pages is, if it has one.
    """

    rows: int
    size: int
    time_min: int
    time_max: int
    columns: int
    hash_min: int = 0
    hash_max: int = HASH_MAX
    checksums: bytes = b""
    key: str | None = None
    inline: bytes | None = None
    lower: int = 0
    upper: int | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    heavy: HeavyValues = field(default_factory=dict)
    pages: IndexPlace | None = None

    @property
    def begun_ms(self) -> int | None:
        """When its writer began it; None if it is inline, or written before keys said so."""
        return None if self.key is None else begun_ms_of(self.key)

    @property
    def is_whole(self) -> bool:
        """Whether all updates of its object count."""
        return self.lower == 0 and self.upper is None

    def before(self, bound: int | None) -> Part | None:
        """The part restricted to times before `bound` (None: all of it); None if nothing is
        left.
        """
        if bound is None or self.time_max < bound:
            return self
        if self.time_min >= bound or self.lower >= bound:
            return None
        return replace(self, upper=bound, time_max=bound - 1)

    def since(self, bound: int | None) -> Part | None:
        """The part restricted to times from `bound` on (None: no time is); None if nothing is
        left.
        """
        if bound is None or self.time_max < bound:
            return None
        if self.time_min >= bound:
            return self
        return replace(self, lower=bound, time_min=bound)

    def meets(self, lower: int, upper: int | None) -> bool:
        """Whether it may hold updates at lower <= time < upper (None: no bound)."""
        return self.time_max >= lower and (upper is None or self.time_min < upper)


def part_name(unique: str, begun_ms: int) -> str:
    """The name of a new object."""
    return f"part-{begun_ms:013d}-{unique}"


def begun_ms_of(key: str) -> int | None:
    """When the writer of an object began it, by its own clock; None if the name does not say."""
    found = _NAME.search(key)
    return int(found[1]) if found else None


def sort_key(schema: pa.Schema, key: Sequence[str]) -> tuple[str, ...]:
    """The data columns in the order in which parts are sorted: the key first."""
    rest = [name for name in schema.names if name not in key and name not in (TIME, DIFF)]
    return (*key, *rest)


def sorted_updates(updates: pa.Table, key: Sequence[str]) -> pa.Table:
    """Consolidated and sorted by (key, other columns, `_time`), columns as they came."""
    apart = _by_distinct_numbers(updates, key)
    if apart is not None:
        return apart
    order = [*sort_key(updates.schema, key), TIME, DIFF]
    if updates.num_rows >= ROWS_MIN and ascends([updates.column(name) for name in order[:-1]]):
        present = np.asarray(updates.column(DIFF).to_numpy()) != 0
        return updates if bool(present.all()) else updates.filter(pa.array(present))
    return consolidate(updates.select(order)).select(updates.column_names)


def _by_distinct_numbers(updates: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """The updates sorted by a first column of whole numbers that are all different, or one update;
    else None.

    Then no two are of one record, and nothing has to be compared or added. Floats are left to
    `consolidate`, which writes each value in one way.
    """
    kinds = updates.schema.types
    first = key[:1] or sort_key(updates.schema, key)[:1]
    if not first or any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in kinds):
        return None
    present = np.asarray(updates.column(DIFF).to_numpy()) != 0
    if len(present) == 1:
        return updates if present[0] else updates.slice(0, 0)
    column = updates.column(first[0])
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    numbers = column.to_numpy()
    if _ascends(numbers):
        return updates if bool(present.all()) else updates.filter(pa.array(present))
    order = np.argsort(numbers)
    if not _ascends(numbers[order]):
        return None
    return updates.take(pa.array(order[present[order]]))


def _ascends(numbers: npt.NDArray[np.int64]) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def encode_parts(
    updates: pa.Table,
    key: Sequence[str],
    *,
    inline_bytes_max: int = INLINE_BYTES_MAX,
    part_bytes_max: int = PART_BYTES_MAX,
) -> Iterator[tuple[Part, bytes]]:
    """Parts of sorted, consolidated updates, each with its bytes; none for no updates.

    A part has `inline` set iff its bytes are small enough to live in the log. Other parts are put
    in Blob and get its key by `placed`. More than `part_bytes_max` is split by hash range of the
    key, so that each key is in one part. Cost: one encoding of the data.
    """
    if not updates.num_rows:
        return
    if inline_bytes_max and has_at_most(updates, 8 * inline_bytes_max):
        data = _as_message(updates)
        if len(data) <= inline_bytes_max:
            yield _described(updates, len(data), inline=data), data
            return
    sorted_by = sort_key(updates.schema, key)[:1]
    for piece, hash_min, hash_max in _split(updates, key, part_bytes_max):
        data, pages = _as_parquet(piece, sorted_by)
        part = _described(piece, len(data), inline=None)
        yield (
            replace(
                part,
                hash_min=hash_min,
                hash_max=hash_max,
                checksums=block_checksums(data),
                bounds=dict(_bounds(piece, sorted_by)),
                heavy=dict(heavy_values(piece)),
                pages=pages,
            ),
            data,
        )


def has_at_most(updates: pa.Table, size: int) -> bool:
    """Whether a table takes at most `size` bytes in memory; quick where the memory is all its
    own.
    """
    return bool(updates.get_total_buffer_size() <= size or updates.nbytes <= size)


def placed(part: Part, key: str) -> Part:
    """A part whose bytes are in Blob under `key`."""
    return replace(part, key=key, inline=None)


def _described(piece: pa.Table, size: int, *, inline: bytes | None) -> Part:
    least, greatest = span_of(piece.column(TIME).to_numpy())
    return Part(
        rows=piece.num_rows,
        size=size,
        time_min=least,
        time_max=greatest,
        columns=piece.num_columns - 2,
        inline=inline,
    )


def span_of(times: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """(least, greatest) of some times."""
    if len(times) == 1:  # a call of NumPy's reductions costs as much as all the rest for one row
        only = times.item()
        return only, only
    return int(times.min()), int(times.max())


def _split(
    updates: pa.Table, key: Sequence[str], bytes_max: int
) -> Iterator[tuple[pa.Table, int, int]]:
    """Pieces of at most about `bytes_max`, each with the least and greatest hash of its keys.

    A piece is a dyadic range of hashes. Updates of one range of a merge have their first bits in
    common, and are divided by the bits after those.
    """
    bits = 0
    while updates.nbytes >> bits > bytes_max * 3 // 4 and bits < 32:
        bits += 1
    if bits == 0:
        yield updates, 0, HASH_MAX
        return
    hashes = key_hashes(updates, key)
    alike = 64 - (int(hashes.min()) ^ int(hashes.max())).bit_length()
    ranges = hashes >> np.uint64(64 - min(64, alike + bits))
    for number in np.unique(ranges):
        rows = np.flatnonzero(ranges == number)
        # A part is one contiguous run of memory; rows keep their order, so it stays sorted.
        piece = updates.take(pa.array(rows))
        least, greatest = int(hashes[rows].min()), int(hashes[rows].max())
        for start, stop in _record_cuts(piece, bytes_max):
            yield piece.slice(start, stop - start), least, greatest


def _record_cuts(piece: pa.Table, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Slices of about `bytes_max` of a sorted piece; all updates of one record stay together."""
    step = max(1, piece.num_rows * bytes_max // max(piece.nbytes, 1))
    if step >= piece.num_rows:
        yield 0, piece.num_rows
        return
    records = key_hashes(piece, ())
    begins = np.flatnonzero(records[1:] != records[:-1]) + 1
    start = 0
    while start < piece.num_rows:
        at = int(np.searchsorted(begins, start + step))
        stop = int(begins[at]) if at < len(begins) else piece.num_rows
        yield start, stop
        start = stop


def _bounds(piece: pa.Table, sorted_by: Sequence[str]) -> Iterator[tuple[str, Bounds]]:
    """Least and greatest value of the columns that filters may name: numbers, texts, dates.

    Rows are in the order of `sorted_by`, nulls last.
    """
    for name in piece.column_names[:-2]:
        column = piece.column(name)
        kind = column.type
        if column.null_count == len(column):
            yield name, NULLS_ALONE
            continue
        if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
            continue
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_float32(kind)
            or pa.types.is_float64(kind)
            or pa.types.is_string(kind)
            or pa.types.is_date32(kind)
            or pa.types.is_timestamp(kind)
        ):
            continue
        if name in sorted_by and pa.types.is_string(kind):
            ends = {"min": column[0], "max": column[len(column) - column.null_count - 1]}
        else:
            limits = pc.min_max(column)
            ends = {"min": limits["min"], "max": limits["max"]}
        least: Limit = _limit(ends["min"], kind)
        greatest: Limit = _limit(ends["max"], kind)
        if isinstance(greatest, str) and len(greatest) > TEXT_BOUND_CHARS:
            greatest = None
        if isinstance(least, str):
            least = least[:TEXT_BOUND_CHARS]
        yield name, (least, greatest, column.null_count > 0)


def _limit(scalar: pa.Scalar[pa.DataType], kind: pa.DataType) -> int | float | str:
    if pa.types.is_date32(kind):
        scalar = scalar.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        scalar = scalar.cast(pa.int64())
    value = scalar.as_py()
    assert isinstance(value, int | float | str)
    return value


def _as_message(piece: pa.Table) -> bytes:
    """A record batch without its schema, which the collection knows."""
    batches = piece.to_batches()
    batch = batches[0] if len(batches) == 1 else piece.combine_chunks().to_batches()[0]
    if has_at_most(piece, PLAIN_BYTES_MAX):
        return bytes(batch.serialize().to_pybytes())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
        stop = sink.tell()
    begin = batch.schema.serialize().size
    return bytes(sink.getvalue().slice(begin, stop - begin).to_pybytes())


def _as_parquet(piece: pa.Table, sorted_by: Sequence[str]) -> tuple[bytes, IndexPlace | None]:
    """The table as a Parquet file; each column in the encoding that suits its values.

    Texts that come often are dictionaries, or as they are where they are sorted: compression takes
    runs. Other texts share prefixes where they are sorted; elsewhere their lengths alone are apart.
    Whole numbers, dates and instants are differences, or dictionaries where these are much shorter.
    Only the columns of `sorted_by` have statistics: look-ups ask for no others. A large file has an
    index of its pages, and where it is stands beside it.
    """
    words, encodings = [], {}
    sample = piece.slice(0, ROWS_PER_GROUP)
    for column in piece.schema:
        kind, name, values = column.type, column.name, sample.column(column.name)
        if _is_text(kind):
            if _come_often(values):
                words += [] if name in sorted_by else [name]
            elif name in sorted_by:
                encodings[name] = "DELTA_BYTE_ARRAY"
            else:
                encodings[name] = "DELTA_LENGTH_BYTE_ARRAY"
        elif pa.types.is_integer(kind) or _is_instant(kind):
            if _bits_between(values) >= WIDE_BITS_MIN and _come_often(values):
                words.append(name)
            else:
                encodings[name] = "DELTA_BINARY_PACKED"

    def written(rows: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows, sink, compression="zstd", compression_level=1, write_statistics=list(sorted_by),
            row_group_size=ROWS_PER_GROUP, use_dictionary=words, column_encoding=encodings,
            data_page_size=PAGE_BYTES,
        )  # fmt: skip
        return bytes(sink.getvalue().to_pybytes())

    data = written(piece)
    if not _has_pages(piece, sorted_by):
        return data, None
    (name,) = sorted_by
    footer = footer_of(written(piece.slice(0, 1)))
    return with_pages(data, piece.column(name), name, footer)


def _has_pages(piece: pa.Table, sorted_by: Sequence[str]) -> bool:
    """Whether a table is large, and is sorted by a column whose values look-ups compare."""
    if piece.num_rows < INDEXED_ROWS_MIN or not sorted_by:
        return False
    kind = piece.schema.field(sorted_by[0]).type
    flat = not any(pa.types.is_nested(each) for each in piece.schema.types)
    return flat and bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _come_often(values: Column) -> bool:
    return bool(DISTINCT_ROWS_MIN * pc.count_distinct(values).as_py() <= len(values))


def _bits_between(values: Column) -> int:
    """The bits of the greatest difference of whole numbers, or of instants."""
    if not pa.types.is_integer(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    limits = pc.min_max(values).as_py()
    return 0 if limits["min"] is None else int(limits["max"] - limits["min"]).bit_length()


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )  # fmt: skip


def _is_instant(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_date(kind) or pa.types.is_timestamp(kind)
        or pa.types.is_time(kind) or pa.types.is_duration(kind)
    )  # fmt: skip


def block_checksums(data: bytes) -> bytes:
    """CRC-32 of each block of an object, four bytes each: finds any byte that changed."""
    view = memoryview(data)
    sums = (zlib.crc32(view[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))
    return b"".join(each.to_bytes(4, "little") for each in sums)


def check_blocks(data: bytes, part: Part, start: int = 0) -> None:
    """Raises Corrupt unless `data` are the bytes of the part's object from block `start` on."""
    wanted = part.checksums[4 * start : 4 * start + 4 * -(-len(data) // BLOCK_BYTES)]
    whole = start * BLOCK_BYTES + len(data) == part.size or len(data) % BLOCK_BYTES == 0
    if not whole or block_checksums(data) != wanted:
        raise Corrupt(
            f"the object {part.key} does not have the bytes that were written", object=part.key
        )


def decode_part(
    data: bytes,
    part: Part,
    schema: pa.Schema,
    arrived: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The updates of a part's bytes, those outside its interval included, as `schema` has them now.

    `arrived`: its data columns in the order in which they came; none if that is their order. With
    `columns` these data columns alone are decoded. Raises: Corrupt if the bytes are not the ones
    that were written.
    """
    wanted = schema
    if columns is not None:
        wanted = pa.schema([each for each in schema if each.name in {*columns, TIME, DIFF}])
    where = "a part in the log" if part.key is None else f"the object {part.key}"
    try:
        if part.inline is not None:
            later = set((arrived or schema.names[:-2])[part.columns :])
            known = [column for column in schema if column.name not in later]
            table = pa.Table.from_batches([read_rows(data, pa.schema(known))])
        else:
            if len(data) != part.size:
                raise Corrupt(f"{where} has {len(data)} bytes of {part.size}", object=part.key)
            check_blocks(data, part)
            # NB: pq.read_table goes through a scan of a data set, which costs 0.3 ms and more
            # whatever it reads.
            with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
                check_rows(file.metadata, part)
                stored = set(file.schema_arrow.names)
                names = None if wanted is schema else [n for n in wanted.names if n in stored]
                table = checked(file.read(names, use_threads=False))
        if table.num_rows != part.rows:
            raise Corrupt(f"{where} has {table.num_rows} rows of {part.rows}", object=part.key)
        return grown(table, wanted)
    except Corrupt:
        raise
    except Exception as error:  # Arrow names what is wrong with stored bytes in many ways
        raise unreadable(part, error) from error


def check_rows(footer: pq.FileMetaData, part: Part) -> None:
    """Raises Corrupt unless an object says that it has the rows that the part has."""
    if footer.num_rows != part.rows:
        raise Corrupt(
            f"the object {part.key} has {footer.num_rows} rows of {part.rows}", object=part.key
        )


def unreadable(part: Part, error: Exception) -> Corrupt:
    """The error of a part whose bytes are those that were written, and are no updates."""
    where = "a part in the log" if part.key is None else f"the object {part.key}"
    return Corrupt(f"{where} cannot be read: {type(error).__name__}: {error}", object=part.key)


def grown(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A part as `schema` has it now: columns that came later are null in it."""
    if table.schema.equals(schema):
        return table
    columns = [
        table.column(column.name).cast(column.type)
        if column.name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, column.type)])
        for column in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
