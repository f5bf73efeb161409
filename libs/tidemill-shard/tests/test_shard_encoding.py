"""Versions and rollups as bytes: nothing is lost, and no wrong byte is believed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import Corrupt
from tidemill.shard import Description
from tidemill.shard.encoding import (
    Entry,
    decode_entry,
    decode_rollup,
    encode_entry,
    encode_rollup,
    first_entry,
    next_entry,
    pack_part,
    patch,
    rebuild,
    unpack_part,
)
from tidemill.shard.framing import ENTRY, FORMAT, framed, unframed
from tidemill.shard.listed import PartList
from tidemill.shard.parts import Part
from tidemill.shard.state import Batch, Hold, LastWrite, State
from tidemill.time import U64_MAX, frontier

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
BIG = 2**64 - 1

frontiers = st.one_of(st.integers(0, U64_MAX).map(lambda time: frontier(time)), st.just(frontier()))
names = st.text(st.sampled_from("ab/é"), min_size=1, max_size=4)
limits = st.one_of(st.none(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=3))
bounds = st.dictionaries(names, st.tuples(limits, limits, st.booleans()), max_size=2)
parts = st.builds(
    Part,
    rows=st.integers(1, 9),
    size=st.integers(0, BIG),
    time_min=st.integers(0, BIG),
    time_max=st.integers(0, BIG),
    columns=st.integers(0, 3),
    hash_min=st.integers(0, BIG),
    checksums=st.binary(max_size=8),
    key=st.one_of(st.none(), names),
    inline=st.one_of(st.none(), st.binary(max_size=8)),
    lower=st.integers(0, BIG),
    upper=st.one_of(st.none(), st.integers(0, BIG)),
    bounds=bounds,
    heavy=st.dictionaries(
        names,
        st.lists(st.tuples(limits | st.booleans(), st.integers(1, BIG))).map(tuple),
        max_size=2,
    ),
)
maybe = st.one_of(st.none(), st.integers(0, BIG))
lists = st.builds(PartList, names, *[st.integers(0, BIG)] * 7, maybe, maybe, bounds)
holds = st.builds(
    Hold,
    frontiers,
    names,
    st.one_of(st.none(), st.integers(0, 10**12)),
    st.integers(0, 10**13),
    st.integers(0, 10**13),
    st.booleans(),
    st.integers(0, 10**13),
    st.one_of(st.none(), st.integers(0, 10**13)),
)
batches = st.lists(
    st.tuples(
        st.integers(0, BIG),
        st.integers(0, BIG),
        st.lists(parts, max_size=2),
        st.lists(lists, max_size=1),
    ),
    max_size=4,
).map(
    lambda found: tuple(
        Batch(frontier(lower), compacted, tuple(some), len(some), tuple(more))
        for lower, compacted, some, more in sorted(found, key=lambda each: each[0])
        if [each[0] for each in found].count(lower) == 1
    )
)
states = st.builds(
    State,
    description=st.builds(
        Description,
        st.just(SCHEMA),
        kind=names,
        timeline=names,
        key=st.sampled_from([(), ("k",), ("v", "k")]),
        retain_ms=st.one_of(st.none(), st.integers(0, BIG)),
        allow_negative=st.booleans(),
        user_writable=st.booleans(),
    ),
    since=frontiers,
    upper=frontiers,
    policy=st.one_of(st.none(), frontiers),
    moved_by=names,
    reads=st.dictionaries(names, holds, max_size=3),
    writes=st.dictionaries(names, holds, max_size=2),
    expired=st.dictionaries(names, st.integers(0, BIG), max_size=3),
    last_writes=st.dictionaries(names, st.builds(LastWrite, names, frontiers), max_size=2),
    batches=batches,
    staged=st.dictionaries(names, st.lists(parts, min_size=1, max_size=2).map(tuple), max_size=2),
    garbage=st.dictionaries(names, st.integers(0, BIG), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(states, states)
def test_a_difference_leads_from_any_state_to_any_other(before: State, after: State) -> None:
    entry = next_entry("me", ("key", 7), before, after)
    read = decode_entry(encode_entry(entry), "here")
    assert (read.attempt, read.rollup) == ("me", ("key", 7))
    assert patch(before, [read], "here") == after


@settings(max_examples=60, deadline=None)
@given(states)
def test_a_whole_state_comes_back_as_it_was(state: State) -> None:
    assert decode_rollup(encode_rollup(state), "here") == state
    first = decode_entry(encode_entry(first_entry("me", state)), "here")
    assert rebuild(first.cells, "here") == state


@settings(max_examples=30, deadline=None)
@given(st.lists(states, min_size=2, max_size=4))
def test_several_differences_patched_at_once_are_the_same_as_one_by_one(found: list[State]) -> None:
    entries = [next_entry("me", None, before, after) for before, after in pairwise(found)]
    assert patch(found[0], entries, "here") == found[-1]


def test_a_difference_holds_only_what_changed() -> None:
    state = State(Description(SCHEMA), frontier(0), frontier(5), reads={"a": Hold(frontier(0), "", None, 0, 0)})  # fmt: skip
    entry = next_entry("me", None, state, replace(state, upper=frontier(6)))
    assert list(entry.cells) == ["upper"]
    grown = replace(state, reads={**state.reads, "b": Hold(frontier(0), "", None, 0, 0)})
    assert list(next_entry("me", None, state, grown).cells) == ["r/b"]
    assert next_entry("me", None, grown, state).gone == ["r/b"]


@settings(max_examples=60, deadline=None)
@given(parts)
def test_a_part_that_a_job_reports_comes_back_as_it_was(part: Part) -> None:
    assert unpack_part(pack_part(part)) == part


@settings(max_examples=100, deadline=None)
@given(states, st.integers(0, 10**9), st.integers(1, 255))
def test_no_wrong_byte_of_a_version_is_believed(state: State, place: int, flip: int) -> None:
    for data, decode in (
        (encode_entry(first_entry("me", state)), decode_entry),
        (encode_rollup(state), decode_rollup),
    ):
        for at in (place % len(data), place % 9):  # anywhere, and in the header
            damaged = bytearray(data)
            damaged[at] ^= flip
            with pytest.raises(Corrupt):
                decode(bytes(damaged), "here")
        with pytest.raises(Corrupt):
            decode(data[: place % len(data)], "here")


def test_a_newer_format_is_refused_and_both_are_named() -> None:
    data = framed(ENTRY, b"whatever", FORMAT + 1)
    with pytest.raises(Corrupt, match=f"format {FORMAT + 1}.* up to {FORMAT}") as refused:
        decode_entry(data, "version 3 of t")
    assert refused.value.details["found"] == FORMAT + 1
    assert refused.value.details["supported"] == FORMAT


def test_a_frame_of_another_kind_is_refused() -> None:
    with pytest.raises(Corrupt):
        unframed(ENTRY, encode_rollup(State(Description(SCHEMA), frontier(0), frontier(0))), "here")


def test_bytes_that_are_no_version_are_corrupt() -> None:
    for payload in (b"", b"\x93\x01", b"\xc1"):
        with pytest.raises(Corrupt):
            decode_entry(framed(ENTRY, payload), "here")
    nonsense = decode_entry(framed(ENTRY, b"\x94\xa1x\xc0\x81\xa5upper\x01\x90"), "here")
    with pytest.raises(Corrupt):
        patch(State(Description(SCHEMA), frontier(0), frontier(0)), [nonsense], "here")


def test_a_hold_written_before_it_knew_when_it_moved_is_read() -> None:
    state = State(Description(SCHEMA), frontier(0), frontier(9))
    cell = msgspec.Raw(msgspec.msgpack.encode([[5], "view:late", None, 7, 3, True]))
    entry = Entry("a", None, {"r/1": cell}, [])
    held = patch(state, [entry], "c").reads["1"]
    assert held == Hold(frontier(5), "view:late", None, 7, 3, named=True)
