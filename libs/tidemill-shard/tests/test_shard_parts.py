"""Parts: split by key, skipped by statistics, searched by order, checked byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import reduce
from itertools import count, pairwise
from operator import and_, or_
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import consolidate
from tidemill.errors import Corrupt, UsageError
from tidemill.shard import Description, MemoryBlob
from tidemill.shard.conforming import conform
from tidemill.shard.hashing import key_hashes
from tidemill.shard.listed import PartList, list_of
from tidemill.shard.lookup import PartLookup
from tidemill.shard.part_store import Limits, PartGone, PartStore
from tidemill.shard.parts import (
    BLOCK_BYTES,
    NULLS_ALONE,
    ROWS_PER_GROUP,
    Part,
    decode_part,
    encode_parts,
    placed,
    sorted_updates,
)
from tidemill.shard.pruning import equal_scalars, parts_equal, parts_where

DATA = pa.schema(
    [("n", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("d", pa.date32()), ("b", pa.bool_())]
)  # fmt: skip

rows = st.fixed_dictionaries(
    {
        "n": st.one_of(st.none(), st.integers(-3, 3)),
        "s": st.one_of(st.none(), st.text(st.sampled_from("abé"), max_size=3), st.just("x" * 70)),
        "f": st.one_of(st.none(), st.sampled_from([-1.5, 0.0, 2.5, float("nan")])),
        "d": st.one_of(st.none(), st.dates(date(2020, 1, 1), date(2020, 1, 4))),
        "b": st.one_of(st.none(), st.booleans()),
        "_time": st.integers(0, 5),
        "_diff": st.just(1),
    }
)
tables = st.lists(rows, min_size=1, max_size=30)


def updates(found: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(found, Description(DATA).update_schema())


def encoded(table: pa.Table, key: tuple[str, ...], **limits: int) -> list[tuple[Part, bytes]]:
    pairs = encode_parts(sorted_updates(table, key), key, **limits)
    return [(part if part.inline else placed(part, f"p/{n}"), data) for n, (part, data) in enumerate(pairs)]  # fmt: skip


def same_rows(a: pa.Table, b: pa.Table) -> bool:
    """Whether two tables are equal, NaN like any other value."""
    return [*map(repr, a.to_pylist())] == [*map(repr, b.to_pylist())]


class Counting(MemoryBlob):
    """A blob that counts the bytes it hands out."""

    read = 0

    async def get(self, key: str) -> bytes | None:
        data = await super().get(key)
        self.read += len(data or b"")
        return data

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        data = await super().get_range(key, start, stop)
        self.read += len(data or b"")
        return data


@settings(max_examples=60, deadline=None)
@given(
    tables, st.sampled_from([(), ("n",), ("s", "n"), ("f",), ("d",)]), st.sampled_from([4096, 0])
)
def test_parts_hold_what_was_written_sorted_and_once(
    found: list[dict[str, Any]], key: tuple[str, ...], inline: int
) -> None:
    table = sorted_updates(updates(found), key)
    pairs = encoded(table, key, inline_bytes_max=inline, part_bytes_max=256)
    decoded = [decode_part(data, part, table.schema) for part, data in pairs]
    for part, piece in zip((part for part, _ in pairs), decoded, strict=True):
        assert same_rows(piece, sorted_updates(piece, key))
        assert part.rows == piece.num_rows
        assert (part.time_min, part.time_max) == (
            pc.min(piece["_time"]).as_py(),
            pc.max(piece["_time"]).as_py(),
        )
        hashes = key_hashes(piece, key)
        assert part.hash_min <= int(hashes.min()) <= int(hashes.max()) <= part.hash_max
    assert same_rows(sorted_updates(pa.concat_tables(decoded), key), table)


@settings(max_examples=60, deadline=None)
@given(tables, st.sampled_from([("n",), ("s",)]))
def test_each_key_is_in_one_hash_range_and_each_record_in_one_part(
    found: list[dict[str, Any]], key: tuple[str, ...]
) -> None:
    pairs = encoded(updates(found), key, inline_bytes_max=0, part_bytes_max=64)
    ranges = {(part.hash_min, part.hash_max) for part, _ in pairs}
    spans = sorted(ranges)
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    records = [
        set(map(repr, decode_part(data, part, Description(DATA).update_schema())
        .drop_columns(["_time", "_diff"]).to_pylist()))
        for part, data in pairs
    ]  # fmt: skip
    assert sum(map(len, records)) == len(set().union(*records))


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(0, 29))
def test_equal_rows_have_equal_hashes_wherever_they_stand(
    found: list[dict[str, Any]], cut: int
) -> None:
    table = updates(found)
    hashes = key_hashes(table, ())
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert (key_hashes(chunked, ()) == hashes).all()
    assert (key_hashes(table.slice(cut), ()) == hashes[cut:]).all()
    dictionary = table.set_column(1, "s", table["s"].combine_chunks().dictionary_encode())
    assert (key_hashes(dictionary, ()) == hashes).all()
    large = table.set_column(1, "s", table["s"].cast(pa.large_string()))
    assert (key_hashes(large, ()) == hashes).all()


def test_hashes_are_the_same_on_every_machine() -> None:
    table = pa.table({"n": [1, None], "s": ["é", "x" * 300]})
    assert [f"{each:016x}" for each in key_hashes(table, ())] == [
        "d77d52e8890283d5", "c5eb8c3aa4cb609a",
    ]  # fmt: skip


def test_hashes_tell_apart_what_differs_and_not_what_does_not() -> None:
    texts = pa.table({"s": ["", "a", "b", "a" * 129 + "x", "a" * 129 + "y", None]})
    assert len(set(key_hashes(texts, ()))) == 6
    floats = pa.table({"f": [0.0, -0.0, float("nan"), -float("nan")]})
    zero, minus_zero, nan, minus_nan = key_hashes(floats, ())
    assert (zero, nan) == (minus_zero, minus_nan)
    nested = pa.table({"l": [[1], [1], [2]]})
    one, same, other = key_hashes(nested, ())
    assert one == same != other


conditions = st.one_of(
    st.tuples(st.sampled_from(["==", "<", ">=", "!="]), st.just("n"), st.integers(-4, 4)),
    st.tuples(st.sampled_from(["==", "<", ">="]), st.just("s"), st.sampled_from(["", "a", "b", "x" * 70])),
    st.tuples(st.sampled_from(["==", "<", "!="]), st.just("f"), st.sampled_from([-1.5, 0.0, 9.0])),
    st.tuples(st.sampled_from(["==", ">="]), st.just("d"), st.dates(date(2020, 1, 1), date(2020, 1, 5))),
    st.tuples(st.sampled_from(["null", "valid"]), st.sampled_from(["n", "s", "f", "d"]), st.none()),
)  # fmt: skip


def expression(condition: tuple[str, str, Any]) -> pc.Expression:
    operator, name, value = condition
    column = pc.field(name)
    scalar = pa.scalar(value, DATA.field(name).type)
    return {
        "==": column == scalar, "<": column < scalar, ">=": column >= scalar,
        "!=": column != scalar, "null": column.is_null(), "valid": column.is_valid(),
    }[operator]  # fmt: skip


@pytest.mark.rule("SU6")
@settings(max_examples=80, deadline=None)
@given(
    st.lists(tables, min_size=1, max_size=4),
    st.lists(conditions, min_size=1, max_size=3),
    st.sampled_from([and_, or_]),
)
def test_no_part_that_holds_a_wanted_row_is_skipped(
    found: list[list[dict[str, Any]]], wanted: list[tuple[str, str, Any]], joined: Any
) -> None:
    where = reduce(joined, map(expression, wanted))
    batches = [encoded(updates(some), (), inline_bytes_max=0) for some in found]
    pairs = [pair for some in batches for pair in some]
    chosen = parts_where([part for part, _ in pairs], DATA, where)
    listed = parts_where([*map(listed_in, batches), listed_in(pairs)], DATA, where)
    for some in (*batches, pairs):
        for part, data in some:
            rows_wanted = decode_part(data, part, Description(DATA).update_schema()).filter(where)
            read = part in chosen and listed_in(some) in listed
            assert read or not rows_wanted.num_rows


def listed_in(pairs: Sequence[tuple[Part, bytes]]) -> PartList:
    """The list of some parts."""
    return list_of("list", [part for part, _ in pairs])


def test_statistics_do_skip_parts() -> None:
    pairs = [
        pair
        for start in range(0, 100, 10)
        for pair in encoded(
            updates([{"n": start + n, "s": None, "_time": 0, "_diff": 1} for n in range(10)]),
            (),
            inline_bytes_max=0,
        )
    ]
    parts = [part for part, _ in pairs]
    assert parts_where(parts, DATA, pc.field("n") == 42) == [parts[4]]
    assert parts_where(parts, DATA, (pc.field("n") < 5) | (pc.field("n") > 94)) == [
        parts[0],
        parts[9],
    ]
    assert parts_where(parts, DATA, pc.field("s") == "x") == []
    lists = [listed_in(pairs[:5]), listed_in(pairs[5:])]
    assert parts_where(lists, DATA, pc.field("n") == 42) == lists[:1]
    assert parts_where(lists, DATA, pc.field("s") == "x") == []
    old = [replace(each, bounds={}) for each in lists]
    assert parts_where(old, DATA, pc.field("n") == 42) == old


def test_bounds_of_a_list_hold_in_all_of_its_parts() -> None:
    rows = [
        {"n": 1, "s": "a", "f": 0.5, "d": date(2020, 1, 2)},
        {"n": None, "s": "b" * 900, "f": float("nan"), "d": None},
        {"n": 7, "s": "c", "f": 2.5, "d": None},
    ]
    pairs = [
        pair
        for row in rows
        for pair in encoded(updates([{**row, "_time": 0, "_diff": 1}]), (), inline_bytes_max=0)
    ]
    bounds = listed_in(pairs).bounds
    assert bounds["n"] == (1, 7, True)
    assert bounds["s"] == ("a", None, False)  # the end of a long text is not kept
    assert bounds["d"] == (18_263, 18_263, True)
    assert "f" not in bounds  # NaN is in no order
    assert listed_in(pairs[1:2]).bounds["n"] == NULLS_ALONE


@pytest.mark.rule("SU6")
@settings(max_examples=60, deadline=None)
@given(tables, rows, st.sets(st.sampled_from(["n", "s", "f", "d", "b"]), min_size=1))
async def test_a_lookup_finds_exactly_the_rows_that_a_filter_finds(
    found: list[dict[str, Any]], like: dict[str, Any], fixed: set[str]
) -> None:
    key = ("n", "s")
    description = Description(DATA, key=key)
    pairs = encoded(updates(found), key, inline_bytes_max=0, part_bytes_max=128)
    blob = MemoryBlob()
    for part, data in pairs:
        await blob.put(part.key or "", data)
    store = PartStore(blob, lambda: "")
    equal = {name: like[name] for name in fixed if like[name] == like[name]}
    if not equal:
        return
    scalars = equal_scalars(description, equal)
    chosen = parts_equal([part for part, _ in pairs], description, scalars)
    read = parts_equal([listed_in(pairs)], description, scalars) if pairs else []
    looked_up = [
        row
        for part in chosen
        for row in (await PartLookup(store).rows(part, description, scalars)).to_pylist()
    ]
    wanted = [
        row
        for row in sorted_updates(updates(found), key).to_pylist()
        if all(row[name] == value for name, value in equal.items())
    ]
    assert sorted(map(repr, looked_up)) == sorted(map(repr, wanted))
    assert read or not wanted


async def test_a_cold_lookup_in_a_large_part_reads_little_and_checks_what_it_reads() -> None:
    random = Random(5)
    size = 8 * ROWS_PER_GROUP
    table = pa.table(
        {
            "n": [random.randrange(10**12) for _ in range(size)],
            "s": [f"{random.random()}" for _ in range(size)],
            "_time": pa.array(np.zeros(size, np.uint64)),
            "_diff": pa.array(np.ones(size, np.int64)),
        }
    )
    key = ("n",)
    description = Description(pa.schema(list(table.schema)[:2]), key=key)
    ((part, data),) = encoded(table, key)
    blob = Counting()
    await blob.put(part.key or "", data)
    for row in (0, size // 2, size - 1):
        wanted = sorted_updates(table, key).slice(row, 1)
        scalars = equal_scalars(description, {"n": wanted["n"][0].as_py()})
        blob.read = 0
        store = PartStore(blob, lambda: "")
        rows_found = await PartLookup(store).rows(part, description, scalars)
        assert rows_found.equals(wanted)
        assert 0 < blob.read < len(data) // 2
    nothing = equal_scalars(description, {"n": -1})
    assert (await PartLookup(store).rows(part, description, nothing)).num_rows == 0
    for place in range(0, len(data), BLOCK_BYTES // 2):
        damaged = bytearray(data)
        damaged[place] ^= 4
        await blob.put(part.key or "", bytes(damaged))
        try:
            rows_found = await PartLookup(store).rows(part, description, scalars)
        except Corrupt:
            continue
        assert rows_found.equals(wanted)


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(0, 10**9), st.integers(1, 255))
def test_no_wrong_byte_of_an_object_is_believed(
    found: list[dict[str, Any]], place: int, flip: int
) -> None:
    ((part, data),) = encoded(updates(found), (), inline_bytes_max=0)
    damaged = bytearray(data)
    damaged[place % len(data)] ^= flip
    schema = Description(DATA).update_schema()
    for wrong in (bytes(damaged), data[: place % len(data)], data + b"x"):
        with pytest.raises(Corrupt, match="p/0"):
            decode_part(wrong, part, schema)


async def test_decoded_parts_are_kept_up_to_a_bound_and_read_once() -> None:
    blob = Counting()
    names = count()
    table = updates([{"n": n, "_time": 0, "_diff": 1} for n in range(1000)])
    store = PartStore(blob, lambda: str(next(names)), Limits(0, cache_bytes_max=3 * table.nbytes))
    description = Description(DATA)
    parts = [(await store.write("c", description, table))[0] for _ in range(4)]
    schema = description.update_schema()
    for part in (parts[0], parts[0], parts[1], parts[0]):
        assert (await store.table(part, description)).num_rows == 1000
    assert blob.read == parts[0].size + parts[1].size
    for part in parts:
        await store.table(part, description)
    assert store.cached(parts[0], schema) is None
    assert store.cached(parts[3], schema) is not None
    await blob.delete(parts[0].key or "")
    with pytest.raises(PartGone):
        await store.table(parts[0], description)


async def test_a_part_that_one_follower_has_passed_is_there_for_the_next() -> None:
    blob, names, description = Counting(), count(), Description(DATA)
    table = updates([{"n": n, "_time": 0, "_diff": 1} for n in range(1000)])
    store = PartStore(blob, lambda: str(next(names)), Limits(0, cache_bytes_max=3 * table.nbytes))
    parts = [(await store.write("c", description, table))[0] for _ in range(4)]
    for part in parts[:3]:
        await store.table(part, description)
    read = blob.read
    for _ in range(2):
        await store.table(parts[3], description, passed=True)
    assert blob.read == read + parts[3].size
    await store.table(parts[0], description)  # makes room by what two have passed
    assert store.cached(parts[3], description.update_schema()) is None
    assert store.cached(parts[2], description.update_schema()) is not None


async def test_a_part_that_is_kept_as_it_is_written_is_not_read() -> None:
    blob, names = Counting(), count()
    rows = [{"n": n, "s": str(n), "f": 0.5, "_time": 5, "_diff": 1} for n in range(999, -1, -1)]
    table = updates(rows)
    store = PartStore(blob, lambda: str(next(names)), Limits(0, cache_bytes_max=2 * table.nbytes))
    description = Description(DATA)
    (kept,) = await store.write("c", description, table, keep=True)
    (left,) = await store.write("c", description, table)
    found = await store.table(kept, description)
    assert blob.read == 0
    assert found.equals(await store.table(left, description))
    assert blob.read == left.size
    await store.discard([kept])
    assert store.cached(kept, description.update_schema()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": ["a"], "_time": [0]},
        {"row": ["a"], "_time": [0], "_diff": [1], "more": [1]},
        {"row": [b"\xff"], "_time": [0], "_diff": [1]},
        {"row": ["a"], "_time": [-1], "_diff": [1]},
        {"row": ["a"], "_time": [0], "_diff": ["x"]},
        {"row": [None], "_time": [0], "_diff": [1]},
        {"row": ["a"], "_time": [None], "_diff": [1]},
    ],
)
def test_updates_that_do_not_fit_the_schema_are_refused(wrong: dict[str, list[Any]]) -> None:
    schema = Description(pa.schema([pa.field("row", pa.string(), nullable=False)])).update_schema()
    with pytest.raises(UsageError) as refused:
        conform(pa.table(wrong), schema)
    assert refused.value.details["reason"] == "CodecMismatch"


def test_columns_may_come_in_any_order_and_in_types_that_fit() -> None:
    schema = Description(pa.schema([("n", pa.int64())])).update_schema()
    table = pa.table({"_diff": [1], "_time": [3], "n": pa.array([7], pa.int32())})
    assert conform(table, schema).to_pylist() == [{"n": 7, "_time": 3, "_diff": 1}]


EXTREMES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 127]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "u32": (pa.uint32(), [0, 2**32 - 1]),
    "u64": (pa.uint64(), [0, 2**64 - 1]),
    "f32": (pa.float32(), [-1.5, float("inf")]),
    "f64": (pa.float64(), [5e-324, 1.7e308]),
    "flag": (pa.bool_(), [False, True]),
    "text": (pa.string(), ["", "ÿ" * 300]),
    "long": (pa.large_string(), ["", "x" * 300]),
    "blob": (pa.binary(), [b"", b"\xff" * 300]),
    "day": (pa.date32(), [-(2**31), 2**31 - 1]),
    "clock": (pa.time64("us"), [0, 86_399_999_999]),
    "instant": (pa.timestamp("ns"), [-(2**63), 2**63 - 1]),
    "span": (pa.duration("ms"), [-(2**63), 2**63 - 1]),
    "money": (pa.decimal128(38, 2), [Decimal("-" + "9" * 36), Decimal("0.01")]),
    "list": (pa.list_(pa.int64()), [[], [2**63 - 1, None]]),
}
UNITS = {"day": pa.int32(), "clock": pa.int64(), "instant": pa.int64(), "span": pa.int64()}


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", EXTREMES)
def test_every_type_comes_back_from_its_encoding(name: str, repeated: bool) -> None:
    kind, ends = EXTREMES[name]
    values = [None, *ends] * (20 if repeated else 1)
    column = pa.array(values, UNITS[name]).cast(kind) if name in UNITS else pa.array(values, kind)
    times = pa.array(range(len(values)), pa.uint64())
    table = pa.table({name: column, "_time": times, "_diff": pa.array([1] * len(values))})
    sorted_table = sorted_updates(table, (name,))
    ((part, data),) = encode_parts(sorted_table, (name,), inline_bytes_max=0)
    back = decode_part(data, placed(part, "p/1"), sorted_table.schema)
    assert back.combine_chunks().equals(sorted_table.combine_chunks())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.integers(-1, 2)), max_size=8),
    st.sampled_from([pa.int64(), pa.int8(), pa.float64()]),
)
def test_sorting_by_a_number_alone_gives_what_sorting_by_everything_gives(
    rows: list[tuple[int, int, int]], kind: pa.DataType
) -> None:
    numbers, times, diffs = ([row[at] for row in rows] for at in range(3))
    table = pa.table(
        {
            "s": pa.array([f"s{n % 2}" for n in numbers], pa.string()),
            "n": pa.array(numbers, pa.int64()).cast(kind),
            "_time": pa.array(times, pa.uint64()),
            "_diff": pa.array(diffs, pa.int64()),
        }
    )
    expected = consolidate(table.select(["n", "s", "_time", "_diff"])).select(table.column_names)
    assert sorted_updates(table, ("n",)).to_pylist() == expected.to_pylist()
