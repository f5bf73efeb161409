"""Look-ups by pages read few bytes of a large part, and find the rows that the whole part has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import concatenate
from tidemill.errors import Corrupt
from tidemill.shard import Description, MemoryBlob
from tidemill.shard.compact_thrift import read_struct, write_fields
from tidemill.shard.encoding import pack_part, unpack_part
from tidemill.shard.lookup import PAGES_MAX, PartLookup
from tidemill.shard.pages import PageIndex, footer_of, merged, read_index
from tidemill.shard.part_store import Limits, PartStore
from tidemill.shard.parts import (
    INDEXED_ROWS_MIN,
    Part,
    decode_part,
    encode_parts,
    placed,
    sorted_updates,
)
from tidemill.shard.pruning import equal_scalars

KEY = "a.key"
SEEDS = 8


class Asked(MemoryBlob):
    """Objects, and which of their bytes were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[int, int]] = []

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        self.spans.append((start, stop))
        return await super().get_range(key, start, stop)

    @property
    def bytes(self) -> int:
        return sum(stop - start for start, stop in self.spans)


def keys_of(random: Random, rows: int) -> pa.Array:
    """Numbers or texts, apart or in runs of equal ones, some of them null."""
    kind = random.choice(["apart", "runs", "few", "text", "long"])
    if kind == "apart":
        found: list[Any] = random.sample(range(-(2**61), 2**61), rows)
    elif kind in ("runs", "few"):
        width = 40 if kind == "runs" else 9_000
        found = [n // width for n in range(rows)]
    else:  # of the long ones the index has the beginnings alone, which are alike
        begin = "ü" * 70 if kind == "long" else "u"
        found = [f"{begin}{random.randrange(rows):07d}" for _ in range(rows)]
    nulls = random.choice([0, 0, 3_000])
    return pa.array([*found[nulls:], *[None] * nulls])


@cache
def table_of(seed: int) -> pa.Table:
    """Rows of a large part: columns of many kinds, which are more or less compressible."""
    random = Random(seed)
    rows = INDEXED_ROWS_MIN + random.choice([0, 1, 7_777, 16_384])
    numbers = np.random.default_rng(random.randrange(1 << 30))
    words = pa.array([f"word {n}" for n in range(200)])
    columns = {
        "a": pa.array(numbers.random(rows)),
        "s": pa.array([f"{n:x}" * (n % 3) for n in numbers.integers(0, 2**60, rows).tolist()]),
        "w": words.take(pa.array(numbers.integers(0, 200, rows))),
        "n": pa.nulls(rows),
        "b": pa.array(numbers.integers(0, 2, rows).astype(bool)),
        "d": pa.array(numbers.integers(0, 9, rows)).cast(pa.decimal128(38, 2)),
        "t": pc.if_else(pa.array(numbers.random(rows) < 0.9), pa.array(numbers.integers(0, 9**9, rows)).cast(pa.timestamp("us")), None),
    }  # fmt: skip
    chosen = ["a", *random.sample(sorted(columns.keys() - {"a"}), random.randrange(len(columns)))]
    made = {KEY: keys_of(random, rows), **{name: columns[name] for name in chosen}}
    times = {
        "_time": numbers.integers(0, 5, rows).astype(np.uint64),
        "_diff": np.ones(rows, np.int64),
    }
    return sorted_updates(pa.table(made | times), (KEY,)).combine_chunks()


def encoded(table: pa.Table) -> tuple[Part, bytes, Description]:
    """One large part."""
    ((part, data),) = encode_parts(table, (KEY,))
    return placed(part, "p/1"), data, Description(pa.schema(list(table.schema)[:-2]), key=(KEY,))


async def rows_with(blob: MemoryBlob, part: Part, description: Description, value: Any) -> pa.Table:
    store = PartStore(blob, lambda: "", Limits(cache_bytes_max=0))
    scalars = equal_scalars(description, {KEY: value})
    return await PartLookup(store).rows(part, description, scalars)


async def rows_or_damage(
    blob: MemoryBlob, part: Part, description: Description, value: Any
) -> pa.Table | Corrupt:
    """The rows, or the damage that is found."""
    try:
        return await rows_with(blob, part, description, value)
    except Corrupt as error:
        return error


def wanted_of(random: Random, table: pa.Table) -> list[Any]:
    """Values that are there, also at the ends, and some that are not."""
    known = [value for value in table.column(KEY).unique().to_pylist() if value is not None]
    some = [known[0], known[-1], *random.sample(known, min(6, len(known)))]
    absent = [value + 1 for value in some] if isinstance(known[0], int) else [f"{v}0" for v in some]
    return [*some, *absent, *(["", "~"] if isinstance(known[0], str) else [])]


@pytest.mark.rule("SU6")
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_rows_by_pages_are_those_of_the_whole_part(seed: int) -> None:
    random, table = Random(seed), table_of(seed)
    part, data, description = encoded(table)
    assert part.pages is not None
    # A reader that knows of no index has the same rows, and a job tells of the index.
    assert decode_part(data, part, table.schema).combine_chunks().equals(table)
    assert unpack_part(pack_part(part)) == part
    blob = Asked()
    await blob.put("p/1", data)
    index = read_index(data[slice(*part.pages.span)], part.pages.checksum, "p/1")
    starts = index.starts.tolist()
    borders = [row for start in random.sample(starts[1:-1], 3) for row in (start - 1, start)]
    at_borders = [value for value in table.column(KEY).take(borders).to_pylist() if value]
    for value in (*wanted_of(random, table), *at_borders):
        expected = table.filter(pc.equal(table.column(KEY), pa.scalar(value)))
        for each in (part, replace(part, pages=None)):
            found = await rows_with(blob, each, description, value)
            assert found.combine_chunks().equals(expected.combine_chunks()), value


async def test_a_cold_look_up_reads_a_few_pages_of_a_large_part() -> None:
    random, size = Random(5), 400_000
    table = pa.table(
        {
            KEY: random.sample(range(2**62), size), "s": [f"{random.random()}" for _ in range(size)],
            "_time": np.zeros(size, np.uint64), "_diff": np.ones(size, np.int64),
        }
    )  # fmt: skip
    table = sorted_updates(table, (KEY,)).combine_chunks()
    part, data, description = encoded(table)
    blob = Asked()
    await blob.put("p/1", data)
    for row in (0, size // 2, size - 1):
        value, bytes_read = table.column(KEY)[row].as_py(), []
        for each in (part, replace(part, pages=None)):
            blob.spans.clear()
            assert (await rows_with(blob, each, description, value)).equals(table.slice(row, 1))
            bytes_read.append(blob.bytes)
        assert 5 * bytes_read[0] < bytes_read[1]
        assert 50 * bytes_read[0] < len(data)


async def test_every_byte_that_a_look_up_reads_is_checked() -> None:
    table = table_of(3)
    part, data, description = encoded(table)
    blob = Asked()
    await blob.put("p/1", data)
    value = table.column(KEY)[table.num_rows // 3].as_py()
    expected = await rows_with(blob, part, description, value)
    spans, refused = sorted(blob.spans), 0
    assert part.pages is not None
    assert part.pages.span in spans
    for start, stop in spans:
        for place in range(start, stop, max(1, (stop - start) // 40)):
            damaged = bytearray(data)
            damaged[place] ^= 4
            await blob.put("p/1", bytes(damaged))
            found = await rows_or_damage(blob, part, description, value)
            if isinstance(found, Corrupt):
                refused += "p/1" in str(found)
            else:  # in a gap between two pages
                assert found.equals(expected)
    assert refused > 40
    await blob.put("p/1", data[: part.pages.start])
    with pytest.raises(Corrupt):
        await rows_with(blob, part, description, value)


async def test_pages_of_another_object_are_refused() -> None:
    """A copy may mix two objects up: each byte is as it was written, elsewhere."""
    found = []
    for word in ("x", "y"):
        words = [word] * INDEXED_ROWS_MIN
        lanes = {"_time": np.zeros(len(words), np.uint64), "_diff": np.ones(len(words), np.int64)}
        found.append(encoded(pa.table({KEY: np.arange(len(words)), "w": words, **lanes})))
    (part, _, description), (other, data, _) = found
    assert part.pages is not None
    assert other.pages is not None
    assert (part.size, part.pages.span) == (other.size, other.pages.span)
    blob = MemoryBlob()
    await blob.put("p/1", data)
    assert (await rows_with(blob, other, description, 5)).column("w").to_pylist() == ["y"]
    with pytest.raises(Corrupt, match="index that was written"):
        await rows_with(blob, part, description, 5)


def test_an_index_whose_numbers_do_not_fit_is_not_read() -> None:
    with pytest.raises(ValueError, match="7 pages by row groups, of 2"):
        PageIndex.of("k", 1, 2, np.array([7, 10, 10, 5, 5], np.uint32))


async def test_of_very_many_rows_of_one_key_row_groups_are_read() -> None:
    rows = INDEXED_ROWS_MIN * 2
    numbers = np.random.default_rng(1).integers(-(2**62), 2**62, rows)
    lanes = {"_time": np.zeros(rows, np.uint64), "_diff": np.ones(rows, np.int64)}
    table = pa.table({KEY: np.arange(rows) * 2 // rows, "v": numbers, **lanes})
    table = sorted_updates(table, (KEY,)).combine_chunks()
    part, data, description = encoded(table)
    assert part.pages is not None
    index = read_index(data[slice(*part.pages.span)], part.pages.checksum, "p/1")
    assert len(index.holding(1)) > PAGES_MAX
    blob = Asked()
    await blob.put("p/1", data)
    assert (await rows_with(blob, part, description, 1)).num_rows == rows // 2


@pytest.mark.parametrize("kind", ["small", "float", "nested"])
def test_parts_without_an_index_are_files_as_they_were(kind: str) -> None:
    rows = 1_000 if kind == "small" else INDEXED_ROWS_MIN
    keys: Any = np.arange(rows) / 2 if kind == "float" else np.arange(rows)
    values = [[n] for n in range(rows)] if kind == "nested" else list(range(rows))
    lanes = {"_time": np.zeros(rows, np.uint64), "_diff": np.ones(rows, np.int64)}
    table = sorted_updates(pa.table({KEY: keys, "v": values, **lanes}), (KEY,))
    ((part, data),) = encode_parts(table, (KEY,), inline_bytes_max=0)
    assert part.pages is None
    assert pq.read_table(pa.BufferReader(data)).num_rows == rows


@pytest.mark.parametrize("seed", range(3))
def test_the_footer_of_a_file_is_written_as_it_was_read(seed: int) -> None:
    _, data, _ = encoded(table_of(seed))
    footer = footer_of(data)
    said, end = read_struct(footer)
    assert end == len(footer)
    assert write_fields(said) + b"\0" == footer


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=2, max_size=30, unique=True).map(sorted),
    st.integers(0, 20), st.integers(1, 6),
)  # fmt: skip
def test_requests_hold_what_is_wanted_and_are_few(
    bounds: Sequence[int], gap: int, most: int
) -> None:
    spans = [*pairwise(bounds)][::2]
    found = merged(spans, gap, most)
    assert len(found) <= most
    assert all(any(a <= start and stop <= b for a, b in found) for start, stop in spans)
    assert all(after[0] > before[1] for before, after in pairwise(found))
    if len(found) < most:  # nothing was joined that had to stay apart
        gaps = [after[0] - before[1] for before, after in pairwise(spans)]
        assert len(found) == 1 + sum(each > gap for each in gaps)


def test_tables_are_of_the_sizes_that_are_meant() -> None:
    """The companion: seeds have each way of keys, with nulls and without."""
    made = [table_of(seed) for seed in range(SEEDS)]
    assert {str(table.schema.field(KEY).type) for table in made} == {"int64", "string"}
    assert {bool(table.column(KEY).null_count) for table in made} == {True, False}
    assert (
        concatenate([table.select(["_diff"]) for table in made]).num_rows > SEEDS * INDEXED_ROWS_MIN
    )
