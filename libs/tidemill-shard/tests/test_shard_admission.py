"""Contents of collections: types that come back, diffs that can be added, rows that answers
carry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import consolidate, stamp
from tidemill.errors import Corrupt, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, Limits, MemoryBlob, MemoryConsensus
from tidemill.shard.encoding import unpack_part
from tidemill.shard.parts import Part, decode_part, encode_parts, placed, sorted_updates
from tidemill.time import frontier

UNITS = ("s", "ms", "us", "ns")


def flat() -> Iterator[pa.DataType]:
    """Every type of Arrow without others in it."""
    yield from (pa.null(), pa.bool_(), pa.date32(), pa.date64(), pa.month_day_nano_interval())
    yield from (pa.float16(), pa.float32(), pa.float64())
    yield from (getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64))
    yield from (pa.string(), pa.large_string(), pa.string_view())
    yield from (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(0), pa.binary(3))
    yield from (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    yield from (pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC", "No/Where"))
    yield from (pa.duration(unit) for unit in UNITS)
    yield from (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(38, 2), pa.decimal256(76))
    yield from (pa.decimal128(38, -2), pa.uuid(), pa.bool8(), pa.json_(pa.string()))


def nested(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    yield from (pa.list_(kind), pa.large_list(kind), pa.list_(kind, 2), pa.list_view(kind))
    yield from (pa.struct([("a", kind)]), pa.struct([("a", kind), ("a", kind)]), pa.struct([]))
    yield from (pa.dictionary(pa.int32(), kind), pa.run_end_encoded(pa.int32(), kind))
    yield from (pa.map_(pa.string(), kind), pa.dense_union([pa.field("a", kind)]))
    yield from (pa.list_(pa.struct([("a", kind)])), pa.struct([("l", pa.list_(kind))]))
    yield pa.list_(pa.dictionary(pa.int8(), kind))


KINDS = [kind for each in flat() for kind in nested(each)]


def some_of(kind: pa.DataType, rng: np.random.Generator) -> Any:  # an array of the type
    """Random values; bits become values of all types that are numbers in the end."""
    size = int(rng.integers(0, 5))
    is_ = pa.types
    if is_.is_struct(kind):
        fields = [some_of(kind.field(at).type, rng) for at in range(kind.num_fields)]
        least = min(map(len, fields))
        return pa.StructArray.from_arrays(
            [each.slice(0, least) for each in fields], fields=list(kind)
        )
    if is_.is_list(kind) or is_.is_large_list(kind):
        inner = some_of(kind.value_type, rng)
        cuts = sorted(int(cut) for cut in rng.integers(0, len(inner) + 1, size))
        offsets = pa.array([0, *cuts], pa.int32() if is_.is_list(kind) else pa.int64())
        made = pa.ListArray if is_.is_list(kind) else pa.LargeListArray
        return made.from_arrays(offsets, inner, type=kind)
    if is_.is_null(kind):
        return pa.nulls(size)
    numbers = rng.integers(0, 28, size)
    if is_.is_string(kind) or is_.is_large_string(kind):
        return pa.array([None, *("é" * n for n in numbers)], kind)
    if is_.is_fixed_size_binary(kind):
        return pa.array([None, *(rng.bytes(kind.byte_width) for _ in numbers)], kind)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return pa.array([None, *(rng.bytes(n) for n in numbers)], kind)
    if is_.is_decimal(kind):
        return pa.array([None, *(Decimal(n) for n in map(int, numbers))], kind)
    plain = pa.array([None, *map(int, numbers)], pa.int64())
    bits = pa.int32() if is_.is_time32(kind) or is_.is_date32(kind) else pa.int64()
    if is_.is_date64(kind):
        return plain.cast(pa.int32()).cast(pa.date32()).cast(kind)
    return plain.cast(bits).cast(kind)


def told(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows as texts of their values, whatever they are."""
    columns = [[str(value) for value in table.column(at)] for at in range(table.num_columns)]
    return sorted(zip(*columns, strict=True))


@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 1 << 16]))
@settings(max_examples=250, deadline=None)
def test_v2_a_type_that_is_taken_comes_back_and_any_other_is_refused_at_once(
    kind: pa.DataType, seed: int, inline_max: int
) -> None:
    try:
        description = Description(pa.schema([("v", kind)]))
    except UsageError as refused:
        assert "no collection holds" in str(refused)  # noqa: PT017 - one of two outcomes
        return
    rng = np.random.default_rng(seed)
    values = some_of(kind, rng)
    rows = values.take(pa.array(rng.integers(0, len(values), 40))) if len(values) else values
    table = sorted_updates(stamp(pa.table({"v": rows}), 5), ())
    back = [
        decode_part(data, part if part.inline else placed(part, "p/1"), description.update_schema())
        for part, data in encode_parts(table, (), inline_bytes_max=inline_max)
    ]
    assert told(pa.concat_tables([table.slice(0, 0), *back])) == told(table)


def test_v2_the_types_that_the_protos_name_are_taken_and_the_others_are_not() -> None:
    def taken(kind: pa.DataType) -> bool:
        try:
            Description(pa.schema([("v", kind)]))
        except UsageError:
            return False
        return True

    refused = {str(kind) for kind in flat() if not taken(kind)}
    assert refused == {
        "halffloat", "month_day_nano_interval", "string_view", "binary_view",
        "fixed_size_binary[0]", "decimal128(38, -2)",
        "extension<arrow.uuid>", "extension<arrow.bool8>", "extension<arrow.json>",
        *(f"timestamp[{unit}, tz=No/Where]" for unit in UNITS),
    }  # fmt: skip


class World:
    def __init__(self, limits: Limits | None = None) -> None:
        ids = map(str, itertools.count())
        self.clock = ManualClock(0)
        self.collections = Collections(
            MemoryConsensus(), MemoryBlob(), self.clock, ids.__next__, limits=limits or Limits()
        )
        self.upper = 0

    async def put(self, rows: pa.Table, diff: int = 1) -> None:
        await self.append(stamp(rows, self.upper, diff))

    async def append(self, updates: pa.Table) -> None:
        await self.collections.compare_and_append(
            "c", frontier(self.upper), frontier(self.upper + 1), updates, writer="w"
        )
        self.upper += 1


async def open_world(schema: pa.Schema, limits: Limits | None = None) -> World:
    world = World(limits)
    read, _ = await world.collections.create("c", Description(schema, retain_ms=1), owner="me")
    await world.collections.drop(read)
    return world


ONE = pa.table({"n": [1]})


@pytest.mark.parametrize("diff", [2**31 + 1, -(2**31) - 1, 2**62, 2**63 - 1, -(2**63)])
async def test_v1_a_diff_that_others_could_not_be_added_to_is_refused_at_append(diff: int) -> None:
    world = await open_world(ONE.schema)
    with pytest.raises(UsageError, match=r'row \{"n": 1\} by more than 2147483648'):
        await world.put(ONE, diff)


async def test_v1_the_diffs_of_one_record_are_bounded_together_whatever_their_times() -> None:
    world = await open_world(ONE.schema)
    many = pa.concat_tables([stamp(ONE, time, 2**30) for time in range(3)])
    with pytest.raises(UsageError, match="by more than"):
        await world.collections.compare_and_append("c", frontier(0), frontier(9), many, writer="w")
    apart = pa.concat_tables([stamp(pa.table({"n": [n]}), 0, 2**30) for n in range(5)])
    await world.append(apart)


async def test_v1_what_is_taken_can_always_be_added_up_again() -> None:
    world = await open_world(ONE.schema)
    for _ in range(40):
        await world.put(ONE, 2**31)
    assert await world.collections.compact_quiet("c") == 40
    reader, _ = await world.collections.acquire("c", owner="me")
    found = await world.collections.snapshot(reader, world.upper - 1)
    assert found.to_pylist() == [{"n": 1, "_diff": 40 * 2**31}]


async def test_v1_a_stored_sum_that_nobody_can_read_is_corrupt_and_names_the_row() -> None:
    world = await open_world(ONE.schema, Limits(diff_max=None))
    for _ in range(3):
        await world.put(ONE, 2**62)
    reader, _ = await world.collections.acquire("c", owner="me")
    with pytest.raises(Corrupt, match=r'more than 64 bits hold: \{"n": 1\}'):
        await world.collections.snapshot(reader, world.upper - 1)
    with pytest.raises(Corrupt, match=r'\{"n": 1\}'):
        await world.collections.compact_quiet("c")


async def test_v3_a_row_that_no_answer_can_carry_is_refused_and_the_setting_named() -> None:
    world = await open_world(pa.schema([("t", pa.string())]), Limits(row_bytes_max=1_000))
    rows = pa.table({"t": [*["x" * 900] * 20, "y" * 2_000, "z"]})
    with pytest.raises(UsageError, match=r"row 20 takes .* 1000 at most \(limits.row_bytes_max\)"):
        await world.put(rows)
    await world.put(pa.table({"t": ["x" * 900] * 20}))
    reader, _ = await world.collections.acquire("c", owner="me")
    assert (await world.collections.snapshot(reader, 0))["_diff"].to_pylist() == [20]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), 2**31 - 1),
        (pa.timestamp("us", "UTC"), 2**62),
        (pa.timestamp("s"), -(2**62)),
        (pa.duration("s"), 2**62),
        (pa.list_(pa.date32()), 2**31 - 1),
    ],
    ids=str,
)
async def test_s4_a_day_that_no_calendar_has_is_refused_at_append(
    kind: pa.DataType, value: int
) -> None:
    leaf = kind.value_type if pa.types.is_list(kind) else kind
    numbers = pa.array([value], pa.int32() if leaf.bit_width == 32 else pa.int64())
    column = numbers.cast(leaf)
    if kind is not leaf and pa.types.is_list(kind):
        column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)
    world = await open_world(pa.schema([("v", kind)]))
    with pytest.raises(UsageError, match="outside the years 1 to 9999"):
        await world.put(pa.table({"v": column}))


def inline_part(table: pa.Table) -> tuple[Part, bytes]:
    ((part, data),) = encode_parts(table, ())
    assert part.inline is not None
    return part, data


def test_s4_an_inline_part_with_offsets_that_lie_is_corrupt() -> None:
    offsets = pa.array([0, 10, 5, 13], pa.int32()).buffers()[1]
    lying = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abcdefghijklmn")])
    table = stamp(pa.table({"t": lying}), 1)
    data = bytes(table.to_batches()[0].serialize().to_pybytes())
    part = Part(3, len(data), 1, 1, 1, inline=data)
    with pytest.raises(Corrupt, match="cannot be read"):
        decode_part(data, part, table.schema)


def test_s4_a_part_with_other_rows_than_it_says_is_corrupt() -> None:
    table = consolidate(stamp(pa.table({"t": ["a", "b"]}), 1))
    part, data = inline_part(table)
    with pytest.raises(Corrupt, match="2 rows of 3"):
        decode_part(data, Part(3, part.size, 1, 1, 1, inline=data), table.schema)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\xa3\xff\xfe\xfd"])
def test_s4_a_part_description_that_is_none_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        unpack_part(data)
